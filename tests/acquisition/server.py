"""A web server on this machine that serves bytes, and fails in the ways that real ones do."""

import base64
import hashlib
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Page:
    """What is served under one path.

    Parameters
    ----------
    body
        The bytes.
    ranges
        Whether a part can be asked for.
    statuses
        Answers given first, one a request; afterwards the page is served.
    cut_after
        Send so many bytes of an answer and drop the connection, once.
    hold_after
        Send so many bytes of an answer and then nothing, once.
    redirect
        Send the client elsewhere.
    password
        ``user:password`` that is asked for.
    stall_s
        Wait so long before answering.
    conditional
        Whether it minds ``If-Range``.
    """

    body: bytes = b""
    ranges: bool = True
    statuses: list[int] = field(default_factory=list)
    cut_after: int | None = None
    hold_after: int | None = None
    redirect: str | None = None
    password: str | None = None
    stall_s: float = 0
    conditional: bool = True

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.body).hexdigest()}"'


@dataclass
class Seen:
    """One request: its path, what of its headers matters, how many bytes were to be sent."""

    path: str
    range: str | None
    authorization: str | None
    sent: int = 0


class Server:
    """The pages, and what was asked for."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.pages: dict[str, Page] = {}
        self.seen: list[Seen] = []

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def add(self, path: str, body: bytes = b"", **options) -> str:
        self.pages[path] = Page(body, **options)
        return self.url(path)

    def sent(self, path: str) -> list[int]:
        return [request.sent for request in self.seen if request.path == path]


@contextmanager
def running() -> Iterator[Server]:
    """Run a server on a free port."""
    released = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format, *args):  # noqa: A002 - the name in the base class
            pass

        def do_GET(self):
            path = self.path.partition("?")[0]
            page = server.pages.get(path)
            # Noted before anything is sent: a client may be done before this thread goes on.
            self.seen = Seen(path, self.headers.get("Range"), self.headers.get("Authorization"))
            server.seen.append(self.seen)
            try:
                self.answer(page)
            except ConnectionError:
                self.close_connection = True

        def answer(self, page: Page | None) -> None:
            if page is None:
                return self.say(404)
            if page.stall_s:
                released.wait(page.stall_s)
            if page.password is not None:
                encoded = base64.b64encode(page.password.encode()).decode()
                if self.headers.get("Authorization") != f"Basic {encoded}":
                    return self.say(401)
            if page.statuses:
                return self.say(page.statuses.pop(0))
            if page.redirect is not None:
                return self.say(302, Location=page.redirect)
            return self.send(page)

        def send(self, page: Page) -> None:
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            same = not page.conditional or self.headers.get("If-Range") in (None, page.etag)
            start = int(asked[1]) if asked and page.ranges and same else 0
            total = len(page.body)
            if start >= total > 0:
                return self.say(416, **{"Content-Range": f"bytes */{total}"})
            body = page.body[start:]
            cut, hold = page.cut_after or page.hold_after, page.hold_after is not None
            page.cut_after = page.hold_after = None
            self.seen.sent = len(body[:cut])
            self.send_response(206 if start else 200)
            if page.ranges:
                self.send_header("ETag", page.etag)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:cut])
            self.close_connection = cut is not None
            if hold:
                released.wait()
            return None

        def say(self, status: int, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

    class Web(ThreadingHTTPServer):
        def handle_error(self, request, client_address):
            if not isinstance(sys.exception(), ConnectionError):  # a client that has gone
                super().handle_error(request, client_address)

    with Web(("127.0.0.1", 0), Handler) as web:
        web.daemon_threads = True
        server = Server(web.server_port)
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            released.set()
            web.shutdown()
            thread.join()
