"""Those who run the handler: coroutines for async functions, threads for those that block.

Nothing is made for a message: each of the pool takes one item after the other from a queue they
share, and results are collected and reported in bulk. Few are woken at first: a handler of
microseconds is done fastest by one thread, and a crowd of them would fight for the interpreter. As
long as items wait, more are woken every millisecond, twice as many each time.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Protocol

from waterclock.dispatch.worker.handlers import Delivery, Handler

WAKE_S = 0.001
YIELD_S = 0.005
"""A coroutine that never waits for anything lets the loop run this often."""

Item = tuple[bytes, int, bytes, int, object]
"""uuid, birth in ms, body, deliveries, and the session it came by."""
Result = tuple[Item, object]
"""An item and what came of it: what is to be written, None, or the error."""
Parse = Callable[[bytes], Any]


class HandlerPool(Protocol):
    """Runs a handler, several at a time."""

    results: deque[Result]

    def give(self, items: Sequence[Item]) -> None:
        """Queue items."""
        ...

    def take_back(self) -> list[Item]:
        """Return what nobody has begun."""
        ...

    def at_work(self) -> list[tuple[Item, float]]:
        """Return what is being handled, and since when on the monotonic clock."""
        ...

    def stop(self) -> None:
        """End all who wait; one who works on is not waited for."""
        ...


class Threads:
    """A pool for functions that block."""

    def __init__(
        self,
        handler: Handler,
        *,
        count: int,
        parse: Parse,
        prepare: Parse,
        tell: Callable[[], None],
    ) -> None:
        self.results: deque[Result] = deque()
        self._handler = handler
        self._parse, self._prepare = parse, prepare
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._count = count
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._idle = 0
        self._threads: list[list[Any]] = []
        """For each thread: the item it works on, and since when."""
        self._is_reported = False
        self._is_stopped = False
        self._waker: asyncio.TimerHandle | None = None

    def give(self, items: Sequence[Item]) -> None:
        """Queue items, and see to it that somebody works."""
        self._items.extend(items)
        self._wake(1)

    def take_back(self) -> list[Item]:
        """Return what nobody has begun."""
        taken = []
        try:
            while True:
                taken.append(self._items.popleft())
        except IndexError:
            return taken

    def at_work(self) -> list[tuple[Item, float]]:
        """Return what is being handled."""
        return [(work[0], work[1]) for work in self._threads if work[0] is not None]

    def stop(self) -> None:
        """End all who wait."""
        self._is_stopped = True
        if self._waker is not None:
            self._waker.cancel()
        with self._changed:
            self._changed.notify_all()

    def _wake(self, count: int) -> None:
        """Have at least so many more at work if there is work, and look again soon."""
        if self._waker is not None:
            self._waker.cancel()
            self._waker = None
        if not self._items or self._is_stopped:
            return
        with self._changed:
            woken = min(self._idle, count)
            self._changed.notify(woken)
        for _ in range(min(count - woken, self._count - len(self._threads))):
            work: list[Any] = [None, 0.0]
            self._threads.append(work)
            # A call that never returns must not keep the process from ending.
            threading.Thread(target=self._work, args=(work,), name="handler", daemon=True).start()
        self._waker = self._loop.call_later(WAKE_S, self._wake, min(2 * count, self._count))

    def _work(self, work: list[Any]) -> None:
        items, results = self._items, self.results
        while not self._is_stopped:
            try:
                item = items.popleft()
            except IndexError:
                if not self._rest():
                    return
                continue
            work[1] = monotonic()
            work[0] = item
            results.append((item, self._result(item)))
            work[0] = None
            if not self._is_reported:
                self._is_reported = True
                self._report()

    def _rest(self) -> bool:
        with self._changed:
            self._idle += 1
            # Looked at under the lock: who gives an item after this must take it to notify.
            if not self._items and not self._is_stopped:
                self._changed.wait()
            self._idle -= 1
        return not self._is_stopped

    def _result(self, item: Item) -> object:
        try:
            parsed = self._parse(item[2])
            if self._handler.wants_delivery:
                value = self._handler.call(parsed, Delivery(item[0], item[1], item[3]))
            else:
                value = self._handler.call(parsed)
            return None if value is None else self._prepare(value)
        except BaseException as error:
            return error

    def _report(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._reported)
        except RuntimeError:  # the loop has ended; nobody wants to know any more
            return

    def _reported(self) -> None:
        # Cleared before the results are read: what comes from here on is reported again.
        self._is_reported = False
        self._tell()


class Coroutines:
    """A pool for async functions."""

    def __init__(
        self,
        handler: Handler,
        *,
        count: int,
        parse: Parse,
        prepare: Parse,
        tell: Callable[[], None],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.results: deque[Result] = deque()
        self._handler = handler
        self._parse, self._prepare = parse, prepare
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._count = count
        self._tasks = tasks
        self._items: deque[Item] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._workers: dict[asyncio.Task[None], list[Any]] = {}
        self._waker: asyncio.TimerHandle | None = None
        self._yield_at = 0.0
        self._is_stopped = False

    def give(self, items: Sequence[Item]) -> None:
        """Queue items, and see to it that somebody works."""
        self._items.extend(items)
        self._wake(1)

    def take_back(self) -> list[Item]:
        """Return what nobody has begun."""
        taken = list(self._items)
        self._items.clear()
        return taken

    def at_work(self) -> list[tuple[Item, float]]:
        """Return what is being handled."""
        return [(work[0], work[1]) for work in self._workers.values() if work[0] is not None]

    def stop(self) -> None:
        """Cancel everybody."""
        self._is_stopped = True
        if self._waker is not None:
            self._waker.cancel()
        for task in self._workers:
            task.cancel()

    def _wake(self, count: int) -> None:
        if self._waker is not None:
            self._waker.cancel()
            self._waker = None
        if not self._items:
            return
        for _ in range(count):
            if self._idle:
                sleeper = self._idle.pop()
                if not sleeper.done():
                    sleeper.set_result(None)
            elif len(self._workers) < self._count:
                work: list[Any] = [None, 0.0]
                task = self._tasks.create_task(self._work(work))
                self._workers[task] = work
                task.add_done_callback(self._workers.pop)
        self._waker = self._loop.call_later(WAKE_S, self._wake, min(2 * count, self._count))

    async def _work(self, work: list[Any]) -> None:
        items, results, task = self._items, self.results, asyncio.current_task()
        assert task is not None
        while True:
            if not items:
                sleeper = self._loop.create_future()
                self._idle.append(sleeper)
                await sleeper
                continue
            item = items.popleft()
            work[0], work[1] = item, monotonic()
            try:
                results.append((item, await self._result(item)))
            except (KeyboardInterrupt, GeneratorExit):
                raise  # somebody ends the program
            except BaseException as error:
                if self._is_stopped:
                    raise
                # A function that cancels itself or calls sys.exit fails, and takes nobody along.
                while task.cancelling():
                    task.uncancel()
                results.append((item, error))
            work[0] = None
            self._tell_soon()
            if monotonic() >= self._yield_at:
                await asyncio.sleep(0)
                self._yield_at = monotonic() + YIELD_S

    def _tell_soon(self) -> None:
        if len(self.results) == 1:
            self._loop.call_soon(self._tell)

    async def _result(self, item: Item) -> object:
        parsed = self._parse(item[2])
        if self._handler.wants_delivery:
            value = await self._handler.call(parsed, Delivery(item[0], item[1], item[3]))
        else:
            value = await self._handler.call(parsed)
        return None if value is None else self._prepare(value)
