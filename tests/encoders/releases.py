"""A synthetic release of every published encoder, with features of a second implementation.

The second implementations are torchvision's ResNet-50, open_clip's tower (CLIP, CheXzero), timm's
BEiT (PanDerm, which the loader makes a plain ViT), and `plain_vit` for all the others, whose
modules are built by the same class of timm or transformers that names the released tensors.
"""

import argparse
from pathlib import Path

import numpy as np
import timm
import torch
import torchvision
import transformers
from plain_vit import PlainViT, gelu_by_tanh, quick_gelu, resized
from synthetic_release import (
    CARDS,
    Release,
    drawn,
    local,
    pickled,
    prefixed,
    released_file,
    safetensors,
    sharded,
)
from vit_layouts import State, as_timm

VIT = {"depth": 2, "embed_dim": 32, "num_heads": 2}
SIGLIP = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 56,
}
LANGUAGE = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


def narrow_resnet50():
    """Return a ResNet-50 with all of its tensors, narrow inside its bottlenecks."""
    return drawn(torchvision.models.resnet50(width_per_group=4))


def without_classifier(model):
    model.fc = torch.nn.Identity()
    return model


def resnet50(folder: Path) -> Release:
    path = released_file("resnet50", folder)
    model = narrow_resnet50()
    state = model.state_dict()
    encoder = without_classifier(model)
    key = "layer3.5.conv3.weight"
    return Release(local("resnet50", path, base_width=4), state, safetensors(path),
                   encoder.state_dict(), encoder, key, key)  # fmt: skip


def plain_vit(name: str, folder: Path, *, n_classes: int) -> Release:
    path = released_file(name, folder)
    architecture = CARDS[name].architecture.partition(".")[0]
    model = drawn(timm.create_model(architecture, num_classes=n_classes, **VIT))
    state = model.state_dict()
    wanted = {key: tensor for key, tensor in state.items() if not key.startswith("head.")}
    key = "blocks.1.attn.qkv.bias"
    return Release(local(name, path, **VIT), state, safetensors(path), wanted,
                   PlainViT(wanted).class_token, key, key)  # fmt: skip


def vit_b16(folder: Path) -> Release:
    return plain_vit("vit_b16", folder, n_classes=21843)


def mae_b16(folder: Path) -> Release:
    return plain_vit("mae_b16", folder, n_classes=0)


def dinov2_b14(folder: Path) -> Release:
    """The release is made for 518 px; the card runs it at 224 px, with 16 x 16 patches."""
    release = plain_vit("dinov2_b14", folder, n_classes=0)
    assert release.state["pos_embed"].shape == (1, 1 + 37 * 37, 32)
    release.wanted["pos_embed"] = resized(release.state["pos_embed"], 16, antialias=True)
    release.card = local("dinov2_b14", released_file("dinov2_b14", folder), **VIT, img_size=224)
    return release


def openai_tower(*, patch_size: int, width: int):
    """Return open_clip's own vision tower, with QuickGELU."""
    from open_clip.model import _build_vision_tower

    settings = {"image_size": 224, "patch_size": patch_size, "width": width, "layers": 2,
                "head_width": width // 2}  # fmt: skip
    return drawn(_build_vision_tower(24, settings, quick_gelu=True))


def unprojected(tower):
    """Take the projection out of a tower; its output is then the class token after the norm."""
    tower.proj = None
    return tower


def openai_text() -> State:
    return {
        "positional_embedding": torch.ones(5, 8),
        "text_projection": torch.ones(8, 24),
        "logit_scale": torch.ones(()),
        "token_embedding.weight": torch.ones(9, 8),
        "ln_final.weight": torch.ones(8),
        "ln_final.bias": torch.ones(8),
        "transformer.resblocks.0.ln_1.weight": torch.ones(8),
    }


def clip_b16(folder: Path) -> Release:
    path = released_file("clip_b16", folder)
    tower = openai_tower(patch_size=16, width=32)
    state = {**prefixed("visual.", tower.state_dict()), **openai_text()}
    # timm takes the width of the projection from its own settings
    state["visual.proj"] = torch.ones(32, 512)
    tower = unprojected(tower)
    return Release(local("clip_b16", path, **VIT), state, safetensors(path),
                   as_timm(tower.state_dict()), tower,
                   key="visual.transformer.resblocks.1.attn.in_proj_bias",
                   becomes="blocks.1.attn.qkv.bias")  # fmt: skip


def siglip_b16(folder: Path) -> Release:
    path = released_file("siglip_b16", folder)
    wanted = drawn(
        timm.create_model("vit_base_patch16_siglip_224", num_classes=0, **VIT)
    ).state_dict()
    text = {"text.ln_final.weight": torch.ones(4), "logit_bias": torch.ones(1)}
    state = {**prefixed("visual.trunk.", wanted), **text}
    wanted = as_timm(wanted)
    return Release(local("siglip_b16", path, **VIT), state, safetensors(path), wanted,
                   PlainViT(wanted).attention_pooled,
                   key="visual.trunk.attn_pool.q.weight", becomes="attn_pool.q.weight")  # fmt: skip


def biomedclip(folder: Path) -> Release:
    path = released_file("biomedclip", folder)
    wanted = drawn(timm.create_model("vit_base_patch16_224", num_classes=0, **VIT)).state_dict()
    others = {
        "text.transformer.embeddings.position_ids": torch.arange(4)[None],
        "text.proj.0.weight": torch.ones(4, 4),
        "logit_scale": torch.ones(()),
        "visual.head.proj.weight": torch.ones(512, 32),
    }
    state = {**prefixed("visual.trunk.", wanted), **others}
    return Release(local("biomedclip", path, **VIT), state, pickled(path), wanted,
                   PlainViT(wanted).class_token,
                   key="visual.trunk.blocks.0.mlp.fc1.weight",
                   becomes="blocks.0.mlp.fc1.weight")  # fmt: skip


def chexzero(folder: Path) -> Release:
    path = released_file("chexzero", folder)
    tower = openai_tower(patch_size=32, width=32)
    state = {**prefixed("visual.", tower.state_dict()), **openai_text()}
    half = {k: v.half() if "conv1" in k or "mlp" in k else v for k, v in state.items()}
    tower.load_state_dict({k: half[f"visual.{k}"].float() for k in tower.state_dict()})
    tower = unprojected(tower)
    return Release(local("chexzero", path, **VIT), half, pickled(path),
                   as_timm(tower.state_dict()), tower,
                   key="visual.transformer.resblocks.0.mlp.c_fc.weight",
                   becomes="blocks.0.mlp.fc1.weight")  # fmt: skip


def biovil(folder: Path) -> Release:
    path = released_file("biovil", folder)
    model = narrow_resnet50()
    state = prefixed("encoder.encoder.", model.state_dict())
    state |= {"projector.model.0.weight": torch.ones(4, 4, 1, 1)}
    encoder = without_classifier(model)
    return Release(local("biovil", path, base_width=4), state, pickled(path),
                   encoder.state_dict(), encoder,
                   key="encoder.encoder.layer1.0.conv3.weight",
                   becomes="layer1.0.conv3.weight")  # fmt: skip


def retfound(folder: Path) -> Release:
    path = released_file("retfound", folder)
    state = drawn(timm.create_model("vit_large_patch16_224", num_classes=0, **VIT)).state_dict()
    fresh_norm = {"fc_norm.weight": torch.ones(32), "fc_norm.bias": torch.zeros(32)}
    wanted = {k: v for k, v in state.items() if not k.startswith("norm.")} | fresh_norm
    extra = {"mask_token": torch.ones(1, 1, 4), "decoder_embed.weight": torch.ones(4, 4),
             "decoder_blocks.0.norm1.bias": torch.ones(4)}  # fmt: skip
    vit = PlainViT(wanted)

    def reference(images):
        return vit.norm(vit.tokens(images)[:, 1:].mean(dim=1), "fc_norm")

    def save(state):
        rest = {
            "optimizer": {"state": {}},
            "epoch": 799,
            "args": argparse.Namespace(lr=1e-3),
            "best": np.float64(0.5),
        }
        torch.save({"model": state, **rest}, path)

    key = "blocks.1.norm2.weight"
    return Release(local("retfound", path, **VIT), {**state, **extra}, save, wanted, reference,
                   key, key)  # fmt: skip


def beit(**size: int):
    """Return timm's BEiT, whose code and names are those of PanDerm's encoder."""
    from timm.models.beit import Beit

    return Beit(img_size=224, patch_size=16, num_classes=0, qkv_bias=True, init_values=0.1,
                use_abs_pos_emb=True, use_rel_pos_bias=False, global_pool="token",
                **size)  # fmt: skip


def panderm(folder: Path, *, prefix: str = "encoder.") -> Release:
    path = released_file("panderm", folder)
    model = drawn(beit(**VIT))
    buffers = ("relative_position_index", "k_bias")
    encoder = {k: v for k, v in model.state_dict().items() if not k.endswith(buffers)}
    state = prefixed(prefix, encoder)
    if prefix:
        state |= {"decoder.norm.weight": torch.ones(3), "teacher.blocks.0.x": torch.ones(2)}
    return Release(local("panderm", path, **VIT), state, pickled(path), as_timm(encoder), model,
                   key=f"{prefix}blocks.0.attn.v_bias", becomes="blocks.0.attn.v_bias")  # fmt: skip


def panderm_base(folder: Path) -> Release:
    return panderm(folder, prefix="")


def rad_dino(folder: Path) -> Release:
    path = released_file("rad_dino", folder)
    options = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.Dinov2Config(image_size=518, patch_size=14, **options)
    encoder = drawn(transformers.Dinov2Model(config)).state_dict()
    legacy = {
        ".attention.q_proj.": ".attention.attention.query.",
        ".attention.k_proj.": ".attention.attention.key.",
        ".attention.v_proj.": ".attention.attention.value.",
        ".attention.o_proj.": ".attention.output.dense.",
    }
    state = {}
    for name, tensor in encoder.items():
        for new, old in legacy.items():
            name = name.replace(new, old)
        state[name] = tensor
    wanted = as_timm(encoder)
    at_224_px = {**wanted, "pos_embed": resized(wanted["pos_embed"], 16, antialias=False)}
    return Release(local("rad_dino", path, **options), state, safetensors(path), wanted,
                   PlainViT(at_224_px).class_token,
                   key="encoder.layer.1.attention.attention.query.weight",
                   becomes="encoder.layer.1.attention.q_proj.weight")  # fmt: skip


def medsiglip(folder: Path) -> Release:
    path = released_file("medsiglip", folder)
    text = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
            "num_attention_heads": 2, "vocab_size": 20, "projection_size": 32}  # fmt: skip
    vision = {**SIGLIP, "patch_size": 14, "hidden_act": "gelu_pytorch_tanh"}
    config = transformers.SiglipConfig(text_config=text, vision_config=vision)
    state = drawn(transformers.SiglipModel(config)).state_dict()
    below = "vision_model."
    wanted = as_timm({k.removeprefix(below): v for k, v in state.items() if k.startswith(below)})
    return Release(local("medsiglip", path, **SIGLIP), state, safetensors(path), wanted,
                   PlainViT(wanted, activation=gelu_by_tanh).attention_pooled,
                   key="vision_model.head.attention.in_proj_weight",
                   becomes="head.attention.in_proj_weight")  # fmt: skip


CLIP_TINY = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
             "num_attention_heads": 2, "image_size": 56, "projector_size": 40}  # fmt: skip


def llava_med(folder: Path) -> Release:
    path = released_file("llava_med", folder)
    settings = {k: v for k, v in CLIP_TINY.items() if k != "projector_size"}
    config = transformers.CLIPVisionConfig(patch_size=14, hidden_act="quick_gelu", **settings)
    tower = drawn(transformers.CLIPVisionModel(config)).state_dict()
    projector = {"0.weight": torch.ones(40, 32), "0.bias": torch.ones(40),
                 "2.weight": torch.ones(40, 40), "2.bias": torch.ones(40)}  # fmt: skip
    language = {
        "model.layers.0.mlp.up_proj.weight": torch.ones(4, 4),
        "lm_head.weight": torch.ones(2),
    }
    below = "model.vision_tower.vision_tower.vision_model."
    state = {**prefixed(below, tower), **prefixed("model.mm_projector.", projector), **language}
    state = {name: tensor.bfloat16() for name, tensor in state.items()}
    rounded = {name: state[f"{below}{name}"].float() for name in tower}
    wanted = {**as_timm(rounded), **prefixed("projector.", projector)}
    vit = PlainViT(wanted, n_blocks=2, activation=quick_gelu, eps=1e-5)  # of three

    def place(name):
        return "3.safetensors" if "vision" in name or "mm_" in name else "language"

    return Release(local("llava_med", path, **CLIP_TINY), state, sharded(path, place), wanted,
                   lambda images: vit.tokens(images)[:, 1:].mean(dim=1),
                   key=f"{below}pre_layrnorm.weight", becomes="pre_layrnorm.weight")  # fmt: skip


def medgemma(folder: Path, *, style: str = "first") -> Release:
    path = released_file("medgemma", folder)
    vision = {**SIGLIP, "patch_size": 14, "vision_use_head": False,
              "hidden_act": "gelu_pytorch_tanh"}  # fmt: skip
    config = transformers.Gemma3Config(
        text_config=LANGUAGE, vision_config=vision, mm_tokens_per_image=4
    )
    whole = drawn(transformers.Gemma3Model(config)).state_dict()
    prefixes = {
        "first": ("vision_tower.vision_model.", "multi_modal_projector.", "language_model.model."),
        "4.52": ("model.vision_tower.vision_model.", "model.multi_modal_projector.",
                 "model.language_model."),
        "5": ("model.vision_tower.", "model.multi_modal_projector.", "model.language_model."),
    }[style]  # fmt: skip
    tower, projector, language = (
        {name.removeprefix(old): tensor for name, tensor in whole.items() if name.startswith(old)}
        for old in ("vision_tower.", "multi_modal_projector.", "language_model.")
    )
    state = {
        **prefixed(prefixes[0], tower),
        **prefixed(prefixes[1], projector),
        **prefixed(prefixes[2], language),
    }
    wanted = {**as_timm(tower), **prefixed("projector.", projector)}
    vit = PlainViT(wanted, activation=gelu_by_tanh)

    def place(name):
        if "language" in name:
            return "language"
        return "1.safetensors" if "embeddings" in name else "2.safetensors"

    card = local("medgemma", path, **SIGLIP, soft_tokens=4, soft_token_size=16)
    return Release(card, state, sharded(path, place), wanted,
                   lambda images: vit.soft_tokens(images, side=2).mean(dim=1),
                   key=f"{prefixes[1]}mm_input_projection_weight",
                   becomes="projector.mm_input_projection_weight")  # fmt: skip


RELEASES = [
    resnet50, vit_b16, clip_b16, siglip_b16, dinov2_b14, mae_b16, biomedclip, llava_med, medsiglip,
    medgemma, panderm, retfound, rad_dino, biovil, chexzero, panderm_base,
]  # fmt: skip
