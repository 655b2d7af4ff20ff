"""All members of groups that speak HTTP: who they are, when they leave, and when polls end.

A member is named by topic, group and consumer; consumers that give no name share one.

    nothing asked for `IDLE_MS`, nothing held    the member leaves
    its session is over                          polls end with the reason; the next poll joins anew
    the node stops                               polls end at once; acks are taken until the drain
                                                 is over, then the members leave

No task and no timer stands for a poll: a member has one task, all polls together one timer.
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

MEMBERS_MAX = 10_000
IDLE_MS = 1 * MINUTE_MS
BEAT_S = 1.0
DEAD_MAX = 1_000
"""Polls that ended before their time are kept in mind until there are so many of them."""


class HttpConsumers:
    """The table. Keep `run` running; `close` ends everything."""

    def __init__(self, node: Node, calls: Calls) -> None:
        self._node = node
        self._calls = calls
        self._members: dict[Key, HttpConsumer] = {}
        self._opening: dict[Key, asyncio.Future[HttpConsumer]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._deadlines: list[tuple[float, int, Waiter, HttpConsumer]] = []
        self._dead = 0
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        calls.streaming_calls.add(self)

    def __repr__(self) -> str:
        return f"<HttpConsumers {len(self._members)}>"

    async def run(self) -> None:
        """Own the members until cancelled."""
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
        """Let those be heard that are in use, and those leave that are not."""
        now_ms = self._node.groups.clock.now_ms()
        for member in tuple(self._members.values()):
            if member.is_in_use or now_ms - member.used_ms < IDLE_MS:
                member.beat()
            else:
                member.session.close(clean=True)

    # Members

    def find(self, key: Key) -> HttpConsumer | None:
        """Return a member, if there is one and its session is not over."""
        member = self._members.get(key)
        return member if member is not None and member.session.ending is None else None

    async def open(self, key: Key, *, start: Start, start_ms: int = 0) -> HttpConsumer:
        """Return a member, which joins its group if need be."""
        found = self.find(key)
        if found is not None:
            return found
        if self._calls.is_stopping or self._tasks is None:
            raise Stopping("the node is stopping: try again, or elsewhere")
        opening = self._opening.get(key)
        if opening is None:
            if len(self._members) + len(self._opening) >= MEMBERS_MAX:
                raise Overloaded("members that poll", MEMBERS_MAX)
            opening = self._opening[key] = asyncio.get_running_loop().create_future()
            self._tasks.create_task(self._open(key, opening, start, start_ms))
        return await asyncio.shield(opening)

    async def _open(
        self, key: Key, opening: "asyncio.Future[HttpConsumer]", start: Start, start_ms: int
    ) -> None:
        """Join a group, tell who waits for that, and serve the member until its session ends."""
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
            opening.set_exception(error)
            opening.exception()  # whoever asked may have gone
            return
        except asyncio.CancelledError:
            opening.set_exception(Stopping("the node is stopping"))
            opening.exception()
            raise
        finally:
            del self._opening[key]
        size = max(TAKEN_BYTES, self._node.config.limits.message_bytes_max)
        member = HttpConsumer(key, session, self._node.groups.clock, taken_bytes=size)
        self._members[key] = member
        opening.set_result(member)
        try:
            await member.run()
        finally:
            session.close(clean=True)
            if self._members.get(key) is member:
                del self._members[key]

    # Polls

    def wait(self, member: HttpConsumer, waiter: Waiter, seconds: float) -> None:
        """Let somebody wait for so long. It is served at once if it can be."""
        if self._calls.is_stopping:
            raise Stopping("the node is stopping: try again, or elsewhere")
        member.add(waiter)
        if not waiter.is_over:
            when = asyncio.get_running_loop().time() + seconds
            heapq.heappush(self._deadlines, (when, next(self._numbers), waiter, member))
            self._set_timer()

    def gone(self, member: HttpConsumer) -> None:
        """Take note that somebody has left before its time."""
        self._dead += 1
        if self._dead > max(DEAD_MAX, len(self._deadlines) // 2):
            self._deadlines = [entry for entry in self._deadlines if not entry[2].is_over]
            heapq.heapify(self._deadlines)
            self._dead = 0
        member.left()

    def _set_timer(self) -> None:
        when = self._deadlines[0][0]
        if self._timer is None or self._timer.cancelled() or when < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(when, self._rang)

    def _rang(self) -> None:
        """End the polls whose time is up."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].is_over):
            _, _, waiter, member = heapq.heappop(self._deadlines)
            if not waiter.is_over:
                waiter.take([])
                member.left()
        if self._deadlines:
            self._set_timer()

    # When the node stops

    def stop(self) -> None:
        """End all waiting; what is held may still be answered for."""
        for member in tuple(self._members.values()):
            member.fail(Stopping("the node is stopping: try again, or elsewhere"))

    def end(self) -> None:
        """Let all members leave."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for member in tuple(self._members.values()):
            member.session.close(clean=True)
