"""Reading a partition's frames for groups and replays: in order, with what is gone named.

A group reads each frame twice, to plan its delivery and to hand it out, and several groups
read the same end of the log. So the stretches read last are kept: views of the memory map, checked
once, which hold no bytes of their own. A reader that follows the log goes on where it stopped,
without looking for the place.

What cannot be read is not an error here but an answer (`Missing`): retention has taken it, or it is
damaged. Whoever reads goes on behind it. But what is damaged in one of several copies, others have:
nobody passes over that, it is read there (`remote_log`).
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from waterclock.log.frame import Frame
from waterclock.log.schema import decode
from waterclock.model.errors import FrameDamaged, Unavailable
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.segment_file import SegmentFile

STRETCH_BYTES = 1 << 20
STRETCH_FRAMES = 256
"""Frames read in one go: what a loop is held up by is the number of frames, not their bytes."""
STRETCHES_MAX = 8


class Missing(NamedTuple):
    """Offsets [start, end) of which nothing can be read."""

    start: int
    end: int


class _Stretch:
    """Consecutive frames."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self._frames: list[Frame] = []
        self._ends: list[int] = []
        self._size = 0

    def add(self, frame: Frame) -> None:
        self._frames.append(frame)
        self.end = frame.header.end_offset
        self._ends.append(self.end)
        self._size += frame.header.size

    @property
    def is_full(self) -> bool:
        return self._size >= STRETCH_BYTES or len(self._frames) >= STRETCH_FRAMES

    def find(self, offset: int) -> Frame:
        return self._frames[bisect_right(self._ends, offset)]


class LogReader:
    """Hands out the readable frames of one store."""

    def __init__(
        self, store: PartitionStore, *, met_damage: Callable[[], bool] = lambda: False
    ) -> None:
        """`met_damage` is called whenever damage is met, and says if others have what is lost."""
        self.store = store
        self._met_damage = met_damage
        self._stretches: deque[_Stretch] = deque(maxlen=STRETCHES_MAX)
        # Where the next frame lies, if the log is read on from there.
        self._next: tuple[int, SegmentFile, int] | None = None
        self._decoded: tuple[Frame, pa.RecordBatch] | None = None

    def __repr__(self) -> str:
        return f"<LogReader of {self.store!r}>"

    @property
    def start(self) -> int:
        """Nothing below this is there any more."""
        return self.store.start

    @property
    def end(self) -> int:
        """Nothing at or above this can be read yet."""
        return self.store.acknowledged_end

    @property
    def log_id(self) -> bytes:
        return self.store.log_id

    @property
    def log_time_ms(self) -> int:
        """When the last frame was appended, by the log's own time."""
        return self.store.log_time_ms

    def has(self, start: int, end: int) -> bool:
        """Say if [start, end) can be read."""
        return end <= self.store.acknowledged_end and not self._is_damaged(start, end)

    def _is_damaged(self, start: int, end: int) -> bool:
        """Say if something in [start, end) is known to be damaged here, and others have it."""
        faults = self.store.faults
        return (
            bool(faults)
            and any(each.start < end and start < each.end for each in faults)
            and self._met_damage()
        )

    async def refresh(self) -> None:
        """Nothing is to be asked: this is the log itself."""

    async def load(self, offset: int) -> None:
        """Nothing is to be loaded: all of it is here.

        Raises Unavailable if it is one of several copies, and damaged there, or not known yet to be
        committed that far: it lags behind the others, or was just opened anew.
        """
        if offset < self.end:
            if self.at(offset) is None:
                raise Unavailable(f"the copy that is read is damaged at {offset}: others have it")
        elif self.store.plan.committed_end is not None:
            raise Unavailable(f"the copy that is read does not reach {offset} yet")

    async def offset_at(self, time_ms: int) -> int:
        """Return where it stood at a time."""
        return self.store.offset_at(time_ms)

    def at(self, offset: int) -> Frame | Missing | None:
        """Return the frame that spans `offset`; None if it is not there yet, or is to be read from
        another copy."""
        for stretch in self._stretches:
            if stretch.start <= offset < stretch.end:
                return stretch.find(offset)
        if offset >= self.store.acknowledged_end:
            return None
        if offset < self.store.start:
            return Missing(offset, self.store.start)
        try:
            return self._load(offset)
        except FrameDamaged:
            for damage in self.store.faults:
                if damage.start <= offset < damage.end:
                    return None if self._met_damage() else Missing(offset, damage.end)
            # What is damaged spans no offset (ids once seen): the frame behind it can be found.
            return self._load(offset)

    def rows(self, frame: Frame) -> pa.RecordBatch:
        """Return the rows of a frame. Those of the last one are kept: a large frame goes out in
        many pieces, and would have to be inflated for each if it is compressed."""
        if self._decoded is None or self._decoded[0] is not frame:
            self._decoded = frame, decode(frame.header, frame.body)
        return self._decoded[1]

    def _load(self, offset: int) -> Frame:
        """Read a stretch from `offset` on."""
        newest = self._stretches[0] if self._stretches else None
        if newest is None or newest.is_full or newest.end != offset:
            newest = _Stretch(offset)
        segment, position = self._place_of(offset)
        limit = self.store.acknowledged_end
        self._next = None
        try:
            for frame in segment.frames(position):
                if frame.header.base_offset >= limit:
                    break
                position += frame.header.size
                if frame.header.span:  # ids once seen lie between, and span nothing
                    newest.start = min(newest.start, frame.header.base_offset)
                    newest.add(frame)
                    if newest.is_full:
                        break
            self._next = newest.end, segment, position
        except FrameDamaged:
            if newest.end <= offset:
                raise
        if not self._stretches or self._stretches[0] is not newest:
            self._stretches.appendleft(newest)
        return newest.find(offset)

    def _place_of(self, offset: int) -> tuple[SegmentFile, int]:
        segments = self.store.segments
        at = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
        segment = segments[at]
        if self._next is not None:
            next_offset, next_segment, position = self._next
            if next_offset == offset and next_segment is segment:
                return segment, position
        return segment, segment.position_of(offset)
