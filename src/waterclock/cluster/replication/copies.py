"""Segments on their way to a replica that lags too far for frames: what is asked, what is answered.

The answer is one long body: what comes, then the segments, each behind the other as it lies on
disk, and its checksum behind it. A channel cuts it into pieces as it likes; here it is put together
again as far as it must be. Drawn in `docs/formats/replication.md`.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from waterclock.cluster.replication.lineage import EpochStart
from waterclock.cluster.replication.messages import BadMessage
from waterclock.model.ids import Epoch, Offset

INSTALL: Final = 8
"""The method of the peer link by which a replica asks for segments."""
HEAD_BYTES_MAX: Final = 64 << 20
_REQUEST: Final = Struct(">16sQ")
_LENGTH: Final = Struct(">I")
_COUNTS: Final = Struct(">QII")
_PAIR: Final = Struct(">QQ")
_CRC: Final = Struct(">I")


class CopyRequest(NamedTuple):
    """Asks the leader of an epoch for what it cannot stream any more."""

    log_id: bytes
    epoch: Epoch

    def encode(self) -> bytes:
        return _REQUEST.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> "CopyRequest":
        """Raises BadMessage."""
        if len(data) != _REQUEST.size:
            raise BadMessage(f"a request for segments of {len(data)} bytes")
        log_id, epoch = _REQUEST.unpack(data)
        return cls(log_id, Epoch(epoch))


class SegmentSize(NamedTuple):
    """A segment that is about to come."""

    base: Offset
    size: int


class CopyHead(NamedTuple):
    """What comes."""

    end: Offset
    """Where the segments end: frames can be streamed from there on."""
    starts: tuple[EpochStart, ...]
    """The leader epochs below that."""
    segments: tuple[SegmentSize, ...]

    def encode(self) -> bytes:
        parts = [_COUNTS.pack(self.end, len(self.starts), len(self.segments))]
        parts += [_PAIR.pack(*each) for each in (*self.starts, *self.segments)]
        body = b"".join(parts)
        return _LENGTH.pack(len(body)) + body + encode_crc(crc32c(body))


class SegmentPart(NamedTuple):
    """Bytes of the segment whose turn it is."""

    data: memoryview


class SegmentEnd(NamedTuple):
    """The segment whose turn it was is there, and should have this checksum."""

    crc: int


def encode_crc(crc: int) -> bytes:
    """Return what stands behind a segment."""
    return _CRC.pack(crc)


class CopyReader:
    """Takes an answer apart, as it comes."""

    def __init__(self) -> None:
        self._head: CopyHead | None = None
        self._number = 0
        self._left = 0
        self._rest = b""

    def __repr__(self) -> str:
        return f"<CopyReader at segment {self._number} of {self._head}>"

    @property
    def is_whole(self) -> bool:
        """All that should come has come."""
        return self._head is not None and self._number == len(self._head.segments)

    def feed(self, data: bytes) -> Iterator[CopyHead | SegmentPart | SegmentEnd]:
        """Yield what a piece has; raises BadMessage."""
        data = self._rest + data if self._rest else data
        view, at = memoryview(data), 0
        if self._head is None:
            at = self._read_head(data)
            if self._head is None:
                self._rest = data
                return
            yield self._head
        segments = self._head.segments
        while self._number < len(segments):
            part = view[at : at + self._left]
            if part:
                at += len(part)
                self._left -= len(part)
                yield SegmentPart(part)
            if self._left or len(data) - at < _CRC.size:
                break
            (crc,) = _CRC.unpack_from(data, at)
            at += _CRC.size
            yield SegmentEnd(crc)
            self._begin(self._number + 1)
        self._rest = data[at:]
        if self.is_whole and self._rest:
            raise BadMessage("more than the segments that were to come")

    def _begin(self, number: int) -> None:
        assert self._head is not None
        self._number = number
        self._left = self._head.segments[number].size if not self.is_whole else 0

    def _read_head(self, data: bytes) -> int:
        if len(data) < _LENGTH.size:
            return 0
        (size,) = _LENGTH.unpack_from(data)
        if not _COUNTS.size <= size <= HEAD_BYTES_MAX:
            raise BadMessage(f"the head of segments has {size} bytes")
        end_at = _LENGTH.size + int(size)
        if len(data) < end_at + _CRC.size:
            return 0
        body = data[_LENGTH.size : end_at]
        end, epochs, segments = _COUNTS.unpack_from(body)
        if _CRC.unpack_from(data, end_at)[0] != crc32c(body):
            raise BadMessage("the head of segments is damaged")
        if size != _COUNTS.size + (epochs + segments) * _PAIR.size:
            raise BadMessage(f"{epochs} epochs and {segments} segments in {size} bytes")
        pairs = [*_PAIR.iter_unpack(body[_COUNTS.size :])]
        self._head = CopyHead(
            Offset(end),
            tuple(EpochStart(Epoch(epoch), Offset(offset)) for epoch, offset in pairs[:epochs]),
            tuple(SegmentSize(Offset(base), size) for base, size in pairs[epochs:]),
        )
        self._begin(0)
        return end_at + _CRC.size
