"""MedGemma: the vision tower and the projector out of the released shards.

The language model is never read. The feature is the mean of the 256 soft tokens that the
projector hands to it. float16 gives NaN in this tower and is refused.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import Gemma3Config, SiglipVisionConfig, SiglipVisionModel
from transformers.models.gemma3.modeling_gemma3 import Gemma3MultiModalProjector

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.fetching import SHARDED_TENSORS
from crsbench.encoders.loaders import checkpoint, vision_transformer
from crsbench.errors import WeightsError

ARCHITECTURES = {
    "siglip_so400m_patch14_896": {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "image_size": 896,
        "patch_size": 14,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
        "soft_tokens": 256,
        "soft_token_size": 2560,
    }
}
#: Of three styles of names: of the first release, of transformers 4.52 on, and of 5.
RENAMING = (
    (r"^(?:model\.)?vision_tower\.(?:vision_model\.)?", ""),
    (r"^(?:model\.)?multi_modal_projector\.", "projector."),
)


class MedGemma(SiglipVisionModel):
    """SiglipVisionModel with the projector, whose output is the feature alone."""

    def __init__(self, config: Gemma3Config) -> None:
        super().__init__(config.vision_config)
        self.projector = Gemma3MultiModalProjector(config)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return the mean soft tokens (N, D) of a batch (N, 3, H, W)."""
        tokens = super().forward(pixel_values).last_hidden_state
        return self.projector(tokens).mean(dim=1)


def features_at_depths(
    module: MedGemma, batch: torch.Tensor, blocks: Sequence[int]
) -> list[torch.Tensor]:
    """Return the mean soft tokens (N, D) that the projector makes after each of the blocks."""
    layers, state = module.encoder.layers, module.embeddings(batch)
    states = vision_transformer.states_after(layers, state, blocks)
    return [module.projector(module.post_layernorm(state)).mean(dim=1) for state in states]


def load_source(card: EncoderCard) -> tuple[checkpoint.State, checkpoint.Source]:
    """Return the tensors of tower and projector, and where they came from."""
    state, source = checkpoint.read_sharded(card, SHARDED_TENSORS[card.loader])
    return checkpoint.renamed(state, RENAMING), source


def build(card: EncoderCard) -> nn.Module:
    """Return the tower with its projector."""
    checkpoint.require_pool(card, "projected")
    if card.dtype == "float16":
        raise WeightsError(f"{card.name}: float16 gives NaN here; use dtype float32 or bfloat16")
    settings: dict[str, Any] = checkpoint.configuration(card, ARCHITECTURES)
    text = {"hidden_size": settings.pop("soft_token_size")}
    soft_tokens = settings.pop("soft_tokens")
    vision = SiglipVisionConfig(vision_use_head=False, **settings)
    return MedGemma(
        Gemma3Config(
            text_config=text, vision_config=vision.to_dict(), mm_tokens_per_image=soft_tokens
        )
    )
