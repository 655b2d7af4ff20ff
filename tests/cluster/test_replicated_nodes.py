"""Whole nodes whose topics are replicated, on a real etcd: any of them answers, and one may go."""

import asyncio

import pytest

import waterclock
from tests.cluster.joined import config_of
from tests.cluster.running_nodes import RunningNode

pytestmark = pytest.mark.etcd


async def test_any_node_answers_for_topics_and_goes_on_when_one_ends(tmp_path, member):
    etcd = {"etcd": (member.endpoint,), "expect": 3}
    async with asyncio.TaskGroup() as tasks:
        # Side by side: a cluster forms when all of them are there.
        nodes = [RunningNode(config_of(tmp_path, name, cluster=etcd)) for name in "abc"]
        running = [tasks.create_task(node.run()) for node in nodes]
        addresses = [await node.address for node in nodes]
        async with waterclock.connect(addresses) as client:
            await client.topics.create("orders", partitions=2)
            await publish(client, range(20))

            nodes[0].end()
            await running[0]
            await publish(client, range(20, 40))

            found = set()
            async with client.subscribe("orders", group="g") as messages:
                async for message in messages:
                    found.add(int(message.value or b""))
                    message.ack()
                    if len(found) == 40:
                        break
            assert found == set(range(40))
            views = [each for each in await client.cluster.replication() if each.topic == "orders"]
            assert [len(view.replicas) for view in views] == [3, 3]
            assert {view.leader for view in views} <= {"b", "c"}
        for node in nodes:
            node.end()


async def publish(client: waterclock.Client, numbers: range) -> None:
    for number in numbers:
        await client.publish("orders", b"%d" % number, key=b"%d" % number)


async def test_what_recurs_ends_wherever_its_next_occurrence_lies(tmp_path, member):
    etcd = {"etcd": (member.endpoint,), "expect": 3, "name": "recurring"}
    async with asyncio.TaskGroup() as tasks:
        running = [RunningNode(config_of(tmp_path, name, cluster=etcd)) for name in "abc"]
        for each in running:
            tasks.create_task(each.run())
        nodes = [(await each.started)[0] for each in running]

        async def pending() -> int:
            return sum([(await node.pending.count("orders")).total for node in nodes])

        async with waterclock.connect([await each.address for each in running]) as client:
            await client.topics.create("orders", partitions=6)
            names = [f"beat-{number}" for number in range(6)]
            for name in names:  # each in the next partition, and each node leads two
                await client.repeat(name, "orders", b"tick", at="every 1h")
            assert await pending() == 6
            for name in names[:3]:
                await client.pause_repeating(name)
            assert await pending() == 3
            for name in names[3:]:
                assert await client.stop_repeating(name)
            assert await pending() == 0
        for each in running:
            each.end()
