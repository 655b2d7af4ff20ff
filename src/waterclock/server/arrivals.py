"""Requests that are arriving: how many may, so that unfinished ones cannot fill the memory.

gRPC takes a request in as a whole, and nobody knows how large it is before it is there: until then
it may be as large as any. So a call reads its request in a place, and there are as many places as
requests of the largest size fit into `server.receive_bytes_max`. A call without a place reads
nothing, and HTTP/2 holds its sender back. Nearly all requests are there when they are read and have
their place for a moment. One that is slow in coming is given up: at once when it has had its time
and others wait, or when it takes far too long. Connections take turns, so one that opens calls and
finishes none delays the others by that time, and no more.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from waterclock.model.errors import Unavailable

ALONE_S = 60.0
"""How long a request may take to arrive while no other waits for its place."""
CONTENDED_S = 5.0
"""The same while others wait."""

Read = TypeVar("Read")


class Arrivals:
    """The places in which requests are read."""

    def __init__(
        self, places: int, *, alone_s: float = ALONE_S, contended_s: float = CONTENDED_S
    ) -> None:
        assert places > 0, places
        self.places = places
        self.waiting = 0
        self._free = places
        self._alone_s = alone_s
        self._contended_s = contended_s
        self._reading: dict[asyncio.Task[Any], float] = {}
        """Each with the time it began: the first is the oldest."""
        self._given_up: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        """For the oldest, or earlier. One of each request would cost more than all else here."""
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        """Who waits, by connection; the first of the first is next."""

    def __repr__(self) -> str:
        return f"<Arrivals {self.places - self._free} of {self.places}, {self.waiting} waiting>"

    async def read(
        self, read: Callable[[], Awaitable[Read]], connection: Callable[[], str]
    ) -> Read:
        """Return what is read, in a place; raises Unavailable if it takes too long to arrive.

        `connection` names who sends it: it is asked for only if there is no place.
        """
        if self._free:
            self._free -= 1
        else:
            await self._turn(connection())
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        self._reading[task] = loop.time()
        if self._timer is None:
            self._watch()
        try:
            return await read()
        except asyncio.CancelledError:
            if task not in self._given_up or task.uncancel():
                raise
            raise Unavailable(
                "the request took too long to arrive, and others wait: send it again, or in parts"
            ) from None
        finally:
            if self._reading.pop(task, None) is None:
                self._given_up.discard(task)
            if self._queues:
                self._leave()
            else:
                self._free += 1

    async def _turn(self, connection: str) -> None:
        """Wait for a place."""
        turn = asyncio.get_running_loop().create_future()
        self._queues.setdefault(connection, deque()).append(turn)
        self.waiting += 1
        if self.waiting == 1:
            self._watch()  # what is being read has less time from now on
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # it had been given a place
            else:
                self._drop(connection, turn)
            raise

    @property
    def _limit_s(self) -> float:
        return self._contended_s if self.waiting else self._alone_s

    def _watch(self) -> None:
        """Set the timer for what has been read for longest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        oldest = next(iter(self._reading.values()), None)
        if oldest is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(oldest + self._limit_s, self._give_up)

    def _give_up(self) -> None:
        """End what has had its time."""
        latest = asyncio.get_running_loop().time() - self._limit_s
        for task in [task for task, begun in self._reading.items() if begun <= latest]:
            del self._reading[task]
            self._given_up.add(task)
            task.cancel()
        self._watch()

    def _leave(self) -> None:
        """Hand a place on, to the connection whose turn it is."""
        while self._queues:
            connection, queue = next(iter(self._queues.items()))
            del self._queues[connection]
            turn = queue.popleft()
            if queue:
                self._queues[connection] = queue  # behind the others
            self.waiting -= 1
            if not turn.done():  # nor cancelled, which its call has not heard of yet
                turn.set_result(None)
                return
        self._free += 1

    def _drop(self, connection: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues.get(connection)
        if queue is not None and turn in queue:
            queue.remove(turn)
            self.waiting -= 1
            if not queue:
                del self._queues[connection]
