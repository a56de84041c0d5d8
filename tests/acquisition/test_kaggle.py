"""Kaggle's client: its refusals are explained, and its credentials are not ours."""

import os
import sys
import textwrap

import pytest

from crsbench.acquisition import kaggle
from crsbench.acquisition.kaggle import download_competition
from crsbench.errors import DataError

NAME = "aptos2019-blindness-detection"


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Put a program called kaggle on the path, which does what a test says."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(kaggle.sys, "executable", str(folder / "python"))

    def write(body: str) -> None:
        path = folder / "kaggle"
        code = textwrap.dedent(body)
        path.write_text(f"#!{os.path.realpath(PYTHON)} -IS\nimport sys\n{code}")
        path.chmod(0o755)

    return write


PYTHON = sys.executable


def test_the_client_is_called_as_the_documents_say(client, tmp_path):
    client("""
        folder = sys.argv[sys.argv.index("-p") + 1]
        with open(f"{folder}/aptos2019-blindness-detection.zip", "w") as file:
            file.write(" ".join(sys.argv[1:]))
    """)
    folder = tmp_path / "staging"
    archive = download_competition(NAME, folder)
    assert archive == folder / f"{NAME}.zip"
    assert archive.read_text() == f"competitions download -c {NAME} -p {folder} -q"


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize(
    "said",
    [
        "403 - Forbidden - You must accept this competition's rules before you'll be able to",
        "403 Client Error: Forbidden for url: https://www.kaggle.com/api/v1/competitions/data",
        "403 - Forbidden - Permission 'competitions.participate' was denied",
    ],
)
def test_a_403_is_explained(client, tmp_path, said, status):
    client(f"print({said!r}); sys.exit({status})")
    message = (
        r"Kaggle refused \(403\): the rules of the competition are not accepted, or the phone "
        rf"number .* not verified; accept them at https://www\.kaggle\.com/competitions/{NAME}"
        r"/rules .* verify the number at .* The client said: 403"
    )
    with pytest.raises(DataError, match=message):
        download_competition(NAME, tmp_path / "staging")


@pytest.mark.parametrize(
    "said",
    [
        "401 - Unauthorized - Unauthenticated",
        "OSError: Could not find kaggle.json. Make sure it's located in /home/ann/.kaggle.",
    ],
)
def test_a_401_is_explained(client, tmp_path, said):
    client(f"print({said!r}, file=sys.stderr); sys.exit(1)")
    message = r"Kaggle does not know the account \(401\): .* ~/\.kaggle/kaggle\.json .*KAGGLE_KEY"
    with pytest.raises(DataError, match=message):
        download_competition(NAME, tmp_path / "staging")


def test_another_failure_is_told_as_the_client_told_it_without_secrets(client, tmp_path):
    client("print('boom at https://storage.googleapis.com/x?X-Goog-Signature=SECRET')")
    with pytest.raises(DataError, match=r"client failed; .* It said: boom at .*\[redacted\]") as e:
        download_competition(NAME, tmp_path / "staging")
    assert "SECRET" not in str(e.value)


def test_a_client_that_hangs_is_ended(client, tmp_path):
    client("import time; time.sleep(30)")
    with pytest.raises(DataError, match="has not ended within 0 s"):
        download_competition(NAME, tmp_path / "staging", timeout_s=0.2)


def test_a_missing_client_is_named_with_how_to_install_it(client, tmp_path):
    with pytest.raises(DataError, match=r"client is not installed; .*pip install kaggle"):
        download_competition(NAME, tmp_path / "staging")
    assert not (tmp_path / "staging").exists()
