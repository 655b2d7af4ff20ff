"""An HTTP request, the four ways to answer it, and the bytes of an answer.

    Response    at once
    Later       a coroutine that returns one of the others; it is cancelled if the client goes
    Pending     an object that is answered later: no task waits, only the object
    Streamed    a head now, and pieces as they come

Errors are problems as in RFC 9457: JSON with `title`, `status` and a `detail` for people.
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from waterclock.security.principals import Principal
from waterclock.server.http.counters import RequestCounters
from waterclock.server.http.identity import Asker

if TYPE_CHECKING:
    from waterclock.server.access import Permit
    from waterclock.server.http.connection import HttpConnection

TEXT = b"text/plain; charset=utf-8"
HTML = b"text/html; charset=utf-8"
JSON = b"application/json"
JSON_LINES = b"application/x-ndjson"
EVENTS = b"text/event-stream"
PROBLEM = b"application/problem+json"

KEEP_ALIVE_MS = 15_000
"""How often server-sent events that have nothing to send send a comment, so that no proxy takes
their connection for dead. Lower finds clients that have gone sooner, and sends more."""

ANYONE_ASKS = Asker()
"""On a node that is not secure."""

IS_LAST = 1
IS_HEAD = 2
IS_OLD = 4
"""How a request wants its answer: as the connection's last, without a body, as HTTP/1.0 has it."""

Piece = bytes | memoryview

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class Request(msgspec.Struct):
    """A whole request: head and body."""

    method: bytes
    path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    """As they came; names in any case."""
    body: bytes
    origin: bytes | None = None
    """Of the page that asks, if a browser does."""
    response_flags: int = 0
    held: int = 0
    """Bytes of it that count against the bound of all requests, until it is answered."""
    params: dict[str, str] = {}
    """What stands in the path where the route has `{name}`, decoded."""
    counters: RequestCounters | None = None
    """Of the operation that answers it, if one does."""
    asker: Asker = ANYONE_ASKS
    permit: "Permit | None" = None
    """What it was let in with, on a secure node."""
    left_ms: int = 0
    """How long it may wait yet, if it came by way of another node; 0: as it says itself."""
    partitions: tuple[int, ...] = ()
    """Those to answer for, if other nodes answer for the rest; none: all."""
    handler: "Handler | None" = None
    """What answers it, once that is known."""
    parameters: Any = None
    content: Any = None
    """Parameters and body as they were read first: who checks rights sees what the handler sees."""

    @property
    def principal(self) -> Principal:
        """Who asks."""
        return self.asker.principal

    def header(self, name: bytes) -> bytes | None:
        """Return the first header of a name, given in lower case."""
        for key, value in self.headers:
            if len(key) == len(name) and key.lower() == name:
                return value
        return None


class Response(NamedTuple):
    """A whole answer."""

    status: int
    body: bytes = b""
    content_type: bytes = TEXT
    headers: bytes = b""
    """Further header lines, each with its line end."""

    def encode(self, *, date: bytes, is_last: bool, is_head: bool, added: bytes = b"") -> bytes:
        """Return the bytes of the response; to HEAD without its body. `added` are header lines."""
        if self.status in (204, 304):
            return self._encode_empty(date, added, is_last)
        return b"".join(
            (
                _STATUS_LINES[self.status],
                date,
                b"Content-Type: ",
                self.content_type,
                b"\r\nContent-Length: %d\r\n" % len(self.body),
                self.headers,
                added,
                b"Connection: close\r\n\r\n" if is_last else b"\r\n",
                b"" if is_head else self.body,
            )
        )

    def _encode_empty(self, date: bytes, added: bytes, is_last: bool) -> bytes:
        # RFC 9110, 8.6: neither a length nor a type, for there is no body; of 304 they
        # would be those of what the client has.
        end = b"Connection: close\r\n\r\n" if is_last else b"\r\n"
        return b"".join((_STATUS_LINES[self.status], date, self.headers, added, end))


class PlainHead:
    """Around the length of what most requests are answered with, at one time: 200 with JSON."""

    __slots__ = ("after", "before")

    def __init__(self, date: bytes, added: bytes) -> None:
        whole = Response(200, b"", JSON).encode(
            date=date, is_last=False, is_head=False, added=added
        )
        before, length, after = whole.partition(b"Content-Length: ")
        self.before = before + length
        self.after = after.removeprefix(b"0")


class Streamed:
    """An answer in pieces: pulled one at a time, the next when the client has taken the last.

    With a `length` the pieces are that many bytes together, and go out under a Content-Length;
    without one, nobody knows yet how many there will be, and they go out as chunks.

    If the client goes, or the server stops, `pieces` is cancelled where it waits, and closed.
    Either way `on_over` is called, once, also if nothing was ever pulled.
    """

    __slots__ = ("content_type", "headers", "length", "on_over", "pieces", "status")

    def __init__(
        self,
        status: int,
        pieces: AsyncIterator[Piece],
        content_type: bytes = JSON_LINES,
        headers: bytes = b"",
        *,
        length: int | None = None,
        on_over: Callable[[], None] | None = None,
    ) -> None:
        self.status = status
        self.pieces = pieces
        self.content_type = content_type
        self.headers = headers
        self.length = length
        self.on_over = on_over

    def __repr__(self) -> str:
        return f"<Streamed {self.status} {self.content_type.decode()}>"

    def encode_head(self, *, date: bytes, is_last: bool, is_old: bool, added: bytes) -> bytes:
        """Return the bytes before the first piece."""
        if self.length is not None:
            size = b"\r\nContent-Length: %d\r\n" % self.length
        else:
            size = b"\r\n" if is_old else b"\r\nTransfer-Encoding: chunked\r\n"
        return b"".join(
            (
                _STATUS_LINES[self.status],
                date,
                b"Content-Type: ",
                self.content_type,
                size,
                self.headers,
                added,
                b"Connection: close\r\n\r\n" if is_last or is_old else b"\r\n",
            )
        )


class Pending:
    """An answer that is given later with `answer`, without a task that waits for it.

    `on_gone` is called with this object, once, if the client goes away first; it must not answer
    then. Make a subclass, with slots, to keep beside it what the answer needs.
    """

    __slots__ = ("_connection", "_early", "_origin", "_response_flags", "is_over", "on_gone")

    def __init__(self, on_gone: "Callable[[Any], None] | None" = None) -> None:
        self.on_gone = on_gone
        self.is_over = False
        """It was answered, or the client has gone."""
        self._connection: HttpConnection | None = None
        self._early: Response | Streamed | None = None
        self._response_flags = 0
        self._origin: bytes | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'over' if self.is_over else 'waiting'}>"

    def answer(self, response: "Response | Streamed") -> bool:
        """Answer; False if the client has gone, or was answered: then it gets nothing of this.

        Runs nobody's handler: a request queued behind this one is answered in a later turn.
        """
        if self.is_over:
            return False
        self.is_over = True
        connection = self._connection
        if connection is None:  # not even returned by its handler
            self._early = response
            return True
        self._connection = None
        return connection.settle(response, self._response_flags, self._origin)

    # What the connection does

    def attach(self, connection: "HttpConnection", request: Request) -> "Response|Streamed|None":
        """Wait on behalf of a request; return the answer if it was given already."""
        if self._early is None:
            self._connection = connection
            self._response_flags = request.response_flags
            self._origin = request.origin
        return self._early

    def cancel(self) -> None:
        """Take note that the client has gone."""
        self._connection = None
        if not self.is_over:
            self.is_over = True
            if self.on_gone is not None:
                self.on_gone(self)


Answered = Response | Streamed | Pending
Later = Coroutine[Any, Any, Answered]
Handler = Callable[[Request], Answered | Later]
"""Answers at once where it can. An error of ours that it raises becomes a problem, see
`problems.py`."""


def problem(status: int, detail: str, headers: bytes = b"", **members: object) -> Response:
    """Return an error as people and programs can read it."""
    body = {
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **members,
    }
    return Response(status, msgspec.json.encode(body), PROBLEM, headers)


def json(status: int, value: object, headers: bytes = b"") -> Response:
    return Response(status, msgspec.json.encode(value), JSON, headers)
