"""Fetching: pinned, checked, and without a socket where the network must not be used."""

import hashlib
import sys
import threading
import time
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import gdown
import huggingface_hub
import pytest
from caches import cached_folder
from huggingface_hub import constants

from crsbench.config import read_yaml
from crsbench.encoders import fetching
from crsbench.encoders.cards import EncoderCard, load_cards
from crsbench.encoders.weights import write_weights
from crsbench.errors import WeightsError

CARDS = load_cards([Path(__file__).parents[2] / "config" / "encoders.yaml"])
PUBLISHED = read_yaml(Path(__file__).parents[2] / "config" / "config.yaml")["encoders"]


def edited(card: EncoderCard, **changes: object) -> EncoderCard:
    return EncoderCard.model_validate({**card.model_dump(), **changes})


@pytest.fixture
def cache(empty_cache, no_sockets) -> Path:
    """Return the empty caches of an offline machine on which no socket may be opened."""
    return empty_cache


def put_into(cache: Path, card: EncoderCard, content: bytes) -> Path:
    """Put a file into the hub's cache where prefetching would have put it."""
    path = cached_folder(cache, card) / card.weights.file
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_weights_stage_of_an_offline_machine_opens_no_socket(name, cache):
    with pytest.raises(WeightsError, match=f"{name}: .*(HF_HUB_OFFLINE is set|offline, and)"):
        write_weights(CARDS[name], cache / "weights.safetensors")


@pytest.mark.parametrize("name", [n for n in PUBLISHED if CARDS[n].weights.kind == "hub"])
def test_offline_without_the_file_opens_no_socket_and_says_what_to_do(name, cache):
    with pytest.raises(WeightsError, match=f"{name}: .* is not in the hub cache .*prefetch"):
        fetching.fetch(CARDS[name])


def test_offline_with_the_file_opens_no_socket_and_records_commit_and_digest(cache):
    path = put_into(cache, CARDS["resnet50"], b"weights")
    found, source = fetching.fetch(CARDS["resnet50"])
    assert found == path
    assert source.sha256 == hashlib.sha256(b"weights").hexdigest()
    assert source.description == (
        "timm/resnet50.tv_in1k@aa6c2d36d56bc0209040c02b5a7b7d7bf11d57b8/model.safetensors"
    )


def test_a_moving_revision_is_recorded_as_the_commit_that_it_was(cache):
    put_into(cache, CARDS["mae_b16"], b"weights")
    _, source = fetching.fetch(CARDS["mae_b16"])
    assert source.description == f"timm/vit_base_patch16_224.mae@{'c' * 40}/model.safetensors"


@pytest.mark.parametrize(("name", "kind"), [("clip_b16", "SHA-256"), ("biovil", "MD5")])
def test_another_file_than_the_pinned_one_is_refused(name, kind, cache):
    put_into(cache, CARDS[name], b"something else")
    with pytest.raises(WeightsError, match=f"{kind} is [0-9a-f]+, expected "):
        fetching.fetch(CARDS[name])


TOKEN = "hf_" + "secret" * 5


class Hub(ThreadingHTTPServer):
    """A hub on this machine with one file; what it answers instead is set by the test."""

    content = b"0123456789" * 1000
    refusal: tuple[int, dict[str, str]] | None = None
    breaks_off_at: int | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: list[tuple[str, str | None]] = []


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self):
        self.answer(b"")

    def do_GET(self):
        self.answer(self.server.content)

    def answer(self, content: bytes) -> None:
        ranged = self.headers.get("Range")
        self.server.asked.append((f"{self.command} {self.path}", ranged))
        if self.server.refusal is not None:
            status, headers = self.server.refusal
            self.send_response(status)
            for name, value in {**headers, "Content-Length": "0"}.items():
                self.send_header(name, value)
            self.end_headers()
            return
        size = len(self.server.content)
        start = int(ranged.removeprefix("bytes=").partition("-")[0]) if ranged else 0
        self.send_response(206 if ranged else 200)
        self.send_header("ETag", '"etag"')
        self.send_header("X-Repo-Commit", "c" * 40)
        self.send_header("Content-Length", str(size - start))
        if ranged:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.end_headers()
        end = self.server.breaks_off_at if content and not ranged else None
        self.wfile.write(content[start:end])

    def log_message(self, format, *args):  # noqa: A002
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Return a hub on this machine, an empty cache, and a user with a token."""
    server = Hub()
    address = f"http://127.0.0.1:{server.server_port}"
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)  # between the library's retries
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_file_comes_from_the_pinned_revision(hub):
    path, source = fetching.fetch(CARDS["rad_dino"])
    assert path.read_bytes() == hub.content
    assert source.description == f"microsoft/rad-dino@{'c' * 40}/model.safetensors"
    revision = "c3736a62544137a0450cc4fa02c9e37e55f28e32"
    assert {asked.partition(" ")[2] for asked, _ in hub.asked} == {
        f"/microsoft/rad-dino/resolve/{revision}/model.safetensors"
    }


def test_a_download_that_breaks_off_goes_on_where_it_was(hub):
    hub.breaks_off_at = 4000
    path, _ = fetching.fetch(CARDS["rad_dino"])
    assert path.read_bytes() == hub.content
    assert [ranged for _, ranged in hub.asked if ranged] == ["bytes=4000-"]


@pytest.mark.parametrize(
    ("status", "headers", "message"),
    [
        (401, {"X-Error-Code": "GatedRepo"}, "is gated; ask for access at https://huggingface.co/"),
        (403, {"X-Error-Code": "GatedRepo"}, "is gated; ask for access at https://huggingface.co/"),
        (401, {"X-Error-Code": "RepoNotFound"}, "no google/medsiglip-448 at .* or it is private"),
        (404, {"X-Error-Code": "RevisionNotFound"}, "no google/medsiglip-448 at revision 9cea28a"),
        (404, {"X-Error-Code": "EntryNotFound"}, "9cea28a.* has no file model.safetensors"),
        (401, {"X-Error-Message": "Invalid credentials in Authorization header"},
         "answered 401 .*log in again"),
        (403, {}, "answered 403 .*may not read it"),
        (500, {}, "answered 500 .*try again later"),
    ],
)  # fmt: skip
def test_what_the_hub_refuses_is_one_clear_line_without_the_token(hub, status, headers, message):
    hub.refusal = (status, {**headers, "X-Request-Id": TOKEN})
    with pytest.raises(WeightsError, match=f"medsiglip: .*{message}") as caught:
        fetching.fetch(CARDS["medsiglip"])
    assert TOKEN not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_hub_out_of_reach_is_no_missing_file(hub, monkeypatch):
    address = "http://127.0.0.1:9/{repo_id}/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
    with pytest.raises(WeightsError, match=r"no connection to the hub\); run `crsbench prefetch`"):
        fetching.fetch(CARDS["medsiglip"])


def test_a_full_disk_is_named_as_what_to_look_at(monkeypatch):
    def refuse(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(WeightsError, match=r"broke off \(OSError\); check network and disk"):
        fetching.fetch(CARDS["medsiglip"])


def test_downloads_name_the_revision_and_have_a_time_out(monkeypatch, tmp_path):
    seen = {}

    def download(repo, file, **options):
        seen.update(options, repo=repo, file=file)
        path = tmp_path / "file"
        path.write_bytes(b"x")
        return str(path)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    fetching.fetch(CARDS["retfound"])
    assert seen["repo"] == "YukunZhou/RETFound_mae_natureCFP"
    assert seen["file"] == "RETFound_mae_natureCFP.pth"
    assert seen["revision"] == "556830f78214f0e8da35af965292ac5a3180ac47"
    assert seen["etag_timeout"] > 0


@pytest.mark.parametrize("name", ["panderm", "chexzero"])
def test_a_file_on_google_drive_can_be_put_in_place_by_hand(name, cache):
    card = CARDS[name]
    page = f"https://drive.google.com/.*{card.weights.id}"
    with pytest.raises(WeightsError, match=f"offline.*{page} by hand and put it at"):
        fetching.fetch(card)
    path = fetching.drive_path(card.weights)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"weights")
    if card.weights.sha256:
        with pytest.raises(WeightsError, match="SHA-256"):
            fetching.fetch(card)
    else:
        assert fetching.fetch(card)[0] == path


def fake_gdown(monkeypatch, download, entries=()) -> None:
    fake = types.ModuleType("gdown")
    fake.DownloadError = gdown.DownloadError
    fake.download = download
    fake.download_folder = lambda **_options: list(entries)
    monkeypatch.setitem(sys.modules, "gdown", fake)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


ENTRIES = [types.SimpleNamespace(path="other", id="other")]


@pytest.mark.parametrize("name", ["panderm", "chexzero"])
def test_gdown_is_asked_for_one_file_with_a_time_out_and_to_resume(name, cache, monkeypatch):
    card = edited(CARDS[name], weights={**CARDS[name].weights.model_dump(), "sha256": None})
    asked = []

    def download(**options):
        asked.append(options)
        Path(options["output"]).write_bytes(b"weights")

    wanted = types.SimpleNamespace(path=f"folder/{card.weights.file}", id="the-file")
    fake_gdown(monkeypatch, download, [*ENTRIES, wanted])
    path, _ = fetching.fetch(card)
    (options,) = asked
    assert options["id"] == ("the-file" if name == "chexzero" else card.weights.id)
    assert (options["output"], options["resume"]) == (str(path), True)
    assert options["timeout"] > 0
    assert options["retries"] > 0


@pytest.mark.parametrize("error", [gdown.FileURLRetrievalError, ConnectionError, TimeoutError])
def test_what_google_drive_refuses_says_how_to_do_it_by_hand(error, cache, monkeypatch):
    def download(**_options):
        raise error("cookie=secret")

    fake_gdown(monkeypatch, download)
    with pytest.raises(WeightsError, match=rf"{error.__name__}.*by hand and put it at") as caught:
        fetching.fetch(CARDS["panderm"])
    assert "secret" not in str(caught.value)


def test_a_file_that_left_its_folder_on_google_drive_is_refused(cache, monkeypatch):
    fake_gdown(monkeypatch, None, ENTRIES)
    with pytest.raises(WeightsError, match=r"gave no best_64.*FileNotFoundError.*by hand"):
        fetching.fetch(CARDS["chexzero"])


def test_a_package_that_is_not_installed_is_named():
    weights = {**CARDS["efficientnet_lite0"].weights.model_dump(), "package": "no_such_package"}
    card = edited(CARDS["efficientnet_lite0"], weights=weights)
    with pytest.raises(WeightsError, match="package no_such_package is not installed"):
        fetching.fetch(card)
