"""Nodes that find each other by gossip on loopback, in this process or in one of their own."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc

from tests.server.http_client import Answered, raw_client
from tests.server.served import Served, config_in
from waterclock.model.config import Config
from waterclock.model.sections import ClusterConfig, NodeConfig
from waterclock.node.node import running_node
from waterclock.runtime.clock import SystemClock
from waterclock.server.app import serve
from waterclock.server.cluster.membership import Membership
from waterclock.server.cluster.starting import ClusteredNode

NOBODY = "127.0.0.1:9"
"""A seed at which nobody is: a node that has it is one of a cluster, and alone."""
STEP_S = 0.01
PROGRAM = """
import json, sys, uvloop
from pathlib import Path
from tests.cluster.joined import config_of
from waterclock.model.sections import StreamsConfig
from waterclock.server.process import run_node
folder, name, store, *seeds = sys.argv[1:]
config = config_of(Path(folder), name, *seeds, streams=StreamsConfig(store=store))
uvloop.run(run_node(config, on_ready=lambda at: print(at.http, flush=True)))
"""


class JoinedNode(Served):
    """A node of a cluster."""

    name: str
    clustered: ClusteredNode

    @property
    def membership(self) -> Membership:
        found = self.clustered.cluster.membership
        assert found is not None
        return found

    @property
    def seed(self) -> str:
        """Where others join it."""
        host, port = self.membership.agent.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def ring(self) -> tuple[str, ...]:
        """Who owns streams, as it knows."""
        return self.clustered.cluster.ownership.ring.nodes

    def seen(self) -> list[tuple[str, str]]:
        """Return what it saw happen to whom."""
        return [(each.kind, each.member) for each in self.membership.events]

    def stream_of(self, owner: str) -> str:
        """Return the name of a stream that a node owns, as this one knows."""
        ring = self.clustered.cluster.ownership.ring
        return next(name for name in map(str, range(1_000)) if ring.owner(name) == owner)

    async def get(self, path: str) -> Answered:
        """Ask it over HTTP."""
        async with raw_client(self.server.http_port) as client:
            return await client.get(path)

    async def post(self, path: str, **body: Any) -> Answered:
        """Ask it over HTTP."""
        async with raw_client(self.server.http_port) as client:
            return await client.post(path, body)

    async def send(self, stream: str, message: Any) -> Answered:
        return await self.post("/streams/send", streamId=stream, message=message)

    async def receive(self, stream: str, query: str = "") -> Answered:
        return await self.get(f"/streams/receive?streamId={stream}&{query}")


def config_of(folder: Path, name: str, *seeds: str, **sections: Any) -> Config:
    """Return the configuration of a node that joins by seeds, on free ports."""
    ports = dict.fromkeys(("grpc_port", "http_port", "peer_port", "gossip_port"), 0)
    others = {"bootstrap_nodes": seeds or (NOBODY,), "preset": "local"}
    cluster = ClusterConfig(**{**ports, **others, **sections.pop("cluster", {})})
    data = NodeConfig(name=name, data_folder=str(folder / name))
    return config_in(folder / name, node=data, cluster=cluster, **sections)


@asynccontextmanager
async def joined_node(
    folder: Path, name: str, *seeds: JoinedNode, **sections: Any
) -> AsyncIterator[JoinedNode]:
    """Run a node in this process, with those it joins by."""
    config = config_of(folder, name, *(each.seed for each in seeds), **sections)
    async with running_node(config, SystemClock()) as node:
        clustered = ClusteredNode(config, name)
        clustered.take(node)
        async with (
            serve(node, config, cluster=clustered.cluster) as server,
            clustered.joined(server.addresses, server.access),
            grpc.aio.insecure_channel(server.addresses.grpc) as channel,
        ):
            it = JoinedNode(node, server, channel)
            it.name, it.clustered = name, clustered
            yield it


@contextmanager
def node_process(
    folder: Path, name: str, *seeds: JoinedNode, store: str = "log:"
) -> Iterator[subprocess.Popen[str]]:
    """Run a node in a process of its own, which is killed at the end."""
    (folder / name).mkdir(exist_ok=True)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), name, store, *(each.seed for each in seeds)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def until(claim: Callable[[], object]) -> None:
    """Wait until a claim holds about nodes; other processes need the processor meanwhile."""
    while not claim():  # noqa: ASYNC110 - the claim is about the insides of nodes
        await asyncio.sleep(STEP_S)


async def agreed(*nodes: JoinedNode) -> None:
    """Wait until all have the same ring, of all of them, and are linked."""
    names = tuple(sorted(each.name for each in nodes))

    def is_settled(node: JoinedNode) -> bool:
        linked = node.clustered.cluster.peers.linked
        return node.ring == names and {*linked, node.name} == {*names}

    await until(lambda: all(map(is_settled, nodes)))
