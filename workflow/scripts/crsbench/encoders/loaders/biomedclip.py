"""BiomedCLIP: the vision trunk of an open_clip release, without its text tower.

open_clip would fetch the tokenizer and the configuration of another repository; the trunk is a
plain timm ViT, and its tensors stand below ``visual.trunk.`` in the checkpoint.
"""

import timm
from torch import nn

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.loaders import checkpoint, vision_transformer

features_at_depths = vision_transformer.features_at_depths

OTHER_PARTS = r"text\..*|logit_scale|visual\.head\.proj\.weight"


def load_source(card: EncoderCard) -> tuple[checkpoint.State, checkpoint.Source]:
    """Return the tensors of the trunk, and where they came from."""
    path, source = checkpoint.fetch(card)
    state = checkpoint.read_checkpoint(path, card)
    trunk = checkpoint.below(state, "visual.trunk.", ignored=OTHER_PARTS, owner=card.name)
    return trunk, source


def build(card: EncoderCard) -> nn.Module:
    """Return the trunk; its feature is the class token after the norm, before the projection."""
    checkpoint.require_pool(card, "cls")
    return timm.create_model(card.architecture, pretrained=False, num_classes=0, **card.options)
