"""Reading one partition's past, a messages at a time, letting the loop go in between."""

import asyncio
import time

import numpy as np
import numpy.typing as npt

from waterclock.delivery.spans import ranges_of
from waterclock.log.arrays import from_numpy
from waterclock.log.frame import Frame
from waterclock.log.schema import decode, due_times, row_offsets
from waterclock.node.groups.outbound import SMALL_BYTES_MAX, DeliveryBatch, cut_rows, read_batch
from waterclock.node.partition.log_reader import Missing
from waterclock.node.partition.remote_log import PartitionLog

SLICE_S = 0.005
_AT_NO_TIME = 0
"""Nothing is too late at this time: a replay shows what was."""


class Scan:
    """Reads [start, end) of a log without what is to be skipped; of `due_ms`, if given, only what
    is due within, and what is due when it was appended if that is not known (`undated`)."""

    def __init__(
        self,
        log: PartitionLog,
        start: int,
        end: int,
        *,
        due_ms: tuple[int, int] | None = None,
        skip: tuple[int, int] | None = None,
        undated: int | None = None,
    ) -> None:
        self.handed_out = start
        """Everything below was handed out, or has nothing to hand out."""
        self.is_exhausted = False
        self._log = log
        self._at = start
        self._parts = [(start, end)] if skip is None else [(start, skip[0]), (skip[1], end)]
        self._end = start
        self._due_ms = due_ms
        self._undated = end if undated is None else undated
        self._begun = time.perf_counter()
        """When others had their last turn."""

    def close(self) -> None:
        """Let go of what is read. A log's own memory map is nobody's to close."""

    async def next(self) -> tuple[DeliveryBatch, int] | None:
        """Return the next messages and the offset behind them; None at the end."""
        while self._at < self._end or self._next_part():
            # Whoever takes what is found may want little of it, and ask on at once.
            if time.perf_counter() - self._begun > SLICE_S:
                await asyncio.sleep(0)
                self._begun = time.perf_counter()
            await self._log.load(self._at)
            messages = self._step()
            if messages is not None:
                self.handed_out = self._at
                return messages, self._at
        self.is_exhausted = True
        return None

    def _next_part(self) -> bool:
        """Go on with the next part that has something left to read, if there is one."""
        while self._parts:
            start, self._end = self._parts.pop(0)
            self._at = max(self._at, start)
            if self._at < self._end:
                return True
        return False

    def _step(self) -> DeliveryBatch | None:
        """Pass one frame, or several small ones that go out together."""
        frame = self._log.at(self._at)
        if frame is None:
            self._at = self._end
            return None
        if isinstance(frame, Missing):
            self._at = min(frame.end, self._end)
            return None
        start, stop = self._at, min(frame.header.end_offset, self._end)
        if not frame.header.is_deliverable or not self._is_wanted(frame):
            self._at = stop
            return None
        if not self._is_wholly_wanted(frame):
            self._at = stop
            return self._due_within(frame, start, stop)
        if frame.header.body_len <= SMALL_BYTES_MAX:
            stop = self._end_of_small(stop)
        found = read_batch(self._log, [(start, stop)], _AT_NO_TIME)
        self._at = found.end
        return found.messages

    def _end_of_small(self, stop: int) -> int:
        """Return where the run of small, wholly wanted frames that continues at `stop` ends."""
        for _ in range(256):
            frame = self._log.at(stop) if stop < self._end else None
            if frame is None or isinstance(frame, Missing):
                break
            is_small = frame.header.body_len <= SMALL_BYTES_MAX
            if not (is_small and frame.header.is_deliverable and self._is_wholly_wanted(frame)):
                break
            stop = min(frame.header.end_offset, self._end)
        return stop

    def _is_wanted(self, frame: Frame) -> bool:
        if self._due_ms is None:
            return True
        start_ms, end_ms = self._due_ms
        if self._is_undated(frame):
            return True
        return frame.header.min_due_ms < end_ms and frame.header.max_due_ms >= start_ms

    def _is_undated(self, frame: Frame) -> bool:
        return frame.header.base_offset >= self._undated

    def _is_wholly_wanted(self, frame: Frame) -> bool:
        if self._due_ms is None:
            return True
        start_ms, end_ms = self._due_ms
        return start_ms <= frame.header.min_due_ms and frame.header.max_due_ms < end_ms

    def _due_within(self, frame: Frame, start: int, stop: int) -> DeliveryBatch | None:
        """Return the messages of a frame that are due in time."""
        assert self._due_ms is not None
        cut = cut_rows(frame, self._log.rows(frame), [(start, stop)], _AT_NO_TIME)
        due = due_times(cut.rows)
        # Without a due time a message is due when it is appended.
        appended_ms = self._due_ms[0] if self._is_undated(frame) else frame.header.append_ms
        due = np.where(due == 0, appended_ms, due)
        keep = (due >= self._due_ms[0]) & (due < self._due_ms[1])
        if not bool(keep.any()):
            return None
        offsets: npt.NDArray[np.int64] = np.concatenate([np.arange(*span) for span in cut.kept])
        return DeliveryBatch(
            tuple(ranges_of(offsets[keep])),
            rows=cut.rows.filter(from_numpy(keep)),
            append_ms=frame.header.append_ms,
            size_bytes=frame.header.body_len,
        )


async def count_off(log: PartitionLog, start: int, count: int) -> int:
    """Return the offset behind the next `count` messages from `start`, or the end of the log."""
    at, end = start, log.end
    begun = time.perf_counter()
    while at < end:
        await log.load(at)
        frame = log.at(at)
        if frame is None:
            break
        stop = frame.end if isinstance(frame, Missing) else frame.header.end_offset
        if not isinstance(frame, Missing) and frame.header.is_deliverable:
            offsets = np.arange(at, stop)
            if frame.header.is_sparse:
                present = row_offsets(frame.header, decode(frame.header, frame.body))
                offsets = present[present >= at]
            if len(offsets) >= count:
                return int(offsets[count - 1]) + 1
            count -= len(offsets)
        at = stop
        if time.perf_counter() - begun > SLICE_S:
            await asyncio.sleep(0)
            begun = time.perf_counter()
    return end
