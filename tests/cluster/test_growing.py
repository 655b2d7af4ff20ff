"""The data folder of a node alone becomes a cluster's: it grows to three replicas, and may go."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

import waterclock
from tests.cluster.joined import config_of
from tests.cluster.running_nodes import RunningNode
from waterclock.model.config import Config
from waterclock.model.sections import ClusterConfig
from waterclock.node.node import running_node
from waterclock.runtime.clock import SystemClock
from waterclock.server.app import serve

pytestmark = pytest.mark.etcd

COUNT = 60
READ = 40
PENDING = 20


@asynccontextmanager
async def alone(config: Config) -> AsyncIterator[waterclock.Client]:
    """Run a node that has no others, as it was before it had."""
    config = replace(config, cluster=ClusterConfig(grpc_port=0, http_port=0))
    async with (
        running_node(config, SystemClock()) as node,
        serve(node, config) as server,
        waterclock.connect(server.addresses.grpc) as client,
    ):
        yield client


async def fill(client: waterclock.Client) -> set[bytes]:
    """Have topics, timers, progress of a group and a recurrence; return what the group has."""
    await client.topics.create("orders", partitions=3)
    await client.topics.create("later", partitions=2)
    for number in range(COUNT):
        await client.publish("orders", b"%d" % number, key=b"%d" % number)
    for number in range(PENDING):
        await client.publish("later", b"%d" % number, at="in 1 hour")
    await client.publish("later", b"again", at=waterclock.Every("1h"))
    return await taken(client, READ)


async def taken(client: waterclock.Client, count: int) -> set[bytes]:
    """Return what the group gets next, acked."""
    found: set[bytes] = set()
    async with client.subscribe("orders", group="g") as messages:
        async for message in messages:
            assert message.value is not None
            found.add(message.value)
            message.ack()
            if len(found) == count:
                break
    return found


async def test_a_folder_of_a_node_alone_grows_to_three_replicas_and_outlives_its_node(
    tmp_path, member
):
    etcd = {"name": "grown", "etcd": (member.endpoint,), "expect": 1}
    configs = [config_of(tmp_path, name, cluster=etcd) for name in "abc"]
    async with alone(configs[0]) as client:
        read = await fill(client)

    async with asyncio.TaskGroup() as tasks:
        nodes = [RunningNode(config) for config in configs]
        running = [tasks.create_task(nodes[0].run())]
        addresses = [await nodes[0].address]
        for node in nodes[1:]:
            running.append(tasks.create_task(node.run()))
            addresses.append(await node.address)
        async with waterclock.connect(addresses) as client:
            await grown(client)
            running[0].cancel()
            await asyncio.wait(running[:1])

            rest = await taken(client, COUNT - len(read))
            assert not rest & read
            assert len(rest | read) == COUNT
            pending = [each async for each in client.scheduled("later")]
            assert len(pending) == PENDING + 1
            (again,) = await client.recurrences()
            assert again.topic == "later"
            await client.publish("orders", b"new")
        for node in nodes:
            node.end()


async def grown(client: waterclock.Client) -> None:
    """Return when every partition has three voters that have everything."""
    while True:
        views = await client.cluster.replication()
        voters = [[each for each in view.replicas if each.is_voter] for view in views]
        if views and all(len(each) == 3 for each in voters):
            return
        await asyncio.sleep(0.05)
