"""Feature tables: what extraction writes and probes read. Nothing here imports torch.

A row is one image (in the perturbed table: one image under one condition), its features a list of
fixed size, so that no offset can overflow; row groups are bounded. A table is never read with a
hole: every sample that is asked for is there once, and every number is finite.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from crsbench.errors import DataError
from crsbench.files import written_atomically

#: Rows are grouped so that a group holds about this many numbers.
VALUES_PER_ROW_GROUP = 2**22


def write_features(
    keys: pl.DataFrame, features: np.ndarray, *, path: str | Path, metadata: Mapping[str, str]
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
    samples = keys["sample"].to_list()
    if features.dtype != np.float32 or features.ndim != 2 or len(features) != len(samples):
        shape = f"{features.shape} {features.dtype}"
        raise ValueError(f"expected ({len(samples)}, D) float32 features, got {shape}")
    _check_unique(keys, path)
    check_finite(features, samples, where=str(path))
    described = {
        **metadata,
        "dim": str(features.shape[1]),
        "content_digest": content_digest(features),
        "flags": "; ".join(flags(features)),
    }
    table = _arrow_table(keys, features).replace_schema_metadata(described)
    rows = max(1, VALUES_PER_ROW_GROUP // features.shape[1])
    with written_atomically(path) as temporary:
        pq.write_table(
            table,
            temporary,
            row_group_size=rows,
            compression="zstd",
            use_dictionary=keys.columns,
            use_byte_stream_split=["features.list.element"],
        )


def _arrow_table(keys: pl.DataFrame, features: np.ndarray) -> pa.Table:
    flat = pa.array(np.ascontiguousarray(features).reshape(-1))
    column = pa.FixedSizeListArray.from_arrays(flat, features.shape[1])
    columns = {name: pa.array(keys[name].to_list()) for name in keys.columns}
    return pa.table({**columns, "features": column})


def _check_unique(keys: pl.DataFrame, path: str | Path) -> None:
    repeated = keys.filter(keys.is_duplicated())
    if not repeated.is_empty():
        raise DataError(f"{path}: {_listed(repeated['sample'].unique().to_list())} repeated")


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
            raise DataError(f"{where}: no features of {_listed(absent)}; extract them again")
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
            keys = table.read_row_group(group, columns=["perturbation", "severity"])
            found = zip(*keys.to_pydict().values(), strict=True)
            rows = np.array([key == condition for key in found], bool)
        if rows.any():
            groups.append((group, np.flatnonzero(rows)))
    return groups


def _names(table: pq.ParquetFile, group: int, rows: np.ndarray) -> list[str]:
    return table.read_row_group(group, columns=["sample"])["sample"].take(rows).to_pylist()


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
        column = table.read_row_group(group, columns=["features"])["features"].combine_chunks()
        values = np.asarray(column.flatten()).reshape(-1, dim)[rows]
        wanted = np.array([places.get(name, -1) for name in _names(table, group, rows)])
        features[wanted[wanted >= 0]] = values[wanted >= 0]
    return features


def _refuse_repeated(samples: Sequence[str], where: str) -> None:
    if len(set(samples)) < len(samples):
        seen: set[str] = set()
        repeated = [name for name in samples if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
        raise DataError(f"{where}: {_listed(repeated)} repeated")


def check_finite(features: np.ndarray, samples: Sequence[str], *, where: str) -> None:
    """Raise DataError naming the samples whose features hold NaN or infinity."""
    finite = [np.isfinite(block).all(axis=1) for block in _blocks(features)]
    bad = np.flatnonzero(~np.concatenate(finite)) if finite else np.empty(0, np.int64)
    if bad.size:
        names = _listed([samples[int(row)] for row in bad])
        raise DataError(
            f"{where}: features of {names} are not finite; a float16 pass overflows (set dtype: "
            "float32 in the encoder's card), or the weights are damaged"
        )


def flags(features: np.ndarray) -> list[str]:
    """Return in words what is suspect in a feature matrix (N, D): no flag, no suspicion."""
    if len(features) < 2:
        return []
    constant = int((features == features[0]).all(axis=0).sum())
    if constant == features.shape[1]:
        return [f"collapsed: all {len(features)} rows are equal"]
    return [f"{constant} of {features.shape[1]} columns are constant"] if constant else []


def content_digest(features: np.ndarray) -> str:
    """Return the SHA-256 of a matrix: equal for bit-identical features only."""
    sha = hashlib.sha256(repr((features.shape, str(features.dtype))).encode())
    sha.update(np.ascontiguousarray(features).data)
    return sha.hexdigest()


def identical_features(tables: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs of keys whose tables' metadata say that the features are bit-identical.

    Two encoders, or one encoder with and without some option, that give the same bits are a sign
    that the option or the weights were ignored.
    """
    first: dict[str, str] = {}
    pairs = []
    for key, metadata in tables.items():
        holder = first.setdefault(metadata["content_digest"], key)
        if holder != key:
            pairs.append((holder, key))
    return pairs


def _blocks(features: np.ndarray) -> Iterator[np.ndarray]:
    """Yield views of consecutive rows, small enough to hold some copies of one in float64."""
    rows = max(1, VALUES_PER_ROW_GROUP // max(1, features.shape[1]))
    for first in range(0, len(features), rows):
        yield features[first : first + rows]


def _listed(names: Sequence[str], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


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
