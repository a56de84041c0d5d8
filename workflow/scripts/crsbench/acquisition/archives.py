"""Archives: unpacked beside themselves, and moved to their place when all has come out whole.

An entry that would leave the folder, a link, a name that stands twice: the archive is refused
before anything is written. Each entry's checksum is compared while it is unpacked. Nothing that is
there already is replaced.
"""

import shutil
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from crsbench.acquisition.transfer import disk_error
from crsbench.errors import DataError
from crsbench.progress import progress

_MB = 1_000_000


class DamagedArchiveError(DataError):
    """An archive is truncated or damaged: it has to come anew."""


def unpack(
    archive: Path,
    folder: Path,
    *,
    wanted: Sequence[str],
    before_placing: Callable[[], None] = lambda: None,
) -> list[str]:
    """Unpack the wanted entries of a zip archive.

    Parameters
    ----------
    archive
        A zip file; larger than 4 GiB, or with entries that are, it has the zip64 form.
    folder
        Where they are put; on the same file system.
    wanted
        Files and folders at the archive's top.
    before_placing
        Called when all has come out whole, before anything is put there.

    Returns
    -------
    list of str
        Which of the wanted ones were put there; the others were there already.

    Raises
    ------
    DamagedArchiveError
        The archive is truncated or damaged.
    DataError
        It is unsafe, lacks a wanted entry, cannot be read here, or the disk is full.
    """
    absent = [name for name in wanted if not (folder / name).exists()]
    try:
        with zipfile.ZipFile(archive) as opened:
            members = _safe(opened, archive)
            chosen = [item for item in members if PurePosixPath(item.filename).parts[0] in absent]
            _require(absent, chosen, archive)
            with _emptied(archive.with_name(f"{archive.name}.unpacking")) as beside:
                _require_space(chosen, folder)
                _extract(opened, chosen, beside)
                before_placing()
                for name in absent:
                    (beside / name).rename(folder / name)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DamagedArchiveError(f"{archive}: truncated or damaged: {error}") from error
    except RuntimeError as error:  # a password, or a compression that Python does not know
        raise DataError(
            f"{archive}: cannot be unpacked here: {error}; unpack it by hand into {folder}"
        ) from error
    return absent


@contextmanager
def _emptied(folder: Path) -> Iterator[Path]:
    """Yield a folder of always the same name, so that what a killed job left there goes, too."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _safe(opened: zipfile.ZipFile, archive: Path) -> list[zipfile.ZipInfo]:
    """Return the files in an archive, or refuse it."""
    seen: set[str] = set()
    for item in opened.infolist():
        path = PurePosixPath(item.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in (path.parts or (":",))[0]:
            raise DataError(
                f"{archive}: entry {item.filename!r} would leave the folder; nothing was unpacked; "
                "do not use this archive"
            )
        if stat.S_ISLNK(item.external_attr >> 16):
            raise DataError(
                f"{archive}: entry {item.filename!r} is a link, expected files and folders; "
                "nothing was unpacked; do not use this archive"
            )
        if path.as_posix() in seen:
            raise DataError(
                f"{archive}: entry {item.filename!r} stands there twice; nothing was unpacked; "
                "do not use this archive"
            )
        seen.add(path.as_posix())
    return [item for item in opened.infolist() if not item.is_dir()]


def _require(absent: Sequence[str], chosen: Sequence[zipfile.ZipInfo], archive: Path) -> None:
    tops = {PurePosixPath(item.filename).parts[0] for item in chosen}
    lacking = [name for name in absent if name not in tops]
    if lacking:
        raise DataError(
            f"{archive}: no {', '.join(lacking)} at its top; its layout is not the release's; "
            "unpack it by hand"
        )


def _require_space(chosen: Sequence[zipfile.ZipInfo], folder: Path) -> None:
    needed = sum(item.file_size for item in chosen)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DataError(
            f"{folder}: the disk has {free / _MB:.0f} MB free, expected {needed / _MB:.0f} MB or "
            "more to unpack; the archive is kept; make room, and run again"
        )


def _extract(opened: zipfile.ZipFile, chosen: Sequence[zipfile.ZipInfo], folder: Path) -> None:
    for item in progress(chosen, total=len(chosen), what="unpacking", unit="files"):
        try:
            opened.extract(item, folder)
        except OSError as error:
            raise DataError(disk_error(error, folder / item.filename)) from error
