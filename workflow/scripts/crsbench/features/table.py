"""Feature tables: what extraction writes and probes read. Nothing here imports torch.

A row is one image (in the perturbed table: one image under one condition), its features a list of
fixed size, so that no offset can overflow; row groups are bounded. Tables are written block by
block, so that a matrix need not fit into memory. A table is never read with a hole: every sample
that is asked for is there once, and every number is finite.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from crsbench.errors import DataError, listed
from crsbench.files import written_atomically

#: Rows are grouped so that a group holds about this many numbers.
VALUES_PER_ROW_GROUP = 2**22
#: How the flag of a matrix begins whose rows are all equal.
COLLAPSED = "collapsed"

_LOG = logging.getLogger(__name__)


#: Columns of the features after 25, 50 and 75 % of an encoder's blocks.
DEPTHS = ("depth_25", "depth_50", "depth_75")


class Rows(Protocol):
    """Rows of features (N, D), float32, which are read in slices: an array, or files."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def dtype(self) -> np.dtype: ...  # noqa: D102

    def __getitem__(self, rows: slice, /) -> np.ndarray: ...


def write_features(
    keys: pl.DataFrame, features: Rows, *, path: str | Path, metadata: Mapping[str, str]
) -> None:
    """Write a feature table atomically.

    Parameters
    ----------
    keys
        Table of N rows: ``sample``, and in a perturbed table ``perturbation`` and ``severity``.
        Rows of one condition should stand together: a reader of that condition skips the rest.
    features
        Features (N, D), float32, finite.
    path
        File to write.
    metadata
        Text to store in the footer, beside ``dim``, ``content_digest`` and ``flags``.

    Raises
    ------
    DataError
        A key is repeated or a feature is not finite.
    """
    _check_shape(features, keys.height)
    suspect = "; ".join(flags(features))
    if suspect.startswith(COLLAPSED):  # constant columns alone are common
        _LOG.warning("%s: %s", path, suspect)
    described = {
        **metadata,
        "dim": str(features.shape[1]),
        "content_digest": content_digest(features),
        "flags": suspect,
    }
    _write(keys, {"features": features}, path=path, metadata=described)


def write_depth_features(
    keys: pl.DataFrame, depths: Mapping[str, Rows], *, path: str | Path, metadata: Mapping[str, str]
) -> None:
    """Write the features at `DEPTHS` as columns of one table, atomically.

    Parameters
    ----------
    keys
        Table of N rows: ``sample``.
    depths
        Features (N, D) by column; none where the encoder has no depth features, and then the
        table has its keys alone.
    path, metadata
        As for `write_features`; ``depths`` names the columns, ``flags`` what is suspect in them.
    """
    suspect = [f"{name}: {flag}" for name, rows in depths.items() for flag in flags(rows)]
    described = {**metadata, "depths": " ".join(depths), "flags": "; ".join(suspect)}
    _write(keys, depths, path=path, metadata=described)


def _write(
    keys: pl.DataFrame, columns: Mapping[str, Rows], *, path: str | Path, metadata: dict[str, str]
) -> None:
    for rows in columns.values():
        _check_shape(rows, keys.height)
    _check_unique(keys, path)
    dim = sum(rows.shape[1] for rows in columns.values())
    n_per_group = max(1, VALUES_PER_ROW_GROUP // max(1, dim))
    empty = _arrow_table(keys[:0], {name: rows[0:0] for name, rows in columns.items()})
    with (
        written_atomically(path) as temporary,
        pq.ParquetWriter(
            temporary,
            empty.schema.with_metadata(metadata),
            compression="zstd",
            use_dictionary=keys.columns,
            use_byte_stream_split=[f"{name}.list.element" for name in columns],
        ) as writer,
    ):
        for start in range(0, keys.height, n_per_group):
            part = slice(start, start + n_per_group)
            blocks = {name: rows[part] for name, rows in columns.items()}
            for block in blocks.values():
                check_finite(block, keys["sample"][part].to_list(), where=str(path))
            writer.write_table(_arrow_table(keys[part], blocks), row_group_size=n_per_group)


def _check_shape(rows: Rows, n_rows: int) -> None:
    if rows.dtype != np.float32 or len(rows.shape) != 2 or rows.shape[0] != n_rows:
        shape = f"{rows.shape} {rows.dtype}"
        raise ValueError(f"expected ({n_rows}, D) float32 features, got {shape}")


def _arrow_table(keys: pl.DataFrame, blocks: Mapping[str, np.ndarray]) -> pa.Table:
    columns = {name: _arrow_keys(keys[name]) for name in keys.columns}
    for name, block in blocks.items():
        flat = pa.array(np.ascontiguousarray(block).reshape(-1))
        columns[name] = pa.FixedSizeListArray.from_arrays(flat, block.shape[1])
    return pa.table(columns)


def _arrow_keys(column: pl.Series) -> pa.Array:
    kind = pa.string() if column.dtype == pl.String else pa.int64()
    return pa.array(column.to_list(), kind)


def _blocks(features: Rows) -> Iterator[np.ndarray]:
    """Yield consecutive rows (views, of an array), few enough for some copies in float64."""
    n_rows = max(1, VALUES_PER_ROW_GROUP // max(1, features.shape[1]))
    for start in range(0, features.shape[0], n_rows):
        yield features[start : start + n_rows]


def _check_unique(keys: pl.DataFrame, path: str | Path) -> None:
    repeated = keys.filter(keys.is_duplicated())
    if not repeated.is_empty():
        raise DataError(f"{path}: {listed(repeated['sample'].unique().to_list())} repeated")


def read_features(
    path: str | Path,
    *,
    samples: Sequence[str] | None = None,
    condition: tuple[str, int] | None = None,
) -> tuple[list[str], np.ndarray]:
    """Read features in a given order of samples.

    Parameters
    ----------
    path
        A feature table.
    samples
        The samples to return, in this order; all of the table, in its order, if None.
    condition
        Perturbation and severity, for a perturbed table.

    Returns
    -------
    samples : list of str
        The samples of the rows.
    features : ndarray of float32, (N, D)
        Row i belongs to sample i.

    Raises
    ------
    DataError
        The file is missing; a sample is missing from it, repeated in it or asked for twice; a
        feature is not finite.
    """
    where = str(path) if condition is None else f"{path}, {condition[0]} severity {condition[1]}"
    if not Path(path).is_file():
        raise DataError(f"{path}: no such feature table; the extraction stage makes it")
    with pq.ParquetFile(path) as table:
        groups = _groups_of(table, condition)
        stored = [name for group, rows in groups for name in _names(table, group, rows)]
        _refuse_repeated(stored, where)
        names = stored if samples is None else list(samples)
        _refuse_repeated(names, f"{where}, samples asked for")
        absent = sorted(set(names) - set(stored), key=names.index)
        if absent:
            raise DataError(f"{where}: no features of {listed(absent)}; extract them again")
        features = _fill(table, groups, names)
    check_finite(features, names, where=where)
    return names, features


def _groups_of(
    table: pq.ParquetFile, condition: tuple[str, int] | None
) -> list[tuple[int, np.ndarray]]:
    """Return the row groups that hold rows of a condition, and which of their rows those are."""
    groups = []
    for group in range(table.num_row_groups):
        rows = np.ones(table.metadata.row_group(group).num_rows, bool)
        if condition is not None:
            keys = table.read_row_group(
                group, columns=["perturbation", "severity"], use_threads=False
            )
            found = zip(*keys.to_pydict().values(), strict=True)
            rows = np.array([key == condition for key in found], bool)
        if rows.any():
            groups.append((group, np.flatnonzero(rows)))
    return groups


def _names(table: pq.ParquetFile, group: int, rows: np.ndarray) -> list[str]:
    names = table.read_row_group(group, columns=["sample"], use_threads=False)["sample"]
    return names.take(rows).to_pylist()


def _fill(
    table: pq.ParquetFile, groups: Sequence[tuple[int, np.ndarray]], samples: Sequence[str]
) -> np.ndarray:
    """Read one row group after the other into the rows of one matrix, in the order of `samples`.

    There is never a second copy: the largest matrix takes a third of what a job may have.
    """
    places = {name: place for place, name in enumerate(samples)}
    dim = table.schema_arrow.field("features").type.list_size
    features = np.empty((len(samples), dim), np.float32)
    for group, rows in groups:
        read = table.read_row_group(group, columns=["features"], use_threads=False)
        column = read["features"].combine_chunks()
        values = np.asarray(column.flatten()).reshape(-1, dim)[rows]
        wanted = np.array([places.get(name, -1) for name in _names(table, group, rows)])
        features[wanted[wanted >= 0]] = values[wanted >= 0]
    return features


def _refuse_repeated(samples: Sequence[str], where: str) -> None:
    if len(set(samples)) < len(samples):
        seen: set[str] = set()
        repeated = [name for name in samples if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
        raise DataError(f"{where}: {listed(repeated)} repeated")


def check_finite(features: np.ndarray, samples: Sequence[str], *, where: str) -> None:
    """Raise DataError naming the samples whose features hold NaN or infinity."""
    finite = [np.isfinite(block).all(axis=1) for block in _blocks(features)]
    bad = np.flatnonzero(~np.concatenate(finite)) if finite else np.empty(0, np.int64)
    if bad.size:
        names = listed([samples[int(row)] for row in bad])
        raise DataError(
            f"{where}: features of {names} are not finite; a float16 pass overflows (set dtype: "
            "float32 in the encoder's card), or the weights are damaged"
        )


def flags(features: Rows) -> list[str]:
    """Return in words what is suspect in a feature matrix (N, D): no flag, no suspicion."""
    n_rows, dim = features.shape
    if n_rows < 2:
        return []
    first = features[0:1]
    constant = np.all([(block == first).all(axis=0) for block in _blocks(features)], axis=0).sum()
    if constant == dim:
        return [f"{COLLAPSED}: all {n_rows} rows are equal"]
    return [f"{constant} of {dim} columns are constant"] if constant else []


def content_digest(features: Rows) -> str:
    """Return the SHA-256 of a matrix: equal for bit-identical features only."""
    sha = hashlib.sha256(repr((features.shape, str(features.dtype))).encode())
    for block in _blocks(features):
        sha.update(np.ascontiguousarray(block).data)
    return sha.hexdigest()


def _column_sums(features: np.ndarray, *, about: np.ndarray | None = None) -> np.ndarray:
    """Return the float64 sums of the columns, or of their squared distances from `about`."""
    total = np.zeros(features.shape[1])
    for block in _blocks(features):
        wide = block.astype(np.float64)
        total += wide.sum(axis=0) if about is None else np.square(wide - about).sum(axis=0)
    return total


@dataclass(frozen=True)
class Standardiser:
    """Column means and scales of the train split, in float64 (protocol, section 5).

    Parameters
    ----------
    mean
        Column means (D,).
    scale
        Column standard deviations (D,), with 1 where a column is constant.
    """

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def fit(cls, train: np.ndarray) -> Self:
        """Take the statistics of the train split's features (N, D), N at least 1."""
        if len(train) == 0:
            raise ValueError("no training features to standardise with")
        constant = train.min(axis=0) == train.max(axis=0)
        mean = np.where(constant, train[0], _column_sums(train) / len(train))
        variance = _column_sums(train, about=mean) / len(train)
        scale = np.where(constant, 1.0, np.sqrt(variance))
        return cls(mean, np.where(scale > 0, scale, 1.0))

    def apply(self, features: np.ndarray) -> None:
        """Standardise features (N, D) in place.

        Float32 features come out with one rounding, at most 6e-8 of their size.
        """
        for block in _blocks(features):
            block[:] = (block.astype(np.float64) - self.mean) / self.scale
