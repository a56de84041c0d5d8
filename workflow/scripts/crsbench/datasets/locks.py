"""What acquisition fetched, and trust on first use where no digest is published.

The lock of a dataset is a JSON file beside its folder, ``{root}.lock.json``, so that it outlives
the data. It holds size and SHA-256 of each file when it was first fetched; one that comes
otherwise later, or has changed since, is refused. Keep it with your work, or give it to others who
are to have the same files.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from crsbench.datasets.releases import RemoteFile
from crsbench.errors import DataError
from crsbench.files import sha256_file, write_json


class WrongFileError(Exception):
    """How a file differs from the one that was expected."""


class Lock:
    """The files that were fetched for a dataset, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def placed(self) -> frozenset[str]:
        """Names below the root of what was fetched or unpacked."""
        return frozenset(name for entry in self._read().values() for name in entry["placed"])

    def digest_of(self, name: str) -> str | None:
        """Return the digest that a file was first seen with."""
        entry = self._read().get(name)
        return None if entry is None else str(entry["sha256"])

    def keep(self, remote: RemoteFile, path: Path) -> None:
        """Keep size and digest of a file, unless they are kept already."""
        entries = self._read()
        if remote.name not in entries:
            entries[remote.name] = {
                "bytes": path.stat().st_size,
                "sha256": sha256_file(path),
                "placed": list(remote.unpack or (remote.name,)),
            }
            write_json(entries, self.path)

    def _read(self) -> dict[str, dict[str, Any]]:
        if not self.path.is_file():
            return {}
        try:
            return dict(json.loads(self.path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise DataError(f"{self.path}: not JSON: {error}; restore the file") from error


def lock_of(root: Path) -> Lock:
    """Return the lock of the dataset in a folder."""
    home = root if root.name else root.absolute()
    return Lock(home.with_name(f"{home.name}.lock.json"))


def name_below(root: Path, path: Path) -> str:
    """Return what a lock or a receipt calls a file: its path below the root if it lies there."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def check_file(path: Path, remote: RemoteFile, lock: Lock) -> None:
    """Compare a file with what is published, or with the lock where nothing is.

    Raises
    ------
    WrongFileError
        Its size or digest is another one.
    """
    size = path.stat().st_size
    if remote.bytes is not None and size != remote.bytes:
        raise WrongFileError(f"{size} bytes, expected {remote.bytes} as published")
    if remote.sha256 is not None:
        _compare("SHA-256", sha256_file(path), remote.sha256, "as published")
    elif remote.md5 is not None:
        with path.open("rb") as handle:
            got = hashlib.file_digest(handle, "md5").hexdigest()
        _compare("MD5", got, remote.md5, "as published")
    elif (first := lock.digest_of(remote.name)) is not None:
        where = (
            f"as first seen ({lock.path}; if its publisher has replaced it on purpose, remove its "
            "entry there)"
        )
        _compare("SHA-256", sha256_file(path), first, where)


def _compare(kind: str, got: str, expected: str, where: str) -> None:
    if got != expected:
        raise WrongFileError(f"{kind} {got}, expected {expected} {where}")
