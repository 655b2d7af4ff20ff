"""What a node must remember besides messages: topics, generations, progress, replays, recurrences.

It is a log like any other, in a folder of its own: a record is a message, its name the key, and the
last one of a name holds; a tombstone ends it. So there is no second kind of file that could be torn
or disagree, and what replicates a log can replicate this. All of it is kept in memory, and once the
log is mostly history it is compacted by key.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from waterclock.log.batch import encode_batch
from waterclock.model.clock import Clock
from waterclock.model.errors import PartitionFaulty, StorageError, WaterclockError
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


Records = dict[str, bytes | None]
"""Records to be written by name; None ends one."""


class Metadata:
    """Durable records by name. Open one with `open_metadata`."""

    def __init__(self, store: PartitionStore, flush_queue: FlushQueue, clock: Clock) -> None:
        self._store = store
        self._flush_queue = flush_queue
        self.wait_flushed = flush_queue.wait_flushed
        """Wait until what was written below an offset is durable."""
        self._clock = clock
        self._records: dict[str, bytes] = {}
        for frame in store.frames(store.start):
            if frame.header.is_deliverable:
                for _, message in stored_messages(frame, frame.header.base_offset):
                    assert message.key is not None
                    self._remember(message.key.decode(), message.value)

    def __repr__(self) -> str:
        return f"<Metadata {len(self._records)} records, {self._store!r}>"

    @property
    def store(self) -> PartitionStore:
        """Its log, for those who copy it."""
        return self._store

    def get(self, name: str) -> bytes | None:
        return self._records.get(name)

    def items(self, prefix: str) -> list[tuple[str, bytes]]:
        """Return the records whose name begins so, sorted."""
        return sorted(item for item in self._records.items() if item[0].startswith(prefix))

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

    def write(self, records: Mapping[str, bytes | None]) -> Offset:
        """Write records that stand from now on; they are durable once `wait_flushed` returns."""
        now_ms = self._clock.now_ms()
        messages = [Message(value, key=name.encode()) for name, value in records.items()]
        entropy = os.urandom(UUID7_ENTROPY_BYTES)
        batch = encode_batch(messages, _LIMITS, now_ms=now_ms, entropy=entropy)
        try:
            end = self._store.append(batch, now_ms=now_ms, allow_duplicate=True).durable_at
        finally:
            self._flush_queue.request_flush()
        for name, value in records.items():
            self._remember(name, value)
        return end

    def _remember(self, name: str, value: bytes | None) -> None:
        if value is None:
            self._records.pop(name, None)
        else:
            self._records[name] = value

    async def compact(self) -> None:
        """Drop the history, if there is much of it."""
        size = sum(segment.end_position for segment in self._store.segments)
        live_bytes = sum(len(name) + len(value) for name, value in self._records.items())
        if size < HISTORY_BYTES_MIN or size < 4 * live_bytes or self._store.jobs:
            return
        now_ms = self._clock.now_ms()
        self._store.roll(now_ms)
        wanted = Wanted(keep_from=self._store.end, by_key=True, tombstone_grace_ms=0)
        for job in rewrites(self._store, wanted, now_ms=now_ms):
            await asyncio.to_thread(job.run)
            job.finish()

    def close(self) -> None:
        """Flush and let go of the folder."""
        self._flush_queue.close()


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
    return Metadata(store, flush_queue, clock)
