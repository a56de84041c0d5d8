"""A dataset of your own: a folder of images and one CSV.

The CSV has one row an image. Which columns hold its id, path (below the root), label, group, view
and source is up to the definition (`crsbench.datasets.definitions.Columns`).
"""

from pathlib import Path, PurePosixPath, PureWindowsPath

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
from crsbench.errors import DataError

_CONTENT = ("sample", "path", "group", "labels", "view", "source", "label_source")
#: What to do where the column that a key of `Columns` names is missing, beside naming another.
_WITHOUT = {
    "group": ", or write `group: null` where each image is a group of its own",
    "view": ", or leave that key out",
    "source": ", or leave that key out",
    "label_source": ", or leave that key out",
}


def label_files(definition: DatasetDefinition) -> list[Path]:
    """Return the one label file."""
    return [definition.root / definition.csv]


def read_listing(definition: DatasetDefinition) -> Listing:
    """Read the CSV; a blank group makes the image its own group."""
    (path,) = label_files(definition)
    names = _column_names(definition)
    columns = _label_columns(definition)
    table = read_table(
        path,
        required=list(dict.fromkeys([*names.values(), *columns])),
        advice=_advice(definition),
    )
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
    _check_paths(rows, path, definition)
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


def _advice(definition: DatasetDefinition) -> dict[str, str]:
    """Return what to do where a column is missing, by the column's name."""
    keys = definition.columns.model_dump()
    where = f"in the definition of {definition.name}"
    advice: dict[str, str] = {}
    if definition.task == "multilabel":
        del keys["label"]
        about = f"each class has a column named like it; correct the file, or `classes` {where}"
        advice = dict.fromkeys(definition.classes, about)
    for key, column in keys.items():
        if column is None:
            continue
        way_out = f"name the column that holds it as `columns.{key}` {where}"
        advice.setdefault(column, f"{way_out}{_WITHOUT.get(key, '')}")
    return advice


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


def _check_paths(rows: pl.DataFrame, csv: Path, definition: DatasetDefinition) -> None:
    """Refuse blank paths, and those that do not start at the root and stay below it."""
    column, root = definition.columns.path, definition.root
    for row, path in rows.select(ROW, "path").sort(ROW).iter_rows():
        if path is None:
            raise DataError(f"{csv}: {column} is blank in row {row}; write it, or remove the row")
        is_absolute = bool(PureWindowsPath(path).root)
        if is_absolute or ".." in PurePosixPath(path).parts:
            kind = "an absolute path" if is_absolute else "a path with '..'"
            raise DataError(
                f"{csv}: {column} in row {row} is {kind}, {path!r}; expected paths relative to the "
                f"root {root}: {_relative_instead(PurePosixPath(path), root)}"
            )


def _relative_instead(path: PurePosixPath, root: Path) -> str:
    """Return what to write instead of a path that is not relative to the root."""
    for folder in (root.absolute(), root.resolve()):
        if path.is_relative_to(folder) and ".." not in path.parts:
            return f"write {path.relative_to(folder).as_posix()!r} there, and so on"
    return "write the part below the root, or choose a `root` that all images are below"


def _normal(path: str) -> str:
    return PurePosixPath(path).as_posix()
