"""Features inside a transformer, for the loaders: after a block, pooled as the final feature is.

A state after a block goes through what follows the last block of the encoder (final norm, pooling,
projector), so that the feature after the last block used is the encoder's feature itself, to the
bit. Only the states that are asked for are kept.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from crsbench.errors import WeightsError


def features_at_depths(
    module: nn.Module, batch: torch.Tensor, blocks: Sequence[int]
) -> list[torch.Tensor]:
    """Return the features (N, D) of a timm ViT after each of the blocks.

    Parameters
    ----------
    module
        A `VisionTransformer` without a head.
    batch
        Images (N, 3, H, W).
    blocks
        Zero-based numbers of blocks, rising.
    """
    if not isinstance(module, VisionTransformer):
        raise WeightsError(
            f"{type(module).__name__} is no vision transformer of timm, so it has no features at "
            "depths; remove depth_indices from the encoder's card"
        )
    vit: Any = module
    states = vit.forward_intermediates(
        batch,
        indices=list(blocks),
        norm=True,
        stop_early=True,
        return_prefix_tokens=True,
        output_fmt="NLC",
        intermediates_only=True,
    )
    return [vit.forward_head(_tokens(state)) for state in states]


def _tokens(state: torch.Tensor | tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return all tokens in order; timm hands over patch and prefix tokens apart."""
    return torch.cat(state[::-1], dim=1) if isinstance(state, tuple) else state


def states_after(
    layers: Iterable[nn.Module], state: torch.Tensor, blocks: Sequence[int]
) -> list[torch.Tensor]:
    """Run the layers of a transformers encoder and return the states after the given blocks.

    Parameters
    ----------
    layers
        All blocks, in order; those after the last one asked for are not run.
    state
        The embedded tokens (N, T, D).
    blocks
        Zero-based numbers of blocks, rising.
    """
    states = []
    for number, layer in enumerate(layers):
        if number > blocks[-1]:
            break
        state = layer(state, None)  # no attention mask: every token sees every other
        if number in blocks:
            states.append(state)
    return states
