"""Publishers with a connection to each node of a fleet, that go on while a node is hurt."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from benchmarks.node.fleet import Fleet
from waterclock.client.client import Client, connect

PACE_S = 0.01
"""Between two publishes of one publisher, while nodes are restarted."""


class Publishers:
    """One a node, each with all addresses, its own node's first."""

    def __init__(self, fleet: Fleet, stack: AsyncExitStack) -> None:
        self._fleet = fleet
        self._stack = stack
        self._clients: list[Client] = []

    async def connect(self, topic: str) -> None:
        """Connect all of them, and publish once."""
        addresses = [self._fleet.address(name) for name in self._fleet.names]
        for number in range(len(addresses)):
            turned = [*addresses[number:], *addresses[:number]]
            client = await self._stack.enter_async_context(connect(turned))
            await client.publish(topic, b"before")
            self._clients.append(client)

    async def acks_after(self, hurt: Callable[[], None], topic: str) -> list[float]:
        """Hurt a node; return how long after that each publisher has its first acknowledgement."""
        begun = time.perf_counter()
        hurt()

        async def first_ack(client: Client) -> float:
            await client.publish(topic, b"after")
            return time.perf_counter() - begun

        async with asyncio.TaskGroup() as tasks:
            acks = [tasks.create_task(first_ack(client)) for client in self._clients]
        return sorted(ack.result() for ack in acks)

    async def worst_stall_s(self, hurt: Callable[[], None], topic: str) -> float:
        """Publish while nodes are hurt, in a thread; return the longest that one publish took."""
        is_over = asyncio.Event()

        async def longest(client: Client) -> float:
            worst = 0.0
            while not is_over.is_set():
                begun = time.perf_counter()
                await client.publish(topic, b"meanwhile")
                worst = max(worst, time.perf_counter() - begun)
                await asyncio.sleep(PACE_S)
            return worst

        async with asyncio.TaskGroup() as tasks:
            stalls = [tasks.create_task(longest(client)) for client in self._clients]
            await asyncio.to_thread(hurt)
            is_over.set()
        return max(stall.result() for stall in stalls)


async def worst_stall_s(fleet: Fleet, topic: str) -> float:
    """Restart all nodes, one after the other, under fresh publishers."""

    def roll() -> None:
        for name in fleet.names:
            fleet.restart(name)

    async with AsyncExitStack() as stack:
        publishers = Publishers(fleet, stack)
        await publishers.connect(topic)
        return await publishers.worst_stall_s(roll, topic)


async def acks_after(fleet: Fleet, topic: str, hurt: Callable[[], None]) -> list[float]:
    """Let fresh publishers publish before and after a node is hurt."""
    async with AsyncExitStack() as stack:
        publishers = Publishers(fleet, stack)
        await publishers.connect(topic)
        return await publishers.acks_after(hurt, topic)
