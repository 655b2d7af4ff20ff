"""A frame: a fixed header, then one Arrow record batch. The only thing a log file is made of.

Drawn byte by byte in `docs/formats/frame.md`. The rules that carry everything else:

- Every header byte is under `header_crc`, and the body is under `body_crc`, which the header holds.
  So a length can be trusted before the body is touched, and one flipped bit anywhere is seen.
- Frames stand back to back, in the file and in offsets: `next.base_offset == this.end_offset`.
  Compaction keeps this by leaving a `noop` frame over what it dropped, so a gap is always damage.
- A frame is wholly deliverable or wholly not; readers skip by header.
- `unflushed` says how far the disk lagged when the frame was written: all offsets below
  `flushed_end` had been fsynced. A frame that survives a crash is thus evidence about the frames
  before it (see `recovery.py`).
- `log_tag` ties a frame to its partition log: a block written to the wrong file, or the bytes of a
  frame inside a message of somebody who does not know the tag, is not taken for one of ours.

Changing a byte here: raise VERSION, draw the new page, keep reading the old version, and add a
sample of it to `tests/formats`.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from waterclock.model.errors import ForeignFile, FrameDamaged, LimitExceeded
from waterclock.model.ids import Epoch, Millis, Offset

MAGIC = b"\xf3WCf"
VERSION = 1
HEADER_BYTES = 72
ALIGNMENT_BYTES = 8
"""Arrow wants its buffers at multiples of 8; bodies are padded to it by Arrow itself."""

FLAG_SPARSE = 1
"""Rows were dropped from this frame; an `offset_delta` column says which offsets are left."""
FLAG_UNTRACKED = 2
"""Published with `allow_duplicate`: dedup neither checks nor remembers these ids."""
FLAG_EXPIRES = 4
"""Some message may have a header that says when it is of no use any more; see `expiry.py`."""
FLAG_EXPIRED = 8
"""Of a `CANCEL` frame: nobody wanted it, the scheduled messages were too late to be of use."""
_FLAGS_KNOWN = FLAG_SPARSE | FLAG_UNTRACKED | FLAG_EXPIRES | FLAG_EXPIRED

BODY_BYTES_MAX = (1 << 31) - ALIGNMENT_BYTES
SPAN_MAX = 1 << 24
"""Offsets one frame may span: a segment spans no more, so that side-cars fit 24-bit deltas."""
OFFSET_MAX = (1 << 62) - 1
_UNFLUSHED_MAX = (1 << 32) - 1
"""That much or more, so it proves nothing."""

_FIELDS = struct.Struct("<4sBBHQIIIIqqqIII")
_CRC = struct.Struct("<I")
_CRC_AT = HEADER_BYTES - _CRC.size
assert _FIELDS.size == _CRC_AT
_HEADER = struct.Struct(_FIELDS.format + "I")
"""The fields and their checksum: a log of small frames is read a header at a time."""


class FrameType(IntEnum):
    """What a frame is. The numbers are on disk: never reuse one."""

    DATA = 1
    """Messages due when appended."""
    SCHEDULED = 2
    """Messages accepted for later; not deliverable."""
    FIRED = 3
    """Due scheduled messages written again, now deliverable; a column names each scheduled
    message's offset."""
    CANCEL = 4
    """Scheduled messages that will not fire, by offset."""
    RESCHEDULE = 5
    """Scheduled messages with a new due time, by offset."""
    EPOCH = 6
    """The first frame of a leader epoch."""
    NOOP = 7
    """Nothing: stands over offsets whose messages compaction dropped."""
    SEEN = 8
    """Ids of messages whose bodies are gone but whose repeats must still be refused. It stands
    right behind the frame that spans their offsets, and spans none itself."""


DELIVERABLE = frozenset({FrameType.DATA, FrameType.FIRED})
CARRIES_IDS = frozenset({FrameType.DATA, FrameType.SCHEDULED, FrameType.SEEN})
"""Where dedup looks. A fired message repeats its scheduled message's id, so `FIRED` is not among
them."""
BODILESS = frozenset({FrameType.EPOCH, FrameType.NOOP})
CONTROL = frozenset({FrameType.CANCEL, FrameType.RESCHEDULE, FrameType.EPOCH, FrameType.SEEN})
"""Frames that list things about offsets instead of holding one row for each offset."""
_MESSAGES = frozenset({FrameType.DATA, FrameType.SCHEDULED, FrameType.FIRED})

_SPANS = dict.fromkeys(FrameType, range(1, SPAN_MAX + 1))
_SPANS |= dict.fromkeys(CONTROL, range(1, 2))
_SPANS[FrameType.SEEN] = range(1)

_DATA = int(FrameType.DATA)
_TYPES: dict[int, FrameType] = {int(kind): kind for kind in FrameType}


class FrameHeader(NamedTuple):
    """The decoded header; fields in the order they are written."""

    type: FrameType
    flags: int
    base_offset: Offset
    span: int
    rows: int
    epoch: Epoch
    unflushed: int
    append_ms: Millis
    min_due_ms: Millis
    max_due_ms: Millis
    body_len: int
    body_crc: int
    log_tag: int

    @property
    def end_offset(self) -> Offset:
        """One past the last offset this frame spans."""
        return Offset(self.base_offset + self.span)

    @property
    def flushed_end(self) -> Offset:
        """Everything below this was fsynced before this frame was written."""
        if self.unflushed == _UNFLUSHED_MAX:
            return Offset(0)
        return Offset(max(0, self.base_offset - self.unflushed))

    @property
    def size(self) -> int:
        """Bytes of the whole frame."""
        return HEADER_BYTES + self.body_len

    @property
    def is_deliverable(self) -> bool:
        """Consumers get its messages."""
        return self.type in DELIVERABLE

    @property
    def is_tracked(self) -> bool:
        """Dedup remembers its ids."""
        return self.type in CARRIES_IDS and not self.flags & FLAG_UNTRACKED

    @property
    def may_expire(self) -> bool:
        """Some of its messages may say until when they are of use."""
        return bool(self.flags & FLAG_EXPIRES)

    @property
    def is_sparse(self) -> bool:
        """Some of its offsets have no row."""
        return bool(self.flags & FLAG_SPARSE)


def header_of(
    kind: FrameType,
    body: bytes | memoryview,
    *,
    base_offset: int,
    span: int,
    rows: int,
    log_tag: int,
    append_ms: int,
    epoch: int = 0,
    flushed_end: int = 0,
    min_due_ms: int = 0,
    max_due_ms: int = 0,
    flags: int = 0,
) -> FrameHeader:
    """Return the header for `body`, its checksum taken."""
    body_len = len(body)
    if body_len > BODY_BYTES_MAX:
        raise LimitExceeded("frame body bytes", BODY_BYTES_MAX, got=body_len)
    return FrameHeader(
        kind,
        flags,
        Offset(base_offset),
        span,
        rows,
        Epoch(epoch),
        flushed_up_to(base_offset, flushed_end),
        Millis(append_ms),
        Millis(min_due_ms),
        Millis(max_due_ms),
        body_len,
        crc32c(body),
        log_tag,
    )


def flushed_up_to(base_offset: int, flushed_end: int) -> int:
    """Return the `unflushed` of a frame written when everything below `flushed_end` was fsynced."""
    assert 0 <= flushed_end <= base_offset
    return min(base_offset - flushed_end, _UNFLUSHED_MAX)


def encode_header(header: FrameHeader) -> bytes:
    """Return the 72 bytes of a header."""
    assert not _contradiction(header), _contradiction(header)
    fields = _FIELDS.pack(MAGIC, VERSION, *header)
    return fields + _CRC.pack(crc32c(fields))


def encode_lone(
    body: bytes | memoryview,
    base_offset: int,
    log_tag: int,
    append_ms: int,
    epoch: int,
    flushed_end: int,
    flags: int,
) -> bytes:
    """Return a whole `data` frame of one message that is due now, its header and its body.

    The same bytes as by way of `header_of`, which has a thousand partitions wait. To name what it
    is given would cost a tenth of it.
    """
    body_len = len(body)
    assert body_len % ALIGNMENT_BYTES == 0, body_len
    assert base_offset < OFFSET_MAX, base_offset
    if body_len > BODY_BYTES_MAX:
        raise LimitExceeded("frame body bytes", BODY_BYTES_MAX, got=body_len)
    unflushed = base_offset - flushed_end
    assert 0 <= unflushed <= base_offset, flushed_end
    fields = _FIELDS.pack(
        MAGIC,
        VERSION,
        _DATA,
        flags,
        base_offset,
        1,
        1,
        epoch,
        min(_UNFLUSHED_MAX, unflushed),
        append_ms,
        append_ms,
        append_ms,
        body_len,
        crc32c(body),
        log_tag,
    )
    return b"".join((fields, _CRC.pack(crc32c(fields)), body))


def decode_header(data: bytes | memoryview, position: int = 0) -> FrameHeader:
    """Return the header at `position`, or raise FrameDamaged saying what is wrong with it."""
    if position + HEADER_BYTES > len(data):
        raise FrameDamaged(f"frame header at byte {position} is cut short")
    magic, version, kind, *rest, expected = _HEADER.unpack_from(data, position)
    if crc32c(data[position : position + _CRC_AT]) != expected:
        raise FrameDamaged(f"frame header at byte {position} fails its checksum")
    if magic != MAGIC:
        raise FrameDamaged(f"no frame at byte {position}: magic is {magic!r}")
    # Past the checksum these are bytes somebody meant to write: not rot but a newer writer, whose
    # messages a recovery must not take for a torn tail.
    if version != VERSION or kind not in _TYPES or rest[0] & ~_FLAGS_KNOWN:
        raise ForeignFile(
            f"frame at byte {position} has version {version}, type {kind}, flags {rest[0]:#x}; "
            f"this release reads version {VERSION}: use the release that wrote it, or a newer one"
        )
    header = FrameHeader(_TYPES[kind], *rest)
    problem = _contradiction(header)
    if problem:
        raise FrameDamaged(f"frame at byte {position}: {problem}")
    return header


def _contradiction(header: FrameHeader) -> str | None:
    """Say what a well-checksummed header may not claim; None if it is sound."""
    kind, flags, base_offset, span, rows, _, _, _, min_due_ms, max_due_ms, body_len, _, _ = header
    if span not in _SPANS[kind]:
        return f"spans {span} offsets"
    if base_offset + span > OFFSET_MAX:
        return f"offset {base_offset} is absurd"
    rows_min = 0 if flags & FLAG_SPARSE else span
    if kind in _MESSAGES and not rows_min <= rows <= span:
        return f"{rows} rows in {span} offsets"
    if body_len % ALIGNMENT_BYTES or body_len > BODY_BYTES_MAX:
        return f"body of {body_len} bytes"
    if kind in BODILESS and (rows or body_len):
        return f"a {kind.name} frame with a body"
    if min_due_ms > max_due_ms:
        return "due times are reversed"
    return None


def check_body(header: FrameHeader, data: bytes | memoryview, position: int = 0) -> memoryview:
    """Return the body of the frame at `position`, checked, without copying it."""
    start = position + HEADER_BYTES
    end = start + header.body_len
    if end > len(data):
        raise FrameDamaged(f"frame at byte {position} is cut short")
    body = memoryview(data)[start:end]
    if crc32c(body) != header.body_crc:
        raise FrameDamaged(f"body of the frame at offset {header.base_offset} fails its checksum")
    return body


class Frame(NamedTuple):
    """A checked frame as it lies in the file: nothing decoded, nothing copied."""

    header: FrameHeader
    body: memoryview
    raw: memoryview
    """Header and body together, ready to be sent as they are."""

    def __repr__(self) -> str:
        h = self.header
        return f"<Frame {h.type.name} [{h.base_offset}, {h.end_offset}) {h.size} B>"


def read_frame(data: bytes | memoryview, position: int = 0) -> Frame:
    """Return the whole frame at `position`, header and body checked."""
    header = decode_header(data, position)
    body = check_body(header, data, position)
    return Frame(header, body, memoryview(data)[position : position + HEADER_BYTES + len(body)])


class LoneFrame(NamedTuple):
    """What the start of a node needs of a `data` frame of one message."""

    base_offset: int
    flags: int
    unflushed: int
    append_ms: int
    body: memoryview

    @property
    def flushed_end(self) -> int:
        """Everything below this was fsynced before this frame was written."""
        return 0 if self.unflushed == _UNFLUSHED_MAX else max(0, self.base_offset - self.unflushed)


def read_lone(
    data: memoryview, position: int, *, base_offset: int, log_tag: int
) -> LoneFrame | None:
    """Return the `data` frame of one message at `position`, checked, if it has this offset and tag.

    None says nothing of what is there: `read_frame` does. A log of a thousand partitions is mostly
    such frames, and this reads one in a third of the time.
    """
    body_at = position + HEADER_BYTES
    if body_at > len(data):
        return None
    (
        magic, version, kind, flags, offset, span, rows, _, unflushed,
        append_ms, min_due_ms, max_due_ms, body_len, body_crc, tag, expected,
    ) = _HEADER.unpack_from(data, position)  # fmt: skip
    is_lone = kind == _DATA and span == 1 and rows == 1
    is_in_place = offset == base_offset < OFFSET_MAX and tag == log_tag
    is_known = magic == MAGIC and version == VERSION and not flags & ~_FLAGS_KNOWN
    is_sound = min_due_ms <= max_due_ms and not body_len % ALIGNMENT_BYTES
    if not (is_lone and is_in_place and is_known and is_sound):
        return None
    end = body_at + body_len
    if end > len(data) or body_len > BODY_BYTES_MAX:
        return None
    body = data[body_at:end]
    if crc32c(data[position : position + _CRC_AT]) != expected or crc32c(body) != body_crc:
        return None
    return LoneFrame(offset, flags, unflushed, append_ms, body)
