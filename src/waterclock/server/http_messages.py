"""An HTTP request and its response, and the bytes of the latter.

Errors are problems as in RFC 9457: JSON with `title`, `status` and a `detail` for people.
"""

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

TEXT = b"text/plain; charset=utf-8"
JSON = b"application/json"
PROBLEM = b"application/problem+json"

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class Request(NamedTuple):
    """A whole request: head and body."""

    method: bytes
    path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    """As they came; names in any case."""
    body: bytes


class Response(NamedTuple):
    """What to answer."""

    status: int
    body: bytes = b""
    content_type: bytes = TEXT
    headers: bytes = b""
    """Further header lines, each with its line end."""

    def encode(self, *, date: bytes, is_last: bool, is_head: bool) -> bytes:
        """Return the bytes of the response; to HEAD without its body."""
        return b"".join(
            (
                _STATUS_LINES[self.status],
                date,
                b"Content-Type: ",
                self.content_type,
                b"\r\nContent-Length: %d\r\n" % len(self.body),
                self.headers,
                b"Connection: close\r\n\r\n" if is_last else b"\r\n",
                b"" if is_head else self.body,
            )
        )


Later = Coroutine[Any, Any, Response]
Answer = Callable[[Request], Response | Later]
"""Answers at once where it can. Raises nothing that is meant for the client: that is a response."""


def problem(status: int, detail: str, headers: bytes = b"") -> Response:
    """Return an error as people and programs can read it."""
    told = {"title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return Response(status, msgspec.json.encode(told), PROBLEM, headers)


def json(status: int, value: object) -> Response:
    """Return a value as JSON."""
    return Response(status, msgspec.json.encode(value), JSON)
