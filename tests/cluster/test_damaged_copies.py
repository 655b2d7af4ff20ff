"""Three nodes on a real etcd, of which one's copy rots: nothing that was acknowledged is passed
over."""

import asyncio
from itertools import count

import pytest

import waterclock
from tests.cluster.joined import config_of
from tests.cluster.running_nodes import RunningNode
from tests.node.rot import rot
from waterclock.node.groups.shards import GROUPS_TOPIC, shard_of
from waterclock.node.node import Node
from waterclock.node.places import Places

pytestmark = pytest.mark.etcd

NAMES = "abc"
COUNT = 30
TEST_S = 60


def places_of(node: Node) -> Places:
    assert node.replicated_streams is not None
    return node.replicated_streams.places


def group_at(node: Node, home: str) -> str:
    """Return the name of a group whose home a node is."""
    names = (f"g-{number}" for number in count())
    places = places_of(node)
    return next(each for each in names if places.leader_of(GROUPS_TOPIC, shard_of(each)) == home)


async def taken(client: waterclock.Client, group: str) -> set[int]:
    """Return what a group is given from the beginning on, once that is all."""
    found: set[int] = set()
    async with client.subscribe("orders", group=group) as messages:
        while len(found) < COUNT:
            message = await anext(messages)
            found.add(int(message.value or b""))
            message.ack()
    return found


@pytest.mark.parametrize("rots", ["follower", "leader"])
async def test_groups_and_replays_are_given_what_has_rotted_in_one_copy(tmp_path, member, rots):
    etcd = {"etcd": (member.endpoint,), "expect": len(NAMES), "name": f"rot-{rots}"}
    async with asyncio.timeout(TEST_S), asyncio.TaskGroup() as tasks:
        running = [RunningNode(config_of(tmp_path, name, cluster=etcd)) for name in NAMES]
        for each in running:
            tasks.create_task(each.run())
        nodes = {name: (await each.started)[0] for name, each in zip(NAMES, running, strict=True)}
        addresses = dict(zip(NAMES, [await each.address for each in running], strict=True))
        async with waterclock.connect(list(addresses.values())) as client:
            await client.topics.create("orders", partitions=1)
            await client.topics.create("alone", partitions=1, replication_factor=1)
            places = [await client.publish("orders", b"%d" % n, acks="all") for n in range(COUNT)]
            first = nodes["a"]
            leader = places_of(first).leader_of("orders", 0)
            home = next(name for name in NAMES if (name == leader) is (rots == "leader"))
            host = nodes[home].topics.get("orders").partition(0)
            rot(host, places[COUNT // 2].offset)

            assert await taken(client, group_at(first, home)) == set(range(COUNT))

            assert host.store.faults
            for name in {*NAMES} - {home}:  # those that have a whole copy, whoever leads
                assert await taken(client, group_at(first, name)) == set(range(COUNT))
            async with waterclock.connect(addresses[home]) as at_home:
                found = [int(message.value or b"") async for message in at_home.replay("orders")]
            assert found == list(range(COUNT))
            alone = [node.topics.get("alone").partition(0) for node in nodes.values()]
            (only,) = [each for each in alone if each.is_open]
            assert not only.has_others()
        for each in running:
            each.end()
