"""Every published encoder out of a synthetic release: converted, loaded, run; no network."""

import json
import re
from pathlib import Path

import pytest
import torch
from caches import cached_folder
from releases import RELEASES, clip_b16, llava_med, medgemma, rad_dino
from safetensors.torch import load_file
from synthetic_release import CARDS, PUBLISHED, batch, edited, local, written
from vit_layouts import as_timm

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.weights import build_encoder, load_encoder, write_weights
from crsbench.errors import WeightsError

pytestmark = pytest.mark.usefixtures("no_sockets")


def test_every_published_encoder_has_a_synthetic_release():
    assert [make.__name__ for make in RELEASES[:15]] == PUBLISHED


@pytest.mark.parametrize("make", RELEASES)
def test_a_release_gives_the_features_of_a_second_implementation(make, tmp_path):
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


def unpinned(card: EncoderCard) -> dict[str, object]:
    """Return the place of a published card's weights without the digests of the real files."""
    digests = {"sha256": None, "md5": None, "shard_sha256": {}}
    weights = card.weights.model_dump()
    return {key: digests.get(key, value) for key, value in weights.items()}


@pytest.mark.parametrize("make", RELEASES[:15])
def test_an_offline_machine_converts_and_loads_a_release_out_of_its_caches(make, empty_cache):
    published = CARDS[make.__name__]
    release = make(cached_folder(empty_cache, published))
    release.card = edited(release.card, weights=unpinned(published))
    encoder = load_encoder(release.card, written(release, empty_cache))
    stored = as_timm(encoder.module.state_dict())
    assert set(stored) == set(release.wanted)
    assert all(torch.equal(stored[name], release.wanted[name]) for name in stored)


@pytest.mark.parametrize("make", RELEASES)
def test_every_tensor_of_a_release_is_stored_to_the_bit_under_its_own_name(make, tmp_path):
    release = make(tmp_path)
    stored = as_timm(load_file(written(release, tmp_path)))
    assert set(stored) == set(release.wanted)
    for name, tensor in stored.items():
        wanted = release.wanted[name]
        assert (tensor.shape, tensor.dtype) == (wanted.shape, wanted.dtype), name
        assert tensor.numpy().tobytes() == wanted.numpy().tobytes(), name


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
