"""Fetching: pinned, checked, and without a socket where the network must not be used."""

import hashlib
import socket
import types
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from crsbench.config import read_yaml
from crsbench.encoders.cards import EncoderCard, load_cards
from crsbench.encoders.loaders import checkpoint
from crsbench.errors import WeightsError

CARDS = load_cards([Path(__file__).parents[2] / "config" / "encoders.yaml"])
PUBLISHED = read_yaml(Path(__file__).parents[2] / "config" / "config.yaml")["encoders"]


def edited(card: EncoderCard, **changes: object) -> EncoderCard:
    return EncoderCard.model_validate({**card.model_dump(), **changes})


@pytest.fixture
def no_sockets(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def cache(tmp_path, monkeypatch, no_sockets) -> Path:
    """Return an empty hub cache of an offline machine."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def put_into(cache: Path, card: EncoderCard, content: bytes) -> Path:
    """Put a file into the hub's cache where prefetching would have put it."""
    weights = card.weights
    repo = cache / f"models--{weights.repo.replace('/', '--')}"
    commit = weights.revision if len(weights.revision) == 40 else "c" * 40
    if commit != weights.revision:
        (repo / "refs").mkdir(parents=True)
        (repo / "refs" / weights.revision).write_text(commit)
    path = repo / "snapshots" / commit / weights.file
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", [n for n in PUBLISHED if CARDS[n].weights.kind == "hub"])
def test_offline_without_the_file_opens_no_socket_and_says_what_to_do(name, cache):
    with pytest.raises(WeightsError, match=f"{name}: .* is not in the hub cache .*prefetch"):
        checkpoint.fetch(CARDS[name])


def test_offline_with_the_file_opens_no_socket_and_records_commit_and_digest(cache):
    path = put_into(cache, CARDS["resnet50"], b"weights")
    found, source = checkpoint.fetch(CARDS["resnet50"])
    assert found == path
    assert source.sha256 == hashlib.sha256(b"weights").hexdigest()
    assert source.description == (
        "timm/resnet50.tv_in1k@aa6c2d36d56bc0209040c02b5a7b7d7bf11d57b8/model.safetensors"
    )


def test_a_moving_revision_is_recorded_as_the_commit_that_it_was(cache):
    put_into(cache, CARDS["mae_b16"], b"weights")
    _, source = checkpoint.fetch(CARDS["mae_b16"])
    assert source.description == f"timm/vit_base_patch16_224.mae@{'c' * 40}/model.safetensors"


@pytest.mark.parametrize(("name", "kind"), [("clip_b16", "SHA-256"), ("biovil", "MD5")])
def test_another_file_than_the_pinned_one_is_refused(name, kind, cache):
    put_into(cache, CARDS[name], b"something else")
    with pytest.raises(WeightsError, match=f"{kind} is [0-9a-f]+, expected "):
        checkpoint.fetch(CARDS[name])


def response(status: int) -> types.SimpleNamespace:
    request = types.SimpleNamespace(method="GET", url="https://example.org")
    return types.SimpleNamespace(
        status_code=status, headers={}, request=request, url=request.url, text=""
    )


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.GatedRepoError, "is gated; ask for access at https://huggingface.co/google"),
        (errors.RepositoryNotFoundError, "no google/medsiglip-448 at revision"),
        (errors.RevisionNotFoundError, "no google/medsiglip-448 at revision"),
        (errors.RemoteEntryNotFoundError, "has no file model.safetensors"),
    ],
)
def test_what_the_hub_refuses_is_one_clear_line_without_a_token(error, message, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise error("hf_secret", response=response(403))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(WeightsError, match=message) as caught:
        checkpoint.fetch(CARDS["medsiglip"])
    assert "hf_secret" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_downloads_name_the_revision_and_have_a_time_out(monkeypatch, tmp_path):
    seen = {}

    def download(repo, file, **options):
        seen.update(options, repo=repo, file=file)
        path = tmp_path / "file"
        path.write_bytes(b"x")
        return str(path)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    checkpoint.fetch(CARDS["retfound"])
    assert seen["repo"] == "YukunZhou/RETFound_mae_natureCFP"
    assert seen["file"] == "RETFound_mae_natureCFP.pth"
    assert seen["revision"] == "556830f78214f0e8da35af965292ac5a3180ac47"
    assert seen["etag_timeout"] > 0


@pytest.mark.parametrize("name", ["panderm", "chexzero"])
def test_a_file_on_google_drive_can_be_put_in_place_by_hand(name, cache):
    card = CARDS[name]
    page = f"https://drive.google.com/.*{card.weights.id}"
    with pytest.raises(WeightsError, match=f"offline.*{page} by hand and put it at"):
        checkpoint.fetch(card)
    path = checkpoint.drive_path(card.weights)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"weights")
    if card.weights.sha256:
        with pytest.raises(WeightsError, match="SHA-256"):
            checkpoint.fetch(card)
    else:
        assert checkpoint.fetch(card)[0] == path


def test_without_gdown_the_error_says_so(cache, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(checkpoint.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(WeightsError, match="pip install gdown"):
        checkpoint.fetch(CARDS["panderm"])


@pytest.mark.parametrize("name", ["panderm", "chexzero"])
def test_gdown_fetches_one_file_and_never_leaves_half_of_it(name, cache, monkeypatch):
    card = edited(CARDS[name], weights={**CARDS[name].weights.model_dump(), "sha256": None})
    file = card.weights.file
    entries = [
        types.SimpleNamespace(path=file, id="the-file"),
        types.SimpleNamespace(path="o", id="o"),
    ]
    asked = []

    def download(*, id, output, resume):  # noqa: A002 - gdown's name
        asked.append((id, Path(output).name, resume))
        Path(output).write_bytes(b"weights")
        return output

    fake = types.ModuleType("gdown")
    fake.download = download
    fake.download_folder = lambda **_options: entries
    monkeypatch.setitem(__import__("sys").modules, "gdown", fake)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(checkpoint.importlib.util, "find_spec", lambda _name: "here")
    path, _ = checkpoint.fetch(card)
    expected = "the-file" if name == "chexzero" else card.weights.id
    assert asked == [(expected, f"{file}.part", True)]
    assert [item.name for item in path.parent.iterdir()] == [file]


def test_a_package_that_is_not_installed_is_named():
    weights = {**CARDS["efficientnet_lite0"].weights.model_dump(), "package": "no_such_package"}
    card = edited(CARDS["efficientnet_lite0"], weights=weights)
    with pytest.raises(WeightsError, match="package no_such_package is not installed"):
        checkpoint.fetch(card)


def test_tensors_of_unknown_modules_are_refused():
    state = {"a.x": 1, "text.y": 2, "other.z": 3}
    with pytest.raises(WeightsError, match=r"me: surplus in the checkpoint: other\.z"):
        checkpoint.below(state, "a.", ignored=r"text\..*", owner="me")
    assert checkpoint.below(state, "a.", ignored=r"(text|other)\..*", owner="me") == {"x": 1}
    with pytest.raises(WeightsError, match=r"nothing in the checkpoint is below 'b\.'"):
        checkpoint.below(state, "b.", ignored=".*", owner="me")
