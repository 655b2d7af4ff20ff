"""What nodes say to each other about streams that change their owners.

request     kind u8; then
    GREET   nothing
    ASK     ring version u64
    CHUNK   ring version u64, number u64, then streams, each behind its length u32
answer      the status is the channel's: DONE, or PUT_OFF to a CHUNK; with DONE
    GREET   run u64
    ASK     nothing
    CHUNK   how many streams there was no room for, u64
"""

from struct import Struct
from typing import Final, NamedTuple

from waterclock.model.errors import BadInput

HANDOVER: Final = 2
"""The method of the peer link."""

GREET: Final = 1
ASK: Final = 2
CHUNK: Final = 3

DONE: Final = 0
PUT_OFF: Final = 1
"""The node that was sent a chunk has another ring, and has not taken it."""

_VERSION: Final = Struct(">BQ")
_CHUNK: Final = Struct(">BQQ")
_LENGTH: Final = Struct(">I")
_NUMBER: Final = Struct(">Q")


class BadHandover(BadInput):
    """What another node sent is nothing that is said about streams."""


class Greeting(NamedTuple):
    """Asks for the run of a node."""

    def encode(self) -> bytes:
        """Return the bytes of it."""
        return bytes([GREET])


class Question(NamedTuple):
    """Asks to be told when all is sent."""

    version: int

    def encode(self) -> bytes:
        """Return the bytes of it."""
        return _VERSION.pack(ASK, self.version)


class Chunk(NamedTuple):
    """Some streams, whole."""

    version: int
    """Of the ring by which they belong to the receiver."""
    number: int
    streams: tuple[bytes, ...]

    def encode(self) -> bytes:
        """Return the bytes of it."""
        parts = [_CHUNK.pack(CHUNK, self.version, self.number)]
        for stream in self.streams:
            parts += (_LENGTH.pack(len(stream)), stream)
        return b"".join(parts)


def decode(data: bytes) -> Greeting | Question | Chunk:
    """Read a request; raises BadHandover."""
    kind = data[:1]
    if data == bytes([GREET]):
        return Greeting()
    if kind == bytes([ASK]) and len(data) == _VERSION.size:
        return Question(_VERSION.unpack(data)[1])
    if kind == bytes([CHUNK]) and len(data) >= _CHUNK.size:
        _, version, number = _CHUNK.unpack_from(data)
        return Chunk(version, number, _cut(data, _CHUNK.size))
    raise BadHandover("this is nothing that is said about streams")


def encode_number(number: int) -> bytes:
    """Return a run, or a count, as answers say it."""
    return _NUMBER.pack(number)


def decode_number(data: bytes) -> int:
    """Read it; raises BadHandover."""
    if len(data) != _NUMBER.size:
        raise BadHandover("an answer is no number")
    return int(_NUMBER.unpack(data)[0])


def _cut(data: bytes, at: int) -> tuple[bytes, ...]:
    streams = []
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise BadHandover("a chunk ends before its streams do")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        streams.append(data[at : at + length])
        at += length
    if at > len(data):
        raise BadHandover("a chunk ends before its streams do")
    return tuple(streams)
