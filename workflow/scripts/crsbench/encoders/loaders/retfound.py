"""RETFound: the encoder half of a masked autoencoder, with mean-pooled patch tokens.

The official class pools the patch tokens and applies a fresh norm (weight one, bias zero), while
the pretrained norm, which follows the class token, is dropped. The pickle holds the arguments of
the training beside the tensors, so their plain classes are allowed, and nothing else.
"""

import argparse

import numpy as np
import timm
import torch
from torch import nn

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.loaders import checkpoint, vision_transformer
from crsbench.errors import WeightsError

features_at_depths = vision_transformer.features_at_depths

#: Also under the name that pickles of numpy 1 have for it.
NUMPY_SCALAR = np._core.multiarray.scalar  # type: ignore[attr-defined]
SAFE_CLASSES = (
    argparse.Namespace,
    NUMPY_SCALAR,
    (NUMPY_SCALAR, "numpy.core.multiarray.scalar"),
    np.dtype,
    np.dtypes.Float64DType,
    np.dtypes.Int64DType,
)


def load_source(card: EncoderCard) -> tuple[checkpoint.State, checkpoint.Source]:
    """Return the tensors of the encoder with its fresh norm, and where they came from."""
    path, source = checkpoint.fetch(card)
    whole = checkpoint.read_checkpoint(path, card, safe_globals=SAFE_CLASSES)
    if not isinstance(whole.get("model"), dict):
        raise WeightsError(f"{card.name}: {path}: no entry 'model'; not a RETFound checkpoint")
    state: checkpoint.State = whole["model"]
    decoder = [name for name in state if name == "mask_token" or name.startswith("decoder_")]
    unused = [*decoder, "norm.weight", "norm.bias"]
    encoder = checkpoint.without(state, unused, card.name)
    width = state["norm.weight"].shape[0]
    norm = {"fc_norm.weight": torch.ones(width), "fc_norm.bias": torch.zeros(width)}
    return {**encoder, **norm}, source


def build(card: EncoderCard) -> nn.Module:
    """Return the encoder; its feature is the norm of the mean of the patch tokens."""
    checkpoint.require_pool(card, "mean")
    return timm.create_model(
        card.architecture, pretrained=False, num_classes=0, global_pool="avg", **card.options
    )
