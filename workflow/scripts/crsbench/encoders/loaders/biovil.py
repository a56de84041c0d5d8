"""BioViL: the image encoder of a flat checkpoint, which is a plain ResNet-50.

The tensors stand below ``encoder.encoder.``, with a classifier that the release never uses; its
projector to 128 dimensions is left out.
"""

import timm
from torch import nn

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.loaders import checkpoint

OTHER_PARTS = r"projector\..*"


def load_source(card: EncoderCard) -> tuple[checkpoint.State, checkpoint.Source]:
    """Return the tensors of the ResNet, and where they came from."""
    path, source = checkpoint.fetch(card)
    state = checkpoint.read_checkpoint(path, card)
    resnet = checkpoint.below(state, "encoder.encoder.", ignored=OTHER_PARTS, owner=card.name)
    return checkpoint.without(resnet, ("fc.weight", "fc.bias"), card.name), source


def build(card: EncoderCard) -> nn.Module:
    """Return the ResNet; its feature is the average-pooled map."""
    checkpoint.require_pool(card, "pooled")
    return timm.create_model(card.architecture, pretrained=False, num_classes=0, **card.options)
