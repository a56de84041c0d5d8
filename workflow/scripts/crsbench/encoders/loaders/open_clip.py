"""The vision tower of any open_clip architecture; the text tower is never built.

The architecture is open_clip's name of it, so that the activation is part of the name
(``ViT-B-16-quickgelu`` for OpenAI's weights). The feature is the tower's output, which ends with
its projection where it has one.
"""

import open_clip
from open_clip.model import _build_vision_tower
from torch import nn

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.loaders import checkpoint, untrained
from crsbench.encoders.sources import RandomWeights
from crsbench.errors import WeightsError


def load_source(card: EncoderCard) -> tuple[checkpoint.State, checkpoint.Source]:
    """Return the tensors of the vision tower, and where they came from."""
    if isinstance(card.weights, RandomWeights):
        return untrained.load_source(build(card), card.weights)
    path, source = checkpoint.fetch(card)
    state = checkpoint.read_checkpoint(path, card)
    text_tower = r"(?!visual\.).*"
    return checkpoint.below(state, "visual.", ignored=text_tower, owner=card.name), source


def build(card: EncoderCard) -> nn.Module:
    """Return the vision tower."""
    checkpoint.require_pool(card, "pooled")
    settings = open_clip.get_model_config(card.architecture)
    if settings is None:
        raise WeightsError(
            f"{card.name}: open_clip has no architecture {card.architecture!r}; "
            "open_clip.list_models() lists them"
        )
    return _build_vision_tower(
        settings["embed_dim"],
        {**settings["vision_cfg"], **card.options},
        quick_gelu=settings.get("quick_gelu", False),
    )
