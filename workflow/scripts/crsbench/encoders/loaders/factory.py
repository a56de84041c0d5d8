"""An encoder from a function of the user's own: ``architecture: module:function``.

The function is called with the card's options and returns a torch module whose forward pass maps
(N, 3, H, W) to (N, D). Its weights come from the card's checkpoint (a flat dictionary of tensors
under the module's own names), or with ``weights: none`` from the function itself. The module must
be importable: installed, or on PYTHONPATH.
"""

import importlib
import re
from typing import Any

from torch import nn

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.loaders import checkpoint, untrained
from crsbench.encoders.sources import NoWeights, RandomWeights
from crsbench.errors import WeightsError, listed

#: Names of tensors that belong to a head, as libraries call it.
_HEAD = re.compile(r"(?:^|\.)(?:heads?|head_dist|fc|classifier|last_linear|linear)\.")


def load_source(card: EncoderCard) -> tuple[checkpoint.State, checkpoint.Source]:
    """Return the tensors of the encoder, and where they came from."""
    if isinstance(card.weights, RandomWeights):
        return untrained.load_source(build(card), card.weights)
    if isinstance(card.weights, NoWeights):
        return dict(build(card).state_dict()), checkpoint.Source(f"made by {card.architecture}", "")
    path, source = checkpoint.fetch(card)
    state = checkpoint.read_checkpoint(path, card)
    if isinstance(state, dict):
        _refuse_usual_surplus(set(state), set(build(card).state_dict()), card.name)
    return state, source


def _refuse_usual_surplus(found: set[str], expected: set[str], owner: str) -> None:
    """Refuse the two usual kinds of surplus names, a wrapper's prefix and a head, with advice."""
    surplus = sorted(found - expected)
    prefix = checkpoint.wrapper_prefix(surplus)
    if prefix and {name.removeprefix(prefix) for name in surplus} & expected:
        raise WeightsError(
            f"{owner}: surplus in the checkpoint: {listed(surplus)}; these names start with "
            f"{prefix!r}, as a wrapper saves them: save the state of the network inside, or take "
            "the prefix off the names"
        )
    if surplus and found >= expected and all(_HEAD.search(name) for name in surplus):
        raise WeightsError(
            f"{owner}: surplus in the checkpoint: {listed(surplus)}; they look like a head, which "
            "a feature does not need: save the state without them (for a network of timm the "
            "loader timm drops its head)"
        )


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
