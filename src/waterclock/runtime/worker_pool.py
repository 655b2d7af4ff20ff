"""Worker pools: long-lived coroutines, or threads for functions that block.

No task is made for an item. A worker takes one item after the other from the queue they share; with
a function that does not suspend, one coroutine does everything there is without a turn of the loop.
What became of an item goes to `settle`, on the loop: what the call returned, or what it raised.

Few are woken at first: a function of microseconds is done fastest by one, and a crowd of threads
would fight for the interpreter. As long as items wait, more are woken: coroutines by each other,
threads every millisecond, twice as many each time.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

WAKE_COUNT = 3
WAKE_S = 0.001
YIELD_S = 0.005
"""A function that never suspends lets others run this often."""

current_item: ContextVar[Any] = ContextVar("waterclock.worker_pool", default=None)
"""The item that a worker is at; it holds in everything the function awaits and in tasks it starts.
Workers set it."""

Item = TypeVar("Item")
Settle = Callable[[Item, object, float], None]
"""Called on the loop with an item, what came of it, and how long the call took in seconds. If it
raises, the task group of the pool fails."""


class WorkerPool(Protocol[Item]):
    """Workers of one kind."""

    count: int
    """How many there may be."""

    def start(self, count: int) -> None:
        """Have so many workers from now on; those too many end when they are done with an item."""
        ...

    def give(self, items: Sequence[Item]) -> None:
        """Queue items."""
        ...

    def take_back(self) -> list[Item]:
        """Return what was queued and not begun."""
        ...

    def at_work(self) -> list[tuple[Item, float]]:
        """Return what is worked on, and since when on the monotonic clock."""
        ...

    def busy_seconds(self) -> float:
        """Return the time all workers were busy so far, added up."""
        ...

    def stop(self) -> None:
        """End all workers as soon as they can be; a thread that works on is not waited for."""
        ...


class _Work(Generic[Item]):
    """What one worker is at."""

    __slots__ = ("busy_s", "item", "since")

    def __init__(self) -> None:
        self.item: Item | None = None
        self.since = 0.0
        self.busy_s = 0.0


class CoroutinePool(Generic[Item]):
    """Workers for async functions, on the loop they were made on.

    `refill` is called when the queue is empty, and may give more at once.
    """

    def __init__(
        self,
        call: Callable[[Item], Awaitable[object]],
        *,
        tasks: asyncio.TaskGroup,
        settle: Settle[Item],
        refill: Callable[[], None] = lambda: None,
    ) -> None:
        self._call = call
        self._tasks = tasks
        self._settle = settle
        self._refill = refill
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._workers: dict[asyncio.Task[None], _Work[Item]] = {}
        self._yield_at = 0.0
        self._is_stopped = False
        self._busy_s = 0.0
        self._changed_at = self._loop.time()
        self.count = 0

    def start(self, count: int) -> None:
        """Have so many workers; those too many end when they have nothing to do."""
        self._note()
        self.count = count
        while len(self._workers) < count:
            work: _Work[Item] = _Work()
            task = self._tasks.create_task(self._work(work))
            self._workers[task] = work
            task.add_done_callback(lambda ended: self._workers.pop(ended, None))
        self._wake(max(0, len(self._workers) - count))

    def give(self, items: Sequence[Item]) -> None:
        """Queue items."""
        self._items.extend(items)
        self._wake(WAKE_COUNT)

    def take_back(self) -> list[Item]:
        """Return what was queued and not begun."""
        taken = list(self._items)
        self._items.clear()
        return taken

    def at_work(self) -> list[tuple[Item, float]]:
        """Return what is worked on, and since when."""
        return [(each.item, each.since) for each in self._workers.values() if each.item is not None]

    def busy_seconds(self) -> float:
        """Return the time all workers were busy so far, added up."""
        self._note()
        return self._busy_s

    def stop(self) -> None:
        """Cancel all workers."""
        self._is_stopped = True
        for task in self._workers:
            task.cancel()

    def _note(self) -> None:
        now = self._loop.time()
        self._busy_s += (now - self._changed_at) * (len(self._workers) - len(self._idle))
        self._changed_at = now

    def _wake(self, count: int) -> None:
        idle = self._idle
        while count > 0 and idle:
            sleeper = idle.pop()
            if not sleeper.done():
                sleeper.set_result(None)
                count -= 1

    async def _rest(self) -> None:
        self._note()
        sleeper = self._loop.create_future()
        self._idle.append(sleeper)
        try:
            await sleeper
        except asyncio.CancelledError:
            # Only then it may still stand there; to look each time takes long if many rest.
            if sleeper in self._idle:
                self._idle.remove(sleeper)
            raise
        finally:
            self._note()
        if self._items:
            self._wake(WAKE_COUNT)

    async def _work(self, work: _Work[Item]) -> None:
        # One function: a coroutine that waits for another is gone through at every step.
        items, workers, call, settle = self._items, self._workers, self._call, self._settle
        while len(workers) <= self.count:
            try:
                now = monotonic()
                while len(workers) <= self.count:
                    if not items:
                        self._refill()
                        if not items:
                            await self._rest()
                        now = monotonic()
                        continue
                    work.item = item = items.popleft()
                    current_item.set(item)
                    work.since = begun = now
                    result: object
                    try:
                        result = await call(item)
                    except asyncio.CancelledError as error:
                        if self._is_stopped:
                            raise
                        _uncancel()
                        result = error
                    except Exception as error:
                        result = error
                    now = monotonic()
                    work.item = None
                    settle(item, result, now - begun)
                    if now >= self._yield_at:
                        self._yield_at = now + YIELD_S
                        await asyncio.sleep(0)
                        now = monotonic()
            except asyncio.CancelledError:
                if self._is_stopped:
                    raise
                _uncancel()
        # At once, for the next to see whether it is one too many.
        task = asyncio.current_task()
        assert task is not None
        workers.pop(task, None)


def _uncancel() -> None:
    """Go on: only `stop` ends workers. It is the function that cancelled its task, and a worker
    that ended of it would be missing without a word; or the pool fails, and stops us next."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


class ThreadPool(Generic[Item]):
    """Workers for functions that block. They are made when they are first needed."""

    def __init__(
        self,
        call: Callable[[Item], object],
        *,
        tasks: asyncio.TaskGroup,
        settle: Settle[Item],
        name: str,
    ) -> None:
        self._call = call
        self._tasks = tasks
        self._settle = settle
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item] = deque()
        self._results: deque[tuple[Item, object, float]] = deque()
        self._changed = threading.Condition()
        self._idle = 0
        self._workers: list[_Work[Item]] = []
        self._is_reporting = False
        self._waker: asyncio.TimerHandle | None = None
        self._busy_s = 0.0
        """Of threads that have ended."""
        self.count = 0

    def start(self, count: int) -> None:
        """Have so many workers at most."""
        with self._changed:
            self.count = count
            self._changed.notify_all()
        self._wake(1)

    def give(self, items: Sequence[Item]) -> None:
        """Queue items, and see to it that a thread works."""
        self._items.extend(items)
        if self._waker is None:
            self._wake(1)
        elif self._idle:  # more are about to be woken
            with self._changed:
                self._changed.notify()

    def take_back(self) -> list[Item]:
        """Return what was queued and not begun."""
        taken = []
        try:
            while True:
                taken.append(self._items.popleft())
        except IndexError:
            return taken

    def at_work(self) -> list[tuple[Item, float]]:
        """Return what is worked on, and since when."""
        with self._changed:
            works = [(each.item, each.since) for each in self._workers]
        return [(item, since) for item, since in works if item is not None]

    def busy_seconds(self) -> float:
        """Return the time all workers were busy so far, added up."""
        with self._changed:
            now = monotonic()
            running_s = sum(now - each.since for each in self._workers if each.item is not None)
            return self._busy_s + sum(each.busy_s for each in self._workers) + running_s

    def stop(self) -> None:
        """End those that wait; a call that runs cannot be ended."""
        self.start(0)

    def _wake(self, count: int) -> None:
        """Have at least so many more at work if there is work, and look again soon."""
        if self._waker is not None:
            self._waker.cancel()
            self._waker = None
        if not self._items or not self.count:
            return
        with self._changed:
            woken = min(self._idle, count)
            self._changed.notify(woken)
            fresh: list[_Work[Item]] = [
                _Work() for _ in range(min(count - woken, self.count - len(self._workers)))
            ]
            self._workers += fresh
        for work in fresh:
            # A call that never returns must not keep the process from ending.
            threading.Thread(target=self._work, args=(work,), name=self._name, daemon=True).start()
        self._waker = self._loop.call_later(WAKE_S, self._wake, min(2 * count, self.count))

    def _work(self, work: _Work[Item]) -> None:
        items, results, call = self._items, self._results, self._call
        while True:
            if len(self._workers) > self.count and self._is_ended(work):
                return
            try:
                item = items.popleft()
            except IndexError:
                self._rest()
                continue
            current_item.set(item)
            work.since = begun = monotonic()
            work.item = item
            result: object
            try:
                result = call(item)
            except BaseException as error:
                result = error
            seconds = monotonic() - begun
            work.item = None
            work.busy_s += seconds
            results.append((item, result, seconds))
            if not self._is_reporting:
                self._is_reporting = True
                self._report_soon()

    def _is_ended(self, work: _Work[Item]) -> bool:
        with self._changed:
            if len(self._workers) <= self.count:
                return False
            self._workers.remove(work)
            self._busy_s += work.busy_s
            return True

    def _rest(self) -> None:
        with self._changed:
            self._idle += 1
            # Looked at under the lock: `give` must take it to notify.
            if not self._items and len(self._workers) <= self.count:
                self._changed.wait()
            self._idle -= 1

    def _report_soon(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._report)
        except RuntimeError:  # the loop has ended: nobody wants to know any more
            return

    def _report(self) -> None:
        # Cleared before the results are read: what comes from here on is reported again.
        self._is_reporting = False
        results, settle = self._results, self._settle
        try:
            while results:
                settle(*results.popleft())
        except Exception as error:  # nobody awaits this call, so a task has to fail with it
            self._tasks.create_task(_fail(error))


async def _fail(error: Exception) -> None:
    raise error
