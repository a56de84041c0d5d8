"""Files over HTTP: resumed, from mirrors in order, checked before they get their name.

The law of a transfer:

- What has come so far is kept as ``NAME.part``; the next try asks for the rest only, on condition
  that the remote file is still the same (``If-Range``), and begins anew where it is not.
- A file gets its name after the caller's check of it. One that fails the check is removed: to
  resume it would be no use.
- A message holds no secret of a link, and no exception of the library is chained to it, whose
  traceback would hold one.

Connections, time-outs, redirects, repeated tries and credentials are those of requests and
urllib3. Credentials come from ``~/.netrc`` (or the file that NETRC names) and go to the host that
stands there, nowhere else.
"""

import errno
import json
import logging
import math
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from urllib3.util import Retry

from crsbench.datasets.locks import WrongFileError
from crsbench.errors import DataError
from crsbench.files import write_json
from crsbench.progress import meter
from crsbench.redaction import redacted

_LOG = logging.getLogger(__name__)
_MB = 1_000_000
#: What is lost when a connection breaks or a job is killed.
_BLOCK = 2**16
_BUSY = (429, 500, 502, 503, 504)
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+)")

Check = Callable[[Path], None]


@dataclass(frozen=True)
class Patience:
    """How long a server is waited for, and how often a file is asked for without any progress."""

    connect_s: float
    read_s: float
    tries: int
    pause_s: float


PATIENCE = Patience(connect_s=15, read_s=60, tries=3, pause_s=2)


class MirrorError(Exception):
    """Why one address did not send the file, without secrets; `status` as HTTP counts it."""

    def __init__(self, reason: str, *, status: int | None = None) -> None:
        super().__init__(redacted(reason))
        self.status = status


class TransferError(DataError):
    """No mirror sent a file; `statuses` are what they answered, where they answered with one."""

    def __init__(self, message: str, *, statuses: Sequence[int | None]) -> None:
        super().__init__(message)
        self.statuses = tuple(statuses)


class _NoCredentials(AuthBase):
    """Keeps requests from looking into ``~/.netrc``."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return request


def open_session(*, with_credentials: bool, patience: Patience) -> requests.Session:
    """Return a session that repeats requests of a busy server.

    Parameters
    ----------
    with_credentials
        Whether ``~/.netrc`` is asked for the host's user and password.
    patience
        How often a busy server is asked again.
    """
    retry = Retry(
        total=None,
        connect=0,
        read=0,
        other=0,
        status=patience.tries,
        backoff_factor=patience.pause_s,
        status_forcelist=_BUSY,
        allowed_methods=["GET"],
        raise_on_status=False,
    )
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    session.headers["Accept-Encoding"] = "identity"  # offsets count the bytes of the file itself
    if not with_credentials:
        session.auth = _NoCredentials()
    return session


def download(
    urls: Sequence[str],
    target: Path,
    *,
    session: requests.Session,
    patience: Patience,
    check: Check,
    space: int = 1,
) -> str:
    """Fetch a file from the first of its mirrors that sends it whole and right.

    Parameters
    ----------
    urls
        Mirrors, in order.
    target
        Where the file is put. What has come of it so far lies beside, as ``NAME.part``.
    session, patience
        The connection.
    check
        Raises `WrongFileError` for a file that is not the right one.
    space
        How many times its size must be free on the disk: 2 for an archive.

    Returns
    -------
    str
        The address that sent it, without secrets.

    Raises
    ------
    TransferError
        No mirror sent it; what has come is kept.
    DataError
        The disk is full; what has come is kept.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Partial(target.with_name(f"{target.name}.part"))
    failures: list[MirrorError] = []
    for number, url in enumerate(urls, start=1):
        try:
            _fetch(url, partial, session=session, patience=patience, space=space)
            _checked(partial, check)
        except MirrorError as error:
            failures.append(error)
            more = "; the next mirror is tried" if number < len(urls) else ""
            _LOG.warning("%s: %s: %s%s", target.name, redacted(url), error, more)
        else:
            partial.finish(target)
            return redacted(url)
    tried = "; ".join(
        f"{redacted(url)}: {error}" for url, error in zip(urls, failures, strict=True)
    )
    kept = f"; the first {partial.size} bytes are kept in {partial.path}" if partial.size else ""
    raise TransferError(
        f"{target.name}: not fetched ({tried}){kept}; run again to go on",
        statuses=[error.status for error in failures],
    )


def _checked(partial: "Partial", check: Check) -> None:
    try:
        check(partial.path)
    except WrongFileError as error:
        partial.discard()
        raise MirrorError(str(error)) from None


class Partial:
    """What has come of a file, and which remote file it is the beginning of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._about = path.with_name(f"{path.name}.json")

    @property
    def size(self) -> int:
        """How many bytes have come."""
        return self.path.stat().st_size if self.path.is_file() else 0

    @property
    def validator(self) -> str | None:
        """What identifies the remote file: a strong ETag, or when it was last changed."""
        if not (self.size and self._about.is_file()):
            return None
        validator = json.loads(self._about.read_text(encoding="utf-8"))["validator"]
        return None if validator is None else str(validator)

    def begin(self, validator: str | None) -> None:
        """Forget what has come, and note which remote file comes now."""
        self.path.write_bytes(b"")
        write_json({"validator": validator}, self._about)

    def discard(self) -> None:
        """Remove what has come."""
        for path in (self.path, self._about):
            path.unlink(missing_ok=True)

    def finish(self, target: Path) -> None:
        """Give the file its name."""
        self.path.replace(target)
        self._about.unlink(missing_ok=True)


def _fetch(
    url: str, partial: Partial, *, session: requests.Session, patience: Patience, space: int
) -> None:
    """Fetch until the file is whole; give up after some tries in which nothing came."""
    idle = 0
    while True:
        before = partial.size
        try:
            _append(url, partial, session=session, patience=patience, space=space)
        except requests.RequestException as error:
            idle = 0 if partial.size > before else idle + 1
            if idle >= patience.tries:
                raise MirrorError(_why(error)) from None
            _LOG.info("%s: %s; the rest is asked for again", redacted(url), _why(error))
            time.sleep(patience.pause_s)
        else:
            return


def _why(error: requests.RequestException) -> str:
    """Return the cause under the layers of the library, without secrets."""
    cause = getattr(error.args[0] if error.args else None, "reason", None) or error
    text = redacted(" ".join(str(cause).split())) or type(cause).__name__
    if isinstance(error, requests.ConnectionError | requests.Timeout):
        return f"cannot be reached, or the connection broke: {text}"
    return text


def _append(
    url: str, partial: Partial, *, session: requests.Session, patience: Patience, space: int
) -> None:
    validator = partial.validator
    headers = {} if validator is None else {"Range": f"bytes={partial.size}-"}
    if validator is not None:
        headers["If-Range"] = validator
    limits = (patience.connect_s, patience.read_s)
    with session.get(url, headers=headers, stream=True, timeout=limits) as response:
        if response.status_code == 416:
            if not _is_complete(response, partial):
                partial.discard()
                raise requests.ConnectionError("the remote file is another one now")
            return
        if response.status_code not in (200, 206):
            reason = f"HTTP {response.status_code} {response.reason}"
            raise MirrorError(reason, status=response.status_code)
        total = _start(response, partial)
        _require_space(total, partial, space=space)
        _write(response, partial, total)


def _is_complete(response: requests.Response, partial: Partial) -> bool:
    found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    return found is not None and int(found[2]) == partial.size


def _start(response: requests.Response, partial: Partial) -> int | None:
    """Begin anew unless the rest of the same file is coming; return its whole size if known."""
    validator = _validator(response)
    if response.status_code == 200:
        partial.begin(validator)
        length = response.headers.get("Content-Length")
        return None if length is None else int(length)
    found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    same = validator in (None, partial.validator)
    if found is None or found[1] is None or int(found[1]) != partial.size or not same:
        partial.discard()
        raise requests.ConnectionError("the server sent another part, or of another file")
    _LOG.info("%s: goes on after %d bytes", partial.path.name, partial.size)
    return int(found[2])


def _validator(response: requests.Response) -> str | None:
    """Return the ETag if it is a strong one, else the date of the last change."""
    etag = response.headers.get("ETag")
    if etag is not None and not etag.startswith("W/"):
        return etag
    return response.headers.get("Last-Modified")


def _require_space(total: int | None, partial: Partial, *, space: int) -> None:
    if total is None:
        return
    needed = total * space - partial.size
    free = shutil.disk_usage(partial.path.parent).free
    if free < needed:
        raise DataError(
            f"{partial.path.parent}: the disk has {free / _MB:.0f} MB free, expected "
            f"{needed / _MB:.0f} MB or more for {partial.path.stem}; make room, and run again"
        )


def _write(response: requests.Response, partial: Partial, total: int | None) -> None:
    n_mb = None if total is None else math.ceil(total / _MB)
    done = partial.size
    what = f"fetching {partial.path.stem}"
    with (
        partial.path.open("ab") as handle,
        meter(total=n_mb, what=what, unit="MB", before=done // _MB) as advance,
    ):
        for block in response.iter_content(_BLOCK):
            _write_block(handle, block)
            advance((done + len(block)) // _MB - done // _MB)
            done += len(block)


def _write_block(handle: BinaryIO, block: bytes) -> None:
    try:
        handle.write(block)
        handle.flush()
    except OSError as error:
        raise DataError(disk_error(error, Path(handle.name))) from error


def disk_error(error: OSError, path: Path) -> str:
    """Return what a user is told where a file cannot be written."""
    if error.errno == errno.ENOSPC:
        return f"{path}: the disk is full; what has come is kept; make room, and run again to go on"
    return f"{path}: cannot be written: {error.strerror}; what has come is kept; run again"
