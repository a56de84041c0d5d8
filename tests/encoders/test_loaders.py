"""Every published encoder: its full architecture without memory, and its release's key layout.

The synthetic checkpoints have few and narrow blocks, the names and nesting of the real files, and
modules of the release that are not wanted. The features are compared with a second implementation
(open_clip, torchvision, transformers, timm's BEiT), not with the module under test.
"""

import argparse
import json
import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
import transformers
from safetensors.torch import load_file, save_file
from torch.utils.flop_counter import FlopCounterMode

from crsbench.config import read_yaml
from crsbench.encoders.cards import EncoderCard, input_px, load_cards
from crsbench.encoders.weights import (
    build_encoder,
    depth_function,
    load_encoder,
    write_weights,
)
from crsbench.errors import WeightsError

CARDS = load_cards([Path(__file__).parents[2] / "config" / "encoders.yaml"])
PUBLISHED = read_yaml(Path(__file__).parents[2] / "config" / "config.yaml")["encoders"]
N_TENSORS = {
    "resnet50": 318,
    "vit_b16": 150,
    "clip_b16": 151,
    "siglip_b16": 162,
    "dinov2_b14": 174,
    "mae_b16": 150,
    "biomedclip": 150,
    "llava_med": 391 + 4,
    "medsiglip": 448,
    "medgemma": 437 + 2,
    "panderm": 366 - 24,
    "retfound": 294,
    "rad_dino": 223,
    "biovil": 318,
    "chexzero": 151,
}
#: Layers that LoRA adapts: four of each block of a ViT, six of one of transformers, three of each
#: bottleneck; LLaVA-Med's last block has no part in its feature.
N_ADAPTED = {
    "resnet50": 48, "vit_b16": 48, "clip_b16": 48, "siglip_b16": 48, "dinov2_b14": 48,
    "mae_b16": 48, "biomedclip": 48, "llava_med": 138, "medsiglip": 162, "medgemma": 162,
    "panderm": 96, "retfound": 96, "rad_dino": 72, "biovil": 48, "chexzero": 48,
}  # fmt: skip


def edited(card: EncoderCard, **changes: object) -> EncoderCard:
    return EncoderCard.model_validate({**card.model_dump(), **changes})


def local(name: str, path: Path, **options: object) -> EncoderCard:
    """Return a published card that reads `path`, with the architecture's size changed."""
    weights = {"kind": "file", "path": str(path)}
    return edited(CARDS[name], weights=weights, options=options)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_full_architecture_is_what_the_card_says(name):
    card = CARDS[name]
    side = input_px(card)
    with torch.device("meta"), torch.inference_mode(), FlopCounterMode(display=False) as counter:
        module = build_encoder(card).eval()
        features = module(torch.empty(1, 3, side, side))
    assert features.shape == (1, card.feature.dim)
    assert len(module.state_dict()) == N_TENSORS[name]
    layers = [
        layer for layer, _ in module.named_modules() if re.fullmatch(card.lora_targets, layer)
    ]
    assert len(layers) == N_ADAPTED[name]
    n_parameters = sum(parameter.numel() for parameter in module.parameters())
    assert card.cost.parameters_m == pytest.approx(n_parameters / 1e6, abs=0.06)
    assert card.cost.gflops == pytest.approx(counter.get_total_flops() / 1e9, abs=0.06)


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


class Release:
    """A synthetic release: a card that reads it, what it holds, and the right features."""

    def __init__(self, card, state, save, reference, *, key, becomes=None):
        self.card = card
        self.state = state
        self.save = save
        self.reference = reference
        self.key = key  # a tensor that the encoder needs
        self.becomes = becomes or key  # its name in the architecture, or where it is looked for

    def write(self) -> None:
        self.save(self.state)


def drawn(module: torch.nn.Module) -> torch.nn.Module:
    """Give every parameter and running mean a value of its own, so that none is a default."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point() and "running_var" not in name:
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator))
    return module.eval()


def batch(card: EncoderCard) -> torch.Tensor:
    side = card.options.get("image_size", card.options.get("img_size", input_px(card)))
    return torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(1))


def pickled(path: Path):
    return lambda state: torch.save(state, path)


def safetensors(path: Path):
    return lambda state: save_file({k: v.contiguous() for k, v in state.items()}, path)


def sharded(folder: Path, place):
    """Save shards by `place` (name of a tensor to name of a shard or None) and their index."""

    def save(state):
        shards: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in state.items():
            shards.setdefault(place(name), {})[name] = tensor.contiguous()
        weight_map = {name: shard for shard, part in shards.items() for name in part}
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        for shard, part in shards.items():
            if "language" not in shard:  # what must not be read is not even there
                save_file(part, folder / shard)

    return save


def prefixed(prefix: str, state: dict) -> dict:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def resnet50(folder):
    # the smallest ResNet has the same names; the full one is built in another test
    card = edited(local("resnet50", folder / "model.safetensors"), architecture="resnet18.tv_in1k")
    model = drawn(torchvision.models.resnet18())
    state = model.state_dict()
    model.fc = torch.nn.Identity()
    return Release(card, state, safetensors(folder / "model.safetensors"), model,
                   key="layer1.0.conv1.weight")  # fmt: skip


def plain_vit(name, folder, *, n_classes, **options):
    path = folder / "model.safetensors"
    architecture = CARDS[name].architecture.partition(".")[0]
    model = drawn(timm.create_model(architecture, num_classes=n_classes, **VIT, **options))
    state = dict(model.state_dict())
    reference = lambda x: model.forward_features(x)[:, 0]  # noqa: E731
    return Release(local(name, path, **VIT, **options), state, safetensors(path), reference,
                   key="blocks.1.attn.qkv.bias")  # fmt: skip


def vit_b16(folder):
    return plain_vit("vit_b16", folder, n_classes=21843)


def mae_b16(folder):
    return plain_vit("mae_b16", folder, n_classes=0)


def dinov2_b14(folder):
    return plain_vit("dinov2_b14", folder, n_classes=0, img_size=224)


def openai_tower(*, patch_size: int, width: int):
    """Return open_clip's own vision tower, with QuickGELU."""
    from open_clip.model import _build_vision_tower

    settings = {"image_size": 224, "patch_size": patch_size, "width": width, "layers": 2,
                "head_width": width // 2}  # fmt: skip
    return drawn(_build_vision_tower(24, settings, quick_gelu=True))


def before_the_projection(tower):
    def reference(images):
        projection, tower.proj = tower.proj, None
        features = tower(images)
        tower.proj = projection
        return features

    return reference


def openai_text():
    return {
        "positional_embedding": torch.ones(5, 8),
        "text_projection": torch.ones(8, 24),
        "logit_scale": torch.ones(()),
        "token_embedding.weight": torch.ones(9, 8),
        "ln_final.weight": torch.ones(8),
        "ln_final.bias": torch.ones(8),
        "transformer.resblocks.0.ln_1.weight": torch.ones(8),
    }


def clip_b16(folder):
    path = folder / "open_clip_model.safetensors"
    tower = openai_tower(patch_size=16, width=32)
    state = {**prefixed("visual.", tower.state_dict()), **openai_text()}
    # timm takes the width of the projection from its own settings
    state["visual.proj"] = torch.ones(32, 512)
    return Release(local("clip_b16", path, **VIT), state, safetensors(path),
                   before_the_projection(tower),
                   key="visual.transformer.resblocks.1.attn.in_proj_bias",
                   becomes="blocks.1.attn.qkv.bias")  # fmt: skip


def siglip_b16(folder):
    path = folder / "open_clip_model.safetensors"
    model = drawn(timm.create_model("vit_base_patch16_siglip_224", num_classes=0, **VIT))
    text = {"text.ln_final.weight": torch.ones(4), "logit_bias": torch.ones(1)}
    state = {**prefixed("visual.trunk.", model.state_dict()), **text}
    reference = lambda x: model.attn_pool(model.forward_features(x))  # noqa: E731
    return Release(local("siglip_b16", path, **VIT), state, safetensors(path), reference,
                   key="visual.trunk.attn_pool.q.weight", becomes="attn_pool.q.weight")  # fmt: skip


def biomedclip(folder):
    path = folder / "open_clip_pytorch_model.bin"
    model = drawn(timm.create_model("vit_base_patch16_224", num_classes=0, **VIT))
    others = {
        "text.transformer.embeddings.position_ids": torch.arange(4)[None],
        "text.proj.0.weight": torch.ones(4, 4),
        "logit_scale": torch.ones(()),
        "visual.head.proj.weight": torch.ones(512, 32),
    }
    state = {**prefixed("visual.trunk.", model.state_dict()), **others}
    reference = lambda x: model.forward_features(x)[:, 0]  # noqa: E731
    return Release(local("biomedclip", path, **VIT), state, pickled(path), reference,
                   key="visual.trunk.blocks.0.mlp.fc1.weight",
                   becomes="blocks.0.mlp.fc1.weight")  # fmt: skip


def chexzero(folder):
    path = folder / "best.pt"
    tower = openai_tower(patch_size=32, width=32)
    state = {**prefixed("visual.", tower.state_dict()), **openai_text()}
    half = {k: v.half() if "conv1" in k or "mlp" in k else v for k, v in state.items()}
    tower.load_state_dict({k: half[f"visual.{k}"].float() for k in tower.state_dict()})
    return Release(local("chexzero", path, **VIT), half, pickled(path),
                   before_the_projection(tower),
                   key="visual.transformer.resblocks.0.mlp.c_fc.weight",
                   becomes="blocks.0.mlp.fc1.weight")  # fmt: skip


def biovil(folder):
    path = folder / "biovil.pt"
    model = drawn(torchvision.models.resnet18())
    state = prefixed("encoder.encoder.", model.state_dict())
    state |= {"projector.model.0.weight": torch.ones(4, 4, 1, 1)}
    model.fc = torch.nn.Identity()
    card = edited(local("biovil", path), architecture="resnet18", feature={"pool": "pooled"})
    return Release(card, state, pickled(path), model, key="encoder.encoder.layer2.0.bn1.bias",
                   becomes="layer2.0.bn1.bias")  # fmt: skip


def retfound(folder):
    path = folder / "RETFound_mae_natureCFP.pth"
    model = drawn(timm.create_model("vit_large_patch16_224", num_classes=0, **VIT))
    extra = {"mask_token": torch.ones(1, 1, 4), "decoder_embed.weight": torch.ones(4, 4),
             "decoder_blocks.0.norm1.bias": torch.ones(4)}  # fmt: skip
    state = {**model.state_dict(), **extra}
    model.norm = torch.nn.Identity()

    def reference(images):
        pooled = model.forward_features(images)[:, 1:].mean(dim=1)
        return torch.nn.functional.layer_norm(pooled, (32,), eps=1e-6)

    def save(state):
        rest = {
            "optimizer": {"state": {}},
            "epoch": 799,
            "args": argparse.Namespace(lr=1e-3),
            "best": np.float64(0.5),
        }
        torch.save({"model": state, **rest}, path)

    return Release(local("retfound", path, **VIT), state, save, reference,
                   key="blocks.1.norm2.weight")  # fmt: skip


def beit():
    """Return timm's BEiT, whose code and names are those of PanDerm's encoder."""
    from timm.models.beit import Beit

    model = Beit(img_size=224, patch_size=16, embed_dim=32, depth=2, num_heads=2, num_classes=0,
                 qkv_bias=True, init_values=0.1, use_abs_pos_emb=True, use_rel_pos_bias=False,
                 global_pool="token")  # fmt: skip
    return drawn(model)


def panderm(folder, *, prefix="encoder."):
    path = folder / "panderm_ll_data6_checkpoint-499.pth"
    model = beit()
    buffers = ("relative_position_index", "k_bias")
    state = {k: v for k, v in model.state_dict().items() if not k.endswith(buffers)}
    state = prefixed(prefix, state)
    if prefix:
        state |= {"decoder.norm.weight": torch.ones(3), "teacher.blocks.0.x": torch.ones(2)}
    return Release(local("panderm", path, **VIT), state, pickled(path), model,
                   key=f"{prefix}blocks.0.attn.v_bias", becomes="blocks.0.attn.v_bias")  # fmt: skip


def panderm_base(folder):
    return panderm(folder, prefix="")


def rad_dino(folder):
    path = folder / "model.safetensors"
    options = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.Dinov2Config(image_size=518, patch_size=14, **options)
    model = drawn(transformers.Dinov2Model(config))
    legacy = {
        ".attention.q_proj.": ".attention.attention.query.",
        ".attention.k_proj.": ".attention.attention.key.",
        ".attention.v_proj.": ".attention.attention.value.",
        ".attention.o_proj.": ".attention.output.dense.",
    }
    state = {}
    for name, tensor in model.state_dict().items():
        for new, old in legacy.items():
            name = name.replace(new, old)
        state[name] = tensor
    reference = lambda x: model(x).pooler_output  # noqa: E731
    return Release(local("rad_dino", path, **options), state, safetensors(path), reference,
                   key="encoder.layer.1.attention.attention.query.weight",
                   becomes="encoder.layer.1.attention.q_proj.weight")  # fmt: skip


def medsiglip(folder):
    path = folder / "model.safetensors"
    text = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
            "num_attention_heads": 2, "vocab_size": 20, "projection_size": 32}  # fmt: skip
    vision = {**SIGLIP, "patch_size": 14}
    config = transformers.SiglipConfig(text_config=text, vision_config=vision)
    model = drawn(transformers.SiglipModel(config))
    reference = lambda x: model.get_image_features(x).pooler_output  # noqa: E731
    return Release(local("medsiglip", path, **SIGLIP), dict(model.state_dict()),
                   safetensors(path), reference,
                   key="vision_model.head.attention.in_proj_weight",
                   becomes="head.attention.in_proj_weight")  # fmt: skip


CLIP_TINY = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
             "num_attention_heads": 2, "image_size": 56, "projector_size": 40}  # fmt: skip


def llava_med(folder):
    settings = {k: v for k, v in CLIP_TINY.items() if k != "projector_size"}
    config = transformers.CLIPVisionConfig(patch_size=14, hidden_act="quick_gelu", **settings)
    model = drawn(transformers.CLIPVisionModel(config))
    projector = {"0.weight": torch.ones(40, 32), "0.bias": torch.ones(40),
                 "2.weight": torch.ones(40, 40), "2.bias": torch.ones(40)}  # fmt: skip
    tower = prefixed("model.vision_tower.vision_tower.vision_model.", model.state_dict())
    language = {
        "model.layers.0.mlp.up_proj.weight": torch.ones(4, 4),
        "lm_head.weight": torch.ones(2),
    }
    state = {**tower, **prefixed("model.mm_projector.", projector), **language}
    state = {name: tensor.bfloat16() for name, tensor in state.items()}
    rounded = {k: state[f"model.vision_tower.vision_tower.vision_model.{k}"].float()
               for k in model.state_dict()}  # fmt: skip
    model.load_state_dict(rounded)

    def reference(images):
        return model(images, output_hidden_states=True).hidden_states[-2][:, 1:].mean(dim=1)

    place = lambda n: "3.safetensors" if "vision" in n or "mm_" in n else "language"  # noqa: E731
    card = local("llava_med", folder / "model.safetensors.index.json", **CLIP_TINY)
    return Release(card, state, sharded(folder, place), reference,
                   key="model.vision_tower.vision_tower.vision_model.pre_layrnorm.weight",
                   becomes="pre_layrnorm.weight")  # fmt: skip


def medgemma(folder, *, style="first"):
    vision = {**SIGLIP, "patch_size": 14, "vision_use_head": False,
              "hidden_act": "gelu_pytorch_tanh"}  # fmt: skip
    config = transformers.Gemma3Config(
        text_config=LANGUAGE, vision_config=vision, mm_tokens_per_image=4
    )
    model = drawn(transformers.Gemma3Model(config))
    prefixes = {
        "first": ("vision_tower.vision_model.", "multi_modal_projector.", "language_model.model."),
        "4.52": ("model.vision_tower.vision_model.", "model.multi_modal_projector.",
                 "model.language_model."),
        "5": ("model.vision_tower.", "model.multi_modal_projector.", "model.language_model."),
    }[style]  # fmt: skip
    olds = ("vision_tower.", "multi_modal_projector.", "language_model.")
    state = {
        prefix + name.removeprefix(old): tensor
        for old, prefix in zip(olds, prefixes, strict=True)
        for name, tensor in model.state_dict().items()
        if name.startswith(old)
    }

    def place(name):
        if "language" in name:
            return "language"
        return "1.safetensors" if "embeddings" in name else "2.safetensors"

    reference = lambda x: model.get_image_features(x).pooler_output.mean(dim=1)  # noqa: E731
    options = {**SIGLIP, "soft_tokens": 4, "soft_token_size": 16}
    card = local("medgemma", folder / "model.safetensors.index.json", **options)
    return Release(card, state, sharded(folder, place), reference,
                   key=f"{prefixes[1]}mm_input_projection_weight",
                   becomes="projector.mm_input_projection_weight")  # fmt: skip


RELEASES = [
    resnet50, vit_b16, clip_b16, siglip_b16, dinov2_b14, mae_b16, biomedclip, llava_med, medsiglip,
    medgemma, panderm, retfound, rad_dino, biovil, chexzero, panderm_base,
]  # fmt: skip


def written(release: Release, folder: Path) -> Path:
    release.write()
    release.card = edited(release.card, feature={"pool": release.card.feature.pool})
    path = folder / "weights.safetensors"
    write_weights(release.card, path)
    return path


def test_every_published_encoder_has_a_synthetic_release():
    assert [make.__name__ for make in RELEASES[:15]] == PUBLISHED


@pytest.mark.parametrize("make", RELEASES)
def test_a_release_loads_exactly_and_gives_the_features_of_a_second_implementation(make, tmp_path):
    release = make(tmp_path)
    path = written(release, tmp_path)
    encoder = load_encoder(release.card, path)
    images = batch(release.card)
    with torch.inference_mode():
        found = encoder.module(images)
        expected = release.reference(images)
    assert found.dtype == torch.float32
    assert found.std() > 0
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("make", RELEASES)
def test_no_number_of_a_release_is_changed(make, tmp_path):
    release = make(tmp_path)
    stored = load_file(written(release, tmp_path))
    released = [tensor.float().flatten() for tensor in release.state.values()]
    originals = {(tuple(t.shape), t.double().sum().item()) for t in released}
    made = ("qkv.bias", "fc_norm.weight", "fc_norm.bias")  # PanDerm's and RETFound's additions
    for name, tensor in stored.items():
        if not name.endswith(made):
            flat = tensor.float().flatten()
            assert (tuple(flat.shape), flat.double().sum().item()) in originals, name


@pytest.mark.parametrize("fault", ["renamed", "missing"])
@pytest.mark.parametrize("make", RELEASES)
def test_a_renamed_or_missing_tensor_is_refused_by_name(make, fault, tmp_path):
    release = make(tmp_path)
    tensor = release.state.pop(release.key)
    if fault == "renamed":
        release.state[f"{release.key}_renamed"] = tensor
    with pytest.raises(WeightsError) as caught:
        written(release, tmp_path)
    message = str(caught.value).replace(str(tmp_path), "")
    lost = re.escape(release.becomes)
    assert re.search(rf"[Mm]issing[^;]*\b{lost}\b", message), message
    assert not (tmp_path / "weights.safetensors").exists()


@pytest.mark.parametrize("make", RELEASES)
def test_a_surplus_tensor_beside_the_encoders_is_refused_by_name(make, tmp_path):
    release = make(tmp_path)
    stem = release.key.rpartition(".")[0]
    release.state[f"{stem}.surplus_tensor"] = torch.ones(3)
    with pytest.raises(WeightsError, match="surplus_tensor"):
        written(release, tmp_path)


@pytest.mark.parametrize("style", ["first", "4.52", "5"])
def test_all_three_styles_of_medgemmas_names_give_the_same_weights(style, tmp_path):
    release = medgemma(tmp_path, style=style)
    stored = load_file(written(release, tmp_path))
    assert len([name for name in stored if name.startswith("projector.")]) == 2
    assert not [name for name in stored if "vision_model" in name or "tower" in name]


def test_medgemma_refuses_float16(tmp_path):
    release = medgemma(tmp_path)
    release.card = edited(release.card, dtype="float16")
    with pytest.raises(WeightsError, match="float16 gives NaN"):
        written(release, tmp_path)


def test_llava_med_offers_the_projected_tokens(tmp_path):
    release = llava_med(tmp_path)
    release.card = edited(release.card, feature={"pool": "projected", "dim": 40})
    path = written(release, tmp_path)
    with torch.inference_mode():
        features = load_encoder(release.card, path).module(batch(release.card))
    assert features.shape == (2, 40)


def test_the_language_shards_are_never_opened(tmp_path):
    for make in (llava_med, medgemma):
        folder = tmp_path / make.__name__
        folder.mkdir()
        release = make(folder)
        written(release, folder)
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        assert "language" in set(index["weight_map"].values())
        assert not (folder / "language").exists()


def test_a_shard_that_the_index_names_but_is_absent_is_an_error(tmp_path):
    release = medgemma(tmp_path)
    release.write()
    (tmp_path / "2.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"2\.safetensors: the index names this shard"):
        write_weights(release.card, tmp_path / "weights.safetensors")


def test_a_retfound_pickle_with_other_classes_is_refused(tmp_path):
    path = tmp_path / "evil.pth"
    torch.save({"model": {}, "args": Path("x")}, path)
    with pytest.raises(WeightsError, match="cannot be read safely"):
        write_weights(local("retfound", path), tmp_path / "weights.safetensors")


def test_a_retfound_checkpoint_without_a_model_is_refused(tmp_path):
    path = tmp_path / "other.pth"
    torch.save({"state_dict": {}}, path)
    with pytest.raises(WeightsError, match="no entry 'model'"):
        write_weights(local("retfound", path), tmp_path / "weights.safetensors")


def test_clip_towers_use_quick_gelu_and_a_plain_gelu_would_differ(tmp_path):
    release = clip_b16(tmp_path)
    path = written(release, tmp_path)
    plain = edited(release.card, architecture="vit_base_patch16_clip_224.openai")
    images = batch(release.card)
    with torch.inference_mode():
        quick = load_encoder(release.card, path).module(images)
        other = load_encoder(plain, path).module(images)
    assert (quick - other).abs().max() > 1e-4


def test_rad_dino_runs_at_518_px_with_the_same_weights(tmp_path):
    release = rad_dino(tmp_path)
    path = written(release, tmp_path)
    large = edited(CARDS["rad_dino_518"], options=release.card.options)
    module = load_encoder(large, path).module
    with torch.inference_mode():
        assert module(torch.rand(1, 3, 518, 518)).shape == (1, 32)


@pytest.mark.parametrize("name", ["medsiglip", "medgemma", "llava_med", "rad_dino"])
def test_an_unknown_architecture_is_refused_with_those_that_there_are(name, tmp_path):
    card = edited(CARDS[name], architecture="other")
    with pytest.raises(WeightsError, match="unknown architecture 'other'; the loader"):
        build_encoder(card)


@pytest.mark.parametrize("name", [n for n in PUBLISHED if CARDS[n].loader != "timm"])
def test_a_feature_that_a_release_does_not_have_is_refused(name):
    wrong = "projected" if CARDS[name].feature.pool != "projected" else "cls"
    wrong = "cls" if name == "llava_med" else wrong
    card = edited(CARDS[name], feature={"pool": wrong})
    with torch.device("meta"), pytest.raises(WeightsError, match=f"feature.pool = {wrong}"):
        build_encoder(card)


def cut_after(module: torch.nn.Module, n_blocks: int) -> None:
    """Take the later blocks out of an encoder, so that its feature is the one at that depth."""
    owner = getattr(module, "encoder", module)
    for name in ("blocks", "layers", "layer"):
        if hasattr(owner, name):
            setattr(owner, name, getattr(owner, name)[:n_blocks])


@pytest.mark.parametrize("make", [make for make in RELEASES if make not in (resnet50, biovil)])
def test_depth_features_are_those_of_an_encoder_that_ends_there(make, tmp_path):
    release = make(tmp_path)
    path = written(release, tmp_path)
    encoder = load_encoder(release.card, path)
    images = batch(release.card)
    with torch.inference_mode():
        first, last = depth_function(release.card)(encoder.module, images, (0, 1))
        assert torch.equal(last, encoder.module(images))
        cut_after(encoder.module, 2 if make is llava_med else 1)  # it ends one block early
        assert torch.equal(first, encoder.module(images))
    assert not torch.equal(first, last)


@pytest.mark.parametrize("pool", ["cls", "mean", "pooled"])
def test_depth_features_of_any_timm_vit_are_pooled_as_its_feature(pool, tmp_path):
    options = {"img_size": 64}
    architecture = "test_vit" if pool == "cls" else "test_vit2"  # the second has registers
    entry = {"architecture": architecture, "options": options, "feature": {"pool": pool}}
    card = edited(CARDS["tiny_vit"], blocks=8, depth_indices=(1, 3, 4, 5), **entry)
    write_weights(card, tmp_path / "weights.safetensors")
    module = load_encoder(card, tmp_path / "weights.safetensors").module
    cut_after(module, 6)
    with torch.inference_mode():
        images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
        features = depth_function(card)(module, images, card.depth_indices)
        assert torch.equal(features[-1], module(images))


def test_an_encoder_without_blocks_has_no_depth_features(tmp_path):
    release = resnet50(tmp_path)
    module = load_encoder(release.card, written(release, tmp_path)).module
    with pytest.raises(WeightsError, match="ResNet is no vision transformer of timm"):
        depth_function(release.card)(module, batch(release.card), (0, 1))
    with pytest.raises(WeightsError, match="biovil gives no features inside an encoder"):
        depth_function(CARDS["biovil"])
