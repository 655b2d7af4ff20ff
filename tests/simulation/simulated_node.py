"""A whole node in one thread: real parts, a clock turned by hand, and HTTP without sockets.

Nothing of the node is replaced but its threads and its time. Requests are answered by the table of
operations that its server has. A kill leaves the folder as it is at that moment, in the midst of
whatever is under way; a pause stops everything while time goes on.
"""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch
from urllib.parse import urlencode

from tests.kit.clock import ManualClock
from tests.simulation.simulated_loop import InlineFsyncs, InlineThreads, SimulatedLoop
from waterclock.model.config import Config
from waterclock.model.errors import WaterclockError
from waterclock.model.ids import Offset
from waterclock.model.sections import (
    DeliveryConfig,
    GroupConfig,
    LogConfig,
    NodeConfig,
    ScheduleConfig,
)
from waterclock.model.units import KIB
from waterclock.node import node as nodes
from waterclock.node.groups.cleaner import GroupCleaner
from waterclock.node.node import Node, running_node
from waterclock.server.arrivals import Arrivals
from waterclock.server.calls import BytesInFlight, Calls
from waterclock.server.grpc.backlog import Backlog
from waterclock.server.http.messages import Answered, Later, Pending, Request, Response, Streamed
from waterclock.server.http.operations import routes_of
from waterclock.server.http.problems import problem_of
from waterclock.server.http.routes import answer_from
from waterclock.server.process import keep_pulse
from waterclock.server.rest.consumers import HttpConsumers
from waterclock.server.rest.operations import topic_operations
from waterclock.storage import flush
from waterclock.storage.rewrite import Wanted, rewrites

T = TypeVar("T")

ACK_TIMEOUT_MS = 10_000
MAX_RETRIES = 2
SESSION_TIMEOUT_MS = 3_000

# Small: segments are full, timers far and slices whole after a few messages.
CONFIG = replace(
    Config(),
    log=LogConfig(segment_bytes=8 * KIB, preallocate_bytes=4 * KIB),
    schedule=ScheduleConfig(hot_window_ms=60_000, fire_messages_max=2, checkpoint_ms=5_000),
    delivery=DeliveryConfig(
        ack_timeout_ms=ACK_TIMEOUT_MS,
        max_retries=MAX_RETRIES,
        retry_delay_ms=200,
        retry_delay_ms_max=400,
        retry_jitter_percent=0,
    ),
    groups=GroupConfig(session_timeout_ms=SESSION_TIMEOUT_MS, revoke_grace_ms=500),
)


class Answer(NamedTuple):
    """What the node said to a request."""

    status: int
    body: dict[str, Any]
    wall_ms: int
    """When it said so, by the wall clock ..."""
    steady_ms: int
    """... and by the monotonic one."""


class _Waiting:
    """Stands for the connection of a request that is answered later."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def settle(self, response: Response | Streamed, flags: int, origin: bytes | None) -> bool:
        self.answer.set_result(_answer(response, self._clock))
        return True


class SimulatedNode:
    """A node that can be stepped, paused, killed and started again."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.loop = SimulatedLoop(clock)
        # In memory where there is such a place: what a disk may do is proven elsewhere.
        shm = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self._root = Path(tempfile.mkdtemp(prefix="waterclock-hunt-", dir=shm))
        self._runs = 0
        self._folder = self._root / "0"
        self._folder.mkdir()
        self.node: Node
        self.members: HttpConsumers
        self.start()

    # Its life

    def start(self) -> None:
        """Open what the folder holds."""
        opened: asyncio.Future[None] = self.loop.create_future()
        self._stop = asyncio.Event()
        self._task = self.loop.create_task(self._live(opened))
        self.loop.run_until_complete(
            asyncio.wait([opened, self._task], return_when=asyncio.FIRST_COMPLETED)
        )
        self._check_alive()

    async def _live(self, opened: "asyncio.Future[None]") -> None:
        config = replace(CONFIG, node=NodeConfig(name="sim", data_folder=str(self._folder)))
        with (
            patch.object(flush, "Threads", InlineThreads),
            patch.object(flush, "FsyncThreads", InlineFsyncs),
            patch.object(nodes, "aio_at", lambda _: None),
        ):
            running = running_node(config, self.clock)
            self.node = node = await running.__aenter__()
        try:
            calls = Calls(1_000, Arrivals(1), Backlog(1))
            self.members = HttpConsumers(node, calls)
            table = topic_operations(node, self.members, BytesInFlight("publish", 1 << 30))
            self._answer = answer_from(routes_of(table))
            node.spawn(self.members.run())
            # It is given no time but by its own clock, so whenever it stands it was stopped.
            node.spawn(keep_pulse(node.groups.clock, cpu_ms=lambda: 0))
            await asyncio.sleep(0)
            opened.set_result(None)
            await self._stop.wait()
        finally:
            await running.__aexit__(None, None, None)

    def _check_alive(self) -> None:
        if self._task.done():
            self._task.result()
            raise AssertionError("the node has ended")
        assert not self.loop.unheard, self.loop.unheard

    def stop(self) -> None:
        """End in good order."""
        self._stop.set()
        self.loop.run_until_complete(self._task)
        assert not self.loop.unheard, self.loop.unheard

    def kill(self) -> None:
        """End without a word, and leave what the files hold now."""
        self._runs += 1
        left = self._root / str(self._runs)
        shutil.copytree(self._folder, left)
        self.stop()  # in the old folder: nobody will see it
        shutil.rmtree(self._folder)
        self._folder = left

    def close(self) -> None:
        """Be over."""
        try:
            if not self._task.done():
                self.stop()
        finally:
            self.loop.close()
            shutil.rmtree(self._root)

    # Time

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something to its end, however long that takes."""
        done = self.loop.run_until_complete(work)
        self._check_alive()
        return done

    def pass_time(self, ms: int) -> None:
        """Let time pass while everything runs."""
        self.wait(asyncio.sleep(ms / 1_000))

    def pause(self, ms: int) -> None:
        """Let time pass while nothing runs, and then see what comes of it."""
        self.clock.advance(ms)
        self.run_turns(20)

    def run_turns(self, count: int) -> None:
        """Let happen what happens at this moment."""
        self.loop.run_turns(count)
        self._check_alive()

    # Requests

    def call(self, method: str, path: str, body: object = None, **query: object) -> Answer:
        """Ask, and wait for the answer."""
        return self.wait(self.ask(method, path, body, **query))

    def begin(self, method: str, path: str, body: object) -> "asyncio.Task[Answer]":
        """Ask, and do not wait."""
        return self.loop.create_task(self.ask(method, path, body))

    async def ask(self, method: str, path: str, body: object = None, **query: object) -> Answer:
        """Return what a request is answered."""
        request = Request(
            method.encode(),
            path.encode(),
            urlencode(query).encode(),
            [(b"Content-Type", b"application/json")],
            b"" if body is None else json.dumps(body).encode(),
        )
        try:
            answered: Answered | Later = self._answer(request)
            if asyncio.iscoroutine(answered):
                answered = await answered
            if isinstance(answered, Pending):
                waiting = _Waiting(self.clock)
                early = answered.attach(waiting, request)  # type: ignore[arg-type]
                if early is None:
                    return await waiting.answer
                answered = early
        except WaterclockError as error:  # anything else is a bug, and ends the history
            answered = problem_of(error)
        return _answer(answered, self.clock)

    # What else happens to a topic

    def look_at_the_clock(self, topic: str) -> None:
        """Have timers look at the clock, as they do at least each second."""
        for host in self.node.topics.get(topic).partitions:
            host.scheduler.wake()

    def compact(self, topic: str, *, by_key: bool) -> None:
        """Close the segments of a topic and write them anew, without what all groups have read.

        By key, the last message of each stays.
        """
        cleaner = GroupCleaner(self.node.groups, self.node.config.groups, self.clock)
        for host in self.node.topics.get(topic).partitions:
            store, now_ms = host.store, self.clock.now_ms()
            consumed = cleaner.consumed_end(topic, host.partition)
            store.roll(now_ms)
            store.run_jobs()
            end = store.end if consumed is None else Offset(consumed)
            wanted = Wanted(keep_from=end, by_key=by_key)
            for job in rewrites(store, wanted, now_ms=now_ms):
                job.run()
                job.finish()
            host.flush_queue.request_flush()
        self.run_turns(5)


def _answer(response: Answered, clock: ManualClock) -> Answer:
    assert isinstance(response, Response)
    return Answer(response.status, json.loads(response.body), clock.now_ms(), clock.monotonic_ms())
