"""Group commit under an event loop: who waits for which offset, and when to start an fsync.

All that is written in one turn of the loop shares an fsync: `wrote` asks for a step at the end of
the turn, however often it is called. A failed fsync fails everyone who waits, and the node.
"""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from waterclock.model.clock import Clock
from waterclock.model.errors import Closed, StorageError, StorageFailed, WaterclockError
from waterclock.node.counters import Histogram
from waterclock.storage.fsync import GroupCommit, Threads
from waterclock.storage.partition_store import PartitionStore

FSYNCS_AT_ONCE = 4


class BackgroundThreads:
    """The threads that all stores of a node share."""

    def __init__(self) -> None:
        self.fsyncs = Threads("waterclock-fsync", FSYNCS_AT_ONCE)
        self.jobs = Threads("waterclock-jobs")

    def stop(self) -> None:
        """End them, once no store needs them any more."""
        self.fsyncs.stop()
        self.jobs.stop()


class FlushQueue:
    """Keeps a store flushed and answers who waits for it. Belongs to a loop; made anywhere."""

    def __init__(
        self,
        store: PartitionStore,
        clock: Clock,
        aside: BackgroundThreads,
        loop: asyncio.AbstractEventLoop,
        *,
        fsync_ms: Histogram,
        on_failed: Callable[[WaterclockError], None],
    ) -> None:
        self._store = store
        self._loop = loop
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._sequence = count()
        self._gone = 0
        """Waiters that were cancelled; they are cleared away once they are most of them."""
        self._listeners: list[Callable[[], None]] = []
        self._announced = int(store.acknowledged_end)
        self._is_step_due = False
        self._is_timer_set = False
        self._failure: WaterclockError | None = None
        self._on_failed = on_failed
        self._group = GroupCommit(
            store,
            clock,
            lambda: self._loop.call_soon_threadsafe(self._step),  # type: ignore[arg-type]
            fsyncs=aside.fsyncs,
            jobs=aside.jobs,
            on_fsync=lambda seconds: fsync_ms.observe(seconds * 1_000),
        )

    def __repr__(self) -> str:
        return f"<FlushQueue {len(self._waiters)} waiting, {self._store!r}>"

    def wrote(self) -> None:
        """Have what was written made durable, together with all else of this turn of the loop.

        You must call this after a write that raised, too: if the store failed, the node must end.
        """
        if not self._is_step_due:
            self._is_step_due = True
            self._loop.call_soon(self._step)

    async def durable(self, end: int) -> None:
        """Return when everything below `end` may be acknowledged."""
        if self._failure is not None:
            raise self._failure
        if self._store.acknowledged_end >= end:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        heapq.heappush(self._waiters, (end, next(self._sequence), future))
        try:
            await future
        except asyncio.CancelledError:
            self._gone += 1
            if self._gone > len(self._waiters) // 2:
                self._waiters = [waiter for waiter in self._waiters if not waiter[2].done()]
                heapq.heapify(self._waiters)
                self._gone = 0
            raise

    async def readable(self, offset: int) -> None:
        """Return when `offset` can be read."""
        await self.durable(offset + 1)

    def on_readable(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back each time more can be read; return how to stop that."""
        self._listeners.append(callback)

        def stop() -> None:
            if callback in self._listeners:
                self._listeners.remove(callback)

        return stop

    def _step(self) -> None:
        self._is_step_due = False
        if self._failure is not None:
            return
        try:
            self._group.step()
        # Also what nobody foresaw: those who wait would do so for ever, and the node seem sound.
        except Exception as error:
            self._store.fail(error)
            failure = error if isinstance(error, StorageError) else StorageFailed(repr(error))
            self._fail(failure)
            self._on_failed(failure)
            return
        self._announce()
        if self._store.log.fsync == "interval" and self._store.flushed_end < self._store.end:
            self._wake_later()

    def _wake_later(self) -> None:
        """Nobody waits under the policy `interval`, so a timer must ask for its fsyncs."""
        if not self._is_timer_set:
            self._is_timer_set = True
            self._loop.call_later(self._store.log.fsync_interval_ms / 1_000, self._timer_rang)

    def _timer_rang(self) -> None:
        self._is_timer_set = False
        self.wrote()

    def _announce(self) -> None:
        end = self._store.acknowledged_end
        if end == self._announced:
            return
        self._announced = end
        while self._waiters and self._waiters[0][0] <= end:
            _, _, future = heapq.heappop(self._waiters)
            if not future.done():
                future.set_result(None)
        for listener in tuple(self._listeners):
            listener()

    def _fail(self, error: WaterclockError) -> None:
        self._failure = error
        for _, _, future in self._waiters:
            if not future.done():
                future.set_exception(error)
        self._waiters.clear()

    def close(self) -> None:
        """Flush and close the store; whoever still waits is answered, with an error if need be."""
        has_failed = self._failure is not None
        self._failure = self._failure or Closed("the partition was closed")
        try:
            self._group.close()
            if not has_failed:
                self._announce()
        finally:
            self._fail(self._failure)
            self._listeners.clear()
