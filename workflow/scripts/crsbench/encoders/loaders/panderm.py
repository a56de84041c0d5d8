"""PanDerm: the encoder of a context autoencoder, as a timm ViT with layer scale.

In the Large release the encoder stands below ``encoder.``, beside the modules of its pretraining;
the Base release is the encoder alone. Queries and values have biases of their own and keys have
none, which is a fused bias with zeros in the middle. None of the release's code is needed.
"""

import re

import timm
import torch
from torch import nn

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.loaders import checkpoint, vision_transformer

features_at_depths = vision_transformer.features_at_depths

PREFIX = "encoder."
RENAMING = ((r"\.gamma_([12])$", r".ls\1.gamma"),)


def load_source(card: EncoderCard) -> tuple[checkpoint.State, checkpoint.Source]:
    """Return the tensors of the encoder under timm's names, and where they came from."""
    path, source = checkpoint.fetch(card)
    state = checkpoint.read_checkpoint(path, card)
    if any(name.startswith(PREFIX) for name in state):
        pretraining = rf"(?!{re.escape(PREFIX)}).*"
        state = checkpoint.below(state, PREFIX, ignored=pretraining, owner=card.name)
    return checkpoint.renamed(_with_fused_biases(state, card.name), RENAMING), source


def _with_fused_biases(state: checkpoint.State, owner: str) -> checkpoint.State:
    queries = [name for name in state if name.endswith(".attn.q_bias")]
    values = [name.replace("q_bias", "v_bias") for name in queries]
    fused = {
        query.replace("q_bias", "qkv.bias"): torch.cat(
            [state[query], torch.zeros_like(state[query]), state[value]]
        )
        for query, value in zip(queries, values, strict=True)
        if value in state
    }
    return {**checkpoint.without(state, [*queries, *values], owner), **fused}


def build(card: EncoderCard) -> nn.Module:
    """Return the encoder; its feature is the class token after the norm."""
    checkpoint.require_pool(card, "cls")
    return timm.create_model(
        card.architecture, pretrained=False, num_classes=0, init_values=0.1, **card.options
    )
