"""Checkpoint files: fetched from a pinned place into the caches of their libraries, and checked.

A download has time-outs and is resumed when its connection breaks; a wrong digest always stops.
With ``HF_HUB_OFFLINE`` set nothing here opens a socket, and `missing_files` never does. Nothing
here imports torch, and no message holds what a server or a library said: that could be a token.
"""

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.sources import DriveWeights, FileWeights, HubWeights, PackageWeights
from crsbench.errors import WeightsError
from crsbench.files import sha256_file

TIMEOUT_S = 30
DRIVE_RETRIES = 5

#: Loaders of sharded releases: which tensors they need, so that no other shard is fetched.
SHARDED_TENSORS = {
    "llava_med": r"model\.(?:vision_tower|mm_projector)\..*",
    "medgemma": r"(?:model\.)?(?:vision_tower|multi_modal_projector)\..*",
}
#: Loaders that read another file of the release beside the weights.
BESIDE = {"transformers": ("config.json",)}

_ADVICE = {
    401: "the token is not valid any more; log in again with `hf auth login`",
    403: "your account or token may not read it; see the access page, and the token's rights",
    404: "check repo, revision and file in the card",
    429: "too many requests; try again later",
}


@dataclass(frozen=True)
class Source:
    """Where the tensors of an encoder came from: a description, and the SHA-256 of the file."""

    description: str
    sha256: str


def fetch(card: EncoderCard) -> tuple[Path, Source]:
    """Return the card's checkpoint file, downloaded if need be, with its digest checked.

    Raises
    ------
    WeightsError
        The file cannot be had (absent, gated, offline), or is not the one that the card declares.
    """
    weights = card.weights
    if isinstance(weights, HubWeights):
        path = fetch_from_hub(card, weights.file)
        place = f"{weights.repo}@{_commit(path) or weights.revision}/{weights.file}"
    elif isinstance(weights, PackageWeights):
        path, place = _in_package(weights, card.name), f"{weights.package}/{weights.file}"
    elif isinstance(weights, DriveWeights):
        path, place = _from_drive(weights, card.name), f"drive:{weights.id}/{weights.file}"
    elif isinstance(weights, FileWeights):
        path, place = Path(weights.path), weights.path
        if not path.is_file():
            raise WeightsError(
                f"{card.name}: {path}: no such checkpoint (weights.file.path); relative paths "
                f"start at {Path.cwd()}"
            )
    else:
        raise WeightsError(f"{card.name}: weights of kind {weights.kind} have no checkpoint file")
    return path, Source(place, check_digests(card, path))


def check_digests(card: EncoderCard, path: Path) -> str:
    """Return the SHA-256 of the card's checkpoint file, which must be what the card declares."""
    _check_md5(path, getattr(card.weights, "md5", None), card.name)
    return check_sha256(path, getattr(card.weights, "sha256", None), card.name)


def check_sha256(path: Path, expected: str | None, name: str) -> str:
    """Return the SHA-256 of a file, which must be the expected one where one is given."""
    found = sha256_file(path)
    if expected is not None and found != expected:
        raise WeightsError(_mismatch(name, path, "SHA-256", found, expected))
    return found


def _check_md5(path: Path, expected: str | None, name: str) -> None:
    if expected is None:
        return
    with path.open("rb") as handle:
        found = hashlib.file_digest(handle, "md5").hexdigest()
    if found != expected:
        raise WeightsError(_mismatch(name, path, "MD5", found, expected))


def _mismatch(name: str, path: Path, kind: str, found: str, expected: str) -> str:
    return (
        f"{name}: {path}: {kind} is {found}, expected {expected}; delete the file and fetch it "
        f"again, or correct {kind.replace('-', '').lower()} in the card"
    )


def _commit(path: Path) -> str | None:
    """Return the commit that a path in the hub's cache belongs to."""
    parts = path.parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts else None


def is_offline() -> bool:
    """Return whether the hub's offline variable is set."""
    from huggingface_hub import constants

    return constants.is_offline_mode()


def fetch_from_hub(card: EncoderCard, file: str) -> Path:
    """Return one file of the card's Hugging Face repository, from the cache or the hub."""
    from huggingface_hub import errors, hf_hub_download

    weights = card.weights
    if not isinstance(weights, HubWeights):
        raise WeightsError(f"{card.name}: weights of kind {weights.kind} have no hub repository")
    try:
        return Path(
            hf_hub_download(weights.repo, file, revision=weights.revision, etag_timeout=TIMEOUT_S)
        )
    except (errors.HTTPError, OSError) as error:
        reason = _refusal(error, card, weights, file)
        raise WeightsError(f"{card.name}: {reason}") from error


def _refusal(error: Exception, card: EncoderCard, weights: HubWeights, file: str) -> str:
    """Return why the hub gave no file and what to do, in our own words."""
    from huggingface_hub import errors

    status = _status(error) or _status(error.__cause__)
    if isinstance(error, errors.GatedRepoError):
        page = card.gated or f"https://huggingface.co/{weights.repo}"
        return (
            f"{weights.repo} is gated; ask for access at {page}, then log in with `hf auth login`"
        )
    if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError):
        return (
            f"no {weights.repo} at revision {weights.revision} on the hub, or it is private and "
            "you are not logged in (`hf auth login`)"
        )
    if isinstance(error, errors.LocalEntryNotFoundError) and status is None:
        why = "HF_HUB_OFFLINE is set" if is_offline() else "no connection to the hub"
        return (
            f"{file} of {weights.repo} is not in the hub cache and cannot be fetched ({why}); run "
            "`crsbench prefetch` where there is a network"
        )
    if isinstance(error, errors.EntryNotFoundError) and status in (None, 404):
        return f"{weights.repo}@{weights.revision} has no file {file}"
    if status is not None:
        advice = _ADVICE.get(status, "the hub has a fault; try again later")
        return f"{weights.repo}: the hub answered {status} for {file}: {advice}"
    return (
        f"the download of {file} from {weights.repo} broke off ({type(error).__name__}); check "
        "network and disk, and run `crsbench prefetch` again"
    )


def _status(error: BaseException | None) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _in_package(weights: PackageWeights, name: str) -> Path:
    spec = importlib.util.find_spec(weights.package)
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError(f"{name}: the Python package {weights.package} is not installed")
    path = Path(spec.submodule_search_locations[0]) / weights.file
    if not path.is_file():
        raise WeightsError(f"{name}: the package {weights.package} has no file {weights.file}")
    return path


def drive_path(weights: DriveWeights) -> Path:
    """Return where a file from Google Drive is kept on this machine."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "crsbench" / "drive" / weights.id / weights.file


def by_hand(weights: DriveWeights) -> str:
    """Return how to put a file from Google Drive in its place without this program."""
    kind = "drive/folders/" if weights.folder else "file/d/"
    page = f"https://drive.google.com/{kind}{weights.id}"
    return f"download {weights.file} from {page} by hand and put it at {drive_path(weights)}"


def _from_drive(weights: DriveWeights, name: str) -> Path:
    path = drive_path(weights)
    if path.is_file():
        return path
    if is_offline():
        raise WeightsError(f"{name}: offline, and {weights.file} is not here; {by_hand(weights)}")
    import gdown

    try:
        _download_from_drive(weights, path)
    except (gdown.DownloadError, OSError) as error:
        raise WeightsError(
            f"{name}: Google Drive gave no {weights.file} ({type(error).__name__}; it refuses a "
            f"file that was asked for too often that day); try again later, or {by_hand(weights)}"
        ) from error
    return path


def _download_from_drive(weights: DriveWeights, path: Path) -> None:
    """Download to `path`, where nothing stands until it is whole; a later call resumes it."""
    import gdown

    path.parent.mkdir(parents=True, exist_ok=True)
    identity = weights.id
    if weights.folder:
        listing = gdown.download_folder(
            id=weights.id, skip_download=True, quiet=True, timeout=TIMEOUT_S, retries=DRIVE_RETRIES
        )
        found = {Path(entry.path).name: entry.id for entry in listing if not isinstance(entry, str)}
        if weights.file not in found:
            raise FileNotFoundError(weights.file)
        identity = found[weights.file]
    gdown.download(
        id=identity, output=str(path), resume=True, timeout=TIMEOUT_S, retries=DRIVE_RETRIES
    )


def shards_of(card: EncoderCard, index: Path, wanted: str) -> list[str]:
    """Return the shards of an index file that hold tensors whose names match, in order."""
    try:
        places: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsError(
            f"{card.name}: {index}: no index of shards: expected JSON with weight_map"
        ) from error
    shards = sorted({shard for name, shard in places.items() if re.fullmatch(wanted, name)})
    if not shards:
        raise WeightsError(f"{card.name}: {index}: no tensor is called like {wanted}")
    return shards


def fetch_shard(card: EncoderCard, index: Path, shard: str) -> tuple[Path, str]:
    """Return a shard of an index file and its SHA-256, checked where the card declares it."""
    if isinstance(card.weights, HubWeights):
        path = fetch_from_hub(card, shard)
        return path, check_sha256(path, card.weights.shard_sha256.get(shard), card.name)
    path = index.parent / shard
    if not path.is_file():
        raise WeightsError(f"{card.name}: {path}: the index names this shard, but it is not here")
    return path, check_sha256(path, None, card.name)


def local_file(card: EncoderCard, file: str | None = None) -> Path | None:
    """Return the card's checkpoint file, or another of its release, where it is on this machine.

    No socket is opened.
    """
    weights = card.weights
    if isinstance(weights, HubWeights):
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(
            weights.repo, file or weights.file, revision=weights.revision
        )
        return Path(cached) if isinstance(cached, str) else None
    if isinstance(weights, PackageWeights):
        spec = importlib.util.find_spec(weights.package)
        folders = (spec.submodule_search_locations if spec else None) or []
        path = Path(next(iter(folders), "")) / weights.file
    elif isinstance(weights, DriveWeights):
        path = drive_path(weights)
    elif isinstance(weights, FileWeights):
        path = Path(weights.path)
    else:
        return None
    path = path if file is None else path.parent / file
    return path if path.is_file() else None


def missing_files(card: EncoderCard) -> list[str]:
    """Return the files that the weights of an encoder are made from and that are not here.

    Of a sharded release whose index is missing, only the index is known and named.
    """
    return [file for file, path in _needed(card) if path is None]


def check_local_digests(card: EncoderCard) -> None:
    """Compare the files that are here with the digests that the card declares, where it does.

    Raises
    ------
    WeightsError
        A file is not the declared one.
    """
    weights = card.weights
    if getattr(weights, "sha256", None) or getattr(weights, "md5", None):
        path = local_file(card)
        if path is not None:
            check_digests(card, path)
    for shard, expected in getattr(weights, "shard_sha256", {}).items():
        path = local_file(card, shard)
        if path is not None:
            check_sha256(path, expected, card.name)


def _needed(card: EncoderCard) -> Iterator[tuple[str, Path | None]]:
    weights = card.weights
    if isinstance(weights, FileWeights):
        main = weights.path
    elif isinstance(weights, HubWeights | PackageWeights | DriveWeights):
        main = weights.file
    else:
        return
    path = local_file(card)
    yield main, path
    for file in BESIDE.get(card.loader, ()):
        yield file, local_file(card, file)
    wanted = SHARDED_TENSORS.get(card.loader, ".*" if main.endswith(".index.json") else None)
    if path is not None and wanted is not None:
        for shard in shards_of(card, path, wanted):
            yield shard, local_file(card, shard)
