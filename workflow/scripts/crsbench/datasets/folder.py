"""A dataset of your own: a folder of images and one CSV.

The CSV has one row an image. Which columns hold its id, path (below the root), label, group, view
and source is up to the definition (`crsbench.datasets.definitions.Columns`).
"""

from pathlib import Path, PurePosixPath

import polars as pl

from crsbench.datasets.definitions import DatasetDefinition
from crsbench.datasets.tables import (
    LISTING_SCHEMA,
    ROW,
    Listing,
    class_labels,
    excluded,
    finding_labels,
    labelled,
    read_table,
    without_repeats,
)

_CONTENT = ("sample", "path", "group", "labels", "view", "source", "label_source")


def label_files(definition: DatasetDefinition) -> list[Path]:
    """Return the one label file."""
    return [definition.root / definition.csv]


def read_listing(definition: DatasetDefinition) -> Listing:
    """Read the CSV; a blank group makes the image its own group."""
    (path,) = label_files(definition)
    names = _column_names(definition)
    columns = _label_columns(definition)
    table = read_table(path, required=list(dict.fromkeys([*names.values(), *columns])))
    table = _with_labels(table, path, definition).select(
        ROW,
        "labels",
        *(pl.col(column).alias(name) for name, column in names.items()),
        *(
            pl.lit(None, pl.String).alias(name)
            for name in _CONTENT
            if name not in (*names, "labels")
        ),
    )
    rows, repeated = without_repeats(table.select(ROW, *_CONTENT), path, key="sample")
    rows = rows.with_columns(
        pl.col("path").map_elements(_normal, return_dtype=pl.String),
        group=pl.coalesce("group", "sample"),
    )
    return Listing(
        samples=rows.select(LISTING_SCHEMA.names()).cast(LISTING_SCHEMA),
        exclusions=excluded(repeated, reason="repeated row"),
        folders=(definition.root,),
    )


def _column_names(definition: DatasetDefinition) -> dict[str, str]:
    """Return which column of the CSV each column of the listing comes from."""
    columns = definition.columns
    names = {
        "sample": columns.id,
        "path": columns.path,
        "group": columns.group,
        "view": columns.view,
        "source": columns.source,
        "label_source": columns.label_source,
    }
    return {name: column for name, column in names.items() if column is not None}


def _label_columns(definition: DatasetDefinition) -> list[str]:
    return (
        list(definition.classes) if definition.task == "multilabel" else [definition.columns.label]
    )


def _with_labels(table: pl.DataFrame, path: Path, definition: DatasetDefinition) -> pl.DataFrame:
    if definition.task == "multilabel":
        labels = finding_labels(definition.classes)
        return labelled(table, path, labels=labels, allowed="1, 0, -1 (uncertain) or blank")
    labels = class_labels(definition.columns.label, definition.classes)
    allowed = f"one of {', '.join(definition.classes)} in {definition.columns.label}"
    return labelled(table, path, labels=labels, allowed=allowed)


def _normal(path: str) -> str:
    return PurePosixPath(path).as_posix()
