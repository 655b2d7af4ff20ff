"""Reading a partition's segments: by offset, by append time, and single rows.

What is handed out are checked frames as they lie in the memory map. Rows are decoded only where
a caller asks for rows (firing, confirming a repeat), and then a frame at a time.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.arrays import as_numpy, from_numpy, is_among
from waterclock.log.frame import CARRIES_IDS, Frame, FrameHeader, FrameType
from waterclock.log.frame import HEADER_BYTES as HEADER_BYTES_OF_FRAME
from waterclock.log.schema import decode, decode_ids, row_numbers, row_offsets
from waterclock.log.segment import HEADER_BYTES
from waterclock.model.errors import FrameDamaged, OffsetOutOfRange
from waterclock.model.ids import Offset
from waterclock.storage.segment_file import SegmentFile

Int64s = npt.NDArray[np.int64]
Keys = Sequence[bytes | None]
"""The key each message must have; None: any, or none."""

READ_BYTES_MAX = 1 << 20
_BOUNDS = struct.Struct("<ii")
_HOLDS = CARRIES_IDS | {FrameType.FIRED}
_KEEPS_IDS = frozenset({FrameType.DATA, FrameType.SCHEDULED})


class Reader:
    """Reads a list of segments that others append to and replace."""

    def __init__(self, segments: list[SegmentFile]) -> None:
        self._segments = segments

    @property
    def start(self) -> Offset:
        """The first offset still in the log."""
        return self._segments[0].base_offset

    @property
    def end(self) -> Offset:
        """One past the last offset."""
        return self._segments[-1].end_offset

    def segment_at(self, offset: int) -> int:
        """Return the number, in the list, of the segment that holds `offset`."""
        return bisect_right(self._segments, offset, key=lambda s: s.base_offset) - 1

    def frames(self, offset: int, end: int | None = None) -> Iterator[Frame]:
        """Yield the frames from the one that holds `offset` up to those that begin below `end`.

        And the `seen` frames right behind the last of them: they speak of it, and span nothing.
        """
        end = self.end if end is None else min(end, self.end)
        if not self.start <= offset <= end:
            raise OffsetOutOfRange(offset, start=self.start, end=end)
        while offset < end:
            if offset < self.start:  # retention has overtaken a slow reader
                raise OffsetOutOfRange(offset, start=self.start, end=end)
            segment = self._segments[self.segment_at(offset)]
            for frame in segment.frames(segment.position_of(offset)):
                if frame.header.base_offset >= end and frame.header.type is not FrameType.SEEN:
                    return
                yield frame
                offset = frame.header.end_offset

    def read(self, offset: int, end: int, *, bytes_max: int) -> list[Frame]:
        """Return whole frames that begin below `end`: at least one, if there is one.

        `seen` frames come with the frame that they speak of, or nobody would ask for them.
        """
        frames: list[Frame] = []
        size = 0
        try:
            for frame in self.frames(offset, end):
                size += frame.header.size
                if frames and size > bytes_max and frame.header.type is not FrameType.SEEN:
                    break
                frames.append(frame)
        except FrameDamaged:
            if not frames:
                raise
        return frames

    def offset_at(self, append_ms: int) -> Offset:
        """Return the first offset appended at or after a time; the log's end if there is none."""
        number = bisect_right(self._segments, append_ms - 1, key=_first_append_ms) - 1
        for segment in self._segments[max(number, 0) :]:
            position = segment.index.position_of_append_time(append_ms)
            for frame in segment.frames(HEADER_BYTES if position is None else position):
                if frame.header.append_ms >= append_ms:
                    return frame.header.base_offset
        return self.end

    def rows(self, offsets: Int64s) -> Iterator[tuple[FrameHeader, pa.RecordBatch, Int64s, Int64s]]:
        """Yield, per frame, its header, its rows, which of them are asked for, and for which ask.

        `offsets` may be in any order; each frame is decoded once.
        """
        for frame, _, asks in self._frames_of(offsets, with_seen=False):
            batch = decode(frame.header, frame.body)
            yield frame.header, batch, row_numbers(frame.header, batch, offsets[asks]), asks

    def types(self, offsets: Int64s) -> npt.NDArray[np.uint8]:
        """Return the `FrameType` of the frame over each offset, 0 for one outside the log."""
        found = np.zeros(len(offsets), np.uint8)
        order = np.argsort(offsets, kind="stable")
        wanted = offsets[order]
        at, last = np.searchsorted(wanted, [self.start, self.end]).tolist()
        while at < last:
            segment = self._segments[self.segment_at(int(wanted[at]))]
            _, header = segment.place_of(int(wanted[at]))
            stop = min(last, int(np.searchsorted(wanted, header.end_offset)))
            found[order[at:stop]] = header.type
            at = stop
        return found

    def reach(self, offsets: Int64s, *, frames_max: int, bytes_max: int) -> int:
        """Return how many of these offsets, which ascend, lie in the first of their frames: at most
        so many, and no more once they have so many bytes.

        One outside the log is a frame of its own.
        """
        at = size = 0
        for _ in range(min(frames_max, len(offsets))):
            if at == len(offsets) or size >= bytes_max:
                break
            offset = int(offsets[at])
            end = offset + 1
            if self.start <= offset < self.end:
                _, header = self._segments[self.segment_at(offset)].place_of(offset)
                end = header.end_offset
                size += header.body_len
            at = int(np.searchsorted(offsets, end))
        return at

    def undamaged(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Tell which offsets are in frames that bear out their checksums."""
        found = np.zeros(len(offsets), np.bool_)
        order = np.argsort(offsets, kind="stable")
        wanted = offsets[order]
        at, last = np.searchsorted(wanted, [self.start, self.end]).tolist()
        while at < last:
            offset, stop = int(wanted[at]), at + 1
            segment = self._segments[self.segment_at(offset)]
            with suppress(FrameDamaged):
                _, header = segment.place_of(offset)
                stop = min(last, int(np.searchsorted(wanted, header.end_offset)))
                segment.frame_at(offset)
                found[order[at:stop]] = True
            at = stop
        return found

    def holds(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Tell at which offsets a message is, or was of which at least the id is remembered."""
        found = np.zeros(len(offsets), np.bool_)
        inside = np.flatnonzero((offsets >= self.start) & (offsets < self.end))
        for frame, behind, asks in self._frames_of(offsets[inside], with_seen=True):
            for header, body, _ in (frame, *behind):
                if header.type in _HOLDS and header.rows == header.span:
                    found[inside[asks]] = True
                elif header.type in _HOLDS:
                    present = row_offsets(header, decode(header, body))
                    found[inside[asks]] |= is_among(offsets[inside[asks]], present)
        return found

    def _frames_of(
        self, offsets: Int64s, *, with_seen: bool
    ) -> Iterator[tuple[Frame, list[Frame], Int64s]]:
        """Yield each frame that spans some offsets, the `seen` frames behind it, and which asks."""
        order = np.argsort(offsets, kind="stable")
        wanted = offsets[order]
        at = 0
        while at < len(wanted):
            offset = int(wanted[at])
            if not self.start <= offset < self.end:
                raise OffsetOutOfRange(offset, start=self.start, end=self.end)
            segment = self._segments[self.segment_at(offset)]
            found = segment.frame_and_seen(offset) if with_seen else [segment.frame_at(offset)]
            frame, *behind = found
            stop = int(np.searchsorted(wanted, frame.header.end_offset))
            yield frame, behind, order[at:stop]
            at = stop

    def ids(self, offsets: Int64s) -> list[tuple[bytes, int]]:
        """Return (message id, append time) of the messages at these offsets."""
        found: list[tuple[bytes, int]] = [(b"", 0)] * len(offsets)
        for frame, behind, asks in self._frames_of(offsets, with_seen=True):
            left = asks
            for holder in (frame, *behind):
                if holder.header.is_tracked:
                    left = _collect_ids(holder, offsets, left, found)
            assert not len(left), "an id in the index is neither in its frame nor among those seen"
        return found

    def has_ids(
        self, offsets: Int64s, ids: Sequence[bytes], keys: Keys | None = None
    ) -> npt.NDArray[np.bool_]:
        """Tell which offsets hold a message of the id beside them, and of the key if one is given.

        Only ids and keys are looked at, and the rest of a frame is not checked: rot cannot make an
        id.
        """
        found = np.zeros(len(offsets), np.bool_)
        order = np.argsort(offsets, kind="stable")
        # Lists: most frames have one or two of them, for which NumPy's fixed costs are too high.
        asks, wanted = order.tolist(), offsets[order].tolist()
        at, last = bisect_left(wanted, self.start), bisect_left(wanted, self.end)
        while at < last:
            segment = self._segments[self.segment_at(wanted[at])]
            position, header = segment.place_of(wanted[at])
            stop = bisect_left(wanted, header.end_offset, at, last)
            if header.type in _KEEPS_IDS:
                start = position + HEADER_BYTES_OF_FRAME
                body = segment.view()[start : start + header.body_len]
                here = [ids[ask] for ask in asks[at:stop]]
                mine = None if keys is None else [keys[ask] for ask in asks[at:stop]]
                found[order[at:stop]] = _has_ids(header, body, wanted[at:stop], here, mine)
            at = stop
        return found

    def append_times(self, offsets: Int64s, ids: Sequence[bytes], keys: Keys) -> Int64s:
        """Return when the message of the id beside each offset, and of the key, was appended.

        -1 where there is none, or another. Of some messages that are gone the id is left, but no
        key: there the id decides.
        """
        found = np.full(len(offsets), -1, np.int64)
        for frame, behind, asks in self._frames_of(offsets, with_seen=True):
            for holder in (frame, *behind):
                if holder.header.type in CARRIES_IDS:
                    _note_times(holder, offsets, asks, ids, keys, found)
        return found


def _note_times(
    frame: Frame, offsets: Int64s, asks: Int64s, ids: Sequence[bytes], keys: Keys, found: Int64s
) -> None:
    header = frame.header
    is_seen = header.type is FrameType.SEEN
    if is_seen or header.is_sparse:
        batch = decode(header, frame.body)
    else:
        batch = decode_ids(header, frame.body, with_keys=True)
    rows = offsets[asks] - header.base_offset
    if is_seen or header.is_sparse:
        present = row_offsets(header, batch)
        rows = np.searchsorted(present, offsets[asks])
        rows[~is_among(offsets[asks], present)] = -1
    for ask, row in zip(asks.tolist(), rows.tolist(), strict=True):
        if row < 0 or batch.column("message_id")[row].as_py() != ids[ask]:
            continue
        if is_seen:
            found[ask] = batch.column("append_ms")[row].as_py()
        elif keys[ask] is None or batch.column("key")[row].as_py() == keys[ask]:
            found[ask] = header.append_ms


def _has_ids(
    header: FrameHeader, body: memoryview, offsets: list[int], ids: list[bytes], keys: Keys | None
) -> list[bool]:
    with_keys = keys is not None and any(key is not None for key in keys)
    try:
        if header.is_sparse:
            batch = decode(header, body)
        else:
            batch = decode_ids(header, body, with_keys=with_keys)
    except FrameDamaged:
        return [False] * len(ids)
    rows: dict[int, int] | None = None
    if header.is_sparse:
        rows = {offset: row for row, offset in enumerate(row_offsets(header, batch).tolist())}
    _, bounds, data = batch.column("message_id").buffers()
    data = memoryview(data).cast("B")  # Arrow's bytes are signed, and so unequal to ours
    found = []
    for at, (offset, message_id) in enumerate(zip(offsets, ids, strict=True)):
        row = offset - header.base_offset if rows is None else rows.get(offset)
        if row is None:
            found.append(False)
            continue
        start, end = _BOUNDS.unpack_from(bounds, 4 * row)
        is_it = data[start:end] == message_id
        if is_it and keys is not None and keys[at] is not None:
            is_it = batch.column("key")[row].as_py() == keys[at]
        found.append(is_it)
    return found


def _collect_ids(
    frame: Frame, offsets: Int64s, asks: Int64s, found: list[tuple[bytes, int]]
) -> Int64s:
    """Fill in the ids a frame has of those asked for; return what is left to ask."""
    batch = decode(frame.header, frame.body)
    present = row_offsets(frame.header, batch)
    at = np.minimum(np.searchsorted(present, offsets[asks]), max(len(present) - 1, 0))
    has = present[at] == offsets[asks]
    ids = batch.column("message_id").take(from_numpy(at[has])).to_pylist()
    times = np.full(len(ids), frame.header.append_ms)
    if frame.header.type is FrameType.SEEN:
        times = as_numpy(batch.column("append_ms"))[at[has]]
    for ask, message_id, append_ms in zip(asks[has].tolist(), ids, times.tolist(), strict=True):
        found[ask] = (message_id, append_ms)
    return np.asarray(asks[~has])


def _first_append_ms(segment: SegmentFile) -> int:
    first = segment.index.first_append_ms
    return segment.header.created_ms if first is None else first
