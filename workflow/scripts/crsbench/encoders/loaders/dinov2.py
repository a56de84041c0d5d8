"""DINOv2 as transformers has it (RAD-DINO): the class token after the final norm.

Position embeddings are interpolated to the size of the input, so that one checkpoint serves 224
and 518 px.
"""

from collections.abc import Sequence

import torch
from torch import nn
from transformers import Dinov2Config, Dinov2Model

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.loaders import checkpoint, vision_transformer

ARCHITECTURES = {
    "dinov2_vitb14_518": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "mlp_ratio": 4,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-6,
        "image_size": 518,
        "patch_size": 14,
        "qkv_bias": True,
        "layerscale_value": 1.0,
        "use_swiglu_ffn": False,
    }
}
#: From the names of checkpoints saved before transformers 5 to those of the module.
RENAMING = (
    (r"\.attention\.attention\.query\.", ".attention.q_proj."),
    (r"\.attention\.attention\.key\.", ".attention.k_proj."),
    (r"\.attention\.attention\.value\.", ".attention.v_proj."),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
)


class Dinov2(Dinov2Model):
    """Dinov2Model whose output is the feature alone."""

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return the class tokens (N, D) of a batch (N, 3, H, W)."""
        return super().forward(pixel_values).last_hidden_state[:, 0]


def features_at_depths(
    module: Dinov2, batch: torch.Tensor, blocks: Sequence[int]
) -> list[torch.Tensor]:
    """Return the class tokens (N, D) after each of the blocks and the final norm."""
    layers, state = module.encoder.layer, module.embeddings(batch)
    states = vision_transformer.states_after(layers, state, blocks)
    return [module.layernorm(state)[:, 0] for state in states]


def load_source(card: EncoderCard) -> tuple[checkpoint.State, checkpoint.Source]:
    """Return the tensors of the encoder, and where they came from."""
    path, source = checkpoint.fetch(card)
    state = checkpoint.read_checkpoint(path, card)
    return checkpoint.renamed(state, RENAMING), source


def build(card: EncoderCard) -> nn.Module:
    """Return the encoder; its feature is the class token after the norm."""
    checkpoint.require_pool(card, "cls")
    return Dinov2(Dinov2Config(**checkpoint.configuration(card, ARCHITECTURES)))
