"""Checkpoint files: fetched at a pinned place, checked, read without running code.

Every loader reads through here, so that a download always has a revision, a wrong digest always
stops, pickles are opened with ``weights_only``, and no tensor is ever missing or surplus in
silence. Files come into the caches of their libraries; with ``HF_HUB_OFFLINE`` set nothing here
opens a socket.
"""

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from crsbench.digests import digest
from crsbench.encoders.cards import (
    DriveWeights,
    EncoderCard,
    FileWeights,
    HubWeights,
    PackageWeights,
)
from crsbench.errors import WeightsError
from crsbench.files import sha256_file

State = dict[str, torch.Tensor]
TIMEOUT_S = 30
GDOWN = "install gdown (pip install gdown)"


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
        _check_md5(path, weights.md5, card.name)
    elif isinstance(weights, PackageWeights):
        path, place = _in_package(weights, card.name), f"{weights.package}/{weights.file}"
    elif isinstance(weights, DriveWeights):
        path, place = _from_drive(weights, card.name), f"drive:{weights.id}/{weights.file}"
    elif isinstance(weights, FileWeights):
        path, place = Path(weights.path), weights.path
        if not path.is_file():
            raise WeightsError(f"{card.name}: {path}: no such checkpoint (weights.file.path)")
    else:
        raise WeightsError(f"{card.name}: weights of kind {weights.kind} have no checkpoint file")
    return path, Source(place, check_sha256(path, weights.sha256, card.name))


def check_sha256(path: Path, expected: str | None, name: str) -> str:
    """Return the SHA-256 of a file, which must be the expected one where one is given."""
    found = sha256_file(path)
    if expected is not None and found != expected:
        raise WeightsError(
            f"{name}: {path}: SHA-256 is {found}, expected {expected}; delete the file and fetch "
            "it again, or correct sha256 in the card"
        )
    return found


def _commit(path: Path) -> str | None:
    """Return the commit that a path in the hub's cache belongs to."""
    parts = path.parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts else None


def _check_md5(path: Path, expected: str | None, name: str) -> None:
    if expected is None:
        return
    with path.open("rb") as handle:
        found = hashlib.file_digest(handle, "md5").hexdigest()
    if found != expected:
        raise WeightsError(f"{name}: {path}: MD5 is {found}, expected {expected}")


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
    except errors.GatedRepoError as error:
        page = card.gated or f"https://huggingface.co/{weights.repo}"
        raise WeightsError(
            f"{card.name}: {weights.repo} is gated; ask for access at {page}, then log in with "
            "`hf auth login`"
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise WeightsError(
            f"{card.name}: no {weights.repo} at revision {weights.revision} on the hub"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise WeightsError(
            f"{card.name}: {file} of {weights.repo} is not in the hub cache and cannot be fetched "
            "(offline, or no connection); prefetch it on a machine with network access"
        ) from error
    except errors.EntryNotFoundError as error:
        raise WeightsError(
            f"{card.name}: {weights.repo}@{weights.revision} has no file {file}"
        ) from error


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


def _from_drive(weights: DriveWeights, name: str) -> Path:
    path = drive_path(weights)
    if path.is_file():
        return path
    kind = "drive/folders/" if weights.folder else "file/d/"
    page = f"https://drive.google.com/{kind}{weights.id}"
    by_hand = f"download {weights.file} from {page} by hand and put it at {path}"
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in {"1", "ON", "YES", "TRUE"}:
        raise WeightsError(f"{name}: offline, and {weights.file} is not here; {by_hand}")
    if importlib.util.find_spec("gdown") is None:
        raise WeightsError(f"{name}: {weights.file} is on Google Drive; {GDOWN}, or {by_hand}")
    return _download_from_drive(weights, path, f"{name}: Google Drive refused; {by_hand}")


def _download_from_drive(weights: DriveWeights, path: Path, refusal: str) -> Path:
    import gdown  # type: ignore[import-not-found]

    path.parent.mkdir(parents=True, exist_ok=True)
    identity = weights.id
    if weights.folder:
        listing = gdown.download_folder(id=weights.id, skip_download=True, quiet=True) or []
        ids = {Path(entry.path).name: entry.id for entry in listing}
        if weights.file not in ids:
            raise WeightsError(refusal)
        identity = ids[weights.file]
    partial = path.with_name(f"{path.name}.part")
    if gdown.download(id=identity, output=str(partial), resume=True) is None:
        raise WeightsError(refusal)
    partial.replace(path)
    return path


def read_checkpoint(path: Path, name: str, *, safe_globals: Iterable[Any] = ()) -> Any:
    """Read a safetensors file, or a pickle with ``weights_only`` and the given safe classes."""
    if path.suffix == ".safetensors":
        return load_file(path)
    try:
        with torch.serialization.safe_globals(list(safe_globals)):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise WeightsError(f"{name}: {path}: cannot be read safely: {reason}") from error


def below(state: Mapping[str, torch.Tensor], prefix: str, *, ignored: str, owner: str) -> State:
    """Return the tensors below a prefix, without it.

    Parameters
    ----------
    state
        A whole checkpoint.
    prefix
        Start of the names that are wanted.
    ignored
        Regular expression of the names that belong to other parts of the release.
    owner
        What an error calls the encoder.

    Raises
    ------
    WeightsError
        Nothing is below the prefix, or a name is neither wanted nor one of the ignored.
    """
    found = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    others = [key for key in state if not key.startswith(prefix)]
    unknown = sorted(key for key in others if not re.fullmatch(ignored, key))
    if unknown:
        raise WeightsError(f"{owner}: surplus in the checkpoint: {listed(unknown)}")
    if not found:
        raise WeightsError(f"{owner}: nothing in the checkpoint is below {prefix!r}")
    return found


def renamed(state: Mapping[str, torch.Tensor], rules: Iterable[tuple[str, str]]) -> State:
    """Return the tensors with every rule (pattern, replacement) applied to their names in turn."""
    names = {name: name for name in state}
    for pattern, replacement in rules:
        names = {old: re.sub(pattern, replacement, new) for old, new in names.items()}
    return {names[name]: tensor for name, tensor in state.items()}


def read_sharded(card: EncoderCard, wanted: str) -> tuple[State, Source]:
    """Read the tensors whose names match out of the shards of an index file, and no others.

    Only the shards that hold such tensors are fetched; a tensor that is not wanted never comes
    into memory.

    Parameters
    ----------
    card
        A card whose weights file is a ``*.safetensors.index.json``.
    wanted
        Regular expression of the full names.
    """
    index, source = fetch(card)
    places: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    shards = sorted({shard for name, shard in places.items() if re.fullmatch(wanted, name)})
    if not shards:
        raise WeightsError(f"{card.name}: {index}: no tensor is called like {wanted}")
    state: State = {}
    digests = []
    for shard in shards:
        path = _shard(card, index, shard)
        digests.append(check_sha256(path, _shard_sha256(card).get(shard), card.name))
        state |= read_matching(path, wanted)
    place = source.description.rpartition("/")[0]
    whole = digests[0] if len(digests) == 1 else digest(*digests)
    return state, Source(f"{place}/{'+'.join(shards)}", whole)


def _shard(card: EncoderCard, index: Path, shard: str) -> Path:
    if isinstance(card.weights, HubWeights):
        return fetch_from_hub(card, shard)
    path = index.parent / shard
    if not path.is_file():
        raise WeightsError(f"{card.name}: {path}: the index names this shard, but it is not here")
    return path


def _shard_sha256(card: EncoderCard) -> dict[str, str]:
    return card.weights.shard_sha256 if isinstance(card.weights, HubWeights) else {}


def read_matching(path: Path, wanted: str) -> State:
    """Read the tensors of a safetensors file whose names match, and no others."""
    with safe_open(path, framework="pt") as handle:
        names = [name for name in handle.keys() if re.fullmatch(wanted, name)]  # noqa: SIM118
        return {name: handle.get_tensor(name) for name in names}


def configuration(card: EncoderCard, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings of the card's architecture, with the card's options over them."""
    if card.architecture not in known:
        raise WeightsError(
            f"{card.name}: unknown architecture {card.architecture!r}; the loader {card.loader} "
            f"has {', '.join(known)}"
        )
    return {**known[card.architecture], **card.options}


def require_pool(card: EncoderCard, *pools: str) -> None:
    """Refuse a feature that the loader does not offer."""
    if card.feature.pool not in pools:
        raise WeightsError(
            f"{card.name}: the loader {card.loader} has no feature.pool = {card.feature.pool}; "
            f"it has {', '.join(pools)}"
        )


def without(state: Mapping[str, torch.Tensor], names: Iterable[str], owner: str) -> State:
    """Return the tensors without the named ones, all of which must be there."""
    dropped = set(names)
    absent = sorted(dropped - set(state))
    if absent:
        raise WeightsError(f"{owner}: missing in the checkpoint: {listed(absent)}")
    return {key: value for key, value in state.items() if key not in dropped}


def check_tensors(found: Mapping[str, Any], expected: Mapping[str, Any], owner: str) -> None:
    """Refuse tensors that are missing, surplus or of another shape, by name."""
    faults = []
    if missing := sorted(set(expected) - set(found)):
        faults.append(f"missing {listed(missing)}")
    if surplus := sorted(set(found) - set(expected)):
        faults.append(f"surplus {listed(surplus)}")
    for name in sorted(set(found) & set(expected)):
        if tuple(found[name].shape) != tuple(expected[name].shape):
            shapes = f"{tuple(found[name].shape)}, expected {tuple(expected[name].shape)}"
            faults.append(f"{name} has shape {shapes}")
    if faults:
        raise WeightsError(f"{owner}: the weights do not fit the architecture: {listed(faults)}")


def listed(items: list[str], limit: int = 6) -> str:
    """Join the first items of a list, and say how many more there are."""
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more
