"""An encoder from a function of the user's own: ``architecture: module:function``.

The function is called with the card's options and returns a torch module whose forward pass maps
(N, 3, H, W) to (N, D). Its weights come from the card's checkpoint (a flat dictionary of tensors
under the module's own names), or with ``weights: none`` from the function itself. The module must
be importable: installed, or on PYTHONPATH.
"""

import importlib
from typing import Any

from torch import nn

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.loaders import checkpoint, untrained
from crsbench.encoders.sources import NoWeights, RandomWeights
from crsbench.errors import WeightsError


def load_source(card: EncoderCard) -> tuple[checkpoint.State, checkpoint.Source]:
    """Return the tensors of the encoder, and where they came from."""
    if isinstance(card.weights, RandomWeights):
        return untrained.load_source(build(card), card.weights)
    if isinstance(card.weights, NoWeights):
        return dict(build(card).state_dict()), checkpoint.Source(f"made by {card.architecture}", "")
    path, source = checkpoint.fetch(card)
    return checkpoint.read_checkpoint(path, card), source


def build(card: EncoderCard) -> nn.Module:
    """Return what the function makes."""
    made = _function(card)(**card.options)
    if not isinstance(made, nn.Module):
        raise WeightsError(
            f"{card.name}: {card.architecture} returned {type(made).__name__}, expected a "
            "torch.nn.Module"
        )
    return made


def _function(card: EncoderCard) -> Any:
    module, _, function = card.architecture.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise WeightsError(
            f"{card.name}: architecture {card.architecture!r}: {error}; expected module:function, "
            "importable from here"
        ) from error
