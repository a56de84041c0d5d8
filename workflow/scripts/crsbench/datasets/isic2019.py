"""ISIC 2019: dermoscopy, eight classes, one-hot labels; images of a lesion stay together.

Files as the challenge ships them: two CSVs and the folder ``ISIC_2019_Training_Input``. The suffix
``_downsampled`` of some images is part of their id.
"""

from pathlib import Path

import polars as pl

from crsbench.datasets.definitions import DatasetDefinition
from crsbench.datasets.tables import (
    LISTING_SCHEMA,
    ROW,
    Listing,
    excluded,
    labelled,
    one_hot_labels,
    read_table,
    without_repeats,
)
from crsbench.errors import DataError

_IMAGES = "ISIC_2019_Training_Input"
_UNKNOWN = "UNK"


def label_files(definition: DatasetDefinition) -> list[Path]:
    """Return the ground truth and the metadata."""
    names = ("ISIC_2019_Training_GroundTruth.csv", "ISIC_2019_Training_Metadata.csv")
    return [definition.root / name for name in names]


def read_listing(definition: DatasetDefinition) -> Listing:
    """Read labels and lesions; an image without a lesion is its own group."""
    truth_path, lesions_path = label_files(definition)
    truth, repeated = _read_truth(truth_path, definition)
    lesions = read_table(lesions_path, required=["image", "lesion_id"])
    lesions, _ = without_repeats(lesions, lesions_path, key="image")
    _check_same_images(truth, lesions, truth_path, lesions_path)
    samples = truth.join(lesions.select("image", "lesion_id"), on="image").select(
        sample="image",
        path=_image_path(),
        group=pl.coalesce("lesion_id", "image"),
        labels="labels",
        view=pl.lit(None, pl.String),
        source=pl.col("lesion_id").str.extract(r"^([^_]+)_"),
        label_source=pl.lit(None, pl.String),
    )
    surplus = repeated.select(sample="image", path=_image_path())
    return Listing(
        samples=samples.cast(LISTING_SCHEMA),
        exclusions=excluded(surplus, reason="repeated row"),
        folders=(definition.root / _IMAGES,),
    )


def _image_path() -> pl.Expr:
    return pl.format(f"{_IMAGES}/{{}}.jpg", "image")


def _read_truth(path: Path, definition: DatasetDefinition) -> tuple[pl.DataFrame, pl.DataFrame]:
    table = read_table(path, required=["image", *definition.classes], optional=[_UNKNOWN])
    if _UNKNOWN in table.columns:
        _check_unknown_is_empty(table, path)
    table = labelled(
        table,
        path,
        labels=one_hot_labels(definition.classes),
        allowed=f"a single 1 among {', '.join(definition.classes)}, 0 elsewhere",
    )
    return without_repeats(table.select(ROW, "image", "labels"), path, key="image")


def _check_unknown_is_empty(table: pl.DataFrame, path: Path) -> None:
    value = pl.col(_UNKNOWN).cast(pl.Float64, strict=False)
    used = table.filter((value != 0).fill_null(value=True))
    if not used.is_empty():
        raise DataError(
            f"{path}: {_UNKNOWN} is {used[_UNKNOWN][0]!r} in row {used[ROW][0]} "
            f"({used.height} rows in all); the training set has only 0 there; get the file again"
        )


def _check_same_images(
    truth: pl.DataFrame, lesions: pl.DataFrame, truth_path: Path, lesions_path: Path
) -> None:
    alone = truth.join(lesions, on="image", how="anti").sort(ROW)
    if not alone.is_empty():
        raise DataError(
            f"{lesions_path}: no row for {alone.height} images of {truth_path.name}, such as "
            f"{alone['image'][0]!r}; without a lesion they cannot be grouped; get the file again"
        )
