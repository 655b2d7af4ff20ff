"""The end of a log, read for those that copy it: raw frames, flushed or not.

Followers that keep up ask for the same frames one after the other, each time where the last ones
ended. So the last answer is kept, and where the next frame lies.
"""

from typing import NamedTuple

from waterclock.log.frame import FrameType
from waterclock.model.ids import Offset
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.segment_file import SegmentFile


class Tail(NamedTuple):
    """Frames from an offset on."""

    data: bytes
    end: Offset
    has_more: bool


class FrameTail:
    """Reads one store."""

    def __init__(self, store: PartitionStore) -> None:
        self._store = store
        self._last: tuple[tuple[Offset, Offset, int], Tail] | None = None
        self._next: tuple[Offset, SegmentFile, int] | None = None

    def __repr__(self) -> str:
        return f"<FrameTail of {self._store!r}>"

    def read(self, offset: Offset, *, bytes_max: int) -> Tail:
        """Return whole frames up to the log's end: at least one, if there is one.

        `seen` frames come with the frame before them, also where that is the last.
        """
        asked = offset, self._store.end, bytes_max
        if self._last is None or self._last[0] != asked:
            self._last = asked, self._read(offset, bytes_max)
        return self._last[1]

    def _read(self, offset: Offset, bytes_max: int) -> Tail:
        store = self._store
        active = store.segments[-1]
        if self._next is None or self._next[:2] != (offset, active):
            frames = store.reader.read(offset, store.end, bytes_max=bytes_max)
            data = b"".join(frame.raw for frame in frames)
            end = frames[-1].header.end_offset if frames else offset
            position = None
        else:
            position = self._next[2]
            parts: list[memoryview] = []
            size, end = 0, offset
            for frame in active.frames(position):
                size += frame.header.size
                if parts and size > bytes_max and frame.header.type is not FrameType.SEEN:
                    break
                parts.append(frame.raw)
                end = frame.header.end_offset
            data = b"".join(parts)
        self._note_next(end, active, None if position is None else position + len(data))
        return Tail(data, end, end < store.end)

    def _note_next(self, end: Offset, active: SegmentFile, position: int | None) -> None:
        if end == self._store.end:
            position = active.end_position
        self._next = None if position is None else (end, active, position)
