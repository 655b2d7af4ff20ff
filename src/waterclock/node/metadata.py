"""What a node must remember besides messages: topics, generations, progress, replays, recurrences.

It is a log like any other: a record is a message, its name the key, and the last one of a name
holds; a tombstone ends it. So there is no second kind of file that could be torn or disagree, and
what replicates a log replicates this. All of it is kept in memory, and once the log is mostly
history it is compacted by key.

A single node keeps its records in a folder of its own, and is the only one to write them. Of
several nodes one leads the log and writes it. What it writes stands for itself at once, as on a
single node; everyone else, and the leader's own topics, go by what is committed (`on_committed`). A
node that leads no more takes back what it wrote and nobody committed.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from waterclock.log.append import Appended
from waterclock.log.batch import Batch, encode_batch
from waterclock.model.clock import Clock
from waterclock.model.errors import (
    Closed,
    Fenced,
    NotLeader,
    PartitionFaulty,
    StorageError,
    StorageFailed,
    WaterclockError,
)
from waterclock.model.ids import UUID7_ENTROPY_BYTES, Offset
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.model.units import GIB, MIB
from waterclock.storage.flush import BackgroundThreads, FlushQueue
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.local_log import stored_messages
from waterclock.storage.opening import open_partition
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.rewrite import Wanted, rewrites

LOG = LogConfig(segment_bytes=16 * MIB, preallocate_bytes=1 * MIB)
HISTORY_BYTES_MIN = 32 * MIB
"""A log smaller than this is not worth compacting."""
_LIMITS = Limits(message_bytes_max=256 * MIB, batch_bytes_max=1 * GIB)
_events = logging.getLogger(__name__)


Records = dict[str, bytes | None]
"""Records to be written by name; None ends one."""
Change = tuple[str, bytes | None]


class RecordLog(Protocol):
    """The log of records: the node's own, or a replicated partition (`PartitionHost`)."""

    @property
    def role(self) -> str:
        """`alone`, or of several replicas `leader`, `follower` or `closed`."""
        ...

    @property
    def epoch(self) -> int:
        """Under which this node leads."""
        ...

    @property
    def is_open(self) -> bool: ...

    @property
    def store(self) -> PartitionStore: ...

    @property
    def flush_queue(self) -> FlushQueue: ...

    @property
    def rewriting(self) -> asyncio.Lock:
        """Held while a segment is rewritten: nobody closes the log then."""
        ...

    def append(self, batch: Batch, *, allow_duplicate: bool = False) -> Appended:
        """Write a batch and have it flushed, and copied."""
        ...

    def close(self) -> None: ...


class OwnLog:
    """A log of records that no other node has."""

    role = "alone"
    epoch = 0
    is_open = True

    def __init__(self, store: PartitionStore, flush_queue: FlushQueue, clock: Clock) -> None:
        self.store = store
        self.flush_queue = flush_queue
        self.rewriting = asyncio.Lock()
        self._clock = clock

    def append(self, batch: Batch, *, allow_duplicate: bool = False) -> Appended:
        try:
            return self.store.append(
                batch, now_ms=self._clock.now_ms(), allow_duplicate=allow_duplicate
            )
        finally:
            self.flush_queue.request_flush()

    def close(self) -> None:
        self.flush_queue.close()


class Ticket(NamedTuple):
    """What was written, for who waits until it is durable."""

    end: Offset
    term: int
    """Counts wins and losses of the lead: in another, the offset may be that of another's."""


class _Write(NamedTuple):
    """Records that were written and are not committed yet."""

    end: Offset
    records: tuple[Change, ...]
    before: tuple[Change, ...]


class Metadata:
    """Durable records by name. Open a single node's with `open_metadata`.

    Whoever owns the log calls `role_changed` when it is led, followed, closed or opened anew.
    """

    def __init__(self, log: RecordLog, clock: Clock, *, name: str = "__meta") -> None:
        self.name = name
        self.is_leading = False
        """This node may write: it knows all that was written before."""
        self.on_leading: list[Callable[[bool], None]] = []
        """Called when `is_leading` has changed."""
        self._log = log
        self._clock = clock
        self._records: dict[str, bytes] = {}
        self._applied_end = Offset(0)
        """What is committed below this is in the records."""
        self._listeners: list[tuple[str, Callable[[str, bytes | None], None]]] = []
        self._uncommitted: deque[_Write] = deque()
        self._leads_from: Offset | None = None
        """All below must be committed before this node may write."""
        self._term = 0
        """Counts how often this node has won or lost the lead."""
        self._place: tuple[str, int, PartitionStore | None] | None = None
        """What the log was when `role_changed` was last called."""
        self._opened: PartitionStore | None = None
        self._must_rebuild = False
        """The log was opened anew: what was known may have been compacted away."""
        self._stop_listening: Callable[[], None] = lambda: None
        self.wait_flushed = self._wait_flushed
        """Wait until what was written is durable: in a cluster, committed.

        Raises Fenced if this node has lost the lead since it was written: it may be, or not."""
        self.role_changed()

    def __repr__(self) -> str:
        return f"<Metadata {len(self._records)} records, {self._log!r}>"

    @property
    def store(self) -> PartitionStore:
        """Its log, for those who copy it."""
        return self._log.store

    _store = store

    @property
    def _flush_queue(self) -> FlushQueue:
        return self._log.flush_queue

    @property
    def is_current(self) -> bool:
        """All that its log has is in the records."""
        return self.is_leading or (
            self._log.is_open and self._applied_end >= max(1, self._log.store.end)
        )

    def get(self, name: str) -> bytes | None:
        return self._records.get(name)

    def items(self, prefix: str) -> list[tuple[str, bytes]]:
        """Return the records whose name begins so, sorted."""
        return sorted(item for item in self._records.items() if item[0].startswith(prefix))

    # Writing

    async def put(self, name: str, value: bytes) -> None:
        """Keep a record; it is durable on return."""
        await self.put_many({name: value})

    async def delete(self, name: str) -> None:
        """Forget a record, durably."""
        await self.put_many({name: None})

    async def put_many(self, records: Mapping[str, bytes | None]) -> None:
        """Keep records, and forget those that are None: all or, after a crash, none of them."""
        if records:
            await self.wait_flushed(self.write(records))

    def write(self, records: Mapping[str, bytes | None]) -> Ticket:
        """Write records that stand from now on; they are durable once `wait_flushed` returns.

        Raises NotLeader if another node is to write them.
        """
        if not self.is_leading:
            raise NotLeader(self.name)
        now_ms = self._clock.now_ms()
        messages = [Message(value, key=name.encode()) for name, value in records.items()]
        entropy = os.urandom(UUID7_ENTROPY_BYTES)
        batch = encode_batch(messages, _LIMITS, now_ms=now_ms, entropy=entropy)
        end = self._log.append(batch, allow_duplicate=True).durable_at
        if self._log.role != "alone":
            before = tuple((name, self._records.get(name)) for name in records)
            self._uncommitted.append(_Write(end, tuple(records.items()), before))
        for name, value in records.items():
            self._remember(name, value)
        return Ticket(end, self._term)

    async def _wait_flushed(self, ticket: Ticket) -> None:
        self._check_term(ticket)
        try:
            await self._flush_queue.wait_flushed(ticket.end)
        except Closed:
            self._check_term(ticket)
            raise
        self._check_term(ticket)

    def _check_term(self, ticket: Ticket) -> None:
        """Raise Fenced unless what was written stands where it was: this node leads as it did."""
        if ticket.term != self._term:
            raise Fenced(f"this node has lost the lead of {self.name}: ask again")

    def _remember(self, name: str, value: bytes | None) -> None:
        if value is None:
            self._records.pop(name, None)
        else:
            self._records[name] = value

    # Following

    def on_committed(self, prefix: str, listener: Callable[[str, bytes | None], None]) -> None:
        """Have changes of records whose name begins so told, in order, once they are committed.

        Of several changes of a record that are committed at once, the last may be all that is told,
        and nothing of one that was made and ended. A single node tells nothing: what changes there
        was written by whoever would be told.
        """
        self._listeners.append((prefix, listener))

    def role_changed(self) -> None:
        """Take up whether the log is led, followed or closed from now on. Again is harmless."""
        log = self._log
        is_here = log.is_open and log.role != "closed"
        place = log.role, log.epoch, log.store if is_here else None
        if place == self._place:
            return
        self._place = place
        self._stop_listening()
        self._stop_listening = lambda: None
        self._resign()
        if not is_here:
            return
        if log.store is not self._opened:
            self._must_rebuild = self._opened is not None
            self._opened = log.store
        if log.role == "alone":
            self._leads_from = Offset(0)
        else:
            self._leads_from = log.store.end if log.role == "leader" else None
            self._stop_listening = log.flush_queue.on_readable(self._advance)
        self._advance()

    def _resign(self) -> None:
        """Write no more, and go back to what is committed."""
        self._leads_from = None
        if not self.is_leading:
            return
        assert self._opened is not None
        self._note_committed(self._opened.acknowledged_end)
        while self._uncommitted:
            for name, value in self._uncommitted.pop().before:
                self._remember(name, value)
        self._set_leading(False)

    def _advance(self) -> None:
        """Take in what was committed; lead once that is all there was when the lead was won."""
        assert self._opened is not None
        end = self._opened.acknowledged_end
        if self.is_leading:
            self._note_committed(end)
            return
        self._apply(self._opened, end)
        if self._leads_from is not None and self._applied_end >= self._leads_from:
            self._set_leading(True)

    def _note_committed(self, end: Offset) -> None:
        self._applied_end = max(self._applied_end, end)
        while self._uncommitted and self._uncommitted[0].end <= end:
            self._tell_committed(self._uncommitted.popleft().records)

    def _apply(self, store: PartitionStore, end: Offset) -> None:
        if self._must_rebuild:
            if end < self._applied_end:
                return  # nobody has told yet how far it is committed
            self._must_rebuild = False
            # A copy may lack tombstones: they were compacted away where it was copied.
            found: Records = dict.fromkeys(self._records)
            found.update(_records_in(store, Offset(0), end))
        else:
            found = dict(_records_in(store, self._applied_end, end))
        self._applied_end = max(self._applied_end, end)
        changes = [each for each in found.items() if each[1] != self._records.get(each[0])]
        for name, value in changes:
            self._remember(name, value)
        self._tell_committed(changes)

    def _tell_committed(self, changes: Iterable[Change]) -> None:
        """Tell of changes; what one listener cannot do keeps nobody from hearing of the rest."""
        if self._listeners:
            for name, value in changes:
                for prefix, listener in self._listeners:
                    if name.startswith(prefix):
                        try:
                            listener(name, value)
                        except StorageFailed:
                            raise  # the node has come to its end
                        except WaterclockError as error:
                            _events.error("record_not_applied name=%s error=%s", name, error)

    def _set_leading(self, is_leading: bool) -> None:
        self.is_leading = is_leading
        self._term += 1
        for callback in tuple(self.on_leading):
            callback(self.is_leading)

    # Its log

    async def compact(self) -> None:
        """Drop the history, if there is much of it.

        Each replica drops its own. One that lacks some of what was dropped copies what is left, and
        goes by that: a record whose end is not there any more is not there either.
        """
        if not self._log.is_open:
            return
        store = self._store
        size = sum(segment.end_position for segment in store.segments)
        live_bytes = sum(len(name) + len(value) for name, value in self._records.items())
        if size < HISTORY_BYTES_MIN or size < 4 * live_bytes or store.jobs:
            return
        if self._log.role != "alone" and self._applied_end < store.end:
            return  # what is not committed may go, and what it replaced come back
        now_ms = self._clock.now_ms()
        store.roll(now_ms)
        wanted = Wanted(keep_from=store.end, by_key=True, tombstone_grace_ms=0)
        for job in rewrites(store, wanted, now_ms=now_ms):
            async with self._log.rewriting:
                if not self._log.is_open or self._store is not store:
                    return  # it was opened anew
                await asyncio.to_thread(job.run)
                job.finish()

    def close(self) -> None:
        """Flush and let go of the folder."""
        self._log.close()


def _records_in(store: PartitionStore, start: Offset, end: Offset) -> Iterator[Change]:
    """Yield what a log says in [start, end), in order."""
    start = max(start, store.start)
    if start >= end:
        return
    for frame in store.frames(start, end):
        if frame.header.is_deliverable:
            for _, message in stored_messages(frame, start):
                assert message.key is not None
                yield message.key.decode(), message.value


def open_metadata(
    path: Path,
    clock: Clock,
    threads: BackgroundThreads,
    on_failed: Callable[[WaterclockError], None],
    on_full: Callable[[StorageError], None] = lambda error: None,
) -> Metadata:
    """Open a node's records. A folder serves one node: raises FolderInUse if it has one."""
    store = open_partition(
        OsFolder(path),
        log=LOG,
        dedup=DedupConfig(enabled=False),
        now_ms=clock.now_ms(),
        new_log_id=os.urandom(16),
    )
    if store.faults:
        problem = f"the node's own records in {path} are damaged: {store.faults[0]}"
        store.close()
        raise PartitionFaulty(problem)
    store.on_full = on_full
    loop = asyncio.get_running_loop()
    flush_queue = FlushQueue(store, clock, loop, threads=threads, on_failed=on_failed)
    return Metadata(OwnLog(store, flush_queue, clock), clock)
