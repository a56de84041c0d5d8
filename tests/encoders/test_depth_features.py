"""Features inside an encoder: those of the encoder that ends there."""

import pytest
import torch
from releases import RELEASES, biovil, llava_med, resnet50
from synthetic_release import CARDS, batch, edited, written

from crsbench.encoders.weights import depth_function, load_encoder, write_weights
from crsbench.errors import WeightsError

pytestmark = pytest.mark.usefixtures("no_sockets")


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
