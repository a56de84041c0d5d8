"""Whether weights are here: found without a socket, judged by what the card declares."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save_file

from crsbench.config import read_yaml
from crsbench.encoders import fetching
from crsbench.encoders.cards import EncoderCard, load_cards
from crsbench.encoders.presence import find_weights, is_of_card, read_header, unpinned_reason
from crsbench.errors import WeightsError

ROOT = Path(__file__).parents[2]
CARDS = load_cards([ROOT / "config" / "encoders.yaml"])
PUBLISHED = read_yaml(ROOT / "config" / "config.yaml")["encoders"]
pytestmark = pytest.mark.usefixtures("empty_cache", "no_sockets")


def edited(card: EncoderCard, **changes: object) -> EncoderCard:
    return EncoderCard.model_validate({**card.model_dump(), **changes})


def put(cache: Path, card: EncoderCard, content: bytes, file: str | None = None) -> Path:
    """Put a file where fetching would have put it."""
    weights = card.weights
    if weights.kind == "drive":
        path = fetching.drive_path(weights)
    else:
        repo = cache / f"models--{weights.repo.replace('/', '--')}"
        commit = weights.revision if len(weights.revision) == 40 else "c" * 40
        (repo / "refs").mkdir(parents=True, exist_ok=True)
        (repo / "refs" / weights.revision).write_text(commit)
        path = repo / "snapshots" / commit / (file or weights.file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def converted(path: Path, **metadata: str) -> Path:
    save_file({}, path, metadata={"source": "", "source_sha256": "", **metadata})
    return path


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_encoder_is_first_missing_with_what_to_do(name, tmp_path):
    card = CARDS[name]
    found = find_weights(card, tmp_path / "absent.safetensors")
    assert found.state == ("gated" if card.gated else "missing")
    assert "crsbench prefetch" in found.advice
    assert card.weights.file in found.advice
    if card.gated:
        assert f"ask for access at {card.gated}, then `hf auth login`" in found.advice


@pytest.mark.parametrize(
    ("name", "state"),
    [("resnet50", "missing, fetched by the run"), ("panderm", "missing, fetched by the run"),
     ("medgemma", "gated")],
)  # fmt: skip
def test_with_a_network_the_run_fetches_what_needs_no_account(name, state, monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    found = find_weights(CARDS[name], tmp_path / "absent.safetensors")
    assert found.state == state
    if state != "gated":
        assert "the weights stage fetches it" in found.advice


def test_three_published_encoders_are_not_pinned_and_say_so():
    reasons = {name: unpinned_reason(CARDS[name]) for name in PUBLISHED}
    assert {name for name, reason in reasons.items() if reason} == {"vit_b16", "mae_b16", "panderm"}
    assert reasons["vit_b16"] == "revision main can move, and no digest is known"
    assert "replaced" in reasons["panderm"]


@pytest.mark.parametrize("name", ["resnet50", "panderm", "vit_b16"])
def test_a_fetched_file_is_present(name, empty_cache, tmp_path):
    put(empty_cache, CARDS[name], b"weights")
    found = find_weights(CARDS[name], tmp_path / "absent.safetensors")
    assert (found.state, found.advice) == ("present", "fetched; the weights stage converts it")


def test_a_checkpoint_of_the_users_own_is_present_but_not_called_fetched(tmp_path):
    path = tmp_path / "own.pth"
    path.write_bytes(b"weights")
    card = edited(CARDS["tiny_vit"], weights={"file": str(path)})
    found = find_weights(card, tmp_path / "absent.safetensors")
    assert (found.state, found.unpinned) == ("present", None)
    assert found.advice.startswith(f"{path}; whether it fits, ")
    assert "crsbench prefetch" in found.advice
    assert "fetched;" not in found.advice


@pytest.mark.parametrize(
    ("name", "kind"), [("clip_b16", "SHA-256"), ("biovil", "MD5"), ("chexzero", "SHA-256")]
)
def test_a_file_with_another_digest_is_a_mismatch(name, kind, empty_cache, tmp_path):
    put(empty_cache, CARDS[name], b"something else")
    found = find_weights(CARDS[name], tmp_path / "absent.safetensors")
    assert found.state == "digest mismatch"
    assert f"{kind} is " in found.advice
    assert "delete the file" in found.advice


def test_of_a_sharded_release_only_the_shards_with_wanted_tensors_are_missed(empty_cache, tmp_path):
    card, absent = CARDS["llava_med"], tmp_path / "absent.safetensors"
    tower = "model.vision_tower.vision_tower.vision_model.pre_layrnorm.weight"
    places = {tower: "model-00003-of-00004.safetensors", "lm_head.weight": "model-4.safetensors"}
    put(empty_cache, card, json.dumps({"weight_map": places}).encode())
    assert find_weights(card, absent).advice.startswith("model-00003-of-00004.safetensors: ")
    put(empty_cache, card, b"other", "model-00003-of-00004.safetensors")
    assert find_weights(card, absent).state == "digest mismatch"
    own = {"model-00003-of-00004.safetensors": hashlib.sha256(b"other").hexdigest()}
    known = edited(card, weights={**card.weights.model_dump(), "shard_sha256": own})
    assert find_weights(known, absent).state == "present"


def test_an_index_that_is_none_is_damaged(empty_cache, tmp_path):
    put(empty_cache, CARDS["medgemma"], b"<html>")
    found = find_weights(CARDS["medgemma"], tmp_path / "absent.safetensors")
    assert found.state == "damaged"
    assert "expected JSON with weight_map" in found.advice


def test_a_model_of_transformers_needs_its_config_as_well(empty_cache, tmp_path):
    hub = {"kind": "hub", "repo": "me/vit", "revision": "main", "file": "model.safetensors"}
    card = edited(CARDS["tiny_vit"], loader="transformers", architecture="ViTModel", weights=hub)
    put(empty_cache, card, b"weights")
    assert find_weights(card, tmp_path / "absent").advice.startswith("config.json: ")
    put(empty_cache, card, b"{}", "config.json")
    assert find_weights(card, tmp_path / "absent").state == "present"


@pytest.mark.parametrize("name", ["tiny_vit", "tiny_statistics", "efficientnet_lite0"])
def test_what_needs_no_download_is_present(name, tmp_path):
    assert find_weights(CARDS[name], tmp_path / "absent.safetensors").state == "present"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"kind": "file", "path": "absent.pth"}, r"absent.pth: weights.file.path names no file"),
        ({"kind": "package", "package": "no_such_package", "file": "x", "sha256": "0" * 64},
         "install the Python package no-such-package"),
    ],
)  # fmt: skip
def test_a_missing_file_or_package_is_named(weights, message, tmp_path):
    found = find_weights(edited(CARDS["tiny_vit"], weights=weights), tmp_path / "w.safetensors")
    assert found.state == "missing"
    assert message in found.advice
    if weights["kind"] == "file":
        assert found.advice.endswith(f"relative paths start at {Path.cwd()}")


def test_a_weights_file_of_the_card_is_enough(tmp_path):
    card = CARDS["resnet50"]
    source = f"{card.weights.repo}@{card.weights.revision}/model.safetensors"
    path = converted(tmp_path / "resnet50.safetensors", source=source)
    assert (find_weights(card, path).state, find_weights(card, path).advice) == (
        "present",
        str(path),
    )


@pytest.mark.parametrize(
    ("name", "source", "sha256", "expected"),
    [
        ("resnet50", "timm/resnet50.tv_in1k@" + "0" * 40 + "/model.safetensors", "", False),
        ("resnet50", "other/resnet50@aa6c2d36d56bc0209040c02b5a7b7d7bf11d57b8/x", "", False),
        ("mae_b16", "timm/vit_base_patch16_224.mae@" + "0" * 40 + "/model.safetensors", "", True),
        ("clip_b16", "timm/vit_base_patch16_clip_224.openai@977e3dd0/x", "0" * 64, False),
        ("panderm", "drive:1SwEzaOlFV_gBKf2UzeowMC8z9UH7AQbE/panderm.pth", "", True),
        ("panderm", "drive:17J4MjsZu3gdBP6xAQi_NMDVvH65a00HB/panderm.pth", "", False),
    ],
)
def test_a_weights_file_of_another_source_does_not_count(name, source, sha256, expected, tmp_path):
    metadata = {"source": source, "source_sha256": sha256}
    assert is_of_card(CARDS[name], metadata) is expected


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("mine/vit.pth", "mine/vit.pth", True),
        ("mine/vit.pth", "mine/other.pth", False),
        ("mine/model.safetensors.index.json", "mine/1.safetensors+2.safetensors", True),
        ("mine/model.safetensors.index.json", "other/1.safetensors", False),
    ],
)
def test_a_weights_file_of_a_local_checkpoint_names_it(path, source, expected):
    card = edited(CARDS["tiny_vit"], weights={"kind": "file", "path": path})
    assert is_of_card(card, {"source": source, "source_sha256": ""}) is expected


@pytest.mark.parametrize("content", [b"", b"half", b"\xff" * 20, b"\x02" + b"\0" * 7 + b"{}"])
def test_a_damaged_weights_file_is_named(content, tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"w\.safetensors: damaged weights file; delete it"):
        read_header(path)
    assert find_weights(CARDS["resnet50"], path).state == "damaged"


@pytest.mark.parametrize("n_bytes", [-1, 1])
def test_a_weights_file_of_another_length_is_damaged(n_bytes, tmp_path):
    path = tmp_path / "w.safetensors"
    save_file({"a": np.ones(9, np.float32)}, path, metadata={"source": "x"})
    assert read_header(path) == {"source": "x"}
    whole = path.read_bytes()
    path.write_bytes(whole[:n_bytes] if n_bytes < 0 else whole + b"x")
    with pytest.raises(WeightsError, match=rf"{len(whole) + n_bytes} bytes, expected {len(whole)}"):
        read_header(path)
    assert find_weights(CARDS["resnet50"], path).state == "damaged"


def test_whether_there_is_a_token_changes_the_advice_and_it_is_never_shown(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "hf_" + "secret" * 5)
    advice = find_weights(CARDS["medgemma"], tmp_path / "absent.safetensors").advice
    assert "if you have none yet" in advice
    assert "secret" not in advice
    assert os.environ["HF_TOKEN"].endswith("secret")
