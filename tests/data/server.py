"""A web server on this machine that fails in the ways real ones do."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Page:
    """What the server does with a path.

    Attributes:
        content: The file.
        headers: Sent with it.
        ranges: Whether the server sends parts.
        cut: Close the connection after this many bytes of an answer.
        stall: Send no more after this many bytes of an answer until the server is freed.
        status: Answer with this and nothing else.
        location: Redirect there.
        length: Whether to say how long an answer is.
        chunked: Whether to send the file in one chunk, with its length before it.
        span: What to say about the part that is sent, instead of the truth.
    """

    content: bytes = b""
    headers: dict[str, str] = field(default_factory=lambda: {"ETag": '"first"'})
    ranges: bool = True
    cut: int | None = None
    stall: int | None = None
    status: int | None = None
    location: str | None = None
    length: bool = True
    chunked: bool = False
    span: str | None = None


@dataclass
class Server:
    url: str
    pages: dict[str, Page] = field(default_factory=dict)
    requests: list[tuple[str, Message]] = field(default_factory=list)
    free: threading.Event = field(default_factory=threading.Event)  # lets stalled answers go on

    def asked(self, header: str) -> list[str | None]:
        """What all requests so far said in a header."""
        return [headers[header] for _, headers in self.requests]


@contextmanager
def serve() -> Iterator[Server]:
    """A server that runs in threads of this process."""
    http = _HTTPServer(("127.0.0.1", 0), _Handler)
    http.told = Server(f"http://127.0.0.1:{http.server_port}")
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield http.told
    finally:
        http.told.free.set()
        http.shutdown()
        http.server_close()
        thread.join()


class _HTTPServer(ThreadingHTTPServer):
    told: Server

    def handle_error(self, *_: object) -> None:
        """Say nothing: clients may go away."""


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        told: Server = self.server.told  # type: ignore[attr-defined]
        told.requests.append((self.path, self.headers))
        page = told.pages.get(self.path, Page(status=404))
        if page.location is not None:
            self._head(302, {"Location": page.location, "Content-Length": "0"})
        elif page.status is not None:
            self._head(page.status, {"Content-Length": "0"})
        else:
            self._send(page, told.free)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, page: Page, free: threading.Event) -> None:
        body, total = page.content, len(page.content)
        status, headers = 200, dict(page.headers)
        asked = self.headers["Range"]
        known = self.headers["If-Range"]
        if asked and page.ranges and (known is None or known in page.headers.values()):
            first = int(asked.removeprefix("bytes=").removesuffix("-"))
            if first >= total:
                self._head(416, {"Content-Range": f"bytes */{total}", "Content-Length": "0"})
                return
            status, body = 206, body[first:]
            headers["Content-Range"] = page.span or f"bytes {first}-{total - 1}/{total}"
        if page.length:
            headers["Content-Length"] = str(len(body))
        if page.chunked:
            del headers["Content-Length"]
            headers["Transfer-Encoding"] = "chunked"
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        self._head(status, headers)
        stop = min(len(body) if stop is None else stop for stop in (page.cut, page.stall))
        self.wfile.write(body[:stop])
        if page.stall is not None:
            free.wait(30)
            self.wfile.write(body[stop:])
