"""Checkpoint files, read without running code, and their tensors under other names.

Every loader reads through here, so that pickles are opened with ``weights_only`` unless the card
says otherwise, and no tensor is ever missing or surplus in silence. Files are fetched, pinned and
checked by `crsbench.encoders.fetching`, whose functions loaders find here, too.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from crsbench.digests import digest
from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.fetching import Source, fetch, fetch_from_hub, fetch_shard, shards_of
from crsbench.errors import WeightsError, listed

__all__ = [
    "Source", "State", "below", "check_tensors", "configuration", "fetch", "fetch_from_hub",
    "read_checkpoint", "read_matching", "read_sharded", "renamed", "require_pool", "without",
    "wrapper_prefix",
]  # fmt: skip

State = dict[str, torch.Tensor]
#: What DataParallel, Lightning and torch.compile put before the name of every tensor.
WRAPPERS = ("module.", "model.", "_orig_mod.")
#: Where torch names what a pickle needs and may not have.
_REFUSED = re.compile(r"(?:GLOBAL|unrecognized function|but got) (\S+)")


def read_checkpoint(path: Path, card: EncoderCard, *, safe_globals: Iterable[Any] = ()) -> Any:
    """Read a safetensors file, or a pickle with ``weights_only`` and the given safe classes.

    Raises
    ------
    WeightsError
        The file is damaged, or a pickle needs code that is not allowed and the card does not say
        ``unsafe_pickle``.
    """
    if path.suffix == ".safetensors":
        with _undamaged(path):
            return load_file(path)
    try:
        with torch.serialization.safe_globals(list(safe_globals)):
            return torch.load(path, map_location="cpu", weights_only=not card.unsafe_pickle)
    except Exception as error:
        refused = _REFUSED.search(str(error))
        if refused is None:  # such as a page of a web server in place of the file
            raise WeightsError(
                f"{card.name}: {path}: damaged, or no checkpoint of torch "
                f"({type(error).__name__}); delete it and fetch it again"
            ) from error
        raise WeightsError(
            f"{card.name}: {path}: cannot be read safely: it needs {refused[1]}; if you "
            "trust the file, unsafe_pickle: true in the card lets it run code"
        ) from error


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


def wrapper_prefix(names: Collection[str]) -> str:
    """Return what wrappers put before every one of the names, such as ``module.model.``.

    It is empty where a single name is without it.
    """
    prefix = ""
    while names:
        longer = (prefix + wrapper for wrapper in WRAPPERS)
        found = next((each for each in longer if all(n.startswith(each) for n in names)), None)
        if found is None:
            break
        prefix = found
    return prefix


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
    shards = shards_of(card, index, wanted)
    state: State = {}
    digests = []
    for shard in shards:
        path, sha256 = fetch_shard(card, index, shard)
        digests.append(sha256)
        state |= read_matching(path, wanted)
    place = source.description.rpartition("/")[0]
    whole = digests[0] if len(digests) == 1 else digest(*digests)
    return state, Source(f"{place}/{'+'.join(shards)}", whole)


def read_matching(path: Path, wanted: str) -> State:
    """Read the tensors of a safetensors file whose names match, and no others."""
    with _undamaged(path), safe_open(path, framework="pt") as handle:
        names = [name for name in handle.keys() if re.fullmatch(wanted, name)]  # noqa: SIM118
        return {name: handle.get_tensor(name) for name in names}


@contextmanager
def _undamaged(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise WeightsError(
            f"{path}: damaged safetensors file ({error}); delete it and fetch it again"
        ) from error


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
