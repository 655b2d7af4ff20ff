"""Bytes being worked on, bounded: beyond the bound callers are refused, or wait."""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from waterclock.model.errors import Overloaded


class BytesInFlight:
    """Counts bytes. What alone is over the bound may come when there is nothing else."""

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self._waiters: deque[asyncio.Future[None]] = deque()
        self.held = 0

    def __repr__(self) -> str:
        return f"<BytesInFlight {self.held} of {self._limit} {self._what}>"

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Count bytes while inside; raises Overloaded if there are too many."""
        self.hold(size)
        try:
            yield
        finally:
            self.give(size)

    def hold(self, size: int) -> None:
        """Count bytes; raises Overloaded if there are too many. You must `give` them back."""
        if not self._has_room(size):
            raise Overloaded(self._what, self._limit)
        self.held += size

    async def take(self, size: int) -> None:
        """Count bytes, once there is room for them. You must `give` them back."""
        while not self._has_room(size):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # It may have been woken, and nobody else was.
                self._wake()
                raise
        self.held += size

    def give(self, size: int) -> None:
        """Count bytes no more."""
        self.held -= size
        self._wake()

    def _has_room(self, size: int) -> bool:
        return not self.held or self.held + size <= self._limit

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
