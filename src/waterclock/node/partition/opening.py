"""Opening partitions: of a node that is alone, all that there is; of one of several, a replica."""

import asyncio
import gc
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from waterclock.model.clock import Clock
from waterclock.model.config import Config
from waterclock.model.errors import (
    PartitionFaulty,
    StorageError,
    StorageFailed,
    WaterclockError,
)
from waterclock.node.partition.host import PartitionHost, Parts
from waterclock.node.schedule.cold_segments import LogTimers
from waterclock.node.schedule.scheduler import Scheduler
from waterclock.storage.flush import BackgroundThreads, FlushQueue
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.fsyncs import Sync
from waterclock.storage.installation.lost_log import note_if_lost
from waterclock.storage.opening import open_partition, open_unsettled
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.replica_log import ReplicaLog

AT_ONCE = 8
MANY = 64
"""More partitions than this are opened one by one: each is small then and waits for no disk, so
that threads would only fight for the interpreter."""

Unsettled = tuple[PartitionHost, Sync]
"""A partition that is open, and the fsync without which nothing may be done with it."""

log = logging.getLogger(__name__)


async def open_all(
    openings: Sequence[Callable[[], PartitionHost]], *, waits_for_disk: bool
) -> list[PartitionHost]:
    """Open partitions, all or none; side by side if there are few, or each `waits_for_disk`."""
    if not openings:
        return []
    loop = asyncio.get_running_loop()
    is_in_turn = len(openings) > MANY and not waits_for_disk
    shares = [openings] if is_in_turn else [[opening] for opening in openings]
    threads = ThreadPoolExecutor(min(len(shares), AT_ONCE), "waterclock-open")
    work = [loop.run_in_executor(threads, _open_in_turn, share) for share in shares]
    with _collecting_later():
        try:
            # A thread cannot be cancelled: the caller waits for it, or its host stays open for
            # ever.
            await asyncio.shield(asyncio.gather(*work))
        except BaseException:
            await asyncio.wait(work)
            for done in work:
                if done.exception() is None:
                    _close_all(done.result())
            raise
        finally:
            threads.shutdown(wait=False)
    return [host for done in work for host in done.result()]


def _open_in_turn(openings: Sequence[Callable[[], PartitionHost]]) -> list[PartitionHost]:
    """Open all or none; one job for many, as to hand over each would cost as much as to open it."""
    hosts: list[PartitionHost] = []
    try:
        hosts.extend(opening() for opening in openings)
    except BaseException:
        _close_all(hosts)
        raise
    return hosts


def _close_all(hosts: Iterable[PartitionHost]) -> None:
    for host in hosts:
        host.close()


@contextmanager
def _collecting_later() -> Iterator[None]:
    """Have the collector wait: all that is made here stays, and it would look at it again and
    again, for a seventh of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def settle(unsettled: Sequence[Unsettled], threads: BackgroundThreads) -> None:
    """Make durable what these logs were found with, all together; one that cannot be is dropped."""
    if not unsettled:
        return
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    errors: dict[Sync, Exception | None] = {}

    def ended(syncs: Sequence[Sync], found: Sequence[Exception | None], seconds: float) -> None:
        errors.update(zip(syncs, found, strict=True))
        if len(errors) == len(unsettled):
            # A loop that was closed meanwhile needs no waking.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

    threads.fsyncs.submit([sync for _, sync in unsettled], ended)
    try:
        await done.wait()
    except BaseException:
        for host, _ in unsettled:
            host.close()
        raise
    for host, sync in unsettled:
        error = errors[sync]
        if error is not None:
            failure = error if isinstance(error, StorageError) else StorageFailed(repr(error))
            log.error("partition_closed topic=%s/%d reason=%s", host.topic, host.partition, error)
            host.drop(failure)


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
    unsettled: list[Unsettled] | None = None,
) -> PartitionHost:
    """Open a partition, or begin one; what cannot be opened is returned with its problem.

    `folder` has the log in `log/` and the saved timers in `timers/`. Blocks, on any thread; from
    then on all of it belongs to `loop`. If there is a list of what is `unsettled`, you must have
    the loop `settle` it before anything is done with the host.
    """
    host = PartitionHost(topic, partition, clock)
    log_folder, timers_folder = folder / "log", folder / "timers"
    if not is_new and not log_folder.is_dir():
        # Beginning an empty log here would hide that the one that was here is gone.
        host.problem = f"its folder {log_folder} is missing: restore it, or delete the topic"
        return host
    syncs: list[Sync] | None = None if unsettled is None else []
    try:
        # What the node's records name was durable before they were.
        is_deferred = is_new and unsettled is not None
        opened_folder = OsFolder(log_folder, is_durable=not is_new, is_deferred=is_deferred)
        parts, scheduler = _open_parts(
            host, opened_folder, timers_folder, config, threads, loop, on_failed, new_log_id, syncs
        )
        host.take(parts, scheduler)
        host.store.on_full = on_full
        if unsettled is not None and syncs:
            unsettled.append((host, syncs[0]))
    except StorageError as error:
        if is_new:
            raise
        host.problem = str(error)
        log.error("partition_closed topic=%s/%d reason=%s", topic, partition, error)
    return host


def replica_host(
    topic: str,
    partition: int,
    *,
    log_folder: Path,
    timers_folder: Path | None,
    config: Config,
    clock: Clock,
    threads: BackgroundThreads,
    loop: asyncio.AbstractEventLoop,
    on_failed: Callable[[WaterclockError], None],
    on_full: Callable[[StorageError], None],
    log_id: bytes,
) -> PartitionHost:
    """Return the host of a partition that several nodes may have, closed.

    Whoever replicates it opens it where it has a replica. Without a folder it has no timers.
    """

    def open_log(*, was_here: bool) -> tuple[Parts, ReplicaLog]:
        with ExitStack() as undo:
            opened_folder = OsFolder(log_folder)
            undo.callback(opened_folder.close)
            if was_here and note_if_lost(opened_folder):
                log.error("replica_lost folder=%s: it learns anew before it votes", log_folder)
            store = _open_store(host, opened_folder, config, log_id)
            undo.callback(store.close)
            if store.log_id != log_id:
                found = store.log_id.hex()
                raise PartitionFaulty(f"{log_folder} has the log {found}, not {log_id.hex()}")
            store.on_full = on_full
            # Before its queue is made, which announces only what comes beyond what can be read.
            replica = ReplicaLog(store)
            flush_queue = _flush_queue_of(host, store, threads, loop, on_failed)
            undo.pop_all()
        return (store, flush_queue), replica

    def load(store: PartitionStore, flush_queue: FlushQueue, found: LogTimers) -> Scheduler:
        assert timers_folder is not None
        return Scheduler.open(
            store, timers_folder, config.schedule, clock, host.counters, flush_queue, found
        )

    def remove() -> bool:
        folders = [each for each in (log_folder, timers_folder) if each is not None]
        found = [each for each in folders if each.exists()]
        for folder in found:
            shutil.rmtree(folder)
        return bool(found)

    loading = None if timers_folder is None else load
    host = PartitionHost(topic, partition, clock, opening=open_log, loading=loading)
    host.removal = remove
    return host


def _open_store(
    host: PartitionHost,
    folder: OsFolder,
    config: Config,
    new_log_id: bytes,
    syncs: list[Sync] | None = None,
) -> PartitionStore:
    """With a list of `syncs`, the one that this log needs is added to it, and not run here."""
    now_ms = host.clock.now_ms()
    if syncs is None:
        return open_partition(
            folder, log=config.log, dedup=config.dedup, now_ms=now_ms, new_log_id=new_log_id
        )
    store, sync = open_unsettled(
        folder, log=config.log, dedup=config.dedup, now_ms=now_ms, new_log_id=new_log_id
    )
    syncs.append(sync)
    return store


def _flush_queue_of(
    host: PartitionHost,
    store: PartitionStore,
    threads: BackgroundThreads,
    loop: asyncio.AbstractEventLoop,
    on_failed: Callable[[WaterclockError], None],
) -> FlushQueue:
    return FlushQueue(
        store,
        host.clock,
        loop,
        threads=threads,
        on_fsync=lambda seconds: host.counters.fsync_ms.observe(seconds * 1_000),
        on_failed=on_failed,
    )


def _open_parts(
    host: PartitionHost,
    folder: OsFolder,
    timers_folder: Path,
    config: Config,
    threads: BackgroundThreads,
    loop: asyncio.AbstractEventLoop,
    on_failed: Callable[[WaterclockError], None],
    new_log_id: bytes,
    syncs: list[Sync] | None,
) -> tuple[Parts, Scheduler]:
    """Open a log and its timers, both or none: what is open already is closed again."""
    with ExitStack() as undo:
        undo.callback(folder.close)
        store = _open_store(host, folder, config, new_log_id, syncs)
        flush_queue = _flush_queue_of(host, store, threads, loop, on_failed)
        undo.callback(flush_queue.close)
        scheduler = Scheduler.open(
            store, timers_folder, config.schedule, host.clock, host.counters, flush_queue
        )
        scheduler.firing.spans = host.spans
        undo.pop_all()
    return (store, flush_queue), scheduler
