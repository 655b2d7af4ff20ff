"""Tasks that wait until a log has come to some offset, woken in order."""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count


class Notice:
    """A call to be made, where others wait with a future: it takes neither a task nor a turn."""

    __slots__ = ("_call", "_is_gone")

    def __init__(self, call: Callable[[Exception | None], None]) -> None:
        self._call = call
        self._is_gone = False

    def cancel(self) -> None:
        """Nobody wants the call any more."""
        self._is_gone = True

    def done(self) -> bool:
        """It is not to be made any more."""
        return self._is_gone

    def set_result(self, _: None) -> None:
        """Say that it is reached."""
        self._call(None)

    def set_exception(self, error: Exception) -> None:
        """Say why it will not be."""
        self._call(error)


class Waiters:
    """Those that wait for one thing: that more is durable, committed, or on all replicas."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.heap: list[tuple[int, int, asyncio.Future[None] | Notice]] = []
        """All that wait, the next first: read it to learn, as cheaply as can be, if any do."""
        self._sequence = count()
        self._gone = 0
        """Waiters that were cancelled; they are cleared away once they are most of them."""

    def __repr__(self) -> str:
        return f"<Waiters {len(self.heap)}>"

    def __len__(self) -> int:
        return len(self.heap)

    async def wait(self, end: int) -> None:
        """Return when `reached` was told of this end; raise what `fail` was given before that."""
        future: asyncio.Future[None] = self._loop.create_future()
        heapq.heappush(self.heap, (end, next(self._sequence), future))
        try:
            await future
        except asyncio.CancelledError:
            self._clear_away()
            raise

    def notify(self, end: int, call: Callable[[Exception | None], None]) -> Notice:
        """Call once when `reached` is told of this end, or with the error that `fail` is given
        before. The call must not raise: others wait behind it."""
        notice = Notice(call)
        heapq.heappush(self.heap, (end, next(self._sequence), notice))
        return notice

    def withdraw(self, notice: Notice) -> None:
        """Make a call no more that was not made yet."""
        notice.cancel()
        self._clear_away()

    def _clear_away(self) -> None:
        self._gone += 1
        if self._gone > len(self.heap) // 2:
            self.heap = [waiter for waiter in self.heap if not waiter[2].done()]
            heapq.heapify(self.heap)
            self._gone = 0

    def reached(self, end: int) -> None:
        """Wake those that wait for no more than this."""
        while self.heap and self.heap[0][0] <= end:
            _, _, future = heapq.heappop(self.heap)
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception) -> None:
        """Let go of all, with an error."""
        heap, self.heap = self.heap, []
        for _, _, future in heap:
            if not future.done():
                future.set_exception(error)
