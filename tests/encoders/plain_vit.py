"""A vision transformer written out in plain torch: the second implementation of most encoders.

It takes tensors under timm's names (`vit_layouts.as_timm`) and no class of any library. Equations:
Dosovitskiy et al. 2021, eq. 1 to 4; layer scale of Touvron et al. 2021; attention pooling of
Zhai et al. 2022; the projector of Gemma 3 (average pooling, RMS norm, one matrix).
"""

import math

import torch
from torch.nn import functional
from vit_layouts import State

N_HEADS = 2
EPS = 1e-6


def gelu(x: torch.Tensor) -> torch.Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_by_tanh(x: torch.Tensor) -> torch.Tensor:
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = EPS):
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(dim=-1, keepdim=True) + eps) * weight + bias


def resized(pos_embed: torch.Tensor, side: int, *, antialias: bool) -> torch.Tensor:
    """Return position embeddings (1, 1 + side², D) for another number of patches."""
    prefix, grid = pos_embed[:, :1], pos_embed[:, 1:]
    old = math.isqrt(grid.shape[1])
    grid = grid.reshape(1, old, old, -1).permute(0, 3, 1, 2)
    grid = functional.interpolate(grid, (side, side), mode="bicubic", antialias=antialias)
    return torch.cat([prefix, grid.permute(0, 2, 3, 1).reshape(1, side * side, -1)], dim=1)


class PlainViT:
    """The network of a state: `n_blocks` of its blocks, an activation, an eps of its norms."""

    def __init__(self, state: State, *, n_blocks: int = 2, activation=gelu, eps: float = EPS):
        self.state = state
        self.n_blocks = n_blocks
        self.activation = activation
        self.eps = eps

    def embedded(self, images: torch.Tensor) -> torch.Tensor:
        kernel = self.state["patch_embed.proj.weight"]
        bias = self.state.get("patch_embed.proj.bias")
        patches = functional.conv2d(images, kernel, bias, stride=kernel.shape[-1])
        x = patches.flatten(2).mT
        if "cls_token" in self.state:
            x = torch.cat([self.state["cls_token"].expand(len(x), -1, -1), x], dim=1)
        x = x + self.state["pos_embed"]
        return self.norm(x, "norm_pre") if "norm_pre.weight" in self.state else x

    def tokens(self, images: torch.Tensor) -> torch.Tensor:
        """Return the tokens (N, T, D) after the last block, before any norm."""
        x = self.embedded(images)
        for number in range(self.n_blocks):
            name = f"blocks.{number}"
            normed = self.norm(x, f"{name}.norm1")
            x = x + self.scaled(self.attention(normed, normed, f"{name}.attn"), f"{name}.ls1")
            x = x + self.scaled(self.mlp(self.norm(x, f"{name}.norm2"), name), f"{name}.ls2")
        return x

    def normed_tokens(self, images: torch.Tensor) -> torch.Tensor:
        return self.norm(self.tokens(images), "norm")

    def class_token(self, images: torch.Tensor) -> torch.Tensor:
        return self.normed_tokens(images)[:, 0]

    def attention_pooled(self, images: torch.Tensor) -> torch.Tensor:
        """Return what one learned query (N, D) gathers from the normed tokens."""
        tokens = self.normed_tokens(images)
        query = self.state["attn_pool.latent"].expand(len(tokens), -1, -1)
        x = self.attention(query, tokens, "attn_pool")
        return (x + self.mlp(self.norm(x, "attn_pool.norm"), "attn_pool"))[:, 0]

    def soft_tokens(self, images: torch.Tensor, *, side: int) -> torch.Tensor:
        """Return the side² projected tokens (N, side², D) that Gemma's language model reads."""
        tokens = self.normed_tokens(images)
        old = math.isqrt(tokens.shape[1])
        n, block = len(tokens), old // side
        x = tokens.reshape(n, side, block, side, block, -1).mean(dim=(2, 4)).flatten(1, 2)
        x = x / torch.sqrt((x**2).mean(dim=-1, keepdim=True) + self.eps)
        x = x * (1 + self.state["projector.mm_soft_emb_norm.weight"])
        return x @ self.state["projector.mm_input_projection_weight"]

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return layer_norm(x, self.state[f"{name}.weight"], self.state[f"{name}.bias"], self.eps)

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.state[f"{name}.weight"].mT + self.state[f"{name}.bias"]

    def scaled(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * self.state.get(f"{name}.gamma", 1.0)

    def mlp(self, x: torch.Tensor, name: str) -> torch.Tensor:
        hidden = self.activation(self.linear(x, f"{name}.mlp.fc1"))
        return self.linear(hidden, f"{name}.mlp.fc2")

    def attention(self, asking: torch.Tensor, asked: torch.Tensor, name: str) -> torch.Tensor:
        weights = self.state[f"{name}.qkv.weight"].chunk(3)
        biases = self.state[f"{name}.qkv.bias"].chunk(3)
        q, k, v = (
            (x @ weight.mT + bias).unflatten(-1, (N_HEADS, -1)).transpose(1, 2)
            for x, weight, bias in zip((asking, asked, asked), weights, biases, strict=True)
        )
        scores = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
        return self.linear((scores @ v).transpose(1, 2).flatten(2), f"{name}.proj")
