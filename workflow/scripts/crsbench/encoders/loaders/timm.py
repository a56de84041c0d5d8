"""Encoders of the timm library: from the hub at a pinned revision, a local file, or untrained."""

from pathlib import Path
from typing import Any

import timm
from torch import nn

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.loaders import checkpoint, untrained, vision_transformer
from crsbench.encoders.sources import RandomWeights
from crsbench.errors import WeightsError

features_at_depths = vision_transformer.features_at_depths

#: Where training scripts put the tensors; averaged ones are preferred, as timm itself does.
WRAPPINGS = ("state_dict_ema", "model_ema", "state_dict", "model")


def load_source(card: EncoderCard) -> tuple[checkpoint.State, checkpoint.Source]:
    """Return the tensors of the encoder without its head, and where they came from.

    The checkpoint is loaded with its own head and strictly (timm turns strict loading off when
    the number of classes differs), and the head is removed afterwards.
    """
    if isinstance(card.weights, RandomWeights):
        return untrained.load_source(build(card), card.weights)
    path, source = checkpoint.fetch(card)
    model = _create(card, pretrained_cfg_overlay={"state_dict": _tensors(path, card)})
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
    return dict(timm.models.clean_state_dict(whole[wrapping] if wrapping else whole))


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
        reason = " ".join(str(error).split())
        raise WeightsError(f"{card.name}: timm {card.architecture}: {reason[:600]}") from error


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
