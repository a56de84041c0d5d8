"""MIMIC-CXR-JPG: frontal radiographs of the official test split; a shift target.

Labels belong to studies and stand in alphabetical order, unlike CheXpert's; they are joined by
study and put into the definition's order by name. Each file may be packed (``.csv.gz``, as
released) or not. What the split and the view leave out is counted, not listed.
"""

from pathlib import Path

import polars as pl

from crsbench.datasets.definitions import DatasetDefinition
from crsbench.datasets.tables import (
    LISTING_SCHEMA,
    ROW,
    Listing,
    counted,
    excluded,
    finding_labels,
    labelled,
    read_table,
    without_repeats,
)
from crsbench.errors import DataError

_SPLITS = ("train", "validate", "test")


def label_files(definition: DatasetDefinition) -> list[Path]:
    """Return the files with views, splits and labels."""
    return [_found(definition.root, kind) for kind in ("metadata", "split", "chexpert")]


def _found(root: Path, kind: str) -> Path:
    plain = root / f"mimic-cxr-2.0.0-{kind}.csv"
    return plain if plain.is_file() else plain.with_suffix(".csv.gz")


def read_listing(definition: DatasetDefinition) -> Listing:
    """Read the images of one part of the official split, of the views that are taken."""
    views_path, splits_path, labels_path = label_files(definition)
    images, repeated = _read_views(views_path)
    images = images.join(_read_splits(splits_path), on="dicom_id", how="left")
    part = images.filter(split=definition.official_split)
    frontal = part.filter(pl.col("ViewPosition").is_in(definition.views))
    labelled_ = frontal.join(_read_labels(labels_path, definition), on="study_id", how="left")
    unlabelled = labelled_.filter(pl.col("labels").is_null())
    samples = labelled_.filter(pl.col("labels").is_not_null()).select(
        sample="dicom_id",
        path="path",
        group="subject_id",
        labels="labels",
        view="ViewPosition",
        source=pl.lit(None, pl.String),
        label_source=pl.lit("nlp"),
    )
    subjects = images.join(samples, left_on="subject_id", right_on="group", how="semi")
    return Listing(
        samples=samples.cast(LISTING_SCHEMA),
        exclusions=pl.concat(
            [
                excluded(repeated, reason="repeated row"),
                excluded(_named(unlabelled), reason="no label for its study"),
                *_counts(images, "split", splits_path, kept=[definition.official_split]),
                *_counts(part, "ViewPosition", views_path, kept=definition.views),
            ]
        ),
        folders=tuple(definition.root / folder for folder in sorted(set(subjects["folder"]))),
        filtered=frozenset(subjects["path"]),
    )


def _named(images: pl.DataFrame) -> pl.DataFrame:
    return images.select("path", sample="dicom_id")


def _read_views(path: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    table = read_table(path, required=["dicom_id", "subject_id", "study_id", "ViewPosition"])
    rows, repeated = without_repeats(table, path, key="dicom_id")
    folder = pl.format("files/p{}/p{}", pl.col("subject_id").str.slice(0, 2), "subject_id")
    file = pl.format("{}/s{}/{}.jpg", folder, "study_id", "dicom_id")
    rows = rows.with_columns(folder=folder, path=file)
    return rows, repeated.select(sample="dicom_id", path=file)


def _read_splits(path: Path) -> pl.DataFrame:
    table = read_table(path, required=["dicom_id", "split"])
    unknown = table.filter(~pl.col("split").is_in(_SPLITS).fill_null(value=False))
    if not unknown.is_empty():
        raise DataError(
            f"{path}: split is {unknown['split'][0]!r} in row {unknown[ROW][0]}; expected one "
            f"of {', '.join(_SPLITS)}"
        )
    return without_repeats(table, path, key="dicom_id")[0].drop(ROW)


def _read_labels(path: Path, definition: DatasetDefinition) -> pl.DataFrame:
    table = read_table(
        path,
        required=["study_id", *definition.classes],
        optional=["subject_id"],
        others_allowed=False,
    )
    table = labelled(
        table, path, labels=finding_labels(definition.classes), allowed="1, 0, -1 or blank"
    )
    rows, _ = without_repeats(table.select(ROW, "study_id", "labels"), path, key="study_id")
    return rows.drop(ROW)


def _counts(
    images: pl.DataFrame, column: str, path: Path, *, kept: list[str] | tuple[str, ...]
) -> list[pl.DataFrame]:
    """Return one exclusion for each value of a column that is not kept."""
    counts = images[column].value_counts().sort(column, nulls_last=True).iter_rows()
    return [
        counted(n_images, path=path, reason=f"{column} is {value or 'blank'}")
        for value, n_images in counts
        if value not in kept
    ]
