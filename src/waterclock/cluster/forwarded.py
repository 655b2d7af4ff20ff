"""A request of HTTP on its way to the node that is to answer it, and the answer on its way back.

    request     ms left u32, the lengths u16 of method, path, query, Last-Event-ID and partitions
                and u32 of rights, then these six, then the body
    answer      the status is the channel's; streamed u8, then content type and header lines, each
                behind its length u16, then the body or its beginning

A status below 100 is none of HTTP's: NOT_OWNER says that the node that was asked owns no such
stream, or does not lead what this is about, or not yet. A request goes one hop: who is asked
answers, and asks nobody else. Rights are for lists, of which everyone sees what they may: JSON, by
kind, empty for all. Partitions are those that the node is to answer for, as in `0,7`; none: all.
"""

from struct import Struct
from typing import Final, NamedTuple

from waterclock.model.errors import BadInput

FORWARD: Final = 1
"""The method of the peer link."""
NOT_OWNER: Final = 1
CUT_OFF: Final = "it ends before its parts do"

_REQUEST = Struct(">IHHHHHI")
_TIME = Struct(">I")
"""What of it differs each time it is asked."""
_ANSWER = Struct(">BHH")


class BadForward(BadInput):
    """What another node sent is no request, or no answer."""


class ForwardedRequest(NamedTuple):
    """A request, as far as the owner of its stream needs to know it."""

    left_ms: int
    """How long the client still waits, if that is less than it asked for; 0: as it asked."""
    method: bytes
    path: bytes
    query: bytes
    last_event_id: bytes
    body: bytes
    partitions: bytes = b""
    rights: bytes = b""

    def encode(self) -> bytes:
        """Return the bytes of it."""
        left_ms, method, path, query, last_id, body, partitions, rights = self
        lengths = (len(method), len(path), len(query), len(last_id), len(partitions))
        if max(lengths) > 0xFFFF:
            raise BadForward("a path or query is too long to be forwarded")
        head = _REQUEST.pack(left_ms, *lengths, len(rights))
        return b"".join((head, method, path, query, last_id, partitions, rights, body))

    @classmethod
    def decode(cls, data: bytes) -> "ForwardedRequest":
        """Read it."""
        if len(data) < _REQUEST.size:
            raise BadForward("a forwarded request is too short")
        left_ms, method, path, query, *rare = _REQUEST.unpack_from(data)
        path_at = _REQUEST.size + method
        query_at = path_at + path
        rare_at = query_at + query
        last_id, partitions, rights, body = (
            _cut(data, rare_at, rare) if any(rare) else (b"", b"", b"", data[rare_at:])
        )
        if rare_at > len(data):
            raise BadForward(CUT_OFF)
        return cls(
            left_ms,
            data[_REQUEST.size : path_at],
            data[path_at:query_at],
            data[query_at:rare_at],
            last_id,
            body,
            partitions,
            rights,
        )


def asked_again(encoded: bytes, *, left_ms: int) -> bytes:
    """Return the request of a client that waits so long."""
    return _TIME.pack(left_ms) + encoded[_TIME.size :]


def method_of(encoded: bytes) -> bytes:
    """Return the method of a request that we encoded."""
    length = _REQUEST.unpack_from(encoded)[1]
    return encoded[_REQUEST.size : _REQUEST.size + length]


class ForwardedAnswer(NamedTuple):
    """An answer of HTTP without its status; `body` is what there is of it."""

    is_streamed: bool
    """More comes as it happens, and the client is to have each piece at once; `body` is the length
    of all of it in decimal, or nothing if nobody knows it yet."""
    content_type: bytes
    headers: bytes
    body: bytes

    def encode(self) -> bytes:
        """Return the bytes of it."""
        head = _ANSWER.pack(self.is_streamed, len(self.content_type), len(self.headers))
        return b"".join((head, self.content_type, self.headers, self.body))

    @classmethod
    def decode(cls, data: bytes) -> "ForwardedAnswer":
        """Read it."""
        if len(data) < _ANSWER.size or data[0] > 1:
            raise BadForward("a forwarded answer has no head")
        is_streamed, content_type, headers = _ANSWER.unpack_from(data)
        headers_at = _ANSWER.size + content_type
        body_at = headers_at + headers
        if body_at > len(data):
            raise BadForward(CUT_OFF)
        return cls(
            bool(is_streamed),
            data[_ANSWER.size : headers_at],
            data[headers_at:body_at],
            data[body_at:],
        )

    @property
    def length(self) -> int | None:
        """How many bytes are streamed, if that is known."""
        if not self.body:
            return None
        if not self.body.isdigit() or len(self.body) > 19:
            raise BadForward("the length of a forwarded answer is none")
        return int(self.body)


def _cut(data: bytes, start: int, lengths: list[int]) -> list[bytes]:
    """Return parts of given lengths, and what is behind them."""
    parts = []
    for length in lengths:
        parts.append(data[start : start + length])
        start += length
    if start > len(data):
        raise BadForward(CUT_OFF)
    return [*parts, data[start:]]
