"""The tensors of a vision transformer, of whichever library, under the names that timm has.

It lets two implementations be compared name by name. The rules are written from the modules of
open_clip, transformers and timm, not from the loaders under test.
"""

import re

import torch

State = dict[str, torch.Tensor]

RULES = (
    (r"^(?:class_embedding|embeddings\.(?:cls_token|class_embedding))$", "cls_token"),
    (r"^(?:positional_embedding|embeddings\.position_embeddings?(?:\.weight)?)$", "pos_embed"),
    (r"^(?:conv1|embeddings\.patch_embeddings?(?:\.projection)?)\.", "patch_embed.proj."),
    (r"^(?:ln_pre|pre_layrnorm)\.", "norm_pre."),
    (r"^(?:ln_post|post_layernorm|layernorm)\.", "norm."),
    (r"^(?:transformer\.resblocks|encoder\.layers?|layers)\.", "blocks."),
    (r"\.(?:ln_|layer_norm)([12])\.", r".norm\1."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.(?:gamma_|layer_scale)([12])(?:\.lambda1)?$", r".ls\1.gamma"),
    (r"\.(?:self_attn|attention)\.", ".attn."),
    (r"\.attn\.in_proj_", ".attn.qkv."),
    (r"\.attn\.o(?:ut)?_proj\.", ".attn.proj."),
    (r"\.attn\.([qkv])(?:_proj\.|_(?=bias))", r".attn.\1."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
    (r"^head\.probe$", "attn_pool.latent"),
    (r"^head\.layernorm\.", "attn_pool.norm."),
    (r"^head\.(?:attn\.)?", "attn_pool."),
)
PART = re.compile(r"(.+)\.(q|k|v|kv)\.(weight|bias)")


def as_timm(state: State) -> State:
    """Return the tensors under timm's names, with queries, keys and values in one tensor.

    timm's own names are left alone, and so are a ResNet's, which torchvision shares with timm.
    """
    if "bn1.weight" in state:
        return dict(state)
    named = {_named(name): tensor for name, tensor in state.items()}
    assert len(named) == len(state)
    for name in ("cls_token", "pos_embed"):
        if name in named:
            named[name] = named[name].reshape(1, -1, named[name].shape[-1])
    return _fused(named)


def _named(name: str) -> str:
    for pattern, replacement in RULES:
        name = re.sub(pattern, replacement, name)
    return name


def _fused(state: State) -> State:
    whole = {name: tensor for name, tensor in state.items() if not PART.fullmatch(name)}
    parts: dict[tuple[str, str], State] = {}
    for name in set(state) - set(whole):
        stem, part, kind = PART.fullmatch(name).groups()
        parts.setdefault((stem, kind), {})[part] = state[name]
    for (stem, kind), found in parts.items():
        if set(found) == {"q", "v"}:  # BEiT's keys have no bias
            found["k"] = torch.zeros_like(found["q"])
        order = ("q", "kv") if "kv" in found else ("q", "k", "v")
        assert set(found) == set(order)
        whole[f"{stem}.qkv.{kind}"] = torch.cat([found[part] for part in order])
    return whole
