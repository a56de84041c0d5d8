"""Transfer: the rest of a file only, the next mirror, checks, full disks, no secret told."""

import errno
import hashlib
import logging
import subprocess
import sys
import time
import traceback
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
from server import Page

from crsbench.acquisition import transfer
from crsbench.acquisition.transfer import TransferError, disk_error, download, open_session
from crsbench.datasets.locks import WrongFileError
from crsbench.errors import DataError

BODY = bytes(range(256)) * 4096  # a megabyte
DIGEST = hashlib.sha256(BODY).hexdigest()


def is_body(path: Path) -> None:
    got = hashlib.sha256(path.read_bytes()).hexdigest()
    if got != DIGEST:
        raise WrongFileError(f"SHA-256 {got}, expected {DIGEST} as published")


@pytest.fixture
def fetch(tmp_path, patience):
    def fetch(*urls, with_credentials=False, check=is_body, **options):
        target = tmp_path / "data" / "images.zip"
        with open_session(with_credentials=with_credentials, patience=patience) as session:
            source = download(
                urls, target, session=session, patience=patience, check=check, **options
            )
        assert target.read_bytes() == BODY
        assert [path.name for path in target.parent.iterdir()] == ["images.zip"]
        return source

    return fetch


@pytest.fixture
def partial(server, tmp_path):
    """What a killed job leaves of a file: its first part, and which file that is of."""

    def leave(body, n_bytes):
        found = transfer.Partial(tmp_path / "data" / "images.zip.part")
        found.path.parent.mkdir()
        found.begin(Page(body).etag)
        found.path.write_bytes(body[:n_bytes])
        return found

    return leave


def test_a_file_arrives_whole_and_is_named_at_the_end(server, fetch):
    assert fetch(server.add("/images.zip", BODY)) == server.url("/images.zip")
    assert server.sent("/images.zip") == [len(BODY)]


def test_a_broken_connection_is_taken_up_where_it_broke(server, fetch):
    fetch(server.add("/images.zip", BODY, cut_after=655_360))
    assert server.sent("/images.zip") == [655_360, len(BODY) - 655_360]
    assert [request.range for request in server.seen] == [None, "bytes=655360-"]


KILLED = """
import sys
from pathlib import Path
from crsbench.acquisition.transfer import PATIENCE, download, open_session
url, target = sys.argv[1:]
with open_session(with_credentials=False, patience=PATIENCE) as session:
    download([url], Path(target), session=session, patience=PATIENCE, check=lambda path: None)
"""


def test_a_killed_download_is_resumed_by_the_next_job(server, fetch, tmp_path):
    url = server.add("/images.zip", BODY, hold_after=655_360)
    target = tmp_path / "data" / "images.zip"
    process = subprocess.Popen([sys.executable, "-c", KILLED, url, str(target)])
    part = target.with_name("images.zip.part")
    while not part.exists() or part.stat().st_size < 655_360:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    fetch(url)
    assert server.seen[-1].range == "bytes=655360-"
    assert server.sent("/images.zip")[-1] == len(BODY) - 655_360


def test_a_server_without_ranges_sends_the_whole_file_again(server, fetch, partial):
    partial(BODY, 400_000)
    fetch(server.add("/images.zip", BODY, ranges=False))
    assert server.sent("/images.zip") == [len(BODY)]


@pytest.mark.parametrize("honest", [True, False])
def test_a_file_that_has_changed_meanwhile_is_begun_anew(server, fetch, partial, honest):
    partial(bytes(len(BODY)), 400_000)
    fetch(server.add("/images.zip", BODY, conditional=honest))
    assert server.sent("/images.zip")[-1] == len(BODY)


def test_a_partial_file_longer_than_the_remote_one_is_begun_anew(server, fetch, partial):
    partial(BODY + BODY, len(BODY) + 5)
    fetch(server.add("/images.zip", BODY, conditional=False))
    assert server.sent("/images.zip") == [0, len(BODY)]


def test_a_partial_file_that_is_already_whole_is_only_checked(server, fetch, partial):
    partial(BODY, len(BODY))
    fetch(server.add("/images.zip", BODY))
    assert server.sent("/images.zip") == [0]


def test_a_dead_mirror_is_named_and_the_next_one_serves(server, fetch, caplog):
    good = server.add("/images.zip", BODY)
    dead = "http://127.0.0.1:9/images.zip"
    with caplog.at_level(logging.WARNING):
        assert fetch(dead, good) == good
    (line,) = [record.getMessage() for record in caplog.records if record.name == transfer.__name__]
    assert line.startswith(f"images.zip: {dead}: cannot be reached")
    assert line.endswith("the next mirror is tried")


@pytest.mark.parametrize("status", [403, 404, 503])
def test_a_mirror_that_refuses_is_passed_over(server, fetch, status):
    refusing = server.add("/old.zip", BODY, statuses=[status] * 20)
    assert fetch(refusing, server.add("/images.zip", BODY)) == server.url("/images.zip")


def test_a_busy_server_is_asked_again(server, fetch):
    fetch(server.add("/images.zip", BODY, statuses=[503, 429]))
    assert server.sent("/images.zip") == [0, 0, len(BODY)]


def test_a_mirror_with_another_file_is_passed_over_and_leaves_nothing(server, fetch, caplog):
    wrong = server.add("/wrong.zip", BODY[::-1])
    fetch(wrong, server.add("/images.zip", BODY))
    assert f"expected {DIGEST} as published; the next mirror is tried" in caplog.text


def test_a_wrong_digest_everywhere_is_an_error_and_is_not_resumed(server, fetch, tmp_path):
    wrong = server.add("/images.zip", BODY[::-1])
    with pytest.raises(DataError, match=rf"images\.zip: not fetched \(.*expected {DIGEST}"):
        fetch(wrong)
    assert list((tmp_path / "data").iterdir()) == []


def test_no_mirror_at_all_names_each_and_what_is_kept(server, fetch, partial):
    kept = partial(BODY, 300_000)
    message = (
        r"images\.zip: not fetched \(http://127\.0\.0\.1:9/a: cannot be reached.*; .*404 Not Found"
        r"\); the first 300000 bytes are kept in .*images\.zip\.part; run again to go on"
    )
    with pytest.raises(TransferError, match=message) as caught:
        fetch("http://127.0.0.1:9/a", server.url("/nowhere"))
    assert caught.value.statuses == (None, 404)
    assert kept.size == 300_000


def test_a_server_that_does_not_answer_is_given_up(server, fetch, tmp_path, patience):
    url = server.add("/images.zip", BODY, stall_s=5)
    hasty = replace(patience, read_s=0.1, tries=1)
    with (
        open_session(with_credentials=False, patience=hasty) as session,
        pytest.raises(DataError, match=r"cannot be reached, .*timed out"),
    ):
        download([url], tmp_path / "x", session=session, patience=hasty, check=is_body)


Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(("space", "free", "enough"), [(1, 1.1, True), (2, 1.1, False)])
def test_room_is_looked_for_before_anything_is_written(
    server, fetch, tmp_path, monkeypatch, space, free, enough
):
    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda _: Usage(0, 0, int(free * len(BODY))))
    url = server.add("/images.zip", BODY)
    if enough:
        fetch(url, space=space)
    else:
        with pytest.raises(DataError, match=r"the disk has 1 MB free, expected 2 MB or more for"):
            fetch(url, space=space)


def test_a_disk_that_fills_up_keeps_what_has_come_and_the_next_job_goes_on(
    server, fetch, tmp_path, monkeypatch
):
    written = []

    def until_full(handle, block):
        if len(written) == 4:
            raise DataError(disk_error(OSError(errno.ENOSPC, "full"), Path(handle.name)))
        written.append(handle.write(block))

    url = server.add("/images.zip", BODY)
    with monkeypatch.context() as patched:
        patched.setattr(transfer, "_write_block", until_full)
        with pytest.raises(DataError, match=r"images\.zip\.part: the disk is full; what has come"):
            fetch(url)
    assert (tmp_path / "data" / "images.zip.part").stat().st_size == sum(written) > 0
    fetch(url)
    assert server.sent("/images.zip")[-1] == len(BODY) - sum(written)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_named_as_such(tmp_path):
    with (
        Path("/dev/full").open("ab", buffering=0) as handle,
        pytest.raises(DataError, match=r"/dev/full: the disk is full; .* run again to go on"),
    ):
        transfer._write_block(handle, b"x")


def test_credentials_go_to_their_host_and_nowhere_else(server, fetch, netrc):
    netrc.write_text("machine 127.0.0.1 login ann password hush\n")
    other = server.url("/images.zip", host="localhost")
    server.add("/images.zip", BODY)
    fetch(
        server.add("/moved.zip", redirect=other, password="ann:hush"),
        with_credentials=True,
    )
    asked = {request.path: request.authorization for request in server.seen}
    assert asked["/moved.zip"].startswith("Basic ")
    assert asked["/images.zip"] is None


def test_without_need_no_credentials_are_sent(server, fetch, netrc):
    netrc.write_text("machine 127.0.0.1 login ann password hush\n")
    fetch(server.add("/images.zip", BODY))
    assert [request.authorization for request in server.seen] == [None]


@pytest.mark.parametrize("status", [404, None])
def test_no_secret_of_a_signed_link_is_in_any_message(server, fetch, netrc, caplog, status):
    netrc.write_text("machine 127.0.0.1 login ann password hush\n")
    port = server.port if status else 9
    signed = f"http://127.0.0.1:{port}/there?sig=SECRET1&X-Amz-Signature=SECRET2&part=3"
    url = server.add("/images.zip", redirect=signed)
    with caplog.at_level(logging.DEBUG, logger="crsbench"), pytest.raises(DataError) as caught:
        fetch(url, with_credentials=True)
    said = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "SECRET" not in said
    assert "hush" not in said
    assert "/images.zip" in said
