"""The weights stage: one safetensors file per encoder, vision tensors only, in float32.

The file is what every later job opens: it holds exactly the tensors that the architecture has,
and says in its metadata what they were made from. A missing or a surplus tensor is an error that
names it.
"""

import hashlib
import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from crsbench.digests import digest
from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.loaders.checkpoint import State, check_tensors
from crsbench.errors import WeightsError, listed
from crsbench.files import written_atomically

LOADERS = "crsbench.encoders.loaders"

#: From a module, a batch (N, 3, H, W) and zero-based blocks to the features (N, D) after each.
FeaturesAtDepths = Callable[[torch.nn.Module, torch.Tensor, Sequence[int]], list[torch.Tensor]]


@dataclass(frozen=True)
class LoadedEncoder:
    """An encoder ready for a forward pass: its card, its module, the digest of its weights."""

    card: EncoderCard
    module: torch.nn.Module
    weights_digest: str


def write_weights(card: EncoderCard, path: str | Path) -> dict[str, str]:
    """Fetch an encoder's checkpoint, convert its vision tensors and write them.

    Returns
    -------
    dict
        The metadata of the file: ``source``, ``source_sha256``, ``licence``, ``weights_digest``.

    Raises
    ------
    WeightsError
        The checkpoint cannot be had, or its tensors are not those of the architecture.
    """
    state, source = _loader(card).load_source(card)
    _refuse_other_than_tensors(state, card)
    state = {name: _as_stored(tensor) for name, tensor in sorted(state.items())}
    check_tensors(state, build_encoder(card).state_dict(), card.name)
    metadata = {
        "source": source.description,
        "source_sha256": source.sha256,
        "licence": card.licence,
        "weights_digest": state_digest(state),
    }
    with written_atomically(path) as temporary:
        save_file(state, temporary, metadata=metadata)
        _sort_metadata(temporary)
    return metadata


def build_encoder(card: EncoderCard) -> torch.nn.Module:
    """Return the network of a card, with whatever weights it is built with."""
    module: torch.nn.Module = _loader(card).build(card)
    return module


def _sort_metadata(path: Path) -> None:
    """Rewrite the header with its metadata in order, so that equal weights are equal bytes.

    safetensors writes metadata in the order of a hash map with a random seed.
    """
    with path.open("r+b") as handle:
        size = int.from_bytes(handle.read(8), "little")
        header = json.loads(handle.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        raw = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(raw) > size:
            raise RuntimeError(f"{path}: the header grew from {size} to {len(raw)} bytes")
        handle.seek(8)
        handle.write(raw.ljust(size))


def load_encoder(card: EncoderCard, path: str | Path) -> LoadedEncoder:
    """Build an encoder and load its weights file, strictly; the module is frozen and in eval mode.

    Raises
    ------
    WeightsError
        The file is missing, damaged, or does not hold exactly the tensors of the architecture.
    """
    metadata = read_weights_metadata(path)
    state = load_file(path)
    module = build_encoder(card)
    check_tensors(state, module.state_dict(), f"{card.name}: {path}")
    module.load_state_dict(state)
    module.eval().requires_grad_(False)
    return LoadedEncoder(card, module, metadata["weights_digest"])


def depth_function(card: EncoderCard) -> FeaturesAtDepths:
    """Return the loader's function for features inside the encoder.

    Raises
    ------
    WeightsError
        The loader has none.
    """
    loader = _loader(card)
    if not hasattr(loader, "features_at_depths"):
        raise WeightsError(
            f"{card.name}: the loader {card.loader} gives no features inside an encoder; remove "
            "depth_indices from its card"
        )
    return loader.features_at_depths


def read_weights_metadata(path: str | Path) -> dict[str, str]:
    """Read the metadata of a weights file without its tensors."""
    if not Path(path).is_file():
        raise WeightsError(f"{path}: no such weights file; the weights stage makes it")
    try:
        with safe_open(path, framework="pt") as handle:
            return dict(handle.metadata() or {})
    except Exception as error:
        raise WeightsError(f"{path}: damaged weights file ({error}); delete it") from error


def state_digest(state: State) -> str:
    """Return the SHA-256 of tensors: names, types, shapes and bytes, in the order of the names."""
    sha = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].contiguous()
        sha.update(digest(name, str(tensor.dtype), str(tuple(tensor.shape))).encode())
        sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()


def _refuse_other_than_tensors(state: object, card: EncoderCard) -> None:
    """Refuse a checkpoint that holds more than tensors, such as one with nested dictionaries."""
    found = state if isinstance(state, dict) else {"the checkpoint": state}
    others = [
        f"{name} ({type(value).__name__})"
        for name, value in found.items()
        if not isinstance(value, torch.Tensor)
    ]
    if others:
        raise WeightsError(
            f"{card.name}: no tensor: {listed(others)}; expected a flat dictionary of tensors, so "
            "save the state of the network alone"
        )


def _as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as it is stored: floats as float32, contiguous, owning its memory."""
    tensor = tensor.detach().to("cpu")
    tensor = tensor.float() if tensor.is_floating_point() else tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _loader(card: EncoderCard) -> ModuleType:
    return importlib.import_module(f"{LOADERS}.{card.loader}")
