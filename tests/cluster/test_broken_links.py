"""A link that breaks behind an answer takes a message with it, which was acknowledged: that is
counted, and whoever waits goes on. And how long a link may be silent before it is given up."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.cluster.clustered import Member, meet, member
from tests.cluster.hot_streams.test_split_streams import STREAM, nodes_in
from tests.cluster.joined import config_of
from tests.server.http_client import until
from tests.server.test_streams_api import Streaming
from waterclock.server.cluster.starting import ClusteredNode


def deafen(node: Member, other: str) -> None:
    """Have a node read nothing of what another sends it: it is on the link."""
    transport = node.cluster.peers._links[other]._transport
    assert isinstance(transport, asyncio.Transport)
    transport.pause_reading()


def break_link(node: Member, other: str) -> None:
    node.cluster.peers._links[other].abort()


async def counted(node: Streaming, name: str) -> int:
    """Return a counter of a node, as it shows it."""
    found = (await node.get("/metrics")).body.decode().splitlines()
    [line] = [each for each in found if each.startswith(f"waterclock_{name}_total ")]
    return int(float(line.split()[1]))


async def test_a_message_that_was_on_a_link_which_broke_is_counted_and_the_poll_goes_on(tmp_path):
    async with AsyncExitStack() as stack:
        nodes = {
            name: await stack.enter_async_context(member(tmp_path / name, name))
            for name in ("one", "two")
        }
        await meet(*nodes.values())
        owner_name = nodes["one"].cluster.ownership.ring.owner(STREAM)
        [front_name] = nodes.keys() - {owner_name}
        owner, front = (Streaming(nodes[name], stack) for name in (owner_name, front_name))
        poll = asyncio.ensure_future(front.receive(STREAM))
        await until(lambda: (found := owner.host.table.find(STREAM)) and found.waiting == 1)

        deafen(nodes[front_name], owner_name)
        assert (await owner.send(STREAM, "lost")).status == 200
        break_link(nodes[front_name], owner_name)
        await until(lambda: (found := owner.host.table.find(STREAM)) and found.waiting == 1)
        assert (await owner.send(STREAM, "next")).status == 200

        assert (await poll).json()["message"] == "next"
        assert await counted(front, "forward_broken_polls") == 1
        assert await counted(owner, "forward_broken_polls") == 0


async def test_messages_of_a_pull_whose_link_broke_are_counted_and_the_poll_goes_on(tmp_path):
    async with nodes_in(tmp_path) as nodes:
        await nodes.split(3)
        root, full, polled = nodes
        assert (await full.send(STREAM, "lost")).status == 200
        assert full.hot._look(STREAM).backlog == 1

        deafen(polled.member, full.name)
        poll = asyncio.ensure_future(polled.receive(STREAM))
        await until(lambda: full.hot._look(STREAM).backlog == 0)
        break_link(polled.member, full.name)
        await until(lambda: polled.hot.broken_pulls == 1)
        assert (await root.send(STREAM, "next")).status == 200

        assert (await poll).json()["message"] == "next"
        assert await counted(polled, "hot_stream_broken_pulls") == 1
        assert [node.hot.lost for node in nodes] == [0, 0, 0]


@pytest.mark.parametrize(
    ("etcd", "lease_ms", "silence_ms"),
    [((), 3_000, 5_000), (("127.0.0.1:1",), 3_000, 3_000), (("127.0.0.1:1",), 9_000, 5_000)],
)
def test_a_link_of_replicated_nodes_is_silent_for_no_longer_than_a_lease(
    tmp_path, etcd, lease_ms, silence_ms
):
    cluster = {"etcd": etcd, "lease_ms": lease_ms, "preset": "lan"}
    node = ClusteredNode(config_of(tmp_path, "a", cluster=cluster), "a")

    assert node.cluster.peers._hello.silence_ms == silence_ms
