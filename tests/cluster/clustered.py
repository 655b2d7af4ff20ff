"""Nodes of one cluster in this process, linked over loopback."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import grpc

from tests.server.http_client import until
from tests.server.served import Served, config_in
from waterclock.cluster.peer_link.frames import Hello
from waterclock.model.clock import Clock
from waterclock.node.node import running_node
from waterclock.node.places import Places
from waterclock.runtime.clock import SystemClock
from waterclock.server.app import serve
from waterclock.server.cluster.cluster import Cluster
from waterclock.server.cluster.peers import PeerSecurity


class Member(Served):
    """A node that has others."""

    cluster: Cluster
    name: str


@asynccontextmanager
async def member(
    folder: Path,
    name: str,
    *,
    clock: Clock | None = None,
    places: Places | None = None,
    **sections: Any,
) -> AsyncIterator[Member]:
    """Run and serve a node that owns nothing until it is told of nodes; with places, it shares its
    topics."""
    config = config_in(folder, **sections)
    hello = Hello(name, "test", heartbeat_ms=500, silence_ms=10_000)
    cluster = Cluster(hello, PeerSecurity((b"secret",)), Random(name))
    cluster.places = places
    async with (
        running_node(config, clock or SystemClock()) as node,
        serve(node, config, cluster=cluster) as server,
        cluster.peers.listening("127.0.0.1", 0),
        grpc.aio.insecure_channel(
            server.addresses.grpc, options=[("grpc.max_receive_message_length", -1)]
        ) as channel,
    ):
        it = Member(node, server, channel)
        it.cluster, it.name = cluster, name
        yield it


async def meet(*members: Member, owners: tuple[Member, ...] = ()) -> None:
    """Link nodes; `owners`, or all, own the streams."""
    addresses = {each.name: each.server.addresses.http for each in owners or members}
    for each in members:
        each.cluster.ownership.update(addresses)
        for other in members:
            each.cluster.peers.meet(other.name, *other.cluster.peers.address)
    others = len(members) - 1
    await until(lambda: all(len(each.cluster.peers.linked) == others for each in members))
