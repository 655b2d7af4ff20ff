"""Those who do the work: long-lived coroutines, or threads for functions that block.

No task is made for a message. A coroutine takes one item after the other from the queue it shares;
with a function that does not suspend, one of them does everything there is without a turn of the
loop. Results are collected, and reported in bulk: when the queue is empty, when somebody waits for
one of them, or after `REPORT_S`. While the queue has something nobody is idle, so it is no loss
to wait, and a report for each result would cost more than the result.

Idle workers are woken a few at a time, each of whom wakes others if there is still work: a function
that does not suspend would wake them all in vain.
"""

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Protocol

from waterclock.burrow.core.records import Record
from waterclock.burrow.runtime.context import current
from waterclock.burrow.runtime.results import Item, Results, parted

WAKE_COUNT = 3
REPORT_S = 0.001
YIELD_S = 0.005
"""A function that never suspends lets others run this often."""


class WorkerPool(Protocol):
    """Workers of one kind."""

    count: int

    def start(self, count: int) -> None:
        """Have so many workers from now on."""
        ...

    def give(self, items: Sequence[Item]) -> None:
        """Queue work."""
        ...

    def take_back(self, is_wanted: Callable[[Record], bool]) -> list[Record]:
        """Return what was queued and not begun."""
        ...

    def collect_results(self, results: Results) -> None:
        """Add what was done elsewhere since the last time."""
        ...

    def busy_seconds(self) -> float:
        """Return the time all workers were busy so far, added up."""
        ...

    def stop(self) -> None:
        """End all workers, as soon as they can be."""
        ...


class Coroutines:
    """Workers for async functions, on the loop they were made on."""

    def __init__(
        self,
        call: Callable[..., Awaitable[object]],
        *,
        tasks: asyncio.TaskGroup,
        results: Results,
        report: Callable[[], None],
        report_soon: Callable[[], None],
        has_more: Callable[[], bool],
        timeout_s: float | None,
        wants_outputs: bool,
    ) -> None:
        self._call = call if timeout_s is None else self._call_in_time
        self._function = call
        self._tasks = tasks
        self._results = results
        self._report = report
        """Take in the results, and queue more work if there is some."""
        self._report_soon = report_soon
        self._has_more = has_more
        """Whether a report would bring work at once."""
        self._timeout_s = timeout_s
        self._wants_outputs = wants_outputs
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._workers: set[asyncio.Task[None]] = set()
        self._yield_at = 0.0
        self._is_report_due = False
        self._is_over = False
        self._busy_s = 0.0
        self._changed_at = self._loop.time()
        self.count = 0

    def start(self, count: int) -> None:
        """Have so many workers; those too many end when they have nothing to do."""
        self._note()
        self.count = count
        while len(self._workers) < count:
            task = self._tasks.create_task(self._work())
            self._workers.add(task)
            task.add_done_callback(self._workers.discard)
        self._wake(max(0, len(self._workers) - count))

    def give(self, items: Sequence[Item]) -> None:
        """Queue work."""
        self._items.extend(items)
        self._wake(WAKE_COUNT)

    def take_back(self, is_wanted: Callable[[Record], bool]) -> list[Record]:
        """Return what was queued and not begun."""
        taken, kept = parted(self._items, is_wanted)
        self._items.clear()
        self._items.extend(kept)
        return taken

    def collect_results(self, results: Results) -> None:
        """Do nothing: coroutines write their results themselves."""

    def busy_seconds(self) -> float:
        """Return the time all workers were busy so far, added up."""
        self._note()
        return self._busy_s

    def stop(self) -> None:
        """Cancel all workers."""
        self._is_over = True
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

    def _report_late(self) -> None:
        self._is_report_due = False
        if self._results.done:
            self._report_soon()

    async def _call_in_time(self, item: Item) -> object:
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                return await self._function(item)
        except TimeoutError as error:
            if limit.expired():
                text = f"it took longer than timeout_s = {self._timeout_s}"
                raise TimeoutError(text) from error
            raise

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while len(self._workers) <= self.count:
            try:
                await self._work_on()
            except asyncio.CancelledError:
                if self._is_over:
                    raise
                _uncancel()
        self._workers.discard(task)  # at once, for the next to see whether it is one too many

    async def _work_on(self) -> None:
        items, results, call = self._items, self._results, self._call
        done, seconds = results.done, results.seconds
        wants_outputs = self._wants_outputs
        while len(self._workers) <= self.count:
            if not items:
                # A report for each who has nothing to do would keep the loop from what brings more.
                if self._has_more():
                    self._report()
                else:
                    self._report_soon()
                if not items:
                    await self._rest()
                    continue
            item = items.popleft()
            current.set(item)
            begun = perf_counter()
            result: object
            try:
                result = await call(item)
            except asyncio.CancelledError as error:
                if self._is_over:
                    raise
                _uncancel()
                result = error
            except Exception as error:
                result = error
            now = perf_counter()
            if result is None and not isinstance(item, list) and not wants_outputs:
                done.append(item)
                seconds.append(now - begun)
                if item.next is not None:
                    self._report_soon()
                elif not self._is_report_due:
                    self._is_report_due = True
                    self._loop.call_later(REPORT_S, self._report_late)
            else:
                results.settle(item, result, now - begun, wants_outputs=wants_outputs)
                self._report_soon()
            if now >= self._yield_at:
                self._yield_at = now + YIELD_S
                await asyncio.sleep(0)


def _uncancel() -> None:
    """Go on: only `stop` ends workers. It is the function that cancelled its task, and a worker
    that ended of it would be missing without a word; or the pool fails, and stops us next."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


class Threads:
    """Workers for functions that block."""

    def __init__(
        self,
        call: Callable[..., object],
        *,
        report_soon: Callable[[], None],
        wants_outputs: bool,
    ) -> None:
        self._call = call
        self._report_soon = report_soon
        self._wants_outputs = wants_outputs
        self._loop = asyncio.get_running_loop()
        self._running = 0
        self._items: deque[Item] = deque()
        self._results: deque[tuple[Item, object, float]] = deque()
        self._changed = threading.Condition()
        self._is_reporting = False
        self._busy = 0
        self._busy_s = 0.0
        self._changed_at = perf_counter()
        self.count = 0

    def start(self, count: int) -> None:
        """Have so many workers."""
        with self._changed:
            self.count = count
            while self._running < count:
                self._running += 1
                # A call that never returns must not keep the process from ending.
                threading.Thread(target=self._work, name="burrow-worker", daemon=True).start()
            self._changed.notify_all()

    def give(self, items: Sequence[Item]) -> None:
        """Queue work."""
        with self._changed:
            self._items.extend(items)
            self._changed.notify(len(items))

    def take_back(self, is_wanted: Callable[[Record], bool]) -> list[Record]:
        """Return what was queued and not begun."""
        with self._changed:
            taken, kept = parted(self._items, is_wanted)
            self._items = deque(kept)
        return taken

    def collect_results(self, results: Results) -> None:
        """Add what the threads have done."""
        self._is_reporting = False
        while self._results:
            item, result, seconds = self._results.popleft()
            results.settle(item, result, seconds, wants_outputs=self._wants_outputs)

    def busy_seconds(self) -> float:
        """Return the time all workers were busy so far, added up."""
        with self._changed:
            self._note(0)
            return self._busy_s

    def stop(self) -> None:
        """End those that wait; a call that runs cannot be ended."""
        self.start(0)

    def _note(self, change: int) -> None:
        now = perf_counter()
        self._busy_s += (now - self._changed_at) * self._busy
        self._changed_at = now
        self._busy += change

    def _work(self) -> None:
        is_busy = False
        while True:
            with self._changed:
                if is_busy:
                    self._note(-1)
                while not self._items and self._running <= self.count:
                    self._changed.wait()
                if self._running > self.count:
                    self._running -= 1
                    return
                item = self._items.popleft()
                self._note(1)
                is_busy = True
            current.set(item)
            begun = perf_counter()
            result: object
            try:
                result = self._call(item)
                if inspect.isawaitable(result):
                    # It looked like a plain function and was none: a lambda, or a wrapper.
                    awaited = _awaited(result)
                    result = asyncio.run_coroutine_threadsafe(awaited, self._loop).result()
            except BaseException as error:
                result = error
            self._results.append((item, result, perf_counter() - begun))
            if not self._is_reporting:
                self._is_reporting = True
                self._tell()

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._report_soon)
        except RuntimeError:  # the loop has ended: the pool gave up waiting for us
            return


async def _awaited(result: Awaitable[object]) -> object:
    return await result
