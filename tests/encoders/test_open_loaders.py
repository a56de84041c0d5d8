"""Loaders for anybody's encoder: open_clip, transformers, a function of one's own."""

import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from crsbench.encoders.cards import EncoderCard, load_cards
from crsbench.encoders.fetching import missing_files
from crsbench.encoders.loaders.transformers import FeatureOf
from crsbench.encoders.weights import load_encoder, write_weights
from crsbench.errors import WeightsError

pytestmark = pytest.mark.usefixtures("no_sockets")

SQUASH_32 = "transform: {resize_px: 32, interpolation: bicubic, normalise: half}"


def card(text: str, folder: Path) -> EncoderCard:
    path = folder / "own.yaml"
    path.write_text(f"mine: {{label: Mine, {text}, {SQUASH_32}}}")
    return load_cards([path])["mine"]


def features(encoder_card: EncoderCard, folder: Path, images: torch.Tensor) -> torch.Tensor:
    path = folder / "weights.safetensors"
    write_weights(encoder_card, path)
    with torch.inference_mode():
        return load_encoder(encoder_card, path).module(images)


def images(side: int) -> torch.Tensor:
    return torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0))


OPEN_CLIP = "loader: open_clip, architecture: ViT-B-32-quickgelu, options: {layers: 1, width: 64}"


def tower():
    from open_clip.model import _build_vision_tower

    settings = {"image_size": 224, "layers": 1, "width": 64, "patch_size": 32}
    return _build_vision_tower(512, settings, quick_gelu=True).eval()


def test_open_clips_vision_tower_alone_is_loaded(tmp_path):
    model = tower()
    state = {f"visual.{name}": tensor for name, tensor in model.state_dict().items()}
    save_file({**state, "logit_scale": torch.ones(())}, tmp_path / "clip.safetensors")
    mine = card(f"{OPEN_CLIP}, weights: {{file: {{path: {tmp_path}/clip.safetensors}}}}", tmp_path)
    with torch.inference_mode():
        expected = model(images(224))
    torch.testing.assert_close(features(mine, tmp_path, images(224)), expected)


def test_a_renamed_tensor_of_open_clip_is_refused(tmp_path):
    state = {f"visual.{name}": tensor for name, tensor in tower().state_dict().items()}
    state["visual.ln_past.weight"] = state.pop("visual.ln_post.weight")
    save_file(state, tmp_path / "clip.safetensors")
    mine = card(f"{OPEN_CLIP}, weights: {{file: {{path: {tmp_path}/clip.safetensors}}}}", tmp_path)
    with pytest.raises(WeightsError, match=r"missing ln_post\.weight, surplus ln_past\.weight"):
        write_weights(mine, tmp_path / "weights.safetensors")


def test_open_clip_can_be_untrained(tmp_path):
    mine = card(f"{OPEN_CLIP}, weights: {{random: {{seed: 3}}}}", tmp_path)
    assert features(mine, tmp_path, images(224)).shape == (2, 512)


def test_an_unknown_open_clip_architecture_is_refused(tmp_path):
    text = "loader: open_clip, architecture: ViT-Z, weights: {random: {seed: 0}}"
    with pytest.raises(WeightsError, match="open_clip has no architecture 'ViT-Z'"):
        write_weights(card(text, tmp_path), tmp_path / "weights.safetensors")


TINY_VIT = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}


def saved_vit(folder: Path, *, head: bool = False):
    kind = transformers.ViTForImageClassification if head else transformers.ViTModel
    model = kind(transformers.ViTConfig(**TINY_VIT)).eval()
    model.save_pretrained(folder)
    return model


def transformers_card(
    folder: Path, more: str = "", *, file: str = "model.safetensors"
) -> EncoderCard:
    weights = f"weights: {{file: {folder}/{file}}}"
    return card(f"loader: transformers, architecture: ViTModel, {weights}{more}", folder)


@pytest.mark.parametrize("pool", ["pooled", "cls"])
def test_a_folder_saved_by_transformers_is_an_encoder(pool, tmp_path):
    model = saved_vit(tmp_path)
    mine = transformers_card(tmp_path, f", feature: {{pool: {pool}, dim: 16}}")
    with torch.inference_mode():
        output = model(images(32))
    expected = output.pooler_output if pool == "pooled" else output.last_hidden_state[:, 0]
    torch.testing.assert_close(features(mine, tmp_path, images(32)), expected)


def test_the_named_file_is_read_and_no_other_of_its_folder(tmp_path):
    model = saved_vit(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    saved_vit(tmp_path)
    mine = transformers_card(tmp_path, file="other.safetensors")
    with torch.inference_mode():
        expected = model(images(32)).pooler_output
    torch.testing.assert_close(features(mine, tmp_path, images(32)), expected)


def test_a_folder_of_shards_is_an_encoder(tmp_path):
    model = saved_vit(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    mine = transformers_card(tmp_path, file="model.safetensors.index.json")
    with torch.inference_mode():
        expected = model(images(32)).pooler_output
    torch.testing.assert_close(features(mine, tmp_path, images(32)), expected)
    first = min(tmp_path.glob("model-*.safetensors"))
    first.unlink()
    assert missing_files(mine) == [first.name]


def test_an_output_that_a_model_does_not_have_is_refused(tmp_path):
    settings = {"embedding_size": 4, "hidden_sizes": [4], "depths": [1]}
    without_tokens = transformers.ResNetModel(transformers.ResNetConfig(**settings))
    with pytest.raises(WeightsError, match="ResNetModel has no tokens; use pool: pooled"):
        FeatureOf(without_tokens, pool="cls")(images(32))
    unpooled = transformers.ViTMAEModel(transformers.ViTMAEConfig(**TINY_VIT))
    with pytest.raises(WeightsError, match="ViTMAEModel has no pooler; use pool: cls"):
        FeatureOf(unpooled, pool="pooled")(images(32))


def test_a_classifier_in_the_checkpoint_is_refused_unless_it_is_declared(tmp_path):
    model = saved_vit(tmp_path, head=True)
    more = ", feature: {pool: cls}, options: {add_pooling_layer: false"
    with pytest.raises(WeightsError, match=r"surplus classifier\.bias, surplus classifier\.weight"):
        write_weights(transformers_card(tmp_path, more + "}"), tmp_path / "weights.safetensors")
    mine = transformers_card(tmp_path, more + r", ignored_tensors: 'classifier\..*'}")
    with torch.inference_mode():
        expected = model.vit(images(32)).last_hidden_state[:, 0]
    torch.testing.assert_close(features(mine, tmp_path, images(32)), expected)


def test_a_missing_pooler_is_refused(tmp_path):
    saved_vit(tmp_path, head=True)
    more = r", options: {ignored_tensors: 'classifier\..*'}"
    with pytest.raises(WeightsError, match=r"missing pooler\.dense\.bias"):
        write_weights(transformers_card(tmp_path, more), tmp_path / "weights.safetensors")


def test_an_unknown_class_and_a_missing_config_are_named(tmp_path):
    saved_vit(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"no config\.json beside the checkpoint"):
        write_weights(transformers_card(tmp_path), tmp_path / "weights.safetensors")
    other = card("loader: transformers, architecture: NoModel, weights: none", tmp_path)
    with pytest.raises(WeightsError, match="transformers has no model class 'NoModel'"):
        load_encoder_or_write(other, tmp_path)


def load_encoder_or_write(encoder_card: EncoderCard, folder: Path) -> None:
    from crsbench.encoders.loaders import transformers as loader

    loader.build(encoder_card)


FACTORY = """
import torch

class Means(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((size,), 2.0))

    def forward(self, images):
        return images.mean(dim=(2, 3)) * self.scale

def means(size=3):
    return Means(size)

def not_a_module():
    return 3
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_encoders.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_encoders"
    sys.modules.pop("own_encoders", None)


def test_a_function_of_ones_own_is_an_encoder(own_module, tmp_path):
    mine = card(f"loader: factory, architecture: '{own_module}:means', weights: none", tmp_path)
    expected = 2 * images(32).mean(dim=(2, 3))
    torch.testing.assert_close(features(mine, tmp_path, images(32)), expected)


def test_a_function_of_ones_own_can_have_a_checkpoint(own_module, tmp_path):
    torch.save({"scale": torch.full((3,), 5.0)}, tmp_path / "own.pt")
    weights = f"weights: {{file: {{path: {tmp_path}/own.pt}}}}"
    mine = card(f"loader: factory, architecture: '{own_module}:means', {weights}", tmp_path)
    expected = 5 * images(32).mean(dim=(2, 3))
    torch.testing.assert_close(features(mine, tmp_path, images(32)), expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"state_dict": {"scale": 1}, "epoch": 3},
            r"no tensor: state_dict \(dict\), epoch \(int\)",
        ),
        ([torch.ones(3)], r"no tensor: the checkpoint \(list\); expected a flat dictionary"),
    ],
)
def test_a_checkpoint_that_holds_more_than_tensors_is_refused(
    content, message, own_module, tmp_path
):
    torch.save(content, tmp_path / "own.pt")
    weights = f"weights: {{file: {tmp_path}/own.pt}}"
    mine = card(f"loader: factory, architecture: '{own_module}:means', {weights}", tmp_path)
    with pytest.raises(WeightsError, match=message):
        write_weights(mine, tmp_path / "weights.safetensors")


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("own_encoders:absent", "no attribute 'absent'; expected module:function"),
        ("no_such_module:x", "No module named 'no_such_module'"),
        ("own_encoders", "expected module:function"),
        ("own_encoders:not_a_module", r"returned int, expected a torch\.nn\.Module"),
    ],
)
def test_what_is_no_factory_is_named(own_module, architecture, message, tmp_path):
    mine = card(f"loader: factory, architecture: '{architecture}', weights: none", tmp_path)
    with pytest.raises(WeightsError, match=message):
        write_weights(mine, tmp_path / "weights.safetensors")
