"""What to fetch of a log for a cursor: which offsets have messages, how large, and which have none.

As little as possible is looked into. A frame that fits into the credit left is planned by its
header alone; only one that does not is decoded, because then it matters which of its messages are
large. So are frames with holes and frames whose messages may be too late.

No more is planned than there is room for, so that a member of several partitions, whose credit they
share, is served by all of them in turn and not by the one with the largest frame.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waterclock.delivery.events import RangeReadable, RangeSkipped
from waterclock.log.arrays import as_numpy, filled
from waterclock.log.frame import Frame
from waterclock.log.schema import row_offsets
from waterclock.model.units import MIB
from waterclock.node.groups.outbound import in_use_at
from waterclock.node.partition.log_reader import Missing
from waterclock.node.partition.remote_log import PartitionLog

Int64s = npt.NDArray[np.int64]
PlannedRange = RangeReadable | RangeSkipped

FRAMES_MAX = 256
BYTES_MAX = 64 * MIB
"""Looked at in one go, so that passing many scheduled messages holds nobody up."""
LARGE_FACTOR = 4
"""A message this much larger than the mean of its frame is planned apart."""


def plan_fetch(
    log: PartitionLog, start: int, *, room: int, bytes_free: int, now_ms: int
) -> list[PlannedRange]:
    """Return what follows at `start`, up to `room` messages; nothing if the log ends there."""
    found: list[PlannedRange] = []
    room_before, passed_bytes = room, 0
    for _ in range(FRAMES_MAX):
        is_enough = room <= 0 or (bytes_free <= 0 and room < room_before)
        frame = None if is_enough else log.at(start)
        if frame is None:
            break
        if isinstance(frame, Missing) or not frame.header.is_deliverable:
            end = frame.end if isinstance(frame, Missing) else frame.header.end_offset
            _add(found, RangeSkipped(start, end))
            start = end
            passed_bytes += 0 if isinstance(frame, Missing) else frame.header.size
            if passed_bytes > BYTES_MAX:
                break
            continue
        for event in _messages(log, frame, start, room, bytes_free, now_ms):
            _add(found, event)
            start = event.end
            if isinstance(event, RangeReadable):
                room -= event.end - event.start
                bytes_free -= event.size_bytes
    return found


def _add(found: list[PlannedRange], event: PlannedRange) -> None:
    """Add what follows, as part of the last if both are of one kind."""
    last = found[-1] if found else None
    if isinstance(event, RangeSkipped):
        if isinstance(last, RangeSkipped):
            found[-1] = RangeSkipped(last.start, event.end)
            return
    elif isinstance(last, RangeReadable):
        count, more = last.end - last.start, event.end - event.start
        # By the mean of both sides, without dividing: of like size if neither is twice the other.
        left, right = last.size_bytes * more, event.size_bytes * count
        if left <= 2 * right and right <= 2 * left:
            size_bytes = last.size_bytes + event.size_bytes
            found[-1] = RangeReadable(last.start, event.end, size_bytes)
            return
    found.append(event)


def _messages(
    log: PartitionLog, frame: Frame, start: int, room: int, bytes_free: int, now_ms: int
) -> Iterable[PlannedRange]:
    """Return what a deliverable frame has from `start` on, in order and without gaps."""
    header = frame.header
    end = min(header.end_offset, start + room)
    size = header.body_len * (end - start) // header.span
    is_plain = not header.is_sparse and not header.may_expire
    if is_plain and (size <= bytes_free or header.span == 1):
        return (RangeReadable(start, end, size),)
    rows = log.rows(frame)
    offsets = row_offsets(header, rows)
    in_use = in_use_at(frame, rows, now_ms)
    sizes = _sizes(frame, rows)
    wanted = in_use & (offsets >= start)
    offsets, sizes = offsets[wanted][:room], sizes[wanted][:room]
    stop = int(offsets[-1]) + 1 if len(offsets) == room else header.end_offset
    return _runs(offsets, sizes, start, stop)


def _runs(offsets: Int64s, sizes: Int64s, start: int, stop: int) -> Iterator[PlannedRange]:
    """Yield the messages at `offsets` as runs of like size, and what lies between as skipped."""
    large = sizes > LARGE_FACTOR * (int(sizes.mean()) if len(sizes) else 0)
    total = np.concatenate(([0], np.cumsum(sizes)))
    at = 0
    cuts = (np.flatnonzero((np.diff(offsets) != 1) | (large[1:] != large[:-1])) + 1).tolist()
    for cut in [*cuts, len(offsets)] if len(offsets) else []:
        low, high = int(offsets[at]), int(offsets[cut - 1]) + 1
        if start < low:
            yield RangeSkipped(start, low)
        yield RangeReadable(low, high, int(total[cut] - total[at]))
        start, at = high, cut
    if start < stop:
        yield RangeSkipped(start, stop)


def _sizes(frame: Frame, rows: pa.RecordBatch) -> Int64s:
    """Return the bytes of each message: its value's own, and its share of everything else."""
    values = as_numpy(filled(pc.binary_length(rows.column("value")), 0)).astype(np.int64)
    rest = max(0, frame.header.body_len - int(values.sum())) // max(1, len(rows))
    return np.asarray(values + rest)
