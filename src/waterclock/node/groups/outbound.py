"""What goes out to members and replays: notices about partitions, and messages.

Messages are taken from the log at the moment they are wanted (`read_batch`), a frame at a time, or
several small frames made one: never one gRPC message for each row. A whole `data` frame goes out as
it lies, nothing decoded; anything else is cut from its frame and encoded anew in the columns of
MESSAGES, which costs some 15 us for a frame of a thousand.

Between being planned and being handed out a message may disappear: expired, taken by retention or
compaction, damaged in the only copy. `read_batch` says so, and the rest goes out without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.delivery.spans import Range, joined, ranges_of
from waterclock.log.arrays import from_numpy
from waterclock.log.expiry import expires_ms
from waterclock.log.frame import Frame, FrameType
from waterclock.log.schema import MESSAGES, decode, encode, row_offsets
from waterclock.model.units import KIB, MIB
from waterclock.node.partition.log_reader import Missing
from waterclock.node.partition.remote_log import PartitionLog

Int64s = npt.NDArray[np.int64]

SMALL_BYTES_MAX = 64 * KIB
"""Frames, or what is wanted of them, up to this are put together; larger ones go out alone."""
MERGED_BYTES_MAX = 1 * MIB
MERGED_ROWS_MAX = 4_096
MERGED_FRAMES_MAX = 512
"""Decoding and joining takes some 6 us a frame, and nobody else is served meanwhile."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """The member owns a partition from now on."""

    partition: int
    generation: int
    committed: int


@dataclass(frozen=True, slots=True)
class Revoked:
    """Nothing more comes of a partition; the member may finish what it holds until the deadline.
    With `is_cancelled` it keeps the partition after all."""

    partition: int
    generation: int
    deadline_ms: int
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """The member does not own the partition any more; its acks are refused."""

    partition: int
    generation: int


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer spoke of messages the member does not hold, or (`is_stale`) of a partition it does
    not own in that generation. The ranges are empty for a member that does not read its
    refusals."""

    partition: int
    generation: int
    ranges: tuple[Range, ...]
    is_stale: bool


class DeliveryBatch:
    """Messages as they go out, encoded or decoded only when asked for."""

    __slots__ = ("_frame", "_rows", "append_ms", "append_times", "count", "ranges", "size_bytes")

    def __init__(
        self,
        ranges: tuple[Range, ...],
        *,
        frame: Frame | None = None,
        rows: pa.RecordBatch | None = None,
        append_ms: int,
        append_times: Int64s | None = None,
        size_bytes: int,
    ) -> None:
        assert (frame is None) != (rows is None)
        self.ranges = ranges
        """The offsets of the messages, in order."""
        self.count = sum(end - start for start, end in ranges)
        self.append_ms = append_ms
        """When the last of them became deliverable."""
        self.append_times = append_times
        """When each of them did; None: all together."""
        self.size_bytes = size_bytes
        self._frame = frame
        self._rows = rows

    def __repr__(self) -> str:
        return f"<DeliveryBatch {self.count} messages {self.ranges}>"

    @property
    def bounds(self) -> list[int]:
        """The ranges as start, end, start, end, ..."""
        return [bound for span in self.ranges for bound in span]

    @property
    def arrow(self) -> memoryview:
        """The messages as one Arrow record-batch message in the columns of MESSAGES."""
        return encode(self._rows) if self._frame is None else self._frame.body

    def rows(self) -> pa.RecordBatch:
        """Return the messages as Arrow columns."""
        return self._rows if self._frame is None else decode(self._frame.header, self._frame.body)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Messages for a member, to be answered before the deadline."""

    partition: int
    generation: int
    attempt: int
    deadline_ms: int
    """In the time of the wall, for people."""
    lease_ms: int
    """How long that is from now."""
    messages: DeliveryBatch


Outbound = Assigned | Revoked | Lost | Refused | Delivery


class BatchRead(NamedTuple):
    """What `read_batch` took from the front of the ranges."""

    messages: DeliveryBatch | None
    gone: list[Range]
    """Offsets it passed that have nothing to hand out any more."""
    expired: int
    """How many of those were too late."""
    end: int
    """Where it stopped; the ranges below are dealt with."""


class _Pieces:
    """Frames, or parts of them, on their way into one batch."""

    def __init__(self) -> None:
        self.taken: list[tuple[Frame, list[Range]]] = []
        self.rows = 0
        self.size_bytes = 0

    def has_room_for(self, frame: Frame, rows: int) -> bool:
        if not self.taken:
            return True
        if frame is self.taken[-1][0]:
            return True
        size = _share(frame, rows)
        return (
            max(size, self.size_bytes if len(self.taken) == 1 else 0) <= SMALL_BYTES_MAX
            and self.size_bytes + size <= MERGED_BYTES_MAX
            and self.rows + rows <= MERGED_ROWS_MAX
            and len(self.taken) < MERGED_FRAMES_MAX
        )

    def add(self, frame: Frame, start: int, end: int) -> None:
        if self.taken and self.taken[-1][0] is frame:
            self.taken[-1][1].append((start, end))
        else:
            self.taken.append((frame, [(start, end)]))
        self.rows += end - start
        self.size_bytes += _share(frame, end - start)


def _share(frame: Frame, rows: int) -> int:
    """Return the bytes of some rows, by the mean of their frame."""
    return frame.header.body_len * rows // max(1, frame.header.rows)


def read_batch(log: PartitionLog, ranges: Sequence[Range], now_ms: int) -> BatchRead:
    """Take messages from the front of `ranges`, which must be readable: one batch."""
    pieces = _Pieces()
    gone: list[Range] = []
    at = ranges[0][0]
    for start, end in ranges:
        at = start
        while at < end:
            frame = log.at(at)
            # It is on its way here from another node, or turns out to be damaged: others have it.
            if frame is None and (at > ranges[0][0] or not log.has(at, at + 1)):
                return _batch(log, pieces, gone, at, now_ms)
            assert frame is not None, f"offset {at} was planned and cannot be read yet"
            if isinstance(frame, Missing) or not frame.header.is_deliverable:
                stop = frame.end if isinstance(frame, Missing) else frame.header.end_offset
                gone.append((at, min(stop, end)))
                at = min(stop, end)
                continue
            stop = min(frame.header.end_offset, end)
            if not pieces.has_room_for(frame, stop - at):
                return _batch(log, pieces, gone, at, now_ms)
            pieces.add(frame, at, stop)
            at = stop
    return _batch(log, pieces, gone, at, now_ms)


def _batch(
    log: PartitionLog, pieces: _Pieces, gone: list[Range], end: int, now_ms: int
) -> BatchRead:
    taken = pieces.taken
    if not taken:
        return BatchRead(None, gone, 0, end)
    if len(taken) == 1 and _goes_whole(*taken[0]):
        frame, ranges = taken[0]
        header = frame.header
        whole = DeliveryBatch(
            tuple(ranges), frame=frame, append_ms=header.append_ms, size_bytes=header.body_len
        )
        return BatchRead(whole, gone, 0, end)
    batches: list[pa.RecordBatch] = []
    times: list[int] = []
    kept: list[Range] = []
    expired = 0
    for frame, ranges in taken:
        cut = cut_rows(frame, log.rows(frame), ranges, now_ms)
        expired += cut.expired
        gone += cut.gone
        if cut.kept:
            batches.append(cut.rows)
            times.append(frame.header.append_ms)
            kept += cut.kept
    if not batches:
        return BatchRead(None, gone, expired, end)
    rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    messages = DeliveryBatch(
        joined(kept),
        rows=rows,
        append_ms=times[-1],
        append_times=_append_times(times, batches),
        size_bytes=pieces.size_bytes,
    )
    return BatchRead(messages, gone, expired, end)


def _append_times(times: list[int], batches: list[pa.RecordBatch]) -> Int64s | None:
    """Return when each row was appended, given when each frame was; None if all were together."""
    if times[0] == times[-1]:  # a log's times never go back
        return None
    return np.repeat(np.array(times, np.int64), [len(batch) for batch in batches])


def _goes_whole(frame: Frame, ranges: list[Range]) -> bool:
    header = frame.header
    is_plain = header.type is FrameType.DATA and not header.is_sparse and not header.may_expire
    return is_plain and ranges == [(header.base_offset, header.end_offset)]


class Cut(NamedTuple):
    """Rows of a frame, in the columns of MESSAGES."""

    rows: pa.RecordBatch
    kept: list[Range]
    gone: list[Range]
    expired: int


def cut_rows(frame: Frame, rows: pa.RecordBatch, ranges: list[Range], now_ms: int) -> Cut:
    """Return the messages of a frame that lie in `ranges` and are of use at `now_ms`."""
    header = frame.header
    if header.is_sparse or header.may_expire:
        return _cut_some(frame, rows, ranges, now_ms)
    if len(rows.schema) > len(MESSAGES):
        rows = rows.select(MESSAGES.names)
    base = header.base_offset
    if len(ranges) == 1:
        start, end = ranges[0]
        return Cut(rows.slice(start - base, end - start), ranges, [], 0)
    numbers = np.concatenate([np.arange(start - base, end - base) for start, end in ranges])
    return Cut(rows.take(from_numpy(numbers)), ranges, [], 0)


def _cut_some(frame: Frame, rows: pa.RecordBatch, ranges: list[Range], now_ms: int) -> Cut:
    """Do so where offsets have no row, or a row is too late."""
    offsets = row_offsets(frame.header, rows)
    in_use = in_use_at(frame, rows, now_ms)
    wanted = np.zeros(len(offsets), np.bool_)
    gone: list[Range] = []
    for start, end in ranges:
        low, high = np.searchsorted(offsets, (start, end))
        wanted[low:high] = True
        present = offsets[low:high][in_use[low:high]]
        gone += _holes(start, end, ranges_of(present))
    expired = int((wanted & ~in_use).sum())
    wanted &= in_use
    kept = rows.select(MESSAGES.names).filter(from_numpy(wanted))
    return Cut(kept, ranges_of(offsets[wanted]), gone, expired)


def in_use_at(frame: Frame, rows: pa.RecordBatch, now_ms: int) -> npt.NDArray[np.bool_]:
    """Return which rows of a frame are not too late to be handed out."""
    if not frame.header.may_expire:
        return np.ones(len(rows), np.bool_)
    ends = expires_ms(rows)
    return np.asarray((ends == 0) | (ends > now_ms))


def _holes(start: int, end: int, present: list[Range]) -> list[Range]:
    """Return the parts of [start, end) that are not `present`."""
    holes = []
    for low, high in present:
        if start < low:
            holes.append((start, low))
        start = high
    if start < end:
        holes.append((start, end))
    return holes
