"""Streams in our own log, on the node's disk: the default, which needs nothing else.

All streams share one partition log (`streams.py`). What removals leave behind is dropped when the
log is rewritten, which `purge` does once most of it is of no use. One process has the folder.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from waterclock.log.append import Appended
from waterclock.log.batch import Batch
from waterclock.model.errors import Closed, PartitionFaulty
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.model.units import MIB
from waterclock.runtime.clock import SystemClock
from waterclock.storage.flush import FlushQueue
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.opening import open_partition
from waterclock.storage.partition_store import PartitionStore
from waterclock.stores.base import READ_BYTES_MAX, Page, Record, Stored
from waterclock.stores.log.streams import LogStreams

T = TypeVar("T")

LOG = LogConfig(segment_bytes=64 * MIB, preallocate_bytes=4 * MIB)
REWRITE_BYTES_MIN = 64 * MIB
"""A smaller log is not worth rewriting."""


class _OwnLog:
    """The log of a folder."""

    def __init__(self, store: PartitionStore, flush_queue: FlushQueue, clock: SystemClock) -> None:
        self.store = store
        self.flush_queue = flush_queue
        self._clock = clock

    def append(self, batch: Batch) -> Appended:
        try:
            return self.store.append(batch, now_ms=self._clock.now_ms())
        finally:
            self.flush_queue.request_flush()


class LogStore:
    """Streams in a folder."""

    is_shared = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clock = SystemClock()
        self._opened: LogStreams | None = None
        self._rewriting = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<LogStore {self._path} {self._opened}>"

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    @property
    def log(self) -> PartitionStore:
        """Its log, for those who copy it; raises Closed unless it is open."""
        return self._streams().partition

    async def open(self) -> None:
        """Open the folder, or begin one. Raises FolderInUse if another process has it."""
        opening = asyncio.get_running_loop().run_in_executor(None, self._load)
        try:
            streams = await _to_the_end(opening)
        except asyncio.CancelledError:
            if opening.exception() is None:
                opening.result().partition.close()
            raise
        log = streams.partition
        flush_queue = FlushQueue(log, SystemClock(), asyncio.get_running_loop())
        streams.log = _OwnLog(log, flush_queue, self._clock)
        self._opened = streams

    async def store(self, stream: str, records: Sequence[Record], *, now_ms: int) -> list[Stored]:
        """Store all of them in order, or none. They are durable on return."""
        return await self._streams().store(stream, records, now_ms=now_ms)

    async def read(
        self, stream: str, *, after: int, limit: int, now_ms: int, bytes_max: int = READ_BYTES_MAX
    ) -> Page:
        """Give messages at positions > `after`: at least one if there is one."""
        return self._streams().read(
            stream, after=after, limit=limit, now_ms=now_ms, bytes_max=bytes_max
        )

    async def delete(self, stream: str, *, older_than_ms: int | None = None) -> int:
        """Remove the messages stored before then, or all; say how many."""
        return await self._streams().delete(stream, older_than_ms=older_than_ms)

    async def purge(self, *, now_ms: int, limit: int = 1_000) -> int:
        """Remove expired messages, at most so many; then rewrite the log, if it is worth it."""
        count = await self._streams().purge(now_ms=now_ms, limit=limit)
        await self._rewrite()
        return count

    async def close(self) -> None:
        """Flush and let go of the folder. Again is harmless."""
        if self._opened is not None:
            streams, self._opened = self._opened, None
            streams.write_waiting()
            assert streams.log is not None
            flush_queue, streams.log = streams.log.flush_queue, None
            async with self._rewriting:  # which ends soon, as the store is closed
                flush_queue.close()

    def _streams(self) -> LogStreams:
        if self._opened is None:
            raise Closed("the store is not open")
        return self._opened

    def _load(self) -> LogStreams:
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
            streams = LogStreams(log, self._clock)
            streams.take_in()
        except BaseException:
            log.close()
            raise
        return streams

    async def _rewrite(self) -> None:
        """Write the log anew without what is of no use, if that is most of it."""
        streams = self._streams()
        if self._rewriting.locked() or streams.partition.jobs or not is_worth_rewriting(streams):
            return
        async with self._rewriting:
            rewriting, finish = streams.begin_rewrite(now_ms=self._clock.now_ms())
            loop = asyncio.get_running_loop()
            for job in rewriting.jobs():
                await _to_the_end(loop.run_in_executor(None, job.run))
                if self._opened is None:  # it ends early once the log is to be closed
                    return
                job.finish()
            finish()


def is_worth_rewriting(streams: LogStreams) -> bool:
    """Say if most of a log is of no use, and it is large."""
    size = sum(segment.end_position for segment in streams.partition.segments)
    return size >= REWRITE_BYTES_MIN and streams.rows > 2 * streams.kept + 1_000


async def _to_the_end(work: "asyncio.Future[T]") -> T:
    """Wait for work on a thread; if we are cancelled, still until it has ended."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
