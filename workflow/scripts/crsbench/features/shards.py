"""Shards: finished features of a running job, beside the table that they become.

A shard holds all rows of a run of images. It is written atomically and never computed twice: a job
that was killed goes on with the first shard that is not there. The folder's name has the digest of
what the features are made from, so that shards of anything else are never taken up; they are
removed. A table reads its rows out of the shards block by block, and no more than a shard is ever
held in memory.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from crsbench.digests import digest
from crsbench.errors import DataError
from crsbench.files import written_atomically

#: A shard holds about this many rows: what a killed job loses, and what is held in memory.
ROWS_PER_SHARD = 4096


@contextmanager
def shards_beside(
    table: str | Path, features_digest: str, params: Mapping[str, Any]
) -> Iterator[Path]:
    """Yield the folder for the shards of a table; it is removed when the block succeeds.

    Parameters
    ----------
    table
        File that the shards become.
    features_digest
        What the features are made from.
    params
        Everything else that decides them: the values that the job is made again for, the digest
        of its code among them.
    """
    table = Path(table)
    start = f".{table.stem}-shards-"
    decided = json.dumps(dict(params.items()), sort_keys=True, default=list)
    folder = table.with_name(start + digest(features_digest, decided)[:16])
    for stale in table.parent.glob(f"{start}*"):
        if stale != folder:
            shutil.rmtree(stale)
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Shards:
    """The shards of one table.

    Parameters
    ----------
    folder
        Where they lie.
    n_images, n_conditions
        Each image has one row for each condition.
    """

    folder: Path
    n_images: int
    n_conditions: int

    @cached_property
    def spans(self) -> list[range]:
        """The images of each shard. Their number is a power of two, which batch sizes divide."""
        n = 1 << max(0, (ROWS_PER_SHARD // self.n_conditions).bit_length() - 1)
        return [range(i, min(i + n, self.n_images)) for i in range(0, self.n_images, n)]

    def path(self, number: int) -> Path:
        """Return the file of a shard."""
        return self.folder / f"{number:06d}.safetensors"

    def missing(self) -> list[int]:
        """Return the numbers of the shards that are still to be made."""
        return [number for number in range(len(self.spans)) if not self.path(number).is_file()]

    def write(
        self, number: int, columns: Mapping[str, np.ndarray], *, lowest: float, highest: float
    ) -> None:
        """Write a shard.

        Parameters
        ----------
        number
            Which one.
        columns
            Float32 arrays (conditions, images, D) by name.
        lowest, highest
            Range of the numbers that entered the encoder.
        """
        seen = {"lowest": repr(lowest), "highest": repr(highest)}
        with written_atomically(self.path(number)) as temporary:
            arrays = {name: np.ascontiguousarray(array) for name, array in columns.items()}
            save_file(arrays, temporary, metadata=seen)

    def rows(self, column: str) -> "ShardedRows":
        """Return the rows of a column: by condition, then by image."""
        paths = [self.path(number) for number in range(len(self.spans))]
        return ShardedRows(paths, column, self.spans, self.n_conditions)

    def input_range(self) -> tuple[float, float]:
        """Return the smallest and the largest number that entered the encoder."""
        seen = []
        for number in range(len(self.spans)):
            with safe_open(self.path(number), framework="numpy") as shard:
                seen.append(shard.metadata())
        lowest, highest = (
            [float(metadata[key]) for metadata in seen] for key in ("lowest", "highest")
        )
        return min(lowest), max(highest)


class ShardedRows:
    """One column of all shards as rows (N, D), read in slices."""

    def __init__(
        self, paths: Sequence[Path], column: str, spans: Sequence[range], n_conditions: int
    ) -> None:
        self.paths, self.column, self.spans = paths, column, spans
        n_images = spans[-1].stop
        dims = {
            self._dim(path, span, n_conditions) for path, span in zip(paths, spans, strict=True)
        }
        if len(dims) != 1:
            raise DataError(f"{paths[0].parent}: {column} has {sorted(dims)} columns; remove it")
        self.shape = (n_conditions * n_images, dims.pop())
        self.dtype = np.dtype(np.float32)

    def _dim(self, path: Path, span: range, n_conditions: int) -> int:
        with safe_open(path, framework="numpy") as shard:
            found = tuple(shard.get_slice(self.column).get_shape())
        if found[:2] != (n_conditions, len(span)):
            raise DataError(f"{path}: holds {found} features; remove its folder")
        return found[2]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return the rows of a slice of step 1."""
        start, stop, _ = rows.indices(self.shape[0])
        parts = [np.empty((0, self.shape[1]), np.float32)]
        n_images = self.spans[-1].stop
        while start < stop:
            condition, image = divmod(start, n_images)
            number = image // len(self.spans[0])
            span = self.spans[number]
            until = min(span.stop, image + stop - start)
            parts.append(self._read(number, condition, image - span.start, until - span.start))
            start += until - image
        return np.concatenate(parts)

    def _read(self, number: int, condition: int, first: int, until: int) -> np.ndarray:
        with safe_open(self.paths[number], framework="numpy") as shard:
            return shard.get_slice(self.column)[condition, first:until]
