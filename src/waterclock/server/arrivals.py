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
from typing import TypeVar

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
        self._reading: dict[asyncio.Timeout, float] = {}
        """Each with the time it began."""
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
        begun = asyncio.get_running_loop().time()
        limit = asyncio.timeout_at(begun + (self._contended_s if self.waiting else self._alone_s))
        self._reading[limit] = begun
        try:
            async with limit:
                return await read()
        except TimeoutError:
            raise Unavailable(
                "the request took too long to arrive, and others wait: send it again, or in parts"
            ) from None
        finally:
            del self._reading[limit]
            self._leave()

    async def _turn(self, connection: str) -> None:
        """Wait for a place."""
        if not self.waiting:
            self._hurry()
        turn = asyncio.get_running_loop().create_future()
        self._queues.setdefault(connection, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # it had been given a place
            else:
                self._drop(connection, turn)
            raise

    def _hurry(self) -> None:
        """Somebody begins to wait: what is being read has less time."""
        for limit, begun in self._reading.items():
            if not limit.expired():
                limit.reschedule(begun + self._contended_s)

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
