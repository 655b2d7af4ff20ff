"""The streams of one log: where each message lies, which ids are known, and what is written.

In memory, an index tells where each message lies (16 bytes a message, some 400 a stream) and
fingerprints tell which ids may be known (12 bytes a message); both are made anew from the log when
it is opened. Calls of `store` in one turn of the loop become one frame, and all that wait share an
fsync.

Calls of `store` see what is indexed but not yet durable, so that positions and repeats are right;
readers do not. Removals are rows of the log too.
"""

import asyncio
import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.append import Appended
from waterclock.log.batch import Batch
from waterclock.log.frame import Frame
from waterclock.log.schema import decode, row_offsets
from waterclock.model.clock import Clock
from waterclock.model.errors import Closed, Fenced
from waterclock.model.ids import Offset
from waterclock.model.units import MIB
from waterclock.storage.flush import FlushQueue
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.rewrite import Pass, Wanted
from waterclock.stores.base import (
    READ_BYTES_MAX,
    Page,
    Record,
    Stored,
    StoredMessage,
    check_records,
    place,
    stream_key,
)
from waterclock.stores.log.ids import LogIds
from waterclock.stores.log.rows import (
    MESSAGE,
    NEVER,
    REMOVAL,
    Head,
    Row,
    decode_heads,
    decode_ranges,
    encode_ranges,
    encode_rows,
    full_id,
    read_messages,
    split_id,
)
from waterclock.stores.log.stream_index import StreamIndex, ranges_of

Int64s = npt.NDArray[np.int64]

FRAME_BYTES = 8 * MIB
"""Calls are put into one frame up to this size; a single call may be larger."""


class StreamsLog(Protocol):
    """A log that can be written: a folder's, or a replicated partition that this node leads."""

    @property
    def store(self) -> PartitionStore: ...

    @property
    def flush_queue(self) -> FlushQueue: ...

    def append(self, batch: Batch) -> Appended:
        """Write a batch and have it flushed."""
        ...


class _Call:
    """A call of `store` that waits for the end of the turn."""

    def __init__(
        self,
        name: bytes,
        keys: list[bytes],
        records: Sequence[Record],
        now_ms: int,
        done: "asyncio.Future[tuple[list[Stored], int]]",
    ) -> None:
        self.name = name
        self.keys = keys
        self.records = records
        self.now_ms = now_ms
        self.done = done
        self.size = sum(len(record.body) for record in records)


class LogStreams:
    """The streams of a log. You must take in what the log has before anything is asked of them."""

    def __init__(self, store: PartitionStore, clock: Clock) -> None:
        self.partition = store
        self.log: StreamsLog | None = None
        """What it is written by; None: it may not be written, nor read, now."""
        self.is_over = False
        """What is indexed may never be committed: another node leads, and this is of no use."""
        self.end = store.start
        """All below is indexed."""
        self.kept = 0
        self.rows = 0
        """Messages and removals in the log, of use or not."""
        self.ids = LogIds()
        self.ids.begin(int.from_bytes(store.log_id[:8], "little"), store.start)
        self._clock = clock
        self._streams: dict[bytes, StreamIndex] = {}
        self._expiring: list[tuple[int, bytes]] = []
        """A heap of when the next message of a stream expires; some are out of date."""
        self._expires_ms: dict[bytes, int] = {}
        """Which of them is true."""
        self._waiting: list[_Call] = []

    def __repr__(self) -> str:
        return f"<LogStreams {self.kept} messages, {len(self._streams)} streams>"

    async def store(self, stream: str, records: Sequence[Record], *, now_ms: int) -> list[Stored]:
        """Store all of them in order, or none. They are durable on return."""
        name, keys = stream_key(stream), check_records(records)
        _, flush_queue = self._parts()
        if not records:
            return []
        loop = asyncio.get_running_loop()
        call = _Call(name, keys, records, now_ms, loop.create_future())
        self._waiting.append(call)
        if len(self._waiting) == 1:
            loop.call_soon(self.write_waiting)
        stored, end = await call.done
        await self._flushed(flush_queue, end)
        return stored

    def read(
        self, stream: str, *, after: int, limit: int, now_ms: int, bytes_max: int = READ_BYTES_MAX
    ) -> Page:
        """Give messages at positions > `after`: at least one if there is one."""
        name = stream_key(stream)
        log, _ = self._parts()
        index = self._streams.get(name)
        if index is None:
            return Page([], 0)
        end = log.acknowledged_end
        positions, offsets = index.page(after, limit, now_ms=now_ms, end=end)
        messages: list[StoredMessage] = []
        size = 0
        for message in read_messages(log, positions, offsets):
            size += len(message.body)
            if messages and size > bytes_max:
                break
            messages.append(message)
        return Page(messages, index.durable_last(end))

    async def delete(self, stream: str, *, older_than_ms: int | None = None) -> int:
        """Remove the messages stored before then, or all; say how many."""
        name = stream_key(stream)
        log, flush_queue = self._parts()
        index = self._streams.get(name)
        if index is None:
            return 0
        # What is removed must not come back: first it has to be there.
        await self._flushed(flush_queue, log.end)
        return await self._remove({name: index.older_than(older_than_ms)})

    async def purge(self, *, now_ms: int, limit: int = 1_000) -> int:
        """Remove expired messages, at most so many."""
        log, flush_queue = self._parts()
        await self._flushed(flush_queue, log.end)
        removed: dict[bytes, Int64s] = {}
        left = limit
        while left and self._expiring and self._expiring[0][0] <= now_ms:
            expires_ms, name = heapq.heappop(self._expiring)
            if self._expires_ms.get(name) != expires_ms or name in removed:
                continue
            del self._expires_ms[name]
            removed[name] = self._streams[name].expired(now_ms, left)
            left -= len(removed[name])
        return await self._remove(removed)

    async def take_over(self, rows: Sequence[Row]) -> None:
        """Write rows of another log, in their order there, with their positions; durable on return.

        A message whose position was given before is there already: this may be done again.
        """
        log, flush_queue = self._parts()
        lasts: dict[bytes, int] = {}
        new = []
        for row in rows:
            index = self._streams.get(row.name)
            last = lasts.get(row.name, 0 if index is None else index.last)
            if row.head.kind == REMOVAL or row.head.position > last:
                new.append(row)
                lasts[row.name] = max(last, row.head.position)
        self._append(new)
        await self._flushed(flush_queue, log.end)

    def _parts(self) -> tuple[PartitionStore, FlushQueue]:
        if self.log is None:
            raise Closed("the store is not open")
        return self.log.store, self.log.flush_queue

    async def _flushed(self, flush_queue: FlushQueue, end: int) -> None:
        """Return when all below an offset is durable."""
        await flush_queue.wait_flushed(end)
        if self.is_over:
            # What now lies below that offset may be another's.
            raise Fenced("this node has lost the lead of these streams: ask again")

    # Reading the log

    def take_in(self, *, bytes_max: int | None = None) -> bool:
        """Index what can be read of the log and was not yet; tell if that was all of it."""
        store = self.partition
        start, end = max(self.end, store.start), store.acknowledged_end
        size = 0
        for frame in store.frames(start, end) if start < end else ():
            self._take_in_frame(frame)
            size += len(frame.body)
            if bytes_max is not None and size >= bytes_max:
                break
        return self.end >= store.acknowledged_end

    def _take_in_frame(self, frame: Frame) -> None:
        if frame.header.is_deliverable:
            rows = decode(frame.header, frame.body)
            self._take_in(rows, row_offsets(frame.header, rows))
        self.end = frame.header.end_offset

    def _take_in(self, rows: pa.RecordBatch, offsets: Int64s) -> None:
        """Index the rows of a frame."""
        ids = rows.column("message_id")
        self.ids.add(ids, offsets)
        self.rows += len(rows)
        heads = decode_heads(rows)
        entries = zip(ids.to_pylist(), offsets.tolist(), *heads, strict=True)
        for number, (full, offset, kind, position, stored_ms, expires_ms) in enumerate(entries):
            name, _ = split_id(full)
            index = self._streams.get(name)
            if index is None:
                index = self._streams[name] = StreamIndex()
            if kind == MESSAGE:
                index.add(position, offset, stored_ms=stored_ms, expires_ms=expires_ms)
                self.kept += 1
                if expires_ms != NEVER:
                    self._expect(name, expires_ms)
            else:
                assert kind == REMOVAL
                index.note_last(position, offset)
                index.removal = offset
                for start, end in decode_ranges(rows.column("value")[number].as_py()):
                    self.kept -= index.remove(start, end)

    # Writing

    def write_waiting(self) -> None:
        """Write what was asked for in this turn."""
        calls, self._waiting = self._waiting, []
        group: list[_Call] = []
        size = 0
        for call in calls:
            if group and size + call.size > FRAME_BYTES:
                self._write_group(group)
                group, size = [], 0
            group.append(call)
            size += call.size
        if group:
            self._write_group(group)

    def _write_group(self, calls: list[_Call]) -> None:
        """Decide for some calls and write what is new as one frame."""
        rows: list[Row] = []
        fresh: dict[bytes, dict[bytes, int]] = {}
        """What the calls before have placed, by stream and id."""
        answers = []
        try:
            for call in calls:
                placed_before = fresh.setdefault(call.name, {})
                index = self._streams.get(call.name)
                last = (0 if index is None else index.last) + len(placed_before)
                known, expired = self._known(call)
                if expired:
                    # Out of the way of the new one, which goes behind it in the same frame.
                    ranges = encode_ranges(ranges_of(np.array(sorted(expired), np.int64)))
                    head = Head(REMOVAL, last, call.now_ms, NEVER)
                    rows.append(Row(call.name, b"", head, ranges))
                placed = place(call.keys, {**known, **placed_before}, last)
                for row in placed.new_rows:
                    record, position = call.records[row], placed.stored[row].position
                    placed_before[call.keys[row]] = position
                    expires_ms = NEVER if record.expires_ms is None else record.expires_ms
                    head = Head(MESSAGE, position, call.now_ms, expires_ms)
                    rows.append(Row(call.name, call.keys[row], head, record.body))
                answers.append(placed.stored)
            self._append(rows)
        # Also what nobody foresaw: those who wait would do so for ever.
        except Exception as error:
            for call in calls:
                if not call.done.done():
                    call.done.set_exception(error)
            return
        # A repeat is no safer than its original, which may have been written a moment ago.
        end = self._parts()[0].end
        for call, stored in zip(calls, answers, strict=True):
            if not call.done.done():
                call.done.set_result((stored, end))

    def _known(self, call: _Call) -> tuple[dict[bytes, int], set[int]]:
        """Give the positions of those ids of a call that are kept, and those that have expired."""
        log, _ = self._parts()
        index = self._streams.get(call.name)
        known: dict[bytes, int] = {}
        expired: set[int] = set()
        if index is None:
            return known, expired
        ids = [full_id(call.name, key) for key in call.keys]
        for row, offset in self.ids.find(ids, log.reader):
            position = index.position_of(offset)
            if position is None:
                continue
            if index.is_expired(position, call.now_ms):
                expired.add(position)
            else:
                known[call.keys[row]] = position
        return known, expired

    def _append(self, rows: list[Row]) -> None:
        """Write rows and index them."""
        if not rows:
            return
        if self.log is None:
            raise Closed("the store is not open")
        batch = encode_rows(rows)
        appended = self.log.append(batch)
        self._take_in(batch.rows, np.asarray(appended.offsets, np.int64))
        self.end = Offset(self.log.store.end)

    def _expect(self, name: bytes, expires_ms: int | None) -> None:
        """Note when a message of a stream expires, if none does before."""
        if expires_ms is not None and expires_ms < self._expires_ms.get(name, expires_ms + 1):
            self._expires_ms[name] = expires_ms
            heapq.heappush(self._expiring, (expires_ms, name))

    # Removing

    async def _remove(self, removed: Mapping[bytes, Int64s]) -> int:
        """Remove the messages at these positions of streams, durably."""
        log, flush_queue = self._parts()
        now_ms = self._clock.now_ms()
        rows = [
            Row(name, b"", Head(REMOVAL, self._streams[name].last, now_ms, NEVER), ranges)
            for name, positions in removed.items()
            if (ranges := encode_ranges(ranges_of(positions)))
        ]
        try:
            self._append(rows)
        finally:
            for name in removed:
                self._expect(name, self._streams[name].next_expiry_ms())
        await self._flushed(flush_queue, log.end)
        return sum(map(len, removed.values()))

    # Rewriting

    def begin_rewrite(self, *, now_ms: int) -> tuple[Pass, Callable[[], None]]:
        """Return what leaves only rows of use in all closed segments, and what to call after it.

        The partition log's own compaction does the work: it keeps, instead of the latest message of
        each key, the rows that the index says are of use. Segments are rewritten oldest first, so a
        removal is still there as long as a message it removed is.
        """
        log = self.partition
        assert self.end == log.end, "rows that are not indexed would go"
        log.roll(now_ms)
        log.run_jobs()  # side-cars of what was sealed, before it is rewritten
        end, rows, kept = log.end, self.rows, self.kept_offsets()
        rewriting = Pass(
            log, Wanted(keep_from=log.end, by_key=True, tombstone_grace_ms=0), now_ms=now_ms
        )
        rewriting.latest = kept

        def finish() -> None:
            self.rows -= rows - len(kept)
            self.ids.keep(kept, below=end, end=log.end)

        return rewriting, finish

    def kept_offsets(self) -> Int64s:
        """Give the offsets of all rows of use, sorted."""
        parts = [index.kept_offsets() for index in self._streams.values()]
        removals = [index.removal for index in self._streams.values() if index.removal != NEVER]
        return np.sort(np.concatenate([*parts, np.array(removals, np.int64)]))
