"""Downloads by HTTP, also from a certain byte on; every failure is an error of a few words."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import IO, cast
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

REDIRECTIONS = range(300, 400)
UNSATISFIABLE = 416


class RemoteError(Exception):
    """Why a server did not give a file."""


def ask(url: str, timeout: float, done: int = 0, validator: str = "") -> HTTPResponse:
    """Ask for a file, or for the rest of it; `first_byte` says which of both the server has chosen to send.

    Args:
        url: Where it is.
        timeout: Seconds to wait for an answer, and later for more data.
        done: How many bytes are there already.
        validator: What `validator` said when the first of these came: if the file is another one now, the server sends
            it from the beginning.
    """
    headers = {"User-Agent": "trimtab"}  # some servers turn Python's own away
    if done:
        headers["Range"] = f"bytes={done}-"
        if validator:
            headers["If-Range"] = validator
    try:
        with _failures(timeout):
            return cast(HTTPResponse, build_opener(_Redirections).open(Request(url, headers=headers), timeout=timeout))
    except HTTPError as error:
        error.close()
        if error.code == UNSATISFIABLE and done:
            return ask(url, timeout)
        reason = "a redirection that leads nowhere" if error.code in REDIRECTIONS else error.reason
        raise RemoteError(f"{error.code} {reason}") from error


def first_byte(response: HTTPResponse, size: int) -> int:
    """Where what a server sends begins in a file that should have this size."""
    if response.headers.get_content_type() == "text/html":
        raise RemoteError("a page came instead of the file, as from a network that wants a login")
    first, total = 0, response.headers["Content-Length"]
    if response.status == 206:
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers["Content-Range"] or "")
        if span is None:
            raise RemoteError("the server sends a part of the file and does not say which")
        first, total = int(span[1]), None if span[2] == "*" else span[2]
    if total not in (None, str(size)):
        raise RemoteError(f"the file there has {total} bytes instead of {size}")
    return first


def validator(response: HTTPResponse) -> str:
    """What tells this state of the file from any other, or nothing if the server does not say."""
    etag = response.headers["ETag"] or ""
    if etag.startswith('"'):  # weak ones (W/) do not promise the same bytes
        return str(etag)
    return response.headers["Last-Modified"] or ""


def receive(response: HTTPResponse, most: int, timeout: float) -> bytes:
    """The next bytes, as they come; none if the connection is closed."""
    with _failures(timeout):
        try:
            return response.read1(most)
        except IncompleteRead:
            return b""


@contextmanager
def _failures(timeout: float) -> Iterator[None]:
    try:
        yield
    except HTTPError:
        raise
    except (OSError, HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, URLError) else error
        if isinstance(cause, TimeoutError):
            raise RemoteError(f"nothing came for {timeout:g} s") from error
        reason = cause.strerror if isinstance(cause, OSError) else None
        raise RemoteError(reason or " ".join(str(cause).split()) or type(cause).__name__) from error


class _Redirections(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        secure = urlsplit(req.full_url).scheme == "https"
        if urlsplit(newurl).scheme not in (("https",) if secure else ("http", "https")):
            fp.close()
            raise RemoteError(f"it redirects to {newurl}, which is not {'https' if secure else 'http or https'}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
