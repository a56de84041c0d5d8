"""Reading and writing files: what is half written never stands under its final name."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl


@contextmanager
def written_atomically(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, renamed to it when the block succeeds.

    The temporary file is removed when the block raises, so that a full disk or a killed job
    leaves either the old file or none.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def write_parquet(
    frame: pl.DataFrame, path: str | Path, *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write `frame` atomically, with `metadata` in the file's footer."""
    with written_atomically(path) as temporary:
        frame.write_parquet(temporary, compression="zstd", metadata=dict(metadata or {}))


def read_parquet(path: str | Path) -> pl.DataFrame:
    """Read a whole Parquet file."""
    return pl.read_parquet(path, memory_map=False)


def read_metadata(path: str | Path) -> dict[str, str]:
    """Read the metadata in a Parquet file's footer."""
    metadata = pl.read_parquet_metadata(path)
    return {key: value for key, value in metadata.items() if key != "ARROW:schema"}


def write_csv(frame: pl.DataFrame, path: str | Path) -> None:
    """Write `frame` atomically as UTF-8 CSV with full float precision."""
    with written_atomically(path) as temporary:
        frame.write_csv(temporary)


def write_json(value: Any, path: str | Path) -> None:
    """Write `value` atomically as indented JSON with sorted keys."""
    with written_atomically(path) as temporary:
        text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def write_text(text: str, path: str | Path) -> None:
    """Write `text` atomically as UTF-8."""
    with written_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256_file(path: str | Path) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
