"""Weights of untrained encoders, drawn tensor by tensor from the card's seed.

Each tensor has its own generator, keyed by its name, so that neither the order of construction nor
the number of threads matters. Matrices get variance 1/fan-in, convolutions 2/fan-in, tokens and
position embeddings standard deviation 0.02. Biases are zero: some architectures are built with
random ones. Other vectors (norms, running statistics) keep the constants they are built with.
"""

import math

import numpy as np
import torch
from torch import nn

from crsbench.digests import generator
from crsbench.encoders.loaders.checkpoint import Source, State
from crsbench.encoders.sources import RandomWeights


def load_source(module: nn.Module, weights: RandomWeights) -> tuple[State, Source]:
    """Return a state for `module` drawn from the seed, and its description."""
    seed = weights.seed
    state = {name: _drawn(name, tensor, seed) for name, tensor in module.state_dict().items()}
    return state, Source(f"untrained, seed {seed}", "")


def _drawn(name: str, tensor: torch.Tensor, seed: int) -> torch.Tensor:
    if name.endswith("bias") and tensor.ndim == 1:
        return torch.zeros_like(tensor)
    if tensor.ndim < 2:
        return tensor.clone()
    normal = generator("untrained", name, seed).standard_normal(tensor.shape)
    return torch.from_numpy((normal * _scale(tensor)).astype(np.float32))


def _scale(tensor: torch.Tensor) -> float:
    if tensor.shape[0] == 1:
        return 0.02
    gain = 1 if tensor.ndim == 2 else 2
    return math.sqrt(gain / math.prod(tensor.shape[1:]))
