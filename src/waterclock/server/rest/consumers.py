"""All consumers over HTTP: who they are, when they leave their groups, and when polls end.

A consumer is named by topic, group and consumer name; consumers that give no name share one.

    nothing asked for `IDLE_MS`, nothing held    the consumer leaves
    its session is over                          polls end with the reason; the next poll joins anew
    it joins, and all who wait for that go       it does not join: nobody is there whom it serves
    the node stops                               polls end at once; acks are taken until the drain
                                                 is over, then the consumers leave

A poll has no task and no timer: a consumer has one task, all polls together one timer.
"""

import asyncio
import heapq
from itertools import count

from waterclock.model.errors import Overloaded, Stopping
from waterclock.model.units import MINUTE_MS
from waterclock.node.groups.positions import Start
from waterclock.node.node import Node
from waterclock.server.calls import Calls
from waterclock.server.rest.consumer import TAKEN_BYTES, HttpConsumer, Key, Waiter

CONSUMERS_MAX = 10_000
IDLE_MS = 1 * MINUTE_MS
BEAT_S = 1.0
DEAD_MAX = 1_000
"""Polls that ended early stay in the heap until there are so many of them."""


class _Opening:
    """A consumer that joins its group, for those who wait for that."""

    __slots__ = ("found", "task", "waiting")

    def __init__(self) -> None:
        self.found: asyncio.Future[HttpConsumer] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None]
        self.waiting = 0


class HttpConsumers:
    """The table. Keep `run` running; `close` ends everything."""

    def __init__(self, node: Node, calls: Calls) -> None:
        self._node = node
        self._calls = calls
        self._consumers: dict[Key, HttpConsumer] = {}
        self._opening: dict[Key, _Opening] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._deadlines: list[tuple[float, int, Waiter, HttpConsumer]] = []
        self._dead = 0
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        calls.streaming_calls.add(self)

    def __repr__(self) -> str:
        return f"<HttpConsumers {len(self._consumers)}>"

    async def run(self) -> None:
        """Own the consumers until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                while True:
                    await asyncio.sleep(BEAT_S)
                    self.beat()
        finally:
            self._tasks = None
            self.end()

    def beat(self) -> None:
        """Send the heartbeats of consumers in use, and let the others leave."""
        now_ms = self._node.groups.clock.now_ms()
        for consumer in tuple(self._consumers.values()):
            if consumer.is_in_use or now_ms - consumer.used_ms < IDLE_MS:
                consumer.beat()
            else:
                consumer.session.close(clean=True)

    # Consumers

    def find(self, key: Key) -> HttpConsumer | None:
        """Return a consumer, if there is one and its session is not over."""
        consumer = self._consumers.get(key)
        return consumer if consumer is not None and consumer.session.ending is None else None

    async def open(self, key: Key, *, start: Start, start_ms: int = 0) -> HttpConsumer:
        """Return a consumer, which joins its group if need be."""
        found = self.find(key)
        if found is not None:
            return found
        if self._calls.is_stopping or self._tasks is None:
            raise Stopping("the node is stopping: try again, or elsewhere")
        opening = self._opening.get(key)
        if opening is None:
            if len(self._consumers) + len(self._opening) >= CONSUMERS_MAX:
                raise Overloaded("HTTP consumers", CONSUMERS_MAX)
            opening = self._opening[key] = _Opening()
            opening.task = self._tasks.create_task(self._open(key, opening, start, start_ms))
        opening.waiting += 1
        try:
            return await asyncio.shield(opening.found)
        finally:
            opening.waiting -= 1
            if not opening.waiting and not opening.found.done():
                # A member for which nobody asks keeps partitions from others until it is idle.
                self._forget(key, opening)
                opening.task.cancel()

    def _forget(self, key: Key, opening: _Opening) -> None:
        if self._opening.get(key) is opening:
            del self._opening[key]

    async def _open(self, key: Key, opening: _Opening, start: Start, start_ms: int) -> None:
        """Join a group, wake the requests that wait for that, and run until the session ends."""
        try:
            session = await self._node.groups.open_session(
                key.topic,
                key.group,
                member=key.consumer,
                start=start,
                start_ms=start_ms,
                credit=(0, 0),
            )
        except Exception as error:
            opening.found.set_exception(error)
            opening.found.exception()  # whoever asked may have gone
            return
        except asyncio.CancelledError:
            opening.found.set_exception(Stopping("the node is stopping"))
            opening.found.exception()
            raise
        finally:
            self._forget(key, opening)
        size = max(TAKEN_BYTES, self._node.config.limits.message_bytes_max)
        consumer = HttpConsumer(key, session, self._node.groups.clock, taken_bytes=size)
        self._consumers[key] = consumer
        opening.found.set_result(consumer)
        try:
            await consumer.run()
        finally:
            session.close(clean=True)
            if self._consumers.get(key) is consumer:
                del self._consumers[key]

    # Polls

    def wait(self, consumer: HttpConsumer, waiter: Waiter, seconds: float) -> None:
        """Let a waiter wait for so long. It is served at once if it can be."""
        if self._calls.is_stopping:
            raise Stopping("the node is stopping: try again, or elsewhere")
        consumer.add(waiter)
        if not waiter.is_over:
            when = asyncio.get_running_loop().time() + seconds
            heapq.heappush(self._deadlines, (when, next(self._numbers), waiter, consumer))
            self._set_timer()

    def gone(self, consumer: HttpConsumer) -> None:
        """Note that a waiter has left before its time."""
        self._dead += 1
        if self._dead > max(DEAD_MAX, len(self._deadlines) // 2):
            self._deadlines = [entry for entry in self._deadlines if not entry[2].is_over]
            heapq.heapify(self._deadlines)
            self._dead = 0
        consumer.left()

    def _set_timer(self) -> None:
        when = self._deadlines[0][0]
        # Its time is kept here: what uvloop gives for a time that has passed tells none.
        if self._timer is None or when < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(when, self._on_timer)
            self._timer_at = when

    def _on_timer(self) -> None:
        """End the polls whose time is up."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].is_over):
            _, _, waiter, consumer = heapq.heappop(self._deadlines)
            if not waiter.is_over:
                waiter.take([])
                consumer.left()
        if self._deadlines:
            self._set_timer()

    # When the node stops

    def stop(self) -> None:
        """End all waiting; what is held may still be answered for."""
        for consumer in tuple(self._consumers.values()):
            consumer.fail(Stopping("the node is stopping: try again, or elsewhere"))

    def end(self) -> None:
        """Let all consumers leave."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for consumer in tuple(self._consumers.values()):
            consumer.session.close(clean=True)
