"""Encoders of the timm library: from the hub at a pinned revision, a local file, or untrained.

A released checkpoint must fit its architecture with its own head. A local one may be fine-tuned:
with a head for any number of classes or none, and with the prefix of a wrapper before all names.
Everything else must fit as exactly.
"""

import logging
import re
from pathlib import Path
from typing import Any

import timm
from torch import nn

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.loaders import checkpoint, untrained, vision_transformer
from crsbench.encoders.sources import FileWeights, RandomWeights
from crsbench.errors import WeightsError, listed

_LOG = logging.getLogger(__name__)
features_at_depths = vision_transformer.features_at_depths

#: Where training scripts put the tensors; averaged ones are preferred, as timm itself does.
WRAPPINGS = ("state_dict_ema", "model_ema", "state_dict", "model")

#: Several names in one of torch's messages.
_NAMES = re.compile(r'"[^"]+"(?:, "[^"]+")+')


def load_source(card: EncoderCard) -> tuple[checkpoint.State, checkpoint.Source]:
    """Return the tensors of the encoder without its head, and where they came from.

    The checkpoint is loaded with a head and strictly (timm turns strict loading off when the
    number of classes differs), and the head is removed afterwards.
    """
    if isinstance(card.weights, RandomWeights):
        return untrained.load_source(build(card), card.weights)
    path, source = checkpoint.fetch(card)
    state = _tensors(path, card)
    if isinstance(card.weights, FileWeights):
        state = _with_any_head(_unwrapped(state, card.name), card)
    else:
        state = dict(timm.models.clean_state_dict(state))
    model = _create(card, pretrained_cfg_overlay={"state_dict": state})
    model.reset_classifier(0)  # drops the projection of a CLIP tower, too
    return dict(model.state_dict()), source


def _tensors(path: Path, card: EncoderCard) -> checkpoint.State:
    """Return the tensors of a checkpoint, also of one that a training script wrapped."""
    whole = checkpoint.read_checkpoint(path, card)
    if not isinstance(whole, dict):
        raise WeightsError(
            f"{card.name}: {path}: a {type(whole).__name__}, no dictionary of tensors"
        )
    wrapping = next((key for key in WRAPPINGS if isinstance(whole.get(key), dict)), None)
    return dict(whole[wrapping] if wrapping else whole)


def _unwrapped(state: checkpoint.State, owner: str) -> checkpoint.State:
    """Return the tensors without the prefix that a wrapper put before all of their names."""
    prefix = checkpoint.wrapper_prefix(state)
    if prefix:
        _LOG.info("%s: stripped %s from the names of all tensors", owner, prefix)
    return {name.removeprefix(prefix): tensor for name, tensor in state.items()}


def _with_any_head(state: checkpoint.State, card: EncoderCard) -> checkpoint.State:
    """Return the tensors with a head that the architecture takes: its own, untrained.

    So the strict check covers all that is not the head, and the head is removed after it. What is
    in the names of another release, which timm converts, is left as it is.
    """
    model = _create(card)
    whole = dict(model.state_dict())
    model.reset_classifier(0)
    encoder = set(model.state_dict())
    classifier = model.default_cfg.get("classifier") or ()
    names = (classifier,) if isinstance(classifier, str) else classifier
    heads = tuple(f"{name}." for name in names)
    dropped = sorted(name for name in state if name.startswith(heads))
    if not dropped and not set(state) <= set(whole):
        return state
    if dropped:
        _LOG.info("%s: dropped the head of the checkpoint: %s", card.name, listed(dropped))
    own = {name: tensor for name, tensor in whole.items() if name not in encoder}
    return own | {name: tensor for name, tensor in state.items() if name not in dropped}


def build(card: EncoderCard) -> nn.Module:
    """Return the architecture without a head; its forward pass gives the card's feature."""
    model = _create(card, num_classes=0)
    return _with_pool(model, card)


def _create(card: EncoderCard, **extra: Any) -> Any:
    pretrained = "pretrained_cfg_overlay" in extra
    if "num_classes" in card.options:
        raise WeightsError(
            f"{card.name}: options.num_classes: an encoder has no head, and with another number of "
            "classes timm would accept an incomplete checkpoint; remove it"
        )
    try:
        return timm.create_model(
            card.architecture, pretrained=pretrained, **{**card.options, **extra}
        )
    except (RuntimeError, TypeError) as error:
        raise WeightsError(
            f"{card.name}: timm {card.architecture}: {_reason(error)}{_known_tags(card)}"
        ) from error


def _reason(error: Exception) -> str:
    """Return a message of timm or torch on one line: of many names or faults the first ones."""
    lines = [" ".join(line.split()).removesuffix(".") for line in str(error).splitlines()]
    faults = [
        _NAMES.sub(lambda found: listed(found[0].replace('"', "").split(", ")), line)
        for line in lines
        if line and not line.startswith("Error(s) in loading state_dict")
    ]
    return listed(faults, between="; ")


def _known_tags(card: EncoderCard) -> str:
    """Return the tags that the card's architecture has, where the card names another."""
    known = sorted(timm.models.get_arch_pretrained_cfgs(card.architecture))
    if "." not in card.architecture or not known or card.architecture in known:
        return ""
    return f"; it has {', '.join(name.partition('.')[2] for name in known)}"


def _with_pool(model: Any, card: EncoderCard) -> nn.Module:
    """Make the model return what the card calls its feature."""
    pool = card.feature.pool
    prefix_tokens = getattr(model, "num_prefix_tokens", None)
    if pool == "cls" and not (prefix_tokens and model.global_pool == "token"):
        raise WeightsError(f"{card.name}: {card.architecture} has no class token; use pool: pooled")
    if pool == "mean":
        if prefix_tokens is None:
            raise WeightsError(f"{card.name}: {card.architecture} has no tokens; use pool: pooled")
        model.global_pool = "avg"
    if pool == "projected":
        raise WeightsError(f"{card.name}: a timm encoder has no projected feature")
    return model
