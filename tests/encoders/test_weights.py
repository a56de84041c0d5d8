"""The weights stage on encoders that need no download, and on damaged checkpoints."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from crsbench.encoders.cards import (
    EncoderCard,
    input_px,
    load_cards,
    loader_names,
)
from crsbench.encoders.loaders import checkpoint, efficientnet_lite
from crsbench.encoders.sources import RandomWeights
from crsbench.encoders.transforms import build_transform
from crsbench.encoders.weights import (
    build_encoder,
    load_encoder,
    read_weights_metadata,
    write_weights,
)
from crsbench.errors import WeightsError

pytestmark = pytest.mark.usefixtures("no_sockets")

ROOT = Path(__file__).parents[2]
CARDS = load_cards([ROOT / "config" / "encoders.yaml"])
LITE = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")
TINY = ("tiny_vit", "tiny_resnet", "tiny_statistics")


def edited(card: EncoderCard, **changes: object) -> EncoderCard:
    return EncoderCard.model_validate({**card.model_dump(), **changes})


def checkpoint_card(path: Path, **changes: object) -> EncoderCard:
    weights = {"kind": "file", "path": str(path)}
    return edited(CARDS["tiny_vit"], **{"weights": weights, **changes})


@pytest.fixture(scope="module")
def tiny_checkpoint(tmp_path_factory) -> Path:
    """Write a released checkpoint of the micro ViT, with a classifier of 1,000 classes."""
    path = tmp_path_factory.mktemp("released") / "test_vit.safetensors"
    torch.manual_seed(0)
    save_file(timm.create_model("test_vit", img_size=64, num_classes=1000).state_dict(), path)
    return path


@pytest.mark.parametrize("name", TINY)
def test_features_have_the_declared_dimension(name, tmp_path):
    card, path = CARDS[name], tmp_path / "weights.safetensors"
    metadata = write_weights(card, path)
    assert metadata == read_weights_metadata(path)
    encoder = load_encoder(card, path)
    side = input_px(card)
    with torch.inference_mode():
        features = encoder.module(torch.rand(2, 3, side, side))
    assert features.shape == (2, card.feature.dim)
    assert encoder.weights_digest == metadata["weights_digest"]
    assert not encoder.module.training
    assert not any(parameter.requires_grad for parameter in encoder.module.parameters())


@pytest.mark.parametrize("name", LITE)
def test_package_weights_load_strictly_and_their_digest_is_recorded(name, tmp_path):
    card, path = CARDS[name], tmp_path / "weights.safetensors"
    metadata = write_weights(card, path)
    assert metadata["source_sha256"] == card.weights.sha256
    assert metadata["licence"] == "Apache-2.0"
    expected = timm.create_model(card.architecture, num_classes=0).state_dict()
    assert {k: v.shape for k, v in load_file(path).items()} == {
        k: v.shape for k, v in expected.items()
    }


def photograph() -> np.ndarray:
    """Return a real photograph that a dependency ships: the portrait of a naval officer."""
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    if not path.is_file():
        pytest.skip("matplotlib is installed without its sample photograph")
    return np.asarray(Image.open(path).convert("RGB"))


@pytest.mark.parametrize("name", LITE)
def test_package_weights_recognise_a_military_uniform(name):
    card = CARDS[f"{name}_224"]
    path, _ = checkpoint.fetch(card)
    classifier = timm.create_model(card.architecture)
    state = efficientnet_lite.renamed(checkpoint.read_checkpoint(path, card), classifier)
    classifier.load_state_dict(state, strict=True)
    batch = build_transform(card.transform)(photograph())[None]
    with torch.inference_mode():
        logits = classifier.eval()(batch)[0]
    military_uniform = 652
    assert military_uniform in logits.topk(3).indices


def test_features_of_package_weights_are_what_the_classifier_reads(tmp_path):
    card, path = CARDS["efficientnet_lite0_224"], tmp_path / "weights.safetensors"
    write_weights(card, path)
    batch = build_transform(card.transform)(photograph())[None]
    source, _ = checkpoint.fetch(card)
    classifier = timm.create_model(card.architecture)
    state = efficientnet_lite.renamed(checkpoint.read_checkpoint(source, card), classifier)
    classifier.load_state_dict(state)
    with torch.inference_mode():
        features = load_encoder(card, path).module(batch)
        head = classifier.classifier(features)
        expected = classifier.eval()(batch)
    torch.testing.assert_close(head, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("old", ["_conv_stem.weight", "_blocks.3._bn1.running_var", "_fc.bias"])
def test_a_renamed_tensor_of_a_package_is_refused_by_name(old, monkeypatch, tmp_path):
    read = checkpoint.read_checkpoint

    def renamed(path, card):
        return {key.replace(old, f"{old}x"): value for key, value in read(path, card).items()}

    monkeypatch.setattr(checkpoint, "read_checkpoint", renamed)
    with pytest.raises(WeightsError, match=r"missing .*surplus .*x"):
        write_weights(CARDS["efficientnet_lite0"], tmp_path / "weights.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_released_checkpoint_loses_its_head_and_nothing_else(tiny_checkpoint, tmp_path):
    card, path = checkpoint_card(tiny_checkpoint), tmp_path / "weights.safetensors"
    metadata = write_weights(card, path)
    released, stored = load_file(tiny_checkpoint), load_file(path)
    assert set(released) - set(stored) == {"head.weight", "head.bias"}
    assert all(torch.equal(stored[key], released[key]) for key in stored)
    assert metadata["source_sha256"] == hashlib.sha256(tiny_checkpoint.read_bytes()).hexdigest()


@pytest.mark.parametrize("fault", ["renamed", "missing", "surplus"])
@pytest.mark.parametrize("key", ["blocks.0.attn.qkv.weight", "norm.bias"])
def test_a_checkpoint_with_other_tensors_is_refused_by_name(fault, key, tiny_checkpoint, tmp_path):
    state = load_file(tiny_checkpoint)
    tensor = state[key] if fault == "surplus" else state.pop(key)
    if fault != "missing":
        state[f"{key}_other"] = tensor.clone()
    damaged = tmp_path / "damaged.safetensors"
    save_file(state, damaged)
    named = key if fault != "surplus" else f"{key}_other"
    with pytest.raises(WeightsError, match=named):
        write_weights(checkpoint_card(damaged), tmp_path / "weights.safetensors")
    assert not (tmp_path / "weights.safetensors").exists()


def test_a_checkpoint_of_another_size_is_refused(tiny_checkpoint, tmp_path):
    card = checkpoint_card(tiny_checkpoint, architecture="test_vit2")
    with pytest.raises(WeightsError, match="tiny_vit: timm test_vit2"):
        write_weights(card, tmp_path / "weights.safetensors")


def test_a_checkpoint_that_a_training_script_wrapped_is_the_same(tiny_checkpoint, tmp_path):
    state = load_file(tiny_checkpoint)
    wrapped = tmp_path / "wrapped.pth"
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}}, wrapped)
    write_weights(checkpoint_card(wrapped), tmp_path / "weights.safetensors")
    stored = load_file(tmp_path / "weights.safetensors")
    assert all(torch.equal(stored[key], state[key]) for key in stored)


def trained(tiny_checkpoint: Path, *, prefix: str = "", n_classes: int = 7) -> checkpoint.State:
    """Return the checkpoint as its user's training saves it: a head of its own, or none."""
    body = {k: v for k, v in load_file(tiny_checkpoint).items() if not k.startswith("head.")}
    head = {"head.weight": torch.ones(n_classes, 64), "head.bias": torch.ones(n_classes)}
    state = body | (head if n_classes else {})
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def body_digest(card: EncoderCard, folder: Path) -> str:
    return write_weights(card, folder / "weights.safetensors")["weights_digest"]


@pytest.mark.parametrize(
    ("n_classes", "prefix", "wrapping"),
    [
        (7, "", None),
        (0, "", "state_dict"),
        (1000, "module.", "state_dict"),
        (7, "model.", "state_dict"),
        (0, "module.model.", "model"),
        (7, "model._orig_mod.", None),
    ],
)
def test_a_local_checkpoint_may_have_any_head_and_a_wrappers_prefix(
    n_classes, prefix, wrapping, tiny_checkpoint, tmp_path, caplog
):
    expected = body_digest(checkpoint_card(tiny_checkpoint), tmp_path)
    state = trained(tiny_checkpoint, prefix=prefix, n_classes=n_classes)
    path = tmp_path / "own.pth"
    torch.save({wrapping: state, "epoch": 3} if wrapping else state, path)
    caplog.clear()
    caplog.set_level("INFO", logger="crsbench")
    assert body_digest(checkpoint_card(path), tmp_path) == expected
    stripped = f"tiny_vit: stripped {prefix} from the names of all tensors"
    dropped = "tiny_vit: dropped the head of the checkpoint: head.bias, head.weight"
    notes = [text for text in caplog.messages if text.startswith("tiny_vit: ")]
    assert notes == [*([stripped] if prefix else []), *([dropped] if n_classes else [])]


def test_a_head_of_several_layers_is_dropped(tiny_checkpoint, tmp_path):
    state = trained(tiny_checkpoint, n_classes=0)
    layers = {"head.0.weight": torch.ones(9, 64), "head.2.weight": torch.ones(3, 9)}
    torch.save(state | layers, tmp_path / "own.pth")
    found = body_digest(checkpoint_card(tmp_path / "own.pth"), tmp_path)
    assert found == body_digest(checkpoint_card(tiny_checkpoint), tmp_path)


@pytest.mark.parametrize("n_classes", [0, 7])
@pytest.mark.parametrize("architecture", ["test_resnet", "test_convnext", "test_mambaout"])
def test_what_the_network_has_behind_its_body_but_is_no_head_is_kept(
    n_classes, architecture, tmp_path
):
    network = timm.create_model(architecture, num_classes=n_classes)
    for tensor in network.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(0.5)
    torch.save(network.state_dict(), tmp_path / "own.pth")
    changes = {"options": {}, "feature": {}, "depth_indices": ()}
    card = checkpoint_card(tmp_path / "own.pth", architecture=architecture, **changes)
    write_weights(card, tmp_path / "weights.safetensors")
    stored, state = load_file(tmp_path / "weights.safetensors"), network.state_dict()
    network.reset_classifier(0)
    assert set(stored) == set(network.state_dict())
    assert all(torch.equal(stored[name], state[name]) for name in stored)


def test_a_prefix_that_one_name_lacks_is_not_stripped(tiny_checkpoint, tmp_path):
    state = trained(tiny_checkpoint, prefix="model.") | {"criterion.weight": torch.ones(2)}
    torch.save({"state_dict": state}, tmp_path / "own.ckpt")
    with pytest.raises(WeightsError, match=r"Missing .*Unexpected .*: model\.blocks"):
        write_weights(checkpoint_card(tmp_path / "own.ckpt"), tmp_path / "w.safetensors")


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("n_classes", [0, 7])
def test_a_released_checkpoint_with_another_head_is_refused(n_classes, tiny_checkpoint, tmp_path):
    hub = {"repo": "timm/test", "revision": "0" * 40, "file": "model.safetensors"}
    card = checkpoint_card(tiny_checkpoint, weights={"hub": hub})
    cached = tmp_path / "models--timm--test" / "snapshots" / hub["revision"] / hub["file"]
    cached.parent.mkdir(parents=True)
    save_file(trained(tiny_checkpoint, n_classes=n_classes), cached)
    with pytest.raises(WeightsError, match=r"Missing .*head\.|size mismatch for head\."):
        write_weights(card, tmp_path / "weights.safetensors")


def test_of_many_faults_a_few_are_named_and_the_rest_counted(tiny_checkpoint, tmp_path):
    renamed = {f"net.{name}": tensor for name, tensor in load_file(tiny_checkpoint).items()}
    save_file(renamed, tmp_path / "renamed.safetensors")
    with pytest.raises(WeightsError) as caught:
        write_weights(checkpoint_card(tmp_path / "renamed.safetensors"), tmp_path / "w.safetensors")
    n = len(renamed) - 5
    assert str(caught.value).startswith("tiny_vit: timm test_vit: Missing key(s) in state_dict: ")
    assert str(caught.value).count(f" and {n} more") == 2
    assert len(str(caught.value)) < 600
    wide = checkpoint_card(tiny_checkpoint, options={"img_size": 64, "embed_dim": 96})
    with pytest.raises(WeightsError, match=r"size mismatch for cls_token: .*; and \d+ more$"):
        write_weights(wide, tmp_path / "w.safetensors")


def test_an_unknown_tag_is_refused_with_those_that_there_are(tmp_path):
    with pytest.raises(WeightsError, match=r"tag \(nosuch\) for resnet10t; it has c3_in1k$"):
        build_encoder(edited(CARDS["tiny_resnet"], architecture="resnet10t.nosuch"))


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ("", r"surplus in the checkpoint: head\.bias, head\.weight; they look like a head"),
        ("module.", r"and \d+ more; these names start with 'module\.'.*take the prefix off"),
        ("net.", r"the weights do not fit the architecture: missing"),
    ],
)
def test_a_factory_says_what_to_do_about_a_head_or_a_prefix(
    prefix, message, tiny_checkpoint, tmp_path
):
    path = tmp_path / "own.safetensors"
    save_file(trained(tiny_checkpoint, prefix=prefix), path)
    options = {"model_name": "test_vit", "img_size": 64, "num_classes": 0}
    changes = {"loader": "factory", "architecture": "timm:create_model", "options": options}
    with pytest.raises(WeightsError, match=message):
        write_weights(checkpoint_card(path, **changes), tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"state_dict": {}, "folder": Path("x")}, "cannot be read safely: it needs pathlib"),
        ([1], r"own\.pth: a list, no dictionary of tensors"),
        (None, r"own\.pth: damaged, or no checkpoint of torch"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_one_line(content, message, tmp_path):
    path = tmp_path / "own.pth"
    torch.save(content or torch.ones(300), path)
    if content is None:
        path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(WeightsError, match=message):
        write_weights(checkpoint_card(path), tmp_path / "w.safetensors")


def test_a_wrong_digest_is_refused(tiny_checkpoint, tmp_path):
    weights = {"kind": "file", "path": str(tiny_checkpoint), "sha256": "0" * 64}
    with pytest.raises(WeightsError, match=r"SHA-256 is [0-9a-f]{64}, expected 0{64}"):
        write_weights(checkpoint_card(tiny_checkpoint, weights=weights), tmp_path / "w.safetensors")


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(WeightsError, match=r"absent\.pth: no such checkpoint") as caught:
        write_weights(checkpoint_card(tmp_path / "absent.pth"), tmp_path / "w.safetensors")
    assert str(caught.value).endswith(f"relative paths start at {Path.cwd()}")


def test_available_loaders_are_those_that_build():
    assert {"timm", "efficientnet_lite", "statistics"} <= set(loader_names())
    assert not {"checkpoint", "untrained"} & set(loader_names())


@pytest.mark.parametrize("fault", ["renamed", "truncated", "absent"])
def test_a_weights_file_that_is_not_the_encoders_is_refused(fault, tmp_path):
    card, path = CARDS["tiny_vit"], tmp_path / "weights.safetensors"
    metadata = write_weights(card, path)
    if fault == "renamed":
        state = load_file(path)
        state["blocks.0.attn.other"] = state.pop("blocks.0.attn.qkv.weight")
        save_file(state, path, metadata=metadata)
    elif fault == "truncated":
        path.write_bytes(path.read_bytes()[:1000])
    else:
        path.unlink()
    message = {
        "renamed": "missing blocks.0.attn.qkv.weight, surplus blocks.0.attn.other",
        "truncated": "damaged weights file",
        "absent": "no such weights file",
    }
    with pytest.raises(WeightsError, match=message[fault]):
        load_encoder(card, path)


@pytest.mark.parametrize("pool", ["mean", "projected", "cls"])
def test_a_pool_that_an_architecture_does_not_have_is_refused(pool, tmp_path):
    card = edited(CARDS["tiny_resnet"], feature={"pool": pool})
    with pytest.raises(WeightsError, match=r"use pool: pooled|no projected feature"):
        write_weights(card, tmp_path / "weights.safetensors")


def test_the_class_token_and_the_mean_of_the_patches_are_what_they_say(tmp_path):
    card, path = CARDS["tiny_vit"], tmp_path / "weights.safetensors"
    write_weights(card, path)
    mean = edited(card, feature={"pool": "mean"})
    batch = torch.rand(2, 3, 64, 64)
    module = load_encoder(card, path).module
    with torch.inference_mode():
        tokens = module.forward_features(batch)
        torch.testing.assert_close(module(batch), tokens[:, 0])
        averaged = load_encoder(mean, path).module(batch)
    torch.testing.assert_close(averaged, tokens[:, 1:].mean(dim=1))


UNTRAINED = [name for name, card in CARDS.items() if isinstance(card.weights, RandomWeights)]


@pytest.mark.parametrize("name", UNTRAINED)
def test_untrained_weights_come_from_the_seed_alone(name, tmp_path):
    card = CARDS[name]
    torch.manual_seed(1)
    first = write_weights(card, tmp_path / "a.safetensors")
    torch.manual_seed(2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    second = write_weights(card, tmp_path / "b.safetensors")
    torch.set_num_threads(before)
    other = edited(card, weights={"kind": "random", "seed": 1})
    third = write_weights(other, tmp_path / "c.safetensors")
    assert first["weights_digest"] == second["weights_digest"] != third["weights_digest"]
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_untrained_weights_keep_signals_apart(tmp_path):
    for name in ("tiny_vit", "tiny_resnet"):
        path = tmp_path / f"{name}.safetensors"
        write_weights(CARDS[name], path)
        module = load_encoder(CARDS[name], path).module
        with torch.inference_mode():
            features = module(torch.rand(8, 3, 64, 64) * 2 - 1)
        assert torch.isfinite(features).all()
        assert features.std(dim=0).mean() > 0.01 * features.abs().mean()


def test_cards_load_without_torch():
    code = (
        "import sys; from crsbench.encoders.cards import load_cards; "
        f"load_cards([{str(ROOT / 'config' / 'encoders.yaml')!r}]); "
        "sys.exit('torch' in sys.modules)"
    )
    scripts = str(ROOT / "workflow" / "scripts")
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": scripts})
