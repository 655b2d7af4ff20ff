"""Streams in our own log, on the node's disk: the default, which needs nothing else.

All streams share one partition log. In memory, an index tells where each message lies (16 bytes a
message, some 400 a stream) and fingerprints tell which ids may be known (12 bytes a message); both
are made anew from the log when it is opened. Calls of `store` in one turn of the loop become one
frame, and all that wait share an fsync.

Calls of `store` see what is indexed but not yet durable, so that positions and repeats are right;
readers do not. Removals are rows of the log too; what they leave behind is dropped when
the log is rewritten, which `purge` does once most of it is of no use. One process has the folder.
"""

import asyncio
import heapq
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.schema import decode, row_offsets
from waterclock.model.errors import (
    Closed,
    PartitionFaulty,
)
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.model.units import MIB
from waterclock.runtime.clock import SystemClock
from waterclock.storage.flush import FlushQueue
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.opening import open_partition
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
T = TypeVar("T")

LOG = LogConfig(segment_bytes=64 * MIB, preallocate_bytes=4 * MIB)
FRAME_BYTES = 8 * MIB
"""Calls are put into one frame up to this size; a single call may be larger."""
REWRITE_BYTES_MIN = 64 * MIB
"""A smaller log is not worth rewriting."""


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


class LogStore:
    """Streams in a folder."""

    is_shared = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clock = SystemClock()
        self._opened: tuple[PartitionStore, FlushQueue] | None = None
        self._streams: dict[bytes, StreamIndex] = {}
        self._ids = LogIds()
        self._expiring: list[tuple[int, bytes]] = []
        """A heap of when the next message of a stream expires; some are out of date."""
        self._expires_ms: dict[bytes, int] = {}
        """Which of them is true."""
        self._kept = 0
        self._rows = 0
        """Messages and removals in the log, of use or not."""
        self._waiting: list[_Call] = []
        self._rewriting = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<LogStore {self._path} {self._kept} messages, {len(self._streams)} streams>"

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    @property
    def log(self) -> PartitionStore:
        """Its log, for those who copy it; raises Closed unless it is open."""
        return self._parts()[0]

    async def open(self) -> None:
        """Open the folder, or begin one. Raises FolderInUse if another process has it."""
        opening = asyncio.get_running_loop().run_in_executor(None, self._load)
        try:
            log = await _to_the_end(opening)
        except asyncio.CancelledError:
            if opening.exception() is None:
                opening.result().close()
            raise
        self._opened = log, FlushQueue(log, SystemClock(), asyncio.get_running_loop())

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
            loop.call_soon(self._write_waiting)
        stored, end = await call.done
        await flush_queue.wait_flushed(end)
        return stored

    async def read(
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
        await flush_queue.wait_flushed(log.end)
        return await self._remove({name: index.older_than(older_than_ms)})

    async def purge(self, *, now_ms: int, limit: int = 1_000) -> int:
        """Remove expired messages, at most so many; then rewrite the log, if it is worth it."""
        log, flush_queue = self._parts()
        await flush_queue.wait_flushed(log.end)
        removed: dict[bytes, Int64s] = {}
        left = limit
        while left and self._expiring and self._expiring[0][0] <= now_ms:
            expires_ms, name = heapq.heappop(self._expiring)
            if self._expires_ms.get(name) != expires_ms or name in removed:
                continue
            del self._expires_ms[name]
            removed[name] = self._streams[name].expired(now_ms, left)
            left -= len(removed[name])
        count = await self._remove(removed)
        await self._rewrite()
        return count

    async def close(self) -> None:
        """Flush and let go of the folder. Again is harmless."""
        if self._opened is not None:
            self._write_waiting()
            _, flush_queue = self._opened
            self._opened = None
            async with self._rewriting:  # which ends soon, as the store is closed
                flush_queue.close()

    def _parts(self) -> tuple[PartitionStore, FlushQueue]:
        if self._opened is None:
            raise Closed("the store is not open")
        return self._opened

    # Opening

    def _load(self) -> PartitionStore:
        log = open_partition(
            OsFolder(self._path),
            log=LOG,
            dedup=DedupConfig(enabled=False),
            now_ms=self._clock.now_ms(),
            new_log_id=os.urandom(16),
        )
        try:
            if log.faults:
                problem = f"the streams in {self._path} are damaged: {log.faults[0]}"
                raise PartitionFaulty(problem)
            self._ids.begin(int.from_bytes(log.log_id[:8], "little"), log.start)
            for frame in log.frames(log.start):
                if frame.header.is_deliverable:
                    rows = decode(frame.header, frame.body)
                    self._take_in(rows, row_offsets(frame.header, rows))
        except BaseException:
            log.close()
            raise
        for name, index in self._streams.items():
            self._expect(name, index.next_expiry_ms())
        return log

    def _take_in(self, rows: pa.RecordBatch, offsets: Int64s) -> None:
        """Index the rows of a frame."""
        ids = rows.column("message_id")
        self._ids.add(ids, offsets)
        self._rows += len(rows)
        heads = decode_heads(rows)
        entries = zip(ids.to_pylist(), offsets.tolist(), *heads, strict=True)
        for number, (full, offset, kind, position, stored_ms, expires_ms) in enumerate(entries):
            name, _ = split_id(full)
            index = self._streams.get(name)
            if index is None:
                index = self._streams[name] = StreamIndex()
            if kind == MESSAGE:
                index.add(position, offset, stored_ms=stored_ms, expires_ms=expires_ms)
                self._kept += 1
            else:
                assert kind == REMOVAL
                index.note_last(position, offset)
                index.removal = offset
                for start, end in decode_ranges(rows.column("value")[number].as_py()):
                    self._kept -= index.remove(start, end)

    # Writing

    def _write_waiting(self) -> None:
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
        for row, offset in self._ids.find(ids, log.reader):
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
        log, flush_queue = self._parts()
        batch = encode_rows(rows)
        try:
            appended = log.append(batch, now_ms=self._clock.now_ms())
        finally:
            flush_queue.request_flush()
        self._take_in(batch.rows, np.asarray(appended.offsets, np.int64))
        for row in rows:
            if row.head.expires_ms != NEVER:
                self._expect(row.name, row.head.expires_ms)

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
        await flush_queue.wait_flushed(log.end)
        return sum(map(len, removed.values()))

    async def _rewrite(self) -> None:
        """Write the log anew without what is of no use, if that is most of it."""
        log, _ = self._parts()
        size = sum(segment.end_position for segment in log.segments)
        is_worth_it = size >= REWRITE_BYTES_MIN and self._rows > 2 * self._kept + 1_000
        if self._rewriting.locked() or log.jobs or not is_worth_it:
            return
        async with self._rewriting:
            log.roll(self._clock.now_ms())
            end, rows, kept = log.end, self._rows, self._kept_offsets()
            now_ms = self._clock.now_ms()
            if await _rewrite(log, kept, lambda: self._opened is not None, now_ms=now_ms):
                self._rows -= rows - len(kept)
                self._ids.keep(kept, below=end, end=log.end)

    def _kept_offsets(self) -> Int64s:
        """Give the offsets of all rows of use, sorted."""
        parts = [index.kept_offsets() for index in self._streams.values()]
        removals = [index.removal for index in self._streams.values() if index.removal != NEVER]
        return np.sort(np.concatenate([*parts, np.array(removals, np.int64)]))


async def _rewrite(
    log: PartitionStore, kept: Int64s, is_open: Callable[[], bool], *, now_ms: int
) -> bool:
    """Leave only rows at these offsets, sorted, in all closed segments; tell if it was finished.

    The partition log's own compaction does the work: it keeps, instead of the latest message of
    each key, the rows that the index says are of use. Segments are rewritten oldest first, so a
    removal is still there as long as a message it removed is. It ends early once the log is to be
    closed.
    """
    log.run_jobs()  # side-cars of what was sealed, before it is rewritten
    wanted = Wanted(keep_from=log.end, by_key=True, tombstone_grace_ms=0)
    rewriting = Pass(log, wanted, now_ms=now_ms)
    rewriting.latest = kept
    loop = asyncio.get_running_loop()
    for job in rewriting.jobs():
        await _to_the_end(loop.run_in_executor(None, job.run))
        if not is_open():
            return False
        job.finish()
    return True


async def _to_the_end(work: "asyncio.Future[T]") -> T:
    """Wait for work on a thread; if we are cancelled, still until it has ended."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
