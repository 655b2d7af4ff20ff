"""Reading a segment after a crash: what is whole, what is torn, what has rotted.

A frame that fails its checksum is one of two very different things. Bytes that were never fsynced
may be torn by a crash: nothing said they were durable, and they are cut off. Bytes that *were*
fsynced have rotted: they were reported durable, so nothing is cut off; the partition is faulty
until the range is fetched from a peer or an operator accepts the loss. Brokers that cut the log at
the first bad record wherever it is turn one flipped bit into the loss of everything after it
(Jepsen on NATS 2.12.1 lost 287,249 acknowledged records that way).

The line between the two is `proven_end`: everything below it is known to have been fsynced, by
- the recovery point file, written now and then, and the side-cars before it;
- each whole frame, wherever it lies: it says what had been fsynced when it was written;
- the start of a later segment: one is begun only after the one before was fsynced.
So the scan goes on behind damage to look for more frames, and the verdict comes last.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from waterclock.log.frame import (
    ALIGNMENT_BYTES,
    HEADER_BYTES,
    MAGIC,
    Frame,
    FrameHeader,
    LoneFrame,
    check_body,
    decode_header,
    read_frame,
    read_lone,
)
from waterclock.model.errors import FrameDamaged
from waterclock.model.ids import Offset

_TAG_AT = HEADER_BYTES - 8
_WINDOW_BYTES = 1 << 20

Visit = Callable[[Frame, int], None]
"""Called with each whole frame and its position, in log order."""
VisitLone = Callable[[LoneFrame, int], bool]
"""The same for `data` frames of one message; False: it must be visited as any other frame."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of a segment that cannot be read, in bytes and in offsets.

    Behind the last message of a segment it spans no offset: `start` and `end` are the next one's.
    """

    position: int
    end_position: int
    start: Offset
    end: Offset
    reason: str

    def __str__(self) -> str:
        return f"offsets [{self.start}, {self.end}): {self.reason}"


@dataclass(slots=True)
class Scan:
    """What a scan found; `end_*` is behind the last whole frame."""

    end_position: int
    end_offset: Offset
    proven_end: int = 0
    last: FrameHeader | None = None
    last_header_crc: int = 0
    damage: list[Damage] = field(default_factory=list)

    def torn_at(self, proven_end: int) -> Damage | None:
        """Return the first damage that may lawfully be cut off, given what is proven."""
        return next((d for d in self.damage if d.start >= proven_end), None)

    def rotten(self, proven_end: int) -> list[Damage]:
        """Return the damage to what was proven to be on disk."""
        return [d for d in self.damage if d.start < proven_end]

    def damage_before(self, end: Offset, *, size: int, reason: str) -> list[Damage]:
        """Return the damage in a segment of `size` bytes that must reach `end`, and no farther.

        How many offsets a damaged tail had can only be known from outside, and a tail that is gone
        leaves no damage to see; for that, `reason` is the reason.
        """
        at = self.end_position
        if self.damage and self.damage[-1].position == at:
            return [*self.damage[:-1], replace(self.damage[-1], end=end)]
        if self.end_offset < end:
            return [*self.damage, Damage(at, max(at, size), self.end_offset, end, reason)]
        return self.damage


def scan(
    data: memoryview,
    position: int,
    offset: Offset,
    log_tag: int,
    visit: Visit,
    visit_lone: VisitLone | None = None,
) -> Scan:
    """Walk the frames from `position` to the end of `data`, around damage where there is any."""
    found = Scan(position, offset)
    last_at = -1
    while found.end_position < len(data):
        if visit_lone is not None:
            last_at = _scan_lone(found, data, log_tag, visit_lone, last_at)
            if found.end_position >= len(data):
                break
        at = found.end_position
        if not data[at] and _is_blank(data, at):
            break
        try:
            frame = _frame_of(data, at, found.end_offset, log_tag)
        except FrameDamaged as error:
            following = _next_whole(data, at, found.end_offset, log_tag)
            if following is None:
                _note_tail(found, data, str(error), log_tag)
                break
            header, resume = following
            damage = Damage(at, resume, found.end_offset, header.base_offset, str(error))
            found.damage.append(damage)
            found.end_position, found.end_offset = resume, header.base_offset
            continue
        visit(frame, at)
        found.proven_end = max(found.proven_end, frame.header.flushed_end)
        found.end_position = at + frame.header.size
        found.end_offset = frame.header.end_offset
        last_at = at
    if last_at >= 0:
        found.last = decode_header(data, last_at)
        found.last_header_crc = header_crc(data, last_at)
    return found


def _scan_lone(found: Scan, data: memoryview, log_tag: int, visit: VisitLone, last_at: int) -> int:
    """Walk on over frames of one message, up to anything else; return where the last one lies."""
    at, offset, proven_end = found.end_position, int(found.end_offset), found.proven_end
    while (lone := read_lone(data, at, base_offset=offset, log_tag=log_tag)) is not None:
        if not visit(lone, at):
            break
        proven_end = max(proven_end, lone.flushed_end)
        last_at = at
        at += HEADER_BYTES + len(lone.body)
        offset += 1
    found.end_position, found.end_offset, found.proven_end = at, Offset(offset), proven_end
    return last_at


def header_crc(data: memoryview, position: int) -> int:
    """Return the stored checksum of the frame header at `position`: its fingerprint."""
    return int.from_bytes(data[position + HEADER_BYTES - 4 : position + HEADER_BYTES], "little")


def _frame_of(data: memoryview, position: int, offset: int, log_tag: int) -> Frame:
    frame = read_frame(data, position)
    _check_place(frame.header, position, offset, log_tag)
    return frame


def _check_place(header: FrameHeader, position: int, offset: int, log_tag: int) -> None:
    if header.log_tag != log_tag:
        raise FrameDamaged(f"frame at byte {position} belongs to another log")
    if header.base_offset != offset:
        raise FrameDamaged(
            f"frame at byte {position} has offset {header.base_offset}, not {offset}"
        )


def _note_tail(found: Scan, data: memoryview, reason: str, log_tag: int) -> None:
    """Nothing whole follows, and it is not blank: it was once being written."""
    at = found.end_position
    end = _claimed_end(data, at, found.end_offset, log_tag)
    found.damage.append(Damage(at, len(data), found.end_offset, end, reason))


def _is_blank(data: memoryview, position: int) -> bool:
    """Tell whether there is nothing but zeros from here on: preallocated space."""
    return not np.frombuffer(data[position:], dtype=np.uint8).any()


def _claimed_end(data: memoryview, position: int, offset: Offset, log_tag: int) -> Offset:
    """Return how many offsets a damaged frame spans, if its header still tells; else one."""
    try:
        header = decode_header(data, position)
        _check_place(header, position, offset, log_tag)
    except FrameDamaged:
        return Offset(offset + 1)
    return Offset(max(header.end_offset, offset + 1))


def _next_whole(
    data: memoryview, position: int, offset: int, log_tag: int
) -> tuple[FrameHeader, int] | None:
    """Return the next whole frame of this log behind a damaged one, and where it lies."""
    candidates, offset = _candidates(data, position, offset, log_tag)
    for at in candidates:
        # First of all, so that frames which somebody published inside a message cost no time.
        if _tag_at(data, at) != log_tag:
            continue
        try:
            header = decode_header(data, at)
            if header.base_offset >= offset:
                check_body(header, data, at)
                return header, at
        except FrameDamaged:
            continue
    return None


def _candidates(
    data: memoryview, position: int, offset: int, log_tag: int
) -> tuple[Iterator[int], int]:
    """Return where the next frame may begin, and the least offset it may have.

    If the header of the damaged frame holds and is no stray, it says; else it can be anywhere.
    """
    try:
        header = decode_header(data, position)
        _check_place(header, position, offset, log_tag)
    except FrameDamaged:
        # Of the frame's offsets nothing is known. A `seen` frame has none: the next may follow on.
        return _find_magic(data, position + ALIGNMENT_BYTES), offset
    return _find_magic(data, position + header.size), header.end_offset


def _tag_at(data: memoryview, position: int) -> int:
    """Return the `log_tag` of what may be a frame header."""
    return int.from_bytes(data[position + _TAG_AT : position + _TAG_AT + 4], "little")


def _find_magic(data: memoryview, position: int) -> Iterator[int]:
    """Yield where frames seem to begin, a window at a time: the next one is seldom far."""
    magic = int.from_bytes(MAGIC, "little")
    for start in range(position, len(data) - HEADER_BYTES + 1, _WINDOW_BYTES):
        window = data[start : start + _WINDOW_BYTES]
        words = np.frombuffer(window, "<u4", len(window) // ALIGNMENT_BYTES * 2)[::2]
        for index in np.flatnonzero(words == magic).tolist():
            yield start + index * ALIGNMENT_BYTES
