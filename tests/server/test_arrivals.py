"""Requests on their way in: a place each, connections by turns, and slow ones given up."""

import asyncio

import pytest

from waterclock.model.errors import Unavailable
from waterclock.server.arrivals import Arrivals


def named(name: str):
    return lambda: name


class Senders:
    """Requests that arrive when a test says so."""

    def __init__(self, arrivals: Arrivals, tasks: asyncio.TaskGroup) -> None:
        self.reading: list[str] = []
        self._arrivals = arrivals
        self._tasks = tasks
        self._sent: dict[str, asyncio.Event] = {}

    async def call(self, name: str) -> asyncio.Task[str]:
        """Have a call of this name begin, on the connection of its first letter."""
        sent = self._sent[name] = asyncio.Event()

        async def read() -> str:
            self.reading.append(name)
            await sent.wait()
            return name

        async def outcome() -> str:
            try:
                return await self._arrivals.read(read, named(name[0]))
            except Unavailable as error:
                return str(error)

        task = self._tasks.create_task(outcome())
        await asyncio.sleep(0)
        return task

    async def send(self, task: asyncio.Task[str], name: str) -> None:
        self._sent[name].set()
        assert await task == name


async def test_a_call_without_a_place_reads_nothing_until_there_is_one():
    async with asyncio.TaskGroup() as tasks:
        senders = Senders(Arrivals(1), tasks)
        first, second = await senders.call("a1"), await senders.call("b1")
        assert senders.reading == ["a1"]

        await senders.send(first, "a1")
        await asyncio.sleep(0)
        assert senders.reading == ["a1", "b1"]
        await senders.send(second, "b1")


async def test_connections_take_turns_however_many_calls_each_has():
    async with asyncio.TaskGroup() as tasks:
        senders = Senders(Arrivals(1), tasks)
        calls = {name: await senders.call(name) for name in ("a1", "a2", "a3", "b1", "c1")}

        for name in ("a1", "a2", "b1", "c1", "a3"):
            await senders.send(calls[name], name)
        assert senders.reading == ["a1", "a2", "b1", "c1", "a3"]


async def test_a_slow_request_is_given_up_for_one_that_waits():
    async with asyncio.TaskGroup() as tasks:
        senders = Senders(Arrivals(1, alone_s=3600, contended_s=0), tasks)
        slow = await senders.call("a1")
        waiting = await senders.call("b1")
        assert "took too long to arrive" in await slow
        assert senders.reading == ["a1", "b1"]
        await senders.send(waiting, "b1")


async def test_a_request_that_is_alone_has_more_time_and_not_for_ever():
    arrivals = Arrivals(1, alone_s=0, contended_s=0)
    with pytest.raises(Unavailable):
        await arrivals.read(asyncio.Event().wait, named("a"))
    assert repr(arrivals) == "<Arrivals 0 of 1, 0 waiting>"


async def test_calls_that_are_cancelled_leave_no_place_taken():
    arrivals = Arrivals(1)
    async with asyncio.TaskGroup() as tasks:
        senders = Senders(arrivals, tasks)
        calls = [await senders.call(name) for name in ("a1", "b1", "c1")]
        calls[0].cancel()  # it reads; its place goes on
        calls[1].cancel()  # it waits, and is next
        await asyncio.sleep(0)
        calls[2].cancel()  # it has a place and has not read yet
    assert repr(arrivals) == "<Arrivals 0 of 1, 0 waiting>"
