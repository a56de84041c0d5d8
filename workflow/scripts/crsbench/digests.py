"""Digests and seeds: equal for equal work, different for any difference that matters.

Two things with the same digest give the same result; a random draw follows from the identity of
the work alone.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
import polars as pl

Part = str | bytes | int | float | bool | None


def digest(*parts: Part) -> str:
    """Return the SHA-256 of the parts, told apart by type and length (hexadecimal)."""
    sha = hashlib.sha256()
    for part in parts:
        raw = part if isinstance(part, bytes) else repr(part).encode()
        sha.update(f"{type(part).__name__}:{len(raw)}:".encode())
        sha.update(raw)
    return sha.hexdigest()


def frame_digest(frame: pl.DataFrame) -> str:
    """Return the SHA-256 of a table's column names, types and values, in their order."""
    parts: list[Part] = [frame.height]
    for name, column in zip(frame.columns, frame.get_columns(), strict=True):
        parts += [name, *_content(column)]
    return digest(*parts)


def _content(column: pl.Series) -> Iterator[Part]:
    """Yield what a column holds: its type, which values are null, and the bytes of the others."""
    yield str(column.dtype)
    yield np.packbits(column.is_null().to_numpy()).tobytes()
    values = column.drop_nulls()
    if isinstance(column.dtype, pl.List):
        yield from _content(values.list.len())
        yield from _content(values.explode(empty_as_null=False, keep_nulls=False))
    elif isinstance(column.dtype, pl.Array):
        yield from _content(values.explode())
    elif isinstance(column.dtype, pl.String):
        yield from _content(values.str.len_bytes())
        yield "".join(values)
    else:
        yield values.to_numpy().tobytes()


def generator(*identity: Part) -> np.random.Generator:
    """Return a random generator seeded by what identifies the work, and by nothing else."""
    return np.random.default_rng(int(digest(*identity), 16))
