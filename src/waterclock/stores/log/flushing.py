"""Group commit for the log of streams: who waits for which offset, under an event loop.

All that is written in one turn of the loop shares an fsync, and so does all that is written while
one is under way. A failed fsync fails everyone who waits, and all who come later: nobody can tell
what is on the disk.
"""

import asyncio
from collections import deque

from waterclock.model.errors import Closed, StorageError, StorageFailed, WaterclockError
from waterclock.storage.clock import SystemClock
from waterclock.storage.fsync import GroupCommit
from waterclock.storage.partition_store import PartitionStore


class Flushing:
    """Keeps a log flushed and wakes who waits for it. Belongs to the running loop."""

    def __init__(self, log: PartitionStore) -> None:
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._is_step_due = False
        self._failure: WaterclockError | None = None
        self._commit = GroupCommit(log, SystemClock(), self._wake)

    def wrote(self) -> None:
        """Have what was written made durable, with all else of this turn."""
        if not self._is_step_due:
            self._is_step_due = True
            self._loop.call_soon(self._step)

    async def durable(self, end: int) -> None:
        """Return when everything below `end` is durable."""
        if self._failure is not None:
            raise self._failure
        if self._log.acknowledged_end < end:
            # Ends only grow, and so the waiters are in order.
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append((end, future))
            await future

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self._step)

    def _step(self) -> None:
        self._is_step_due = False
        if self._failure is not None:
            return
        try:
            self._commit.step()
        # Also what nobody foresaw: those who wait would do so for ever.
        except Exception as error:
            self._log.fail(error)
            self._fail(error if isinstance(error, StorageError) else StorageFailed(repr(error)))
            return
        self._answer()

    def _answer(self) -> None:
        end = self._log.acknowledged_end
        while self._waiters and self._waiters[0][0] <= end:
            _, future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)

    def _fail(self, failure: WaterclockError) -> None:
        self._failure = failure
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(failure)
        self._waiters.clear()

    def close(self) -> None:
        """Flush, close the log, and answer whoever still waits."""
        failure = self._failure or Closed("the store was closed")
        try:
            self._commit.close()
            self._answer()
        finally:
            self._fail(failure)
