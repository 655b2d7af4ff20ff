"""Whole nodes whose topics are replicated, run in this process as their own would run them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waterclock.model.config import Config
from waterclock.node.node import Node, running_node
from waterclock.runtime.clock import SystemClock
from waterclock.server.app import Server, serve
from waterclock.server.cluster.starting import ClusteredNode


@asynccontextmanager
async def replicated_node(config: Config) -> AsyncIterator[tuple[Node, Server]]:
    """Run a node as its process would."""
    assert config.node.name is not None
    clustered, clock = ClusteredNode(config, config.node.name), SystemClock()
    async with (
        clustered.replicating(clock) as replication,
        running_node(config, clock, replication) as node,
    ):
        clustered.take(node)
        async with (
            serve(node, config, cluster=clustered.cluster) as server,
            clustered.joined(server.addresses, server.access),
        ):
            yield node, server
            await clustered.leave()
            await server.stop()


class RunningNode:
    """A node in a task of its own, until it is told to end."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._end = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.address: asyncio.Future[str] = loop.create_future()
        self.started: asyncio.Future[tuple[Node, Server]] = loop.create_future()

    async def run(self) -> None:
        async with replicated_node(self._config) as (node, server):
            self.started.set_result((node, server))
            self.address.set_result(server.addresses.grpc)
            await self._end.wait()

    def end(self) -> None:
        self._end.set()
