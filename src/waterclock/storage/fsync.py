"""Group commit with real threads: fsyncs and side-car jobs run aside, on threads that stores share.

The owner of a store calls `step` after appending; it starts an fsync if one is due and none is in
flight, and takes in whatever has finished. Under an event loop, `on_done` wakes the loop to call
`step` again; a plain loop waits with `wait_for`. The threads touch neither the store nor each
other: they run what they are handed and hand it back.

A thread that comes back from fsync needs the interpreter lock, which a busy owner gives up only
every `sys.getswitchinterval()` (5 ms by default, longer than the fsync). A process that owns stores
should lower it: see `SWITCH_INTERVAL_S`.
"""

import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from waterclock.model.clock import Clock
from waterclock.model.errors import StorageFailed
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.writer import Sync

SWITCH_INTERVAL_S = 0.0005
"""Measured: at 5 ms a busy owner lets 167 fsyncs a second through, at 0.2 ms 1,572."""


class Work(Protocol):
    """Something to be run on a thread of its own."""

    def run(self) -> None:
        """Do it, blocking."""
        ...


class Ended(NamedTuple):
    """Work that was run."""

    work: Work
    error: Exception | None
    seconds: float


class Threads:
    """Threads that run what they are handed, `count` at once; started when first needed."""

    def __init__(self, name: str, count: int = 1) -> None:
        self._name = name
        self._count = count
        self._todo: SimpleQueue[tuple[Work, Callable[[Ended], None]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._waiting = 0
        self._lock = threading.Lock()

    def submit(self, work: Work, on_end: Callable[[Ended], None]) -> None:
        """Run it, then call `on_end`, both on one of the threads."""
        with self._lock:
            self._waiting += 1
            if self._waiting > len(self._threads) and len(self._threads) < self._count:
                thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()
        self._todo.put((work, on_end))

    def stop(self) -> None:
        """Finish what was submitted, then end."""
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join()

    def _loop(self) -> None:
        while (task := self._todo.get()) is not None:
            work, on_end = task
            error: Exception | None = None
            begun = time.perf_counter()
            try:
                work.run()
            # Also what nobody foresaw: an owner would wait for ever for a thread that has died.
            except Exception as failure:
                error = failure
            with self._lock:
                self._waiting -= 1
            on_end(Ended(work, error, time.perf_counter() - begun))
            del task, work, on_end  # what was saved may be large, and the next wait long


class _Aside:
    """The part of one store: what it has running, and what has come back."""

    def __init__(self, threads: Threads, on_done: Callable[[], None]) -> None:
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
    """Keeps one store flushed and its side-cars saved. All methods belong to the store's owner."""

    def __init__(
        self,
        store: PartitionStore,
        clock: Clock,
        on_done: Callable[[], None] = lambda: None,
        *,
        fsyncs: Threads | None = None,
        jobs: Threads | None = None,
        on_fsync: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._own = [Threads("waterclock-fsync"), Threads("waterclock-jobs")]
        self._fsync = _Aside(fsyncs or self._own[0], on_done)
        self._jobs = _Aside(jobs or self._own[1], on_done)
        self._on_fsync = on_fsync
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))

    def step(self) -> None:
        """Take in what is done and start what is due. Raises StorageFailed if the disk failed."""
        self._collect_fsync(block=False)
        self._advance_jobs()
        sync = self._store.begin_sync(self._clock.monotonic_ms())
        if sync is not None:
            self._fsync.start(sync)

    def wait_for(self, end: int) -> None:
        """Return when everything below `end` may be acknowledged."""
        self.step()
        while self._store.acknowledged_end < end:
            self._collect_fsync(block=True)
            self.step()

    def _collect_fsync(self, *, block: bool) -> None:
        ended = self._fsync.take(block=block)
        if ended is None:
            return
        assert isinstance(ended.work, Sync)
        failure = None if ended.error is None else _failure(ended.error)
        self._store.finish_sync(ended.work, failure)
        if failure is not None:
            raise failure from ended.error
        self._on_fsync(ended.seconds)

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
            for threads in self._own:
                rest.callback(threads.stop)
            rest.callback(self._collect_job, block=True)
            self._collect_fsync(block=True)


def _failure(error: Exception) -> StorageFailed:
    """Return what ends a store: whatever went wrong aside, nobody can tell what was done."""
    return StorageFailed(str(error) or type(error).__name__)
