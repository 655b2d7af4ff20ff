"""Whole nodes on a real etcd, whose replicas people move: by command, client, gRPC and HTTP."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

import waterclock
from tests.cluster.joined import config_of
from tests.cluster.running_nodes import RunningNode
from waterclock.model.cluster_views import ReplicationView
from waterclock.model.errors import Busy
from waterclock.v1 import admin_pb2 as pb
from waterclock.v1.admin_pb2_grpc import AdminStub

pytestmark = pytest.mark.etcd

WATERCLOCK = str(Path(sys.executable).parent / "waterclock")
TOPIC = "orders"


async def command(address: str, *words: str) -> Any:
    """Run `waterclock cluster` with `--json`; return what it says."""
    args = ("cluster", *words, "--address", address, "--json")
    process = await asyncio.create_subprocess_exec(
        WATERCLOCK, *args, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return json.loads(out)


async def partitions(client: waterclock.Client) -> list[ReplicationView]:
    return [each for each in await client.cluster.replication() if each.topic == TOPIC]


async def grown(client: waterclock.Client) -> None:
    """Return when every partition has three voters."""
    while True:
        views = await client.cluster.replication()
        if views and all(sum(r.is_voter for r in view.replicas) == 3 for view in views):
            return
        await asyncio.sleep(0.05)


async def led(client: waterclock.Client, name: str) -> None:
    """Return when a node leads the first partition."""
    while True:
        if (await partitions(client))[0].leader == name:
            return
        await asyncio.sleep(0.05)


async def publish(client: waterclock.Client, numbers: range) -> None:
    for number in numbers:
        await client.publish(TOPIC, b"%d" % number, key=b"%d" % number)


async def test_a_node_is_drained_and_taken_away_while_messages_come_and_another_is_replaced(
    tmp_path, member
):
    etcd = {"name": "drained", "etcd": (member.endpoint,), "expect": 4}
    async with asyncio.TaskGroup() as tasks:
        configs = [config_of(tmp_path, name, cluster=etcd) for name in "abcd"]
        nodes = [RunningNode(config) for config in configs]
        running = [tasks.create_task(node.run()) for node in nodes]
        addresses = [await node.address for node in nodes]
        async with waterclock.connect(addresses[1:]) as client:
            await client.topics.create(TOPIC, partitions=4)
            await grown(client)
            publishing = tasks.create_task(publish(client, range(200)))

            drained = await command(addresses[1], "drain", "a")
            await publishing

            assert [(each["node"], each["replicas"]) for each in drained["drains"]] == [("a", 0)]
            for view in await client.cluster.replication():
                voters = {each.name for each in view.replicas if each.is_voter}
                assert voters == {"b", "c", "d"}, view
            nodes[0].end()
            await running[0]
            await client.cluster.undrain("a")

            # A leader alone, by gRPC.
            async with grpc.aio.insecure_channel(addresses[2]) as channel:
                asked = pb.MovePartitionRequest(
                    topic=TOPIC, partition=0, target="d", is_leader_only=True
                )
                moved = await AdminStub(channel).MovePartition(asked)
            assert [each.target for each in moved.moves] in ([], ["d"])
            await led(client, "d")

            # Another in the place of one that does not come back.
            again = RunningNode(config_of(tmp_path / "new", "e", cluster=etcd))
            running.append(tasks.create_task(again.run()))
            await again.address
            with pytest.raises(Busy, match="drain it"):
                await client.cluster.replace("d", "e")
            nodes[3].end()
            await running[3]
            replaced = await command(addresses[1], "replace", "d", "e")
            assert replaced == {"drains": [], "moves": []}

            await publish(client, range(200, 220))
            ends = [view.committed_end for view in await partitions(client)]
            assert sum(ends) >= 220
            for view in await client.cluster.replication():
                assert {each.name for each in view.replicas if each.is_voter} == {"b", "c", "e"}
        for node in (*nodes, again):
            node.end()
