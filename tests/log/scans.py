"""Scans of segments in memory, and frames changed in ways their checksums do not tell."""

import struct

from crc32c import crc32c

from tests.log.frames import TAG, LogBuilder, sample
from waterclock.log.frame import HEADER_BYTES, Frame, LoneFrame
from waterclock.log.recovery import scan
from waterclock.model.ids import Offset

START = 64
"""Frames begin behind the segment's header."""
OTHER_TAG = TAG ^ 1


Place = tuple[int, int, int, int]
"""Bytes and offsets of a stretch of damage."""


class Visited:
    """What a scan of a segment of these bytes visits and finds."""

    def __init__(self, frames: bytes, *, base_offset: int = 0) -> None:
        self.data = bytes(START) + frames
        self.frames: list[Frame] = []
        self.positions: list[int] = []
        self.scan = scan(memoryview(self.data), START, Offset(base_offset), TAG, self._visit)
        self.check_invariants()
        self._check_lone(base_offset)

    def _check_lone(self, base_offset: int) -> None:
        """Fail unless a scan that reads lone messages by themselves sees and finds the same."""
        seen: list[tuple[int, int, bytes]] = []

        def visit(frame: Frame, position: int) -> None:
            seen.append((position, frame.header.base_offset, frame.body.tobytes()))

        def visit_lone(lone: LoneFrame, position: int) -> bool:
            is_taken = position % 3 != 0
            if is_taken:
                seen.append((position, lone.base_offset, lone.body.tobytes()))
            return is_taken

        data, start = memoryview(self.data), Offset(base_offset)
        assert scan(data, START, start, TAG, visit, visit_lone) == self.scan
        pairs = zip(self.positions, self.frames, strict=True)
        assert seen == [(at, f.header.base_offset, f.body.tobytes()) for at, f in pairs]

    def _visit(self, frame: Frame, position: int) -> None:
        self.frames.append(frame)
        self.positions.append(position)

    @property
    def places(self) -> list[Place]:
        """The stretches of damage, but for the reason."""
        return [(d.position, d.end_position, d.start, d.end) for d in self.scan.damage]

    def check_invariants(self) -> None:
        """Fail unless every byte is of a frame visited, of damage reported, or zero at the end."""
        stretches = [(d.position, d.end_position, d.start) for d in self.scan.damage]
        stretches += [
            (at, at + frame.header.size, frame.header.base_offset)
            for at, frame in zip(self.positions, self.frames, strict=True)
        ]
        stretches.sort()
        position = START
        for start, end, _ in stretches:
            assert start == position < end
            position = end
        assert not any(self.data[position:])
        offsets = [offset for _, _, offset in stretches]
        assert offsets == sorted(offsets)


def log_of(count: int) -> LogBuilder:
    """Return a log of some frames with two messages each, all of them flushed when written."""
    log = LogBuilder()
    for number in range(count):
        log.flushed_end = log.end
        log.publish([sample(2 * number), sample(2 * number + 1)])
    return log


def retagged(frame: bytes, *, tag: int = TAG, position: int = 64, change: bytes = b"") -> bytes:
    """Return a frame with some bytes and the tag of its header changed, its checksum made good."""
    fields = bytearray(frame[: HEADER_BYTES - 4])
    fields[64:68] = struct.pack("<I", tag)
    fields[position : position + len(change)] = change
    return bytes(fields) + struct.pack("<I", crc32c(fields)) + frame[HEADER_BYTES:]
