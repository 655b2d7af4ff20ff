"""One partition in a node: its log, its flush queue and its timers.

Appending is one synchronous step (decide, write, note what is scheduled), then a wait for the disk.
A partition that cannot be opened stands here too, with its problem: the others go on.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from waterclock.log.append import Appended
from waterclock.log.batch import Batch
from waterclock.model.clock import Clock
from waterclock.model.config import Config
from waterclock.model.errors import PartitionFaulty, StorageError, WaterclockError
from waterclock.model.views import PartitionInfo
from waterclock.node.counters import PartitionCounters
from waterclock.node.partition.tracing import partition_spans
from waterclock.node.schedule.scheduler import Scheduler
from waterclock.storage.flush import BackgroundThreads, FlushQueue
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.opening import open_partition
from waterclock.storage.partition_store import PartitionStore

OPENINGS_AT_ONCE = 8

log = logging.getLogger(__name__)


class PartitionHost:
    """A partition of a topic. Make one with `open_host`."""

    def __init__(self, topic: str, partition: int, clock: Clock) -> None:
        self.topic = topic
        self.partition = partition
        self.clock = clock
        self.counters = PartitionCounters()
        self.problem: str | None = None
        """Why it could not be opened."""
        self.spans = partition_spans(topic, partition)
        self._opened: tuple[PartitionStore, FlushQueue, Scheduler] | None = None

    def __repr__(self) -> str:
        return f"<PartitionHost {self.topic}/{self.partition} {self._opened or self.problem}>"

    @property
    def store(self) -> PartitionStore:
        """The log; raises PartitionFaulty if it could not be opened."""
        return self._parts()[0]

    @property
    def flush_queue(self) -> FlushQueue:
        """Makes what is written durable, and wakes the tasks that wait for it."""
        return self._parts()[1]

    @property
    def scheduler(self) -> Scheduler:
        return self._parts()[2]

    @property
    def is_open(self) -> bool:
        """It can be read and, unless it is faulty, written."""
        return self._opened is not None

    def view(self) -> PartitionInfo:
        """Return the partition as it is now."""
        if not self.is_open:
            return PartitionInfo(self.partition, problem=self.problem or "is not open")
        store = self.store
        return PartitionInfo(
            self.partition,
            start_offset=store.start,
            end_offset=store.acknowledged_end,
            size_bytes=sum(segment.end_position for segment in store.segments),
            scheduled=len(self.scheduler),
            problem=f"damaged, takes no publishes: {store.faults[0]}" if store.faults else "",
        )

    async def publish(self, batch: Batch, *, allow_duplicate: bool = False) -> Appended:
        """Append a batch; it is durable on return."""
        begun = time.perf_counter()
        appended = self.append(batch, allow_duplicate=allow_duplicate)
        await self.flush_queue.wait_flushed(appended.durable_at)
        took_ms = (time.perf_counter() - begun) * 1_000
        self.counters.publish_ms.observe(took_ms)
        if self.spans is not None:
            self.spans.appended(batch.rows, took_ms)
        return appended

    def append(self, batch: Batch, *, allow_duplicate: bool = False) -> Appended:
        """Append a batch; you must wait until `durable_at` is flushed before you answer for it."""
        store, flush_queue, scheduler = self._parts()
        try:
            appended = store.append(
                batch, now_ms=self.clock.now_ms(), allow_duplicate=allow_duplicate
            )
        finally:
            flush_queue.request_flush()
        if appended.scheduled is not None:
            scheduler.add(*appended.scheduled)
        counters, new = self.counters, appended.new_count
        counters.batches += 1
        counters.published += new
        counters.published_bytes += len(batch.body)
        counters.duplicates += batch.count - new
        return appended

    def close(self) -> None:
        """Flush the log, save the timers, let go of the files."""
        if self._opened is not None:
            store, flush_queue, scheduler = self._opened
            with ExitStack() as rest:
                rest.callback(flush_queue.close)
                rest.callback(scheduler.close)
                # First, so that the timers can be saved as they are; after a failure they cannot.
                with suppress(StorageError):
                    store.sync()

    def _parts(self) -> tuple[PartitionStore, FlushQueue, Scheduler]:
        if self._opened is None:
            raise PartitionFaulty(f"{self.topic}/{self.partition} is not open: {self.problem}")
        return self._opened


async def open_all(openings: Sequence[Callable[[], PartitionHost]]) -> list[PartitionHost]:
    """Open partitions side by side, all or none: most of an opening is waiting for the disk."""
    if not openings:
        return []
    loop = asyncio.get_running_loop()
    threads = ThreadPoolExecutor(min(len(openings), OPENINGS_AT_ONCE), "waterclock-open")
    work = [loop.run_in_executor(threads, opening) for opening in openings]
    try:
        # A thread cannot be cancelled: the caller waits for it, or its host stays open for ever.
        await asyncio.shield(asyncio.gather(*work))
    except BaseException:
        await asyncio.wait(work)
        for done in work:
            if done.exception() is None:
                done.result().close()
        raise
    finally:
        threads.shutdown(wait=False)
    return [done.result() for done in work]


def open_host(
    topic: str,
    partition: int,
    *,
    folder: Path,
    config: Config,
    clock: Clock,
    threads: BackgroundThreads,
    loop: asyncio.AbstractEventLoop,
    on_failed: Callable[[WaterclockError], None],
    on_full: Callable[[StorageError], None],
    is_new: bool,
    new_log_id: bytes,
) -> PartitionHost:
    """Open a partition, or begin one; what cannot be opened is returned with its problem.

    `folder` has the log in `log/` and the saved timers in `timers/`. Blocks, on any thread; from
    then on all of it belongs to `loop`.
    """
    host = PartitionHost(topic, partition, clock)
    log_folder, timers_folder = folder / "log", folder / "timers"
    if not is_new and not log_folder.is_dir():
        # Beginning an empty log here would hide that the one that was here is gone.
        host.problem = f"its folder {log_folder} is missing: restore it, or delete the topic"
        return host
    try:
        # What the node's records name was durable before they were.
        opened_folder = OsFolder(log_folder, is_durable=not is_new)
        host._opened = _open_parts(
            host, opened_folder, timers_folder, config, threads, loop, on_failed, new_log_id
        )
        host.store.on_full = on_full
    except StorageError as error:
        if is_new:
            raise
        host.problem = str(error)
        log.error("partition_closed topic=%s/%d reason=%s", topic, partition, error)
    return host


def _open_parts(
    host: PartitionHost,
    folder: OsFolder,
    timers_folder: Path,
    config: Config,
    threads: BackgroundThreads,
    loop: asyncio.AbstractEventLoop,
    on_failed: Callable[[WaterclockError], None],
    new_log_id: bytes,
) -> tuple[PartitionStore, FlushQueue, Scheduler]:
    """Open a log and its timers, both or none: what is open already is closed again."""
    clock, counters = host.clock, host.counters
    with ExitStack() as undo:
        undo.callback(folder.close)
        store = open_partition(
            folder,
            log=config.log,
            dedup=config.dedup,
            now_ms=clock.now_ms(),
            new_log_id=new_log_id,
        )
        flush_queue = FlushQueue(
            store,
            clock,
            loop,
            threads=threads,
            on_fsync=lambda seconds: counters.fsync_ms.observe(seconds * 1_000),
            on_failed=on_failed,
        )
        undo.callback(flush_queue.close)
        scheduler = Scheduler.open(
            store, timers_folder, config.schedule, clock, counters, flush_queue
        )
        scheduler.firing.spans = host.spans
        undo.pop_all()
    return store, flush_queue, scheduler
