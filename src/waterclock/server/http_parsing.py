"""The receiving half of a connection: bytes become requests, within limits.

The parser (llhttp) calls the `on_` methods while it is fed. What is over a limit, or is no HTTP,
raises `Refused` out of it with what to answer. A client that asks `Expect: 100-continue` is told to
go on before its body is read, once it is its turn; a body that would be too large is refused then.
"""

import asyncio
from typing import TYPE_CHECKING

from httptools import HttpParserCallbackError, HttpParserError, HttpRequestParser, parse_url

from waterclock.server.http_messages import (
    IS_HEAD,
    IS_LAST,
    IS_OLD,
    Request,
    Response,
    problem,
)

if TYPE_CHECKING:
    from waterclock.server.http_server import HttpServer


class Refused(Exception):
    """Stops the parser; carries what to answer."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class RequestParsing(asyncio.Protocol):
    """What a connection knows of the request it is receiving."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_fed_bytes",
        "_head_bytes",
        "_headers",
        "_in_head",
        "_is_continue_due",
        "_is_receiving",
        "_may_be_old",
        "_origin",
        "_parser",
        "_server",
        "_since",
        "_url",
    )

    _headers: list[tuple[bytes, bytes]]
    _body: list[bytes] | None
    _body_bytes: int
    _origin: bytes | None

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._parser: HttpRequestParser | None = None
        self._since = server.sweeps
        self._is_receiving = False
        self._is_continue_due = False
        self._begin_request()

    def _received(self, request: Request) -> None:
        """Take a whole request."""
        raise AssertionError("a connection takes its requests")

    def _continue_if_due(self) -> None:
        """Tell the client to send its body, if it waits for that and it is its turn."""

    def on_message_begin(self) -> None:
        """Take note that a request has begun."""
        self._is_receiving = True
        self._since = self._server.sweeps

    def on_url(self, url: bytes) -> None:
        """Take the target, or a piece of it."""
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those after the body (trailers) are dropped."""
        if not self._in_head:
            return
        size = len(name)
        self._count_head(size + len(value))
        if size == 14:
            if name.lower() == b"content-length":
                # llhttp has seen that it is a number.
                self._check_body(int(value))
        elif size == 6:
            self._take_short(name.lower(), value)
        elif size == 10 and name.lower() == b"connection":
            # Without it, HTTP/1.0 does not ask to be kept alive.
            self._may_be_old = True
        self._headers.append((name, value))

    def _take_short(self, name: bytes, value: bytes) -> None:
        if name == b"origin":
            self._origin = value
        elif name == b"expect":
            if value.lower() != b"100-continue":
                raise Refused(problem(417, "the only expectation that can be met is 100-continue"))
            self._is_continue_due = True

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head = False
        if self._is_continue_due:
            self._continue_if_due()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._is_continue_due = False
        self._body_bytes += len(body)
        self._check_body(self._body_bytes)
        if self._body is None:
            self._body = [body]
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Hand the request on."""
        parser = self._parser
        assert parser is not None
        path, _, query = self._target().partition(b"?")
        method = parser.get_method()
        manner = 0 if method != b"HEAD" else IS_HEAD
        is_kept = parser.should_keep_alive()
        if not is_kept or self._may_be_old:
            if parser.get_http_version() == "1.0":
                manner |= IS_OLD | IS_LAST
            elif not is_kept:
                manner |= IS_LAST
        body = b"" if self._body is None else b"".join(self._body)
        request = Request(method, path, query, self._headers, body, self._origin, manner)
        self._begin_request()
        self._is_receiving = False
        self._since = self._server.sweeps
        self._received(request)

    def _begin_request(self) -> None:
        self._url = b""
        self._headers = []
        self._body = None
        self._body_bytes = 0
        self._head_bytes = 0
        self._fed_bytes = 0
        self._in_head = True
        self._is_continue_due = False
        self._may_be_old = False
        self._origin = None

    def _target(self) -> bytes:
        """Return path and query; a target may also be a whole address (RFC 9112, 3.2.2)."""
        if self._url.startswith(b"/") or b"://" not in self._url:
            return self._url
        parts = parse_url(self._url)
        path = parts.path or b"/"
        return path if parts.query is None else path + b"?" + parts.query

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._server.limits.head_bytes_max:
            raise Refused(self._head_too_large())

    def _head_too_large(self) -> Response:
        limit = self._server.limits.head_bytes_max
        return problem(431, f"the head exceeds {limit} bytes", field="head", limit=limit)

    def _check_body(self, size: int) -> None:
        limit = self._server.limits.body_bytes_max
        if size > limit:
            detail = f"the body exceeds {limit} bytes (got {size})"
            raise Refused(problem(413, detail, field="body", limit=limit, got=size))


def refusal(error: HttpParserError) -> Response:
    """Return what to answer to a request that could not be parsed."""
    cause = error.__context__ if isinstance(error, HttpParserCallbackError) else error
    if isinstance(cause, Refused):
        return cause.response
    if isinstance(cause, HttpParserError):
        return problem(400, f"this is not HTTP/1.1: {cause}")
    raise error
