"""What must live on when a closed segment is rewritten, row by row, with original offsets kept.

Three verdicts for a message: *keep* it; keep only that its id was *seen*, while its repeats must
still be refused; *drop* it. A rewritten frame spans the offsets it always did: rows that are left
say where they stand (`offset_delta`), dropped frames become `noop` frames, and ids seen stand in a
`seen` frame right behind, sorted by offset. So the log stays without gaps, and compaction never
changes the meaning of an offset.

What lives: open scheduled messages; messages not yet consumed, or still within retention; on topics
compacted by key, the latest message of each key; every word about a scheduled message (fired,
cancelled, rescheduled) that a rebuild would otherwise miss. The last rule needs segments to be
rewritten oldest first: once a dead scheduled message is gone from the log, what killed it may go
too.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waterclock.log.arrays import as_numpy, from_numpy, is_among
from waterclock.log.batch import wire_size
from waterclock.log.frame import (
    CARRIES_IDS,
    CONTROL,
    FLAG_SPARSE,
    FLAG_UNTRACKED,
    Frame,
    FrameHeader,
    FrameType,
    header_of,
)
from waterclock.log.schema import decode, encode, row_offsets, schema_of
from waterclock.log.sidecars.endings import Ending
from waterclock.model.sections import Compression

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_NO_OFFSETS: Int64s = np.zeros(0, dtype=np.int64)
SEEN_ROWS_MAX = 4096
"""Ids of dropped frames are collected up to this many: few large frames read faster than many."""
LATEST_ROWS_MIN = 65_536
"""Rows collected at least before they are reduced to the latest of each key."""


@dataclass(frozen=True, slots=True)
class Survivors:
    """What a rewrite must keep; arrays of offsets are sorted."""

    keep_from: int
    """Messages at or above this offset are within retention, or not consumed by every group."""
    open_scheduled: Int64s
    ended_scheduled: Int64s
    """Scheduled messages that are over, but still stand in an earlier segment."""
    seen_from_ms: int | None
    """Ids of messages appended since then are remembered; None: none are."""
    cancelled: Int64s = field(default_factory=lambda: _NO_OFFSETS)
    """Scheduled messages of which it must be remembered that they did not fire, but were cancelled
    ..."""
    expired: Int64s = field(default_factory=lambda: _NO_OFFSETS)
    """... or let expire."""
    latest: Int64s | None = None
    """On a topic compacted by key: the offset of the latest message of each key."""
    tombstones_from_ms: int = 0
    """Tombstones appended before then have been seen by everyone who had to."""


class Rewritten(NamedTuple):
    """A frame of the new writing."""

    header: FrameHeader
    body: memoryview


class Rewriter:
    """Turns the frames of a segment into those of its next writing."""

    def __init__(self, survivors: Survivors, compression: Compression) -> None:
        self._survivors = survivors
        self._compression = compression
        self._last: FrameHeader | None = None
        self._gone = 0
        """Offsets dropped before the last frame's end and not yet stood for by a noop."""
        self._seen: dict[int, list[pa.RecordBatch]] = {}
        """Ids that must stand behind that noop, or behind the frame written last; by the flags of
        their frame: those that dedup knows, and those that it does not."""
        self.is_changed = False
        """Some row was dropped: the new writing must take the old one's place, even if larger.
        What is decided about later segments counts on it."""

    def rewrite(self, frames: Iterable[Frame]) -> Iterator[Rewritten]:
        """Yield the frames to write; together they span exactly the offsets given."""
        for frame in frames:
            yield from self._one(frame)
        yield from self._flush()

    def _one(self, frame: Frame) -> Iterator[Rewritten]:
        header = frame.header
        rows = decode(header, frame.body)
        keep = self._keeps(header, rows)
        seen = self._seen_rows(header, rows, ~keep)
        left = seen if header.type is FrameType.SEEN else keep.nonzero()[0]
        self.is_changed |= len(rows) > (0 if left is None else len(left))
        if header.type is FrameType.EPOCH or bool(keep.any()):
            yield from self._flush()
            is_whole = bool(keep.all())
            yield Rewritten(header, frame.body) if is_whole else self._thinned(frame, rows, keep)
        elif header.span:
            if self._seen and not self._gone:
                yield from self._flush()
            self._gone += header.span
        self._last = header
        if seen is not None:
            self._seen.setdefault(header.flags & FLAG_UNTRACKED, []).append(seen)
        if sum(len(rows) for seen in self._seen.values() for rows in seen) >= SEEN_ROWS_MAX:
            yield from self._flush()

    def _flush(self) -> Iterator[Rewritten]:
        """Write the noop over what was dropped, then the ids that belong behind it."""
        last = self._last
        if last is None:
            return
        if self._gone:
            yield self._frame(last, FrameType.NOOP, _NO_BODY, span=self._gone)
            self._gone = 0
        for flags, seen in sorted(self._seen.items()):
            # A frame thinned before has ids behind it that lie between those it loses now.
            table = pa.Table.from_batches(seen).sort_by("offset").combine_chunks()
            body = encode(table.to_batches()[0], self._compression)
            yield self._frame(last, FrameType.SEEN, body, rows=len(table), flags=flags)
        self._seen = {}

    def _frame(
        self,
        last: FrameHeader,
        kind: FrameType,
        body: memoryview,
        *,
        span: int = 0,
        rows: int = 0,
        flags: int = 0,
    ) -> Rewritten:
        """Return a frame that ends where the last one did."""
        base = last.end_offset - span
        header = header_of(
            kind,
            body,
            base_offset=base,
            span=span,
            rows=rows,
            log_tag=last.log_tag,
            append_ms=last.append_ms,
            epoch=last.epoch,
            flushed_end=base,
            flags=flags,
        )
        return Rewritten(header, body)

    # Verdicts

    def _keeps(self, header: FrameHeader, batch: pa.RecordBatch) -> Bools:
        """Return which rows stay as they are."""
        wanted = self._survivors
        match header.type:
            case FrameType.SCHEDULED:
                return is_among(row_offsets(header, batch), wanted.open_scheduled)
            case FrameType.CANCEL:
                return is_among(_scheduled(batch), wanted.ended_scheduled)
            case FrameType.RESCHEDULE:
                return is_among(_scheduled(batch), wanted.open_scheduled)
            case FrameType.FIRED:
                still_needed = is_among(_scheduled(batch), wanted.ended_scheduled)
                return still_needed | self._keeps_messages(header, batch)
            case FrameType.DATA:
                return self._keeps_messages(header, batch)
            case _:
                return np.zeros(len(batch), np.bool_)

    def _keeps_messages(self, header: FrameHeader, batch: pa.RecordBatch) -> Bools:
        wanted = self._survivors
        offsets = row_offsets(header, batch)
        if wanted.latest is None:
            return np.asarray(offsets >= wanted.keep_from)
        keyless = as_numpy(batch.column("key").is_null())
        latest = is_among(offsets, wanted.latest) | keyless
        if header.append_ms < wanted.tombstones_from_ms:
            latest &= as_numpy(batch.column("value").is_valid())
        return np.asarray(latest | (offsets >= wanted.keep_from))

    def _seen_rows(
        self, header: FrameHeader, batch: pa.RecordBatch, dropped: Bools
    ) -> pa.RecordBatch | None:
        """Return the ids that must be remembered of the rows that are dropped."""
        since = self._survivors.seen_from_ms
        if since is None or header.type not in CARRIES_IDS or not bool(dropped.any()):
            return None
        if header.type is FrameType.SEEN:
            return _some(batch.filter(from_numpy(as_numpy(batch.column("append_ms")) >= since)))
        if header.append_ms < since:
            return None
        if header.type is FrameType.DATA and not header.is_tracked:
            # Nobody is to be refused, and nothing was scheduled: what was delivered just goes.
            return None
        offsets = row_offsets(header, batch)[dropped]
        endings = np.full(len(offsets), Ending.DELIVERED, np.uint8)
        if header.type is FrameType.SCHEDULED:
            endings[is_among(offsets, self._survivors.cancelled)] = Ending.CANCELLED
            endings[is_among(offsets, self._survivors.expired)] = Ending.EXPIRED
        return pa.record_batch(
            [
                batch.column("message_id").filter(from_numpy(dropped)),
                from_numpy(offsets),
                from_numpy(np.full(len(offsets), header.append_ms, np.int64)),
                from_numpy(endings),
            ],
            schema=schema_of(FrameType.SEEN),
        )

    # Frames

    def _thinned(self, frame: Frame, batch: pa.RecordBatch, keep: Bools) -> Rewritten:
        """Return a frame with only the rows to keep, each saying where it stands."""
        header = frame.header
        rows = batch.filter(from_numpy(keep))
        flags = header.flags
        if header.type not in CONTROL:
            flags |= FLAG_SPARSE
            deltas = row_offsets(header, batch)[keep] - header.base_offset
            columns = rows.select(schema_of(header.type).names).columns
            columns.append(from_numpy(deltas.astype(np.int32)))
            rows = pa.record_batch(columns, schema=schema_of(header.type, flags))
        body = encode(rows, self._compression_for(frame))
        # Due times of rows that are gone only widen the span: readers look inside.
        fresh = header_of(
            header.type,
            body,
            base_offset=header.base_offset,
            span=header.span,
            rows=len(rows),
            log_tag=header.log_tag,
            append_ms=header.append_ms,
            epoch=header.epoch,
            flushed_end=header.flushed_end,
            min_due_ms=header.min_due_ms,
            max_due_ms=header.max_due_ms,
            flags=flags,
        )
        return Rewritten(fresh, body)

    def _compression_for(self, frame: Frame) -> Compression:
        """Keep compressed what came compressed: a rewrite is there to make things smaller."""
        is_compressed = wire_size(frame.body).decoded_bytes > len(frame.body)
        return "zstd" if is_compressed and self._compression == "none" else self._compression


def latest_offsets(frames: Iterable[Frame]) -> Int64s:
    """Return the offset of the latest deliverable message of each key, sorted."""
    tables: list[pa.Table] = []
    known = waiting = 0
    for frame in frames:
        if not frame.header.is_deliverable:
            continue
        batch = decode(frame.header, frame.body)
        offsets = from_numpy(row_offsets(frame.header, batch))
        tables.append(pa.table({"key": batch.column("key"), "offset": offsets}))
        waiting += len(batch)
        # Taking in a row costs as much as a row that is known: so wait for as many.
        if waiting >= max(known, LATEST_ROWS_MIN):
            tables = [_latest_of(tables)]
            known, waiting = len(tables[0]), 0
    if not tables:
        return np.zeros(0, dtype=np.int64)
    return np.sort(as_numpy(_latest_of(tables).column("offset")))


def _latest_of(tables: list[pa.Table]) -> pa.Table:
    rows = pa.concat_tables(tables)
    keys = pc.dictionary_encode(rows.column("key"), null_encoding="encode")
    if not keys.num_chunks:
        return rows
    # Not `group_by`: it comes with Arrow's engine for datasets, which would import pandas.
    codes = np.concatenate([as_numpy(chunk.indices) for chunk in keys.chunks])
    known = keys.chunk(keys.num_chunks - 1).dictionary
    latest = np.zeros(len(known), np.int64)
    np.maximum.at(latest, codes, as_numpy(rows.column("offset")))
    return pa.table({"key": known, "offset": from_numpy(latest)})


def _some(batch: pa.RecordBatch) -> pa.RecordBatch | None:
    return batch if len(batch) else None


def _scheduled(batch: pa.RecordBatch) -> Int64s:
    return as_numpy(batch.column("scheduled_offset"))


_NO_BODY = memoryview(b"")
