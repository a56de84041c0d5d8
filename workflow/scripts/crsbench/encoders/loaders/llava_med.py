"""LLaVA-Med v1.5: the fine-tuned vision tower and the projector out of the released shards.

The release's own code ignores this tower and loads the one of CLIP. Only the shards that hold its
tensors are fetched, and the language model is never read. The feature is the mean of the 576
patch tokens one block before the last (``mean``), or of their projections (``projected``).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import CLIPVisionConfig, CLIPVisionModel

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.fetching import SHARDED_TENSORS
from crsbench.encoders.loaders import checkpoint, vision_transformer

ARCHITECTURES = {
    "clip_vit_large_patch14_336": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 336,
        "patch_size": 14,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
        "projector_size": 4096,
    }
}
TOWER = r"model\.vision_tower\.vision_tower\.vision_model\."
PROJECTOR = r"model\.mm_projector\."


class LlavaMed(CLIPVisionModel):
    """CLIPVisionModel with the projector, whose output is the feature alone."""

    def __init__(self, config: CLIPVisionConfig, *, projector_size: int, pool: str) -> None:
        super().__init__(config)
        self.pool = pool
        self.projector = nn.Sequential(
            nn.Linear(config.hidden_size, projector_size),
            nn.GELU(),
            nn.Linear(projector_size, projector_size),
        )

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return the features (N, D) of a batch (N, 3, H, W)."""
        states = super().forward(pixel_values, output_hidden_states=True).hidden_states
        return self.pooled(states[-2])

    def pooled(self, state: torch.Tensor) -> torch.Tensor:
        """Return the features (N, D) of token states (N, T, width), the first of them the class."""
        patches = state[:, 1:]
        if self.pool == "projected":
            patches = self.projector(patches)
        return patches.mean(dim=1)


def features_at_depths(
    module: LlavaMed, batch: torch.Tensor, blocks: Sequence[int]
) -> list[torch.Tensor]:
    """Return the mean patch tokens (N, D) after each of the blocks; none of them has a norm."""
    layers, state = module.encoder.layers, module.pre_layrnorm(module.embeddings(batch))
    return [module.pooled(s) for s in vision_transformer.states_after(layers, state, blocks)]


def load_source(card: EncoderCard) -> tuple[checkpoint.State, checkpoint.Source]:
    """Return the tensors of tower and projector, and where they came from."""
    state, source = checkpoint.read_sharded(card, SHARDED_TENSORS[card.loader])
    rules = ((f"^{TOWER}", ""), (f"^{PROJECTOR}", "projector."))
    return checkpoint.renamed(state, rules), source


def build(card: EncoderCard) -> nn.Module:
    """Return the tower with its projector."""
    checkpoint.require_pool(card, "mean", "projected")
    settings: dict[str, Any] = checkpoint.configuration(card, ARCHITECTURES)
    projector_size = settings.pop("projector_size")
    config = CLIPVisionConfig(**settings)
    return LlavaMed(config, projector_size=projector_size, pool=card.feature.pool)
