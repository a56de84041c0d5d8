"""Whether the files of a dataset are on this machine, and what to do where they are not.

Label files and the folders of a release are looked at, no image: that is verification's. Nothing is
fetched and no socket is opened.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from crsbench.datasets.definitions import DatasetDefinition, absent_files
from crsbench.datasets.locks import WrongFileError, check_file, lock_of
from crsbench.datasets.releases import Release, RemoteFile
from crsbench.datasets.verdicts import files_there
from crsbench.errors import DataError

State = Literal[
    "present", "missing", "missing, fetched by the run", "gated", "digest mismatch", "damaged"
]
_PAGE = re.compile(r"https?://\S+")


@dataclass(frozen=True)
class DataPresence:
    """What of a dataset is here.

    Attributes
    ----------
    state
        ``present``; ``missing``, and whether the run itself fetches it; ``gated``: missing, and
        access is bound to an account; ``digest mismatch``: a label file is not the one published
        or first seen; ``damaged``: the folder or its lock cannot be read.
    advice
        Where it is, or what to do.
    """

    state: State
    advice: str


def find_data(definition: DatasetDefinition, *, offline: bool) -> DataPresence:
    """Return whether the files of a dataset are here.

    Parameters
    ----------
    definition
        The dataset.
    offline
        Whether the run is to do without a network.
    """
    if definition.phantom is not None:
        return DataPresence("present", "drawn by the workflow")
    try:
        mismatch = _mismatch(definition)
        lacking = _lacking(definition)
    except DataError as error:
        return DataPresence("damaged", str(error))
    if mismatch is not None:
        return DataPresence("digest mismatch", mismatch)
    if lacking is None:
        return DataPresence("present", str(definition.root))
    return _absence(definition, lacking, offline=offline)


def absent_parts(root: Path, remote: RemoteFile) -> list[str]:
    """Return what a folder lacks of a file, or of what is wanted of an archive, by its name.

    A file may lie there unpacked.
    """
    if remote.unpack:
        return [name for name in remote.unpack if not (root / name).exists()]
    names = {remote.name, remote.name.removesuffix(".gz")}
    return [] if any((root / name).exists() for name in names) else [remote.name]


def _mismatch(definition: DatasetDefinition) -> str | None:
    """Return which file is another one, and what to do; None where none is."""
    if definition.release is None:
        return None
    lock = lock_of(definition.root)
    for remote, path in files_there(definition, definition.release.files):
        if path.name != remote.name:  # unpacked: its digest is not known
            continue
        try:
            check_file(path, remote, lock)
        except WrongFileError as error:
            return f"{path}: {error}; get the file of release {definition.release.version}"
    return None


def _lacking(definition: DatasetDefinition) -> str | None:
    """Return what acquisition would miss; None where all is there."""
    release, lacking = definition.release, absent_files(definition)
    if lacking is not None or release is None or release.authentication not in ("none", "kaggle"):
        return lacking
    absent = {name for remote in release.files for name in absent_parts(definition.root, remote)}
    return f"{', '.join(sorted(absent))} not found in {definition.root}" if absent else None


def _absence(definition: DatasetDefinition, lacking: str, *, offline: bool) -> DataPresence:
    state, how = _way_to(definition, offline=offline)
    terms = definition.access.strip().partition("\n")[0].rstrip(":.")
    return DataPresence(state, "; ".join(filter(None, [lacking, terms, how])))


def _way_to(definition: DatasetDefinition, *, offline: bool) -> tuple[State, str]:
    """Return the state of a dataset that is not here, and what to do."""
    release, found = definition.release, _PAGE.search(definition.access)
    page = found[0] if found else ""
    elsewhere = "if it is elsewhere, set data_root or its root"
    if release is not None and release.authentication == "none":
        if offline:
            return "missing", "`snakemake --until acquire` fetches it where there is a network"
        return "missing, fetched by the run", elsewhere
    if release is None or not _is_gated(release):
        return "missing", "; ".join(filter(None, [page, elsewhere]))
    by_hand = release.authentication == "manual"
    then = "put the files there" if by_hand else "the run itself fetches it"
    ask = f"ask for access at {page}" if page else "ask for access"
    return "gated", f"{ask} if you have none yet, then {then}; {elsewhere}"


def _is_gated(release: Release) -> bool:
    """Return whether a release is bound to an account.

    One that comes by hand is, where it may not be passed on: whoever gets it has agreed to that.
    """
    return release.authentication != "manual" or not release.redistributable
