"""Fsyncs: run by the kernel, on threads, or those of many partitions together.

Each store has one fsync in flight at most, but a node has as many stores as it has partitions. A
disk takes as long for an fsync of a few bytes as for one of a few megabytes, so where many wait,
the whole file system is synced once for all of them (see `folders/file_system.py` for what that
means, and docs/decisions for what else was tried). A store that is alone in its haste notices
nothing of this: fewer than `TOGETHER_MIN` are run one by one, side by side.

Where the kernel runs an fsync by itself (`folders/aio.py`), the loop begins a few of them without a
thread: to hand one over and to be woken by it cost more than many a disk takes. All else is run on
threads: what the kernel does not take, what is more than a few, and everything for an owner that
has no loop.

Syncing a file system waits for whatever anybody wrote to it. So it is given up for a while when it
took longer than the fsyncs would have, and for good when it failed: then each file is asked itself.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import Protocol

from waterclock.model.errors import Closed, StorageFailed
from waterclock.storage.folders.folder import File, Folder

TOGETHER_MIN = 8
"""Measured: one sync of the file system costs as much as two or three fsyncs, and the more it
covers the less it costs for each."""
ASKED_MAX = 4
"""Fsyncs that the kernel runs at once, and none are begun while threads run any: those of many
partitions are to come together."""
SLOWER = 4
"""So many times as long as its fsyncs, and a sync of the file system waits for others' work ..."""
SLOW_S_MIN = 0.05
"""... if it takes this long at all ..."""
SLOW_BREAK_S_MIN, SLOW_BREAK_S = 0.1, 10.0
"""... and is not tried again for a while: twice as long each time, as one that is slow may have
been the first in a long time, with much to write."""


class FileSystem(Protocol):
    """What several files lie on."""

    def sync(self, files: Sequence[File]) -> list[StorageFailed | None]:
        """Make all that was written to these files durable; say of each what went wrong.

        Raises StorageFailed if that is not known: then sync each of them, and call this no more.
        """
        ...

    def covers(self, file: File) -> bool:
        """Tell whether a sync of it is one of this file, and of the names in its folder."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class AskedFsync(Protocol):
    """An fsync that the kernel was asked for."""

    def result(self) -> None:
        """Return when it is over, waiting for it if it is not; raise what `File.sync` raises."""
        ...


class AsyncFsyncs(Protocol):
    """Fsyncs that the kernel runs by itself; all but `AskedFsync.result` belongs to one loop."""

    def begin(self, file: File) -> AskedFsync | None:
        """Ask for an fsync of a file without waiting; None if it must be run on a thread."""
        ...

    def listen(self, loop: asyncio.AbstractEventLoop, on_ended: Callable[[], None]) -> None:
        """Have the loop call whenever there are some that `ended`; before the first is begun."""
        ...

    def ended(self) -> Sequence[AskedFsync]:
        """Return those that are over, each once, also if its result was asked for before."""
        ...

    def close(self) -> None:
        """Wait for those that are under way, and take no more."""
        ...


class Sync:
    """One fsync: begun and finished by the owner, run by anyone, once.

    The kernel tells of a failed write-back once and then forgets it. So a writer that must know
    that the disk is sound hears the fsync in flight first, instead of asking the disk again.
    """

    def __init__(self, file: File, end: int, *, folder: Folder | None = None) -> None:
        """With `folder`, the names in it are made durable, too."""
        self.file = file
        self.end = end
        self.owner: Stepped | None = None
        """The flush queue that hears how it ended, where one does."""
        self._folder = folder
        # Not a plain lock: a simulated disk calls back into the owner in the middle of an fsync.
        self._lock = threading.RLock()
        self._asked: AskedFsync | None = None
        self._is_over = False
        self._error: Exception | None = None

    def __repr__(self) -> str:
        return f"<Sync of {self.file.name} up to {self.end}>"

    @property
    def is_well(self) -> bool:
        """It is over, and nothing went wrong."""
        return self._is_over and self._error is None

    def begin(self, kernel: AsyncFsyncs) -> AskedFsync | None:
        """Have the kernel run it, and whoever runs it wait for that; None if it is yet to be run.

        Call `run` when it is over.
        """
        # Its owner may be running it, and that may take as long as the disk.
        if self._folder is not None or not self._lock.acquire(blocking=False):
            return None
        try:
            if self._is_over or self._asked is not None:
                return None
            self._asked = kernel.begin(self.file)
            return self._asked
        finally:
            self._lock.release()

    def run(self) -> None:
        """Wait for the disk; raise StorageFailed if it failed, also to later callers."""
        with self._lock:
            if not self._is_over:
                self._error = self._sync()
                self._is_over = True
        error = self._error
        if error is not None:
            raise StorageFailed(str(error) or type(error).__name__) from error

    def _sync(self) -> Exception | None:
        try:
            if self._asked is not None:
                self._asked.result()
                return None
            # A segment closed meanwhile was rewritten: sealed, and so durable, before that.
            with suppress(Closed):
                self.file.sync()
            self._sync_folder()
        # Any error: after it nobody knows what was written, and an owner may wait for it.
        except Exception as error:
            return error
        return None

    def _sync_folder(self) -> None:
        if self._folder is not None:
            self._folder.sync()

    @staticmethod
    def run_together(syncs: Sequence["Sync"], file_system: FileSystem) -> None:
        """Run several at once. Raises what the file system raises; then all are still to be run."""
        held: list[Sync] = []
        try:
            # Whoever runs one of them meanwhile waits here, as for its own fsync.
            for sync in syncs:
                sync._lock.acquire()
                held.append(sync)
            fresh = [sync for sync in syncs if not sync._is_over]
            errors = file_system.sync([sync.file for sync in fresh])
            for sync, error in zip(fresh, errors, strict=True):
                if sync._is_over:
                    continue
                if sync._folder is None or error is not None:
                    sync._error = error
                else:
                    sync._error = sync._names_error(file_system)
                sync._is_over = True  # last: it is asked without the lock
        finally:
            for sync in held:
                sync._lock.release()

    def _names_error(self, file_system: FileSystem) -> StorageFailed | None:
        """Make the names durable that the file system did not cover; say what went wrong."""
        try:
            if not file_system.covers(self.file):
                self._sync_folder()
        except StorageFailed as error:
            return error
        return None


OnFsynced = Callable[[Sequence[Sync], Sequence[Exception | None], float], None]
"""Hears which fsyncs were run, what went wrong with each, and how many seconds it took."""


_Task = tuple[Sync, OnFsynced]
_ON_END = itemgetter(1)


class FsyncThreads:
    """Threads that run fsyncs, `count` at once; started when first needed."""

    def __init__(
        self,
        count: int,
        file_system: FileSystem | None = None,
        *,
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._count = count
        self._file_system = file_system
        self._now_s = now_s
        self._todo: deque[_Task] = deque()
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._idle = 0
        self._is_waking = False
        self._is_stopping = False
        self._is_together = False
        """The file system is being synced: only one at a time hears of its errors."""
        self._alone_s = 0.0
        """What an fsync takes, by the last ones."""
        self._apart_until_s = 0.0
        self._break_s = SLOW_BREAK_S_MIN

    @property
    def is_idle(self) -> bool:
        """Nothing is being run, nor waits for that, as far as can be told without waiting."""
        return not self._todo and self._idle == len(self._threads)

    def submit(self, syncs: Sequence[Sync], on_end: OnFsynced) -> None:
        """Run these, each by itself or with others, then tell `on_end`, all on the threads.

        Submit those of many stores as one: a thread that is woken by the first of many would take
        that one alone, and fight with its owner over the others. `on_end` may hear of them one by
        one, in any order.
        """
        with self._changed:
            self._todo.extend([(sync, on_end) for sync in syncs])
            if self._idle:
                self._wake()
            for _ in syncs[self._idle :]:
                if len(self._threads) < self._count:
                    self._start_thread()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._loop, name="waterclock-fsync", daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Finish what was submitted, then end."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _wake(self) -> None:
        """Wake one thread for all that is submitted until it runs: each waking costs the owner."""
        if not self._is_waking:
            self._is_waking = True
            self._changed.notify()

    def _loop(self) -> None:
        while tasks := self._take():
            begun = self._now_s()
            errors = self.run([sync for sync, _ in tasks])
            seconds = self._now_s() - begun
            self.learn(len(tasks), seconds)
            _tell(tasks, errors, seconds)
            del tasks

    def _take(self) -> list[_Task]:
        """Wait for something to do; return nothing at the end."""
        with self._changed:
            while True:
                self._is_waking = False
                tasks = self._next()
                if tasks:
                    if self._todo and self._idle:
                        self._wake()
                    return tasks
                if self._is_stopping and not self._todo:
                    self._changed.notify_all()  # others may have stayed for what there was
                    return []
                self._idle += 1
                self._changed.wait()
                self._idle -= 1

    def _next(self) -> list[_Task]:
        """Return one task, or all of them; or none, if it is better to wait."""
        is_many = len(self._todo) >= TOGETHER_MIN and self._file_system is not None
        if not self._todo or not is_many or self._now_s() < self._apart_until_s:
            return [self._todo.popleft()] if self._todo else []
        if self._is_together:
            return []  # they share the next one
        self._is_together = True
        tasks = list(self._todo)
        self._todo.clear()
        return tasks

    def run(self, syncs: list[Sync]) -> list[Exception | None]:
        """Run one, or several together, here and now; say of each what went wrong."""
        if len(syncs) > 1 and self._file_system is not None:
            self._run_together(syncs, self._file_system)
        return [None if sync.is_well else _error_of(sync) for sync in syncs]

    def _run_together(self, syncs: list[Sync], file_system: FileSystem) -> None:
        try:
            Sync.run_together(syncs, file_system)
        except StorageFailed:
            # It tells of an error once, whosever that is: the next sync would know of nothing.
            self._file_system = None
        finally:
            with self._changed:
                self._is_together = False
                if self._todo and self._idle:
                    self._wake()

    def learn(self, count: int, seconds: float) -> None:
        """Note how long one took, or many together, whoever ran it."""
        if count == 1:
            self._alone_s += (seconds - self._alone_s) / 8
        elif seconds > max(SLOW_S_MIN, SLOWER * count * self._alone_s):
            self._apart_until_s = self._now_s() + self._break_s
            self._break_s = min(2 * self._break_s, SLOW_BREAK_S)
        else:
            self._break_s = SLOW_BREAK_S_MIN


def _tell(tasks: Sequence[_Task], errors: Sequence[Exception | None], seconds: float) -> None:
    """Tell of what was run: once for all that have one to be told."""
    begin = 0
    for on_end, group in groupby(tasks, _ON_END):
        syncs = [sync for sync, _ in group]
        end = begin + len(syncs)
        on_end(syncs, errors[begin:end], seconds)
        begin = end


def _error_of(sync: Sync) -> Exception | None:
    """Run it, if that has not been done, and return what went wrong."""
    try:
        sync.run()
    # Any error: an owner would wait for ever for a thread that has died.
    except Exception as error:
        return error
    return None


class Stepped(Protocol):
    """A flush queue, as seen from here."""

    def begin(self) -> Sync | None:
        """Return the fsync to be run now, if there is one."""
        ...

    def finish(self, sync: Sync, error: Exception | None, seconds: float) -> None:
        """Hear how it ended."""
        ...


class FlushTurns:
    """Steps the flush queues of a node together: in each turn of its loop all that wish it.

    A batch over a thousand partitions leaves a little in many logs, and what is done for each of
    them is the price of a message. So the fsyncs that are begun in one turn are handed over as one
    round, and what has ended meanwhile comes back as one call to the loop. All but
    `call_threadsafe` belongs to that loop.
    """

    def __init__(self, fsyncs: FsyncThreads, kernel: AsyncFsyncs | None = None) -> None:
        """`kernel` runs a few of them without a thread, where it can."""
        self._fsyncs = fsyncs
        self._kernel = kernel
        self._asked: dict[AskedFsync, tuple[Sync, float]] = {}
        """What the kernel runs, and since when."""
        self._due: deque[Stepped] = deque()
        self._ended: deque[tuple[Sync, Exception | None, float]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_set = False
        self._is_listening = False

    def call_soon(self, loop: asyncio.AbstractEventLoop, queue: Stepped) -> None:
        """Have a queue begin what is due, with all others of this turn; the same loop each time."""
        self._due.append(queue)
        if not self._is_set:
            self._loop = loop
            self._set(loop.call_soon)

    def call_threadsafe(self, loop: asyncio.AbstractEventLoop, queue: Stepped) -> None:
        """The same, from any thread."""
        self._due.append(queue)
        if not self._is_set:
            self._loop = loop
            self._set(loop.call_soon_threadsafe)

    def _set(self, call: Callable[..., object]) -> None:
        self._is_set = True
        try:
            call(self._turn)
        except RuntimeError:
            self._is_set = False  # the loop was closed
            raise

    def _turn(self) -> None:
        begun: list[Sync] = []
        try:
            try:
                self._finish_ended()
            finally:
                self._is_set = False  # what comes from now on is for the next turn
            self._begin_due(begun)
        finally:
            if begun:
                self._run(begun)
            # Also if one has raised: the others are stepped all the same.
            if (self._due or self._ended) and not self._is_set:
                assert self._loop is not None
                self._set(self._loop.call_soon)

    def _finish_ended(self) -> None:
        ended = self._ended
        while ended:
            sync, error, seconds = ended.popleft()
            assert sync.owner is not None
            sync.owner.finish(sync, error, seconds)

    def _begin_due(self, begun: list[Sync]) -> None:
        due = self._due
        for _ in range(len(due)):
            queue = due.popleft()
            sync = queue.begin()
            if sync is not None:
                sync.owner = queue
                begun.append(sync)

    def _run(self, begun: list[Sync]) -> None:
        """Have a few run by the kernel; or all by threads, that they may be synced as one."""
        kernel, count = self._kernel, len(self._asked) + len(begun)
        if kernel is not None and count <= ASKED_MAX and self._fsyncs.is_idle:
            begun = [sync for sync in begun if not self._ask(kernel, sync)]
        if begun:
            self._fsyncs.submit(begun, self._fsynced)

    def _ask(self, kernel: AsyncFsyncs, sync: Sync) -> bool:
        if not self._is_listening:
            assert self._loop is not None
            kernel.listen(self._loop, self._kernel_ended)
            self._is_listening = True
        begun_s = time.perf_counter()
        asked = sync.begin(kernel)
        if asked is None:
            return False
        self._asked[asked] = (sync, begun_s)
        return True

    def _kernel_ended(self) -> None:
        """Finish what the kernel has run, in this turn of the loop."""
        assert self._kernel is not None
        for asked in self._kernel.ended():
            sync, begun_s = self._asked.pop(asked)
            seconds = time.perf_counter() - begun_s
            self._fsyncs.learn(1, seconds)
            self._ended.append((sync, _error_of(sync), seconds))
        if self._ended and not self._is_set:
            self._is_set = True
            self._turn()

    def _fsynced(
        self, syncs: Sequence[Sync], errors: Sequence[Exception | None], seconds: float
    ) -> None:
        """On a thread: have the loop finish them."""
        self._ended.extend(zip(syncs, errors, [seconds] * len(syncs), strict=True))
        if not self._is_set:
            assert self._loop is not None
            # A loop that was closed meanwhile needs no waking.
            with suppress(RuntimeError):
                self._set(self._loop.call_soon_threadsafe)
