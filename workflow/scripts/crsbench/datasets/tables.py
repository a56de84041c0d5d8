"""Label tables: read by the names of their columns, and turned into what an adapter returns.

Columns are found by name, in any order; a value that is not allowed is an error with file and row,
never a guess. What a table says of each image is a `Listing`.
"""

import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from crsbench.errors import DataError, listed

#: What an adapter says about each labelled image.
LISTING_SCHEMA = pl.Schema(
    {
        "sample": pl.String(),
        "path": pl.String(),
        "group": pl.String(),
        "labels": pl.List(pl.Int8()),
        "view": pl.String(),
        "source": pl.String(),
        "label_source": pl.String(),
    }
)
#: What verification saw of each image. ``decoded`` is ``yes``, or says why it was not; ``sha256``
#: is that of the file, null where it was not read; ``note`` names conversions.
IMAGES_SCHEMA = pl.Schema(
    {
        "sample": pl.String(),
        "path": pl.String(),
        "bytes": pl.Int64(),
        "sha256": pl.String(),
        "mode": pl.String(),
        "width_px": pl.Int64(),
        "height_px": pl.Int64(),
        "perceptual_hash": pl.String(),
        "decoded": pl.String(),
        "note": pl.String(),
    }
)
EXCLUSIONS_SCHEMA = pl.Schema({"sample": pl.String(), "path": pl.String(), "reason": pl.String()})

#: What the column ``decoded`` says of an image that has no label.
NO_LABEL = "no label"

#: Column of a label table with the row's number in its file; the header is row 1.
ROW = "row of the file"


@dataclass(frozen=True)
class Listing:
    """What the label files of a dataset say, before any image is looked at.

    Parameters
    ----------
    samples
        Labelled images, `LISTING_SCHEMA`; one row a sample, in any order.
    exclusions
        Rows that were left out, `EXCLUSIONS_SCHEMA`.
    folders
        Folders below the root that hold the images; whatever image lies in them without a label is
        listed as an exclusion.
    filtered
        Paths of images that have a row, but that a rule of the protocol leaves out.
    """

    samples: pl.DataFrame
    exclusions: pl.DataFrame
    folders: tuple[Path, ...]
    filtered: frozenset[str] = frozenset()


def read_table(
    path: Path,
    *,
    required: Sequence[str],
    optional: Sequence[str] = (),
    others_allowed: bool = True,
    advice: Mapping[str, str] | None = None,
) -> pl.DataFrame:
    """Read columns of a CSV by name, as text; blank cells are null.

    UTF-8 with or without a byte-order mark; any line ends; ``.gz`` is unpacked.

    Parameters
    ----------
    path
        The file.
    required, optional
        Columns that must be there, and columns that are read where they are.
    others_allowed
        Whether the file may have further columns.
    advice
        What to do where a required column is missing, by its name.

    Returns
    -------
    DataFrame
        `ROW`, the required columns, and
        those of the optional ones that are there.

    Raises
    ------
    DataError
        The file cannot be read, is empty, lacks a column, or has others that are not allowed.
    """
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if path.suffix == ".gz" else raw
        content = text.decode("utf-8-sig")
        _check_separator(content, path)
        table = pl.read_csv(
            io.BytesIO(content.encode()),
            infer_schema=False,
        ).with_row_index(ROW, offset=2)
    except pl.exceptions.NoDataError:
        raise DataError(f"{path}: the file is empty; get it again") from None
    except (OSError, EOFError, UnicodeDecodeError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: not a readable UTF-8 CSV: {reason}; get it again") from error
    _check_columns(table, required, path, advice or {})
    if table.is_empty():
        raise DataError(f"{path}: a header and no rows; get it again")
    found = [name for name in optional if name in table.columns]
    surplus = sorted(set(table.columns) - {ROW, *required, *found})
    if surplus and not others_allowed:
        raise DataError(f"{path}: unknown columns {', '.join(surplus)}; expected {required} only")
    return table.select(ROW, *required, *found).with_columns(pl.col(pl.String()).replace("", None))


def _check_separator(content: str, path: Path) -> None:
    """Refuse a header of one column that holds semicolons or tabs."""
    header = content.partition("\n")[0].rstrip("\r")
    for separator, called in ((";", "semicolons"), ("\t", "tabs")):
        if separator in header and "," not in header:
            raise DataError(
                f"{path}: {called} separate the columns ({header!r}), expected commas; save the "
                "file again with commas"
            )


def _check_columns(
    table: pl.DataFrame, required: Sequence[str], path: Path, advice: Mapping[str, str]
) -> None:
    found = table.columns[1:]
    for name in required:
        if name not in found:
            raise DataError(
                f"{path}: no column {name!r}; found {', '.join(map(repr, found))}; "
                f"{advice.get(name, 'columns are read by name, in any order')}"
            )
        if f"{name}_duplicated_0" in found:
            raise DataError(f"{path}: column {name!r} stands there twice; remove one")


def without_repeats(
    table: pl.DataFrame, path: Path, *, key: str
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Keep one of the rows that repeat each other, and list the rest.

    Parameters
    ----------
    table
        Has `ROW`, the key, and what must agree.
    path
        Where the table was read, for errors.
    key
        Column that names the row; it may not be blank.

    Returns
    -------
    rows, repeated
        The table with one row a key; the surplus rows.

    Raises
    ------
    DataError
        A key is blank, or rows with the same key say different things.
    """
    blank = table.filter(pl.col(key).is_null())[ROW].to_list()
    if blank:
        raise DataError(f"{path}: {key} is blank in {_rows(blank)}; every row needs one")
    content = [name for name in table.columns if name != ROW]
    distinct = table.sort(ROW).unique(content, keep="first", maintain_order=True)
    contrary = distinct.filter(pl.col(key).is_duplicated()).sort(key, ROW)
    if not contrary.is_empty():
        first = contrary.filter(pl.col(key) == contrary[key][0])
        raise DataError(
            f"{path}: {contrary[key].n_unique()} {key} with contradictory rows, such as "
            f"{first[key][0]!r} in {_rows(first[ROW].to_list())}; correct the file"
        )
    return distinct, table.join(distinct, on=ROW, how="anti").sort(ROW)


def class_labels(column: str, classes: Sequence[str]) -> pl.Expr:
    """Return the label of each row from a column of class names; null for any other value."""
    position = pl.col(column).replace_strict(
        list(classes), list(range(len(classes))), default=None, return_dtype=pl.Int8
    )
    return pl.when(position.is_not_null()).then(pl.concat_list(position))


def finding_labels(classes: Sequence[str]) -> pl.Expr:
    """Return the labels of each row from one column a finding; null for a value not allowed.

    1 is positive, 0 and blank are negative, -1 is uncertain (protocol, section 2).
    """
    return pl.concat_list(_number(name, allowed=(-1, 0, 1), blank=0) for name in classes)


def one_hot_labels(classes: Sequence[str]) -> pl.Expr:
    """Return the label of each row from one-hot columns; null where they are not one-hot."""
    hot = pl.concat_list(_number(name, allowed=(0, 1), blank=None) for name in classes)
    is_one_hot = (hot.list.sum() == 1) & ~hot.list.eval(pl.element().is_null()).list.any()
    return pl.when(is_one_hot).then(pl.concat_list(hot.list.arg_max().cast(pl.Int8)))


def _number(column: str, *, allowed: Sequence[int], blank: int | None) -> pl.Expr:
    value = pl.col(column).cast(pl.Float64, strict=False)
    known = pl.when(value.is_in([float(number) for number in allowed])).then(value).cast(pl.Int8)
    return pl.when(pl.col(column).is_null()).then(pl.lit(blank, pl.Int8)).otherwise(known)


def labelled(table: pl.DataFrame, path: Path, *, labels: pl.Expr, allowed: str) -> pl.DataFrame:
    """Add the column ``labels``.

    Parameters
    ----------
    table, path
        A label table and the file it was read from.
    labels
        Expression that yields a list of integers, null or with nulls where a value is not known.
    allowed
        What the error says is expected.

    Raises
    ------
    DataError
        A row's values are not known labels.
    """
    table = table.with_columns(labels.alias("labels"))
    is_known = pl.col("labels").list.eval(pl.element().is_not_null()).list.all()
    unknown = table.filter(~is_known.fill_null(value=False)).sort(ROW)
    if unknown.is_empty():
        return table
    row = unknown.row(0, named=True)
    values = ", ".join(f"{k}={v!r}" for k, v in row.items() if k not in (ROW, "labels"))
    raise DataError(
        f"{path}: unknown labels in {unknown.height} rows, first in row {row[ROW]} ({values}); "
        f"expected {allowed}; correct the file or the classes of the definition"
    )


def read_images(path: str | Path) -> pl.DataFrame:
    """Read a table of verified images."""
    return pl.read_csv(path, schema=IMAGES_SCHEMA)


def excluded(frame: pl.DataFrame, *, reason: pl.Expr | str) -> pl.DataFrame:
    """Return exclusions for the rows of a frame that has ``sample`` and ``path``."""
    text = pl.lit(reason) if isinstance(reason, str) else reason
    return frame.select("sample", "path", reason=text).cast(EXCLUSIONS_SCHEMA)


def counted(n_images: int, *, path: Path, reason: str) -> pl.DataFrame:
    """Return one exclusion that counts the images a rule leaves out; none for a count of 0."""
    row = {"sample": None, "path": path.name, "reason": f"{reason}: {n_images} images"}
    return pl.DataFrame([row] if n_images else [], schema=EXCLUSIONS_SCHEMA)


def _rows(numbers: Sequence[int]) -> str:
    return f"row{'s' if len(numbers) > 1 else ''} {listed(numbers, 3)}"
