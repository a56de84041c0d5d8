"""A server for each test, no credentials of this machine, and no waiting."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from server import Server, running

from crsbench.acquisition.transfer import Patience


@pytest.fixture
def server() -> Iterator[Server]:
    """A web server on this machine."""
    with running() as found:
        yield found


@pytest.fixture(autouse=True)
def netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a file of credentials that a test may write, and no other; no proxy either."""
    path = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(path))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return path


@pytest.fixture
def patience() -> Patience:
    """Short time-outs, and no pause."""
    return Patience(connect_s=2, read_s=2, tries=2, pause_s=0)
