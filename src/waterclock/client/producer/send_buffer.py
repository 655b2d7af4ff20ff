"""How many bytes may be published and unanswered; publishers wait for space, in order."""

import asyncio
from collections import deque


class SendBuffer:
    """A bound on bytes. A message larger than the whole buffer is let in alone."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._entering = 0
        """Waiters who were let in and have not run yet; nobody may pass them."""

    def __repr__(self) -> str:
        waiting = len(self._waiters)
        return f"<SendBuffer {self._used} of {self._bytes_max} B used, {waiting} waiting>"

    def take_nowait(self, size: int) -> bool:
        """Take space if there is some and nobody waits for it; return whether."""
        if self._waiters or self._entering or not self._fits(size):
            return False
        self._used += size
        return True

    async def take(self, size: int) -> None:
        """Take space, when it is this caller's turn."""
        if self.take_nowait(size):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiters.append((size, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiters = deque(pair for pair in self._waiters if pair[1] is not turn)
            else:
                self._entering -= 1
                self._used -= size
            self._admit()
            raise
        self._entering -= 1

    def give(self, size: int) -> None:
        """Give space back."""
        self._used -= size
        assert self._used >= 0
        self._admit()

    def _admit(self) -> None:
        while self._waiters and (self._waiters[0][1].done() or self._fits(self._waiters[0][0])):
            size, turn = self._waiters.popleft()
            if not turn.done():
                self._used += size
                self._entering += 1
                turn.set_result(None)

    def _fits(self, size: int) -> bool:
        return self._used + size <= self._bytes_max or not self._used
