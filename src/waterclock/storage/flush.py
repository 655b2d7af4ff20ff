"""Making a log durable: when to fsync, one fsync, and the callers that wait for it.

`always`    each append is fsynced before it returns: one publish, one fsync.
`group`     one fsync in flight; everything that waited meanwhile shares the next. The default:
            the slower the disk, the larger the groups, so throughput stays and latency is at most
            two fsyncs.
`interval`  acknowledged when written to the page cache, fsynced every `interval_ms`: a crash of the
            *machine* may lose that much. A crash of the process loses nothing.

A `FlushPlan` decides; the store hands out a `Sync` for each fsync it wants and hears how it ended.
`GroupCommit` has them run, and side-car jobs, by what stores share (`fsyncs.py`): the owner of
a store calls `step` after appending. A plain loop then waits with `wait_for`; under an event loop a
`FlushQueue` is stepped with all others of the loop (`FlushTurns`) and wakes the callers that wait.
The threads touch neither the store nor each other: they run what they are handed and hand it
back.

A thread that comes back from fsync needs the interpreter lock, which a busy owner gives up only
every `sys.getswitchinterval()` (5 ms by default, longer than the fsync). A process that owns stores
should lower it: see `SWITCH_INTERVAL_S`.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING

from waterclock.model.clock import Clock
from waterclock.model.errors import Closed, StorageError, StorageFailed, WaterclockError
from waterclock.model.sections import Fsync
from waterclock.storage.fsyncs import AsyncFsyncs, FileSystem, FlushTurns, FsyncThreads, Sync
from waterclock.storage.jobs import Ended, Threads, Work
from waterclock.storage.waiters import Waiters

if TYPE_CHECKING:
    from waterclock.storage.partition_store import PartitionStore

SWITCH_INTERVAL_S = 0.0005
"""Measured: at 5 ms a busy owner lets 167 fsyncs a second through, at 0.2 ms 1,572."""
FSYNCS_AT_ONCE = 4


class FlushPlan:
    """How far the log is appended, being fsynced, fsynced, and committed.

    In a log that only one node has, what is flushed is committed. A replicated log is told how far
    a majority of its replicas has flushed, and shows nothing above that, nor above its own flush.
    """

    __slots__ = (
        "appended_end",
        "committed_end",
        "flushed_end",
        "interval_ms",
        "is_syncing",
        "last_sync_ms",
        "policy",
    )

    def __init__(self, policy: Fsync, *, interval_ms: int, end: int) -> None:
        self.policy = policy
        self.interval_ms = interval_ms
        self.appended_end = end
        self.flushed_end = end
        self.committed_end: int | None = None
        """How far a majority has flushed; None where nobody else has a copy."""
        self.is_syncing = False
        self.last_sync_ms = 0

    def __repr__(self) -> str:
        return f"<FlushPlan {self.policy}, {self.flushed_end} of {self.appended_end} flushed>"

    @property
    def acknowledged_end(self) -> int:
        """Messages below this may be acknowledged and read."""
        end = self.appended_end if self.policy == "interval" else self.flushed_end
        committed = self.committed_end
        return end if committed is None or end < committed else committed

    def commit(self, end: int) -> None:
        """Note that a majority has flushed everything below `end`; late news changes nothing."""
        self.committed_end = max(self.committed_end or 0, end)

    def wants_sync(self, now_ms: int) -> bool:
        """Tell whether an fsync should start now."""
        if self.is_syncing or self.flushed_end >= self.appended_end:
            return False
        return self.policy != "interval" or now_ms >= self.last_sync_ms + self.interval_ms

    def start(self, now_ms: int) -> int:
        """Note that an fsync starts; return the end it will make durable when it succeeds."""
        assert not self.is_syncing, "one fsync in flight"
        self.is_syncing = True
        self.last_sync_ms = now_ms
        return self.appended_end

    def finish(self, end: int) -> None:
        """Note that the fsync succeeded."""
        self.is_syncing = False
        assert end <= self.appended_end
        if end > self.flushed_end:
            self.flushed_end = end

    def advance(self, end: int) -> None:
        """Note that everything below `end` is durable, by whatever fsync."""
        assert end <= self.appended_end
        self.flushed_end = max(self.flushed_end, end)


class BackgroundThreads:
    """The threads that all stores of a node share, or that one store has to itself."""

    def __init__(
        self,
        fsyncs_at_once: int = FSYNCS_AT_ONCE,
        file_system: FileSystem | None = None,
        kernel: AsyncFsyncs | None = None,
    ) -> None:
        """`file_system`: where all stores have their files, if it can sync many of them at once.

        `kernel`: runs fsyncs without a thread, where it can.
        """
        self._file_system = file_system
        self._kernel = kernel
        self.fsyncs = FsyncThreads(fsyncs_at_once, file_system)
        self.jobs = Threads("waterclock-jobs")
        self.turns = FlushTurns(self.fsyncs, kernel)

    def stop(self) -> None:
        """End them, once no store needs them any more; in the loop, if they had one."""
        self.fsyncs.stop()
        self.jobs.stop()
        if self._kernel is not None:
            self._kernel.close()
        if self._file_system is not None:
            self._file_system.close()


class _Jobs:
    """The job that one store has running on a thread, and what has come back."""

    def __init__(self, threads: Threads, on_done: Callable[[], object]) -> None:
        self.is_running = False
        self._threads = threads
        self._done: SimpleQueue[Ended] = SimpleQueue()
        self._on_done = on_done

    def start(self, work: Work) -> None:
        assert not self.is_running
        self.is_running = True
        self._threads.submit(work, self._ended)

    def take(self, *, block: bool) -> Ended | None:
        """Return what has ended, waiting for it if asked to."""
        if not self.is_running or (not block and self._done.empty()):
            return None
        ended = self._done.get()
        self.is_running = False
        return ended

    def _ended(self, ended: Ended) -> None:
        self._done.put(ended)
        # A loop that was closed meanwhile needs no waking.
        with suppress(RuntimeError):
            self._on_done()


class GroupCommit:
    """Keeps one store flushed and its side-cars saved. All methods belong to the store's owner,
    who calls `step`, or runs what `begin` returns and tells `finish` how it ended."""

    def __init__(
        self,
        store: "PartitionStore",
        clock: Clock,
        *,
        threads: BackgroundThreads | None = None,
        on_done: Callable[[], object] = lambda: None,
        on_fsync: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`threads` are shared; without them the store has two of its own."""
        self._store = store
        self._clock = clock
        self._is_by_interval = store.log.fsync == "interval"
        self._own_threads = BackgroundThreads(1) if threads is None else None
        threads = threads or self._own_threads
        assert threads is not None
        self.threads = threads
        self._fsynced: SimpleQueue[tuple[Sync, Exception | None, float]] = SimpleQueue()
        self._jobs = _Jobs(threads.jobs, on_done)
        self._on_done = on_done
        self._on_fsync = on_fsync
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))

    def begin(self) -> Sync | None:
        """Take in the jobs that are done and start what is due; return the fsync to be run.

        Raises StorageFailed if the disk failed.
        """
        if self._store.jobs or self._jobs.is_running:
            self._advance_jobs()
        # Else nobody asks when it was: a node with a thousand logs would ask the clock for each.
        now_ms = self._clock.monotonic_ms() if self._is_by_interval else 0
        return self._store.begin_sync(now_ms)

    def finish(self, sync: Sync, error: Exception | None, seconds: float) -> None:
        """Take in an fsync that was run; raises StorageFailed if it failed."""
        if sync is not self._store.in_flight:
            return  # the owner could not wait, and has heard of it before
        failure = None if error is None else _failure(error)
        self._store.finish_sync(sync, failure)
        if failure is not None:
            raise failure from error
        self._on_fsync(seconds)

    def step(self) -> None:
        """Take in what is done and start what is due. Raises StorageFailed if the disk failed."""
        while not self._fsynced.empty():
            self.finish(*self._fsynced.get())
        sync = self.begin()
        if sync is not None:
            self.threads.fsyncs.submit([sync], self._ended)

    def _ended(
        self, syncs: Sequence[Sync], errors: Sequence[Exception | None], seconds: float
    ) -> None:
        for sync, error in zip(syncs, errors, strict=True):
            self._fsynced.put((sync, error, seconds))
        # A loop that was closed meanwhile needs no waking.
        with suppress(RuntimeError):
            self._on_done()

    def wait_for(self, end: int) -> None:
        """Return when everything below `end` may be acknowledged."""
        self.step()
        while self._store.acknowledged_end < end:
            self._await_fsync()
            self.step()

    def _await_fsync(self) -> None:
        """Hear how the fsync in flight ends: from the thread that runs it, or by running it."""
        sync = self._store.in_flight
        if sync is None:
            return
        begun = time.perf_counter()
        error: Exception | None = None
        try:
            sync.run()
        except Exception as failure:  # any error: nobody knows what was written
            error = failure
        self.finish(sync, error, time.perf_counter() - begun)

    def _collect_job(self, *, block: bool) -> None:
        ended = self._jobs.take(block=block)
        if ended is None:
            return
        jobs = self._store.jobs
        # Not there any more if the owner ran and finished it himself, as a rewrite does.
        job = jobs.popleft() if jobs and jobs[0] is ended.work else None
        if ended.error is not None:
            self._store.fail(ended.error)
            raise _failure(ended.error) from ended.error
        if job is not None:
            job.finish()

    def _advance_jobs(self) -> None:
        self._collect_job(block=False)
        if self._store.jobs and not self._jobs.is_running:
            self._jobs.start(self._store.jobs[0])

    def close(self) -> None:
        """Wait for what is running, flush the rest and close the store."""
        with ExitStack() as rest:  # also when one of these fails: nothing may run on a closed store
            rest.callback(self._store.close)
            if self._own_threads is not None:
                rest.callback(self._own_threads.stop)
            rest.callback(self._collect_job, block=True)
            self._await_fsync()


class FlushQueue:
    """Keeps a store flushed and wakes the tasks that wait for it. Belongs to a loop; made
    anywhere."""

    def __init__(
        self,
        store: "PartitionStore",
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        threads: BackgroundThreads | None = None,
        on_fsync: Callable[[float], None] = lambda seconds: None,
        on_failed: Callable[[WaterclockError], None] = lambda error: None,
    ) -> None:
        self._store = store
        self._plan = store.plan
        self._is_by_interval = store.log.fsync == "interval"
        self._loop = loop
        self._waiters = Waiters(loop)
        self._flush_waiters = Waiters(loop)
        self._listeners: list[Callable[[], None]] = []
        self._announced = int(store.acknowledged_end)
        self.on_moved: Callable[[], None] | None = None
        """Called when the log has grown, or more of it is durable: a leader tells its followers."""
        self._end, self._flushed_end = int(store.end), int(store.flushed_end)
        self._is_step_due = False
        self._is_timer_set = False
        self._failure: WaterclockError | None = None
        self._on_failed = on_failed
        self._group = GroupCommit(
            store, clock, threads=threads, on_done=self._job_ended, on_fsync=on_fsync
        )
        self._turns = self._group.threads.turns

    def __repr__(self) -> str:
        return f"<FlushQueue {len(self._waiters)} waiting, {self._store!r}>"

    def request_flush(self) -> None:
        """Have what was written made durable, together with all else of this turn of the loop.

        You must call this after a write that raised, too: if the store failed, the node must end.
        """
        if not self._is_step_due:
            self._is_step_due = True
            self._turns.call_soon(self._loop, self)

    def _job_ended(self) -> None:
        self._turns.call_threadsafe(self._loop, self)

    def is_flushed(self, end: int) -> bool:
        """Tell whether `wait_flushed` would return at once, and without an error."""
        return self._failure is None and self._plan.acknowledged_end >= end

    async def wait_flushed(self, end: int) -> None:
        """Return when everything below `end` may be acknowledged."""
        if self._failure is not None:
            raise self._failure
        if self._store.acknowledged_end >= end:
            return
        await self._waiters.wait(end)

    def notify_flushed(self, end: int, call: Callable[[Exception | None], None]) -> None:
        """Call when everything below `end` may be acknowledged, or with why it may not; perhaps at
        once. The call must not raise."""
        if self._failure is not None or self._store.acknowledged_end >= end:
            call(self._failure)
        else:
            self._waiters.notify(end, call)

    def notify_flushed_here(self, end: int, call: Callable[[Exception | None], None]) -> None:
        """The same when everything below `end` is durable here, committed or not."""
        if self._failure is not None or self._store.flushed_end >= end:
            call(self._failure)
        else:
            self._flush_waiters.notify(end, call)

    def on_readable(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back each time more can be read; return how to stop that."""
        self._listeners.append(callback)

        def stop() -> None:
            if callback in self._listeners:
                self._listeners.remove(callback)

        return stop

    def begin(self) -> Sync | None:
        """Start what is due; return the fsync to be run. Called by the turns of the loop."""
        self._is_step_due = False
        if self._failure is not None:
            return None
        try:
            sync = self._group.begin()
        # Any error: the tasks that wait would do so for ever, and the node seem sound.
        except Exception as error:
            self._stop(error)
            return None
        self._tell()
        if self._is_by_interval and self._plan.flushed_end < self._plan.appended_end:
            self._wake_later()
        return sync

    def finish(self, sync: Sync, error: Exception | None, seconds: float) -> None:
        """Take in an fsync that was run, and have the next begin if there is more to flush."""
        if self._failure is not None:
            return
        try:
            self._group.finish(sync, error, seconds)
        except Exception as failure:  # as above
            self._stop(failure)
            return
        self._tell()
        if self._plan.flushed_end < self._plan.appended_end or self._store.jobs:
            self.request_flush()

    def _stop(self, error: Exception) -> None:
        self._store.fail(error)
        failure = error if isinstance(error, StorageError) else StorageFailed(repr(error))
        self._fail(failure)
        self._on_failed(failure)

    def _tell(self) -> None:
        """Tell whoever wants to hear that the log has grown, or more of it is durable."""
        plan = self._plan
        end, flushed_end = plan.appended_end, plan.flushed_end
        if end != self._end or flushed_end != self._flushed_end:
            self._end, self._flushed_end = end, flushed_end
            if self._flush_waiters.heap:
                self._flush_waiters.reached(flushed_end)
            if self.on_moved is not None:
                self.on_moved()
        self._announce()

    def _wake_later(self) -> None:
        """Nobody waits under the policy `interval`, so a timer must ask for its fsyncs."""
        if not self._is_timer_set:
            self._is_timer_set = True
            self._loop.call_later(self._store.log.fsync_interval_ms / 1_000, self._timer_rang)

    def _timer_rang(self) -> None:
        self._is_timer_set = False
        self.request_flush()

    def committed(self) -> None:
        """Wake the tasks whose messages are committed now: a majority of replicas has them."""
        if self._failure is None:
            self._announce()

    def fail_waiting(self, error: WaterclockError) -> None:
        """Let go of all tasks that wait now, with an error; the queue goes on."""
        self._waiters.fail(error)
        self._flush_waiters.fail(error)

    def _announce(self) -> None:
        end = self._plan.acknowledged_end
        if end == self._announced:
            return
        self._announced = end
        if self._waiters.heap:
            self._waiters.reached(end)
        if self._listeners:
            for listener in tuple(self._listeners):
                listener()

    def _fail(self, error: WaterclockError) -> None:
        self._failure = error
        self.fail_waiting(error)

    def close(self) -> None:
        """Flush and close the store. Tasks that still wait are woken, with an error if need be."""
        has_failed = self._failure is not None
        self._failure = self._failure or Closed("the log was closed")
        try:
            self._group.close()
            if not has_failed:
                self._announce()
        finally:
            self._fail(self._failure)
            self._listeners.clear()


def _failure(error: Exception) -> StorageFailed:
    """Return what ends a store: after any error on a thread it is unknown what was written."""
    return StorageFailed(str(error) or type(error).__name__)
