"""APTOS 2019: fundus photographs, five grades of diabetic retinopathy.

Files as Kaggle ships them: ``train.csv`` and ``train_images``; the test images have no labels. The
data name no patients, so that an image is its own group until a duplicate of it is found.
"""

from pathlib import Path

import polars as pl

from crsbench.datasets.definitions import DatasetDefinition
from crsbench.datasets.tables import (
    LISTING_SCHEMA,
    ROW,
    Listing,
    class_labels,
    excluded,
    labelled,
    read_table,
    without_repeats,
)

_IMAGES = "train_images"


def label_files(definition: DatasetDefinition) -> list[Path]:
    """Return the one label file."""
    return [definition.root / "train.csv"]


def read_listing(definition: DatasetDefinition) -> Listing:
    """Read the grades: 0 is the first class."""
    (path,) = label_files(definition)
    grades = [str(grade) for grade in range(len(definition.classes))]
    table = labelled(
        read_table(path, required=["id_code", "diagnosis"]),
        path,
        labels=class_labels("diagnosis", grades),
        allowed=f"a diagnosis of {', '.join(grades)}",
    ).select(ROW, "id_code", "labels")
    rows, repeated = without_repeats(table, path, key="id_code")
    samples = rows.select(
        sample="id_code",
        path=_image_path(),
        group="id_code",
        labels="labels",
        view=pl.lit(None, pl.String),
        source=pl.lit(None, pl.String),
        label_source=pl.lit(None, pl.String),
    )
    surplus = repeated.select(sample="id_code", path=_image_path())
    return Listing(
        samples=samples.cast(LISTING_SCHEMA),
        exclusions=excluded(surplus, reason="repeated row"),
        folders=(definition.root / _IMAGES,),
    )


def _image_path() -> pl.Expr:
    return pl.format(f"{_IMAGES}/{{}}.png", "id_code")
