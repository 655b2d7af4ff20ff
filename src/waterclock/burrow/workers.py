"""Those who do the work: long-lived coroutines, or threads for functions that block.

No task is made for a message. A coroutine takes one item after the other from the queue it shares;
with a function that does not suspend, one of them does everything there is without a turn of the
loop. Results are gathered, and reported in bulk: when the queue is empty, or once in a turn.

Idle workers are woken a few at a time, each of whom wakes others if there is still work: a function
that does not suspend would wake them all in vain.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from waterclock.burrow.context import current
from waterclock.burrow.failures import Failed
from waterclock.burrow.records import Record

WAKE_COUNT = 3
YIELD_S = 0.005
"""A function that never suspends lets others run this often."""

Item = Record | list[Record]
"""What one call is handed: a record, or a list of them if the function takes lists."""


@dataclass(slots=True)
class Results:
    """What became of records since it was last reported."""

    done: list[Record] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """How long each of the calls took that did them."""
    outputs: list[object] = field(default_factory=list)
    """What each of the calls returned, if anybody wants to know."""
    failed: list[tuple[list[Record], BaseException]] = field(default_factory=list)

    def settle(self, item: Item, result: object, seconds: float, *, wants_outputs: bool) -> None:
        """Note how a call ended: with what it returned, or with what it raised."""
        records = item if isinstance(item, list) else [item]
        if isinstance(result, Failed):
            failed = set(result.records)
            self.failed.append(([each for each in records if each in failed], result.error))
            records, result = [each for each in records if each not in failed], None
        elif isinstance(result, BaseException):
            self.failed.append((records, result))
            return
        self.done += records
        self.seconds += [seconds] * len(records)
        if wants_outputs and records:
            self.outputs += [result, *[None] * (len(records) - 1)]


class Crew(Protocol):
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

    def gather(self, results: Results) -> None:
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
        timeout_s: float | None,
        wants_outputs: bool,
    ) -> None:
        self._call = call
        self._tasks = tasks
        self._results = results
        self._report = report
        """Take in the results, and queue more work if there is some."""
        self._report_soon = report_soon
        self._timeout_s = timeout_s
        self._wants_outputs = wants_outputs
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._workers: set[asyncio.Task[None]] = set()
        self._yield_at = 0.0
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
        taken, kept = _parted(self._items, is_wanted)
        self._items.clear()
        self._items.extend(kept)
        return taken

    def gather(self, results: Results) -> None:
        """Do nothing: coroutines write their results themselves."""

    def busy_seconds(self) -> float:
        """Return the time all workers were busy so far, added up."""
        self._note()
        return self._busy_s

    def stop(self) -> None:
        """Cancel all workers."""
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
        finally:
            self._note()
            if sleeper in self._idle:
                self._idle.remove(sleeper)
        if self._items:
            self._wake(WAKE_COUNT)

    async def _work(self) -> None:
        items, results, call = self._items, self._results, self._call
        done, seconds = results.done, results.seconds
        wants_outputs, timeout_s = self._wants_outputs, self._timeout_s
        task = asyncio.current_task()
        assert task is not None
        while len(self._workers) <= self.count:
            if not items:
                self._report()
                if not items:
                    await self._rest()
                    continue
            item = items.popleft()
            current.set(item)
            begun = perf_counter()
            result: object
            try:
                if timeout_s is None:
                    result = await call(item)
                else:
                    async with asyncio.timeout(timeout_s):
                        result = await call(item)
            except asyncio.CancelledError as error:
                if task.cancelling():
                    raise
                result = error  # the function's own affair
            except Exception as error:
                result = error
            now = perf_counter()
            if result is None and not isinstance(item, list) and not wants_outputs:
                done.append(item)
                seconds.append(now - begun)
            else:
                results.settle(item, result, now - begun, wants_outputs=wants_outputs)
            self._report_soon()
            if now >= self._yield_at:
                self._yield_at = now + YIELD_S
                await asyncio.sleep(0)
        self._workers.discard(task)  # at once, for the next to see whether it is one too many


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
        self._busy_s = 0.0
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
            taken, kept = _parted(self._items, is_wanted)
            self._items = deque(kept)
        return taken

    def gather(self, results: Results) -> None:
        """Add what the threads have done."""
        self._is_reporting = False
        while self._results:
            item, result, seconds = self._results.popleft()
            self._busy_s += seconds
            results.settle(item, result, seconds, wants_outputs=self._wants_outputs)

    def busy_seconds(self) -> float:
        """Return the time of all calls that have ended."""
        return self._busy_s

    def stop(self) -> None:
        """End those that wait; a call that runs cannot be ended."""
        self.start(0)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._items and self._running <= self.count:
                    self._changed.wait()
                if self._running > self.count:
                    self._running -= 1
                    return
                item = self._items.popleft()
            current.set(item)
            begun = perf_counter()
            result: object
            try:
                result = self._call(item)
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


def _parted(
    items: Iterable[Item], is_wanted: Callable[[Record], bool]
) -> tuple[list[Record], list[Item]]:
    """Return the records that are wanted, and the items that are left without them."""
    taken: list[Record] = []
    kept: list[Item] = []
    for item in items:
        if isinstance(item, list):
            taken += [record for record in item if is_wanted(record)]
            if left := [record for record in item if not is_wanted(record)]:
                kept.append(left)
        elif is_wanted(item):
            taken.append(item)
        else:
            kept.append(item)
    return taken, kept
