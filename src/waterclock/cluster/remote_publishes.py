"""Batches on their way to the leader of their partition, and where their messages are.

A partition has a channel of its own to its leader, for as long as batches come: so they arrive in
the order they were sent. All numbers are big endian, but those of columns.

    first       version u8, partition u32, length of the topic u16, the topic
    batch       length u32 of what follows, number u64, flags u8, the batch as producers send it
    answers     length u32 of what follows, number u64, then one of
                0 u8, count u32, first offset i64        they stand there, one behind the other
                1 u8, count u32, offsets i64 each, little endian, then is_new u8 each
                2 u8, a failure in JSON, as of calls

Flags: 1 the ids may have been seen before and are stored all the same; 2 wait for the leader's own
disk only; 4 wait for all replicas.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

import msgspec
import numpy as np

from waterclock.cluster.remote_calls import Failure
from waterclock.model.errors import BadInput
from waterclock.model.message import Acks

PUBLISH: Final = 6
"""The method of the peer link."""
VERSION: Final = 1

RANGE: Final = 0
COLUMNS: Final = 1
FAILURE: Final = 2

_FIRST = Struct(">BIH")
_HEAD = Struct(">IQB")
"""Of batches and answers: length behind itself, number, flags or kind."""
_BEHIND = _HEAD.size - 4
_RANGE = Struct(">Iq")
_COUNT = Struct(">I")
_DUPLICATES: Final = 1
_ACKS: Final[dict[Acks, int]] = {"quorum": 0, "leader": 2, "all": 4}
_ACKS_OF: Final[dict[int, Acks]] = {flag: acks for acks, flag in _ACKS.items()}


class BadPublish(BadInput):
    """What another node sent is no batch, or no answer to one."""


class PublishHead(NamedTuple):
    """Where all batches of a channel go."""

    topic: str
    partition: int

    def encode(self) -> bytes:
        """Return the bytes of it."""
        topic = self.topic.encode()
        return _FIRST.pack(VERSION, self.partition, len(topic)) + topic

    @classmethod
    def decode(cls, data: bytes) -> tuple["PublishHead", int]:
        """Return it, and where the batches begin."""
        if len(data) < _FIRST.size:
            raise BadPublish("a publish has no head")
        version, partition, length = _FIRST.unpack_from(data)
        if version != VERSION:
            raise BadPublish(f"version {version} is unknown")
        end = _FIRST.size + length
        if end > len(data):
            raise BadPublish("the topic is cut off")
        try:
            return cls(data[_FIRST.size : end].decode(), partition), end
        except UnicodeDecodeError:
            raise BadPublish("the topic is not UTF-8") from None


class SentBatch(NamedTuple):
    """A batch, and how it is to be stored."""

    number: int
    allow_duplicate: bool
    acks: Acks
    body: bytes | memoryview

    def encode(self) -> bytes:
        """Return the bytes of it."""
        flags = _DUPLICATES * self.allow_duplicate | _ACKS[self.acks]
        return _HEAD.pack(_BEHIND + len(self.body), self.number, flags) + self.body

    @classmethod
    def of(cls, number: int, flags: int, body: bytes) -> "SentBatch":
        """Return what was cut out; raises BadPublish."""
        acks = _ACKS_OF.get(flags & ~_DUPLICATES)
        if acks is None:
            raise BadPublish(f"flags {flags} are unknown")
        return cls(number, bool(flags & _DUPLICATES), acks, body)


class StoredBatch(NamedTuple):
    """Where the messages of a batch are, or why they are nowhere."""

    number: int
    offsets: "range | np.ndarray[tuple[int], np.dtype[np.int64]] | None" = None
    is_new: "np.ndarray[tuple[int], np.dtype[np.bool_]] | None" = None
    """None: all."""
    failure: Failure | None = None

    def encode(self) -> bytes:
        """Return the bytes of it."""
        if self.failure is not None:
            return self._framed(FAILURE, msgspec.json.encode(self.failure))
        offsets = self.offsets
        assert offsets is not None
        if isinstance(offsets, range) and self.is_new is None:
            return self._framed(RANGE, _RANGE.pack(len(offsets), offsets.start))
        listed = np.asarray(offsets, "<i8")
        is_new = np.ones(len(listed), np.bool_) if self.is_new is None else self.is_new
        body = (_COUNT.pack(len(listed)), listed.tobytes(), is_new.astype("u1").tobytes())
        return self._framed(COLUMNS, b"".join(body))

    def _framed(self, kind: int, body: bytes) -> bytes:
        return _HEAD.pack(_BEHIND + len(body), self.number, kind) + body

    @classmethod
    def of(cls, number: int, kind: int, body: bytes) -> "StoredBatch":
        """Return what was cut out; raises BadPublish."""
        if kind == RANGE and len(body) == _RANGE.size:
            count, first = _RANGE.unpack(body)
            return cls(number, range(first, first + count))
        if kind == COLUMNS and len(body) >= _COUNT.size:
            (count,) = _COUNT.unpack_from(body)
            if len(body) == _COUNT.size + 9 * count:
                listed = np.frombuffer(body, "<i8", count, _COUNT.size).astype(np.int64)
                flags = np.frombuffer(body, "u1", count, _COUNT.size + 8 * count)
                is_new = flags.astype(np.bool_)
                return cls(number, listed, None if bool(is_new.all()) else is_new)
        if kind == FAILURE:
            try:
                return cls(number, failure=msgspec.json.decode(body, type=Failure))
            except msgspec.MsgspecError as error:
                raise BadPublish(f"a failure that is none: {error}") from None
        raise BadPublish(f"an answer of kind {kind} with {len(body)} bytes")


class Cutter:
    """Cuts what comes over a channel into batches, or into answers."""

    __slots__ = ("_buffer", "_bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self._buffer = bytearray()
        self._bytes_max = bytes_max

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield number, flags or kind, and body of those that are whole. Raises BadPublish."""
        buffer = self._buffer
        buffer += data
        start, size = 0, len(buffer)
        try:
            while size - start >= _HEAD.size:
                length, number, flags = _HEAD.unpack_from(buffer, start)
                if not _BEHIND <= length <= _BEHIND + self._bytes_max:
                    raise BadPublish(f"{length} bytes are too few or too many")
                whole = start + 4 + length
                if whole > size:
                    break
                body = bytes(memoryview(buffer)[start + _HEAD.size : whole])
                start = whole
                yield number, flags, body
        finally:
            del buffer[:start]
