"""MedSigLIP: the vision tower of a two-tower SigLIP checkpoint, attention-pooled.

Only the vision tensors are read. Checkpoints name them below ``vision_model.``; the module of
transformers 5 has no such prefix.
"""

from collections.abc import Sequence

import torch
from torch import nn
from transformers import SiglipVisionConfig, SiglipVisionModel

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.loaders import checkpoint, vision_transformer

ARCHITECTURES = {
    "siglip_so400m_patch14_448": {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "image_size": 448,
        "patch_size": 14,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
    }
}
OTHER_PARTS = r"text_model\..*|logit_scale|logit_bias"


class SiglipTower(SiglipVisionModel):
    """SiglipVisionModel whose output is the feature alone."""

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return the pooled features (N, D) of a batch (N, 3, H, W)."""
        return super().forward(pixel_values).pooler_output


def features_at_depths(
    module: SiglipTower, batch: torch.Tensor, blocks: Sequence[int]
) -> list[torch.Tensor]:
    """Return the attention-pooled features (N, D) after each of the blocks."""
    layers, state = module.encoder.layers, module.embeddings(batch)
    states = vision_transformer.states_after(layers, state, blocks)
    return [module.head(module.post_layernorm(state)) for state in states]


def load_source(card: EncoderCard) -> tuple[checkpoint.State, checkpoint.Source]:
    """Return the tensors of the tower, and where they came from."""
    path, source = checkpoint.fetch(card)
    state = checkpoint.read_matching(path, rf"(?!{OTHER_PARTS}).*")
    return checkpoint.below(state, "vision_model.", ignored=r"(?!)", owner=card.name), source


def build(card: EncoderCard) -> nn.Module:
    """Return the tower; its feature is the attention-pooled output, not L2-normalised."""
    checkpoint.require_pool(card, "pooled")
    return SiglipTower(SiglipVisionConfig(**checkpoint.configuration(card, ARCHITECTURES)))
