"""Programs cross the kill -9 of the node that served them: no error, and nothing is lost.

One kill, of a node that led partitions and was home to groups; each program was in the middle of
something then.
"""

import asyncio
from itertools import count

import pytest

import waterclock
from tests.cluster.three_nodes import three_nodes
from tests.server.http_client import raw_client
from waterclock.burrow import Pool, Record, WaterclockSource
from waterclock.client.settings import ClientSettings
from waterclock.node.groups.shards import GROUPS_TOPIC, shard_of
from waterclock.node.node import Node
from waterclock.node.places import Places

pytestmark = pytest.mark.etcd

LOST = "c"
KEYS = 12
BEFORE, AFTER = range(120), range(120, 300)
QUICK = ClientSettings(retry_delay_ms=1, retry_delay_ms_max=20)


def places_of(node: Node) -> Places:
    assert node.replicated_streams is not None
    return node.replicated_streams.places


def homed(node: Node, *names: str) -> list[str]:
    """Return names of groups, one for each of these, whose home is the node that will be lost."""
    places, numbers = places_of(node), count()

    def one(name: str) -> str:
        return next(
            found
            for found in (f"{name}-{number}" for number in numbers)
            if places.leader_of(GROUPS_TOPIC, shard_of(found)) == LOST
        )

    return [one(name) for name in names]


class Seen:
    """What a program has seen, and when it has seen something."""

    def __init__(self) -> None:
        self.values: set[int] = set()
        self._more = asyncio.Event()

    def note(self, value: bytes | str | None) -> None:
        self.values.add(int(value or b""))
        self._more.set()

    async def until(self, wanted: range) -> None:
        while not self.values.issuperset(wanted):
            self._more.clear()
            await self._more.wait()


async def subscribe(client: waterclock.Client, group: str, seen: Seen) -> None:
    async with client.subscribe("orders", group=group) as messages:
        async for message in messages:
            seen.note(message.value)
            message.ack()


async def poll(port: int, group: str, seen: Seen) -> None:
    """Poll over HTTP at a node that stays, and take no error for an answer."""
    async with raw_client(port) as http:
        while True:
            path = f"/topics/orders/messages?group={group}&consumer=one&limit=50&wait=30s"
            answer = await http.get(path)
            assert answer.status == 200, answer.body
            found = answer.json()["messages"]
            for each in found:
                seen.note(each["value"])
            acks = {"group": group, "consumer": "one", "ack": [each["lease"] for each in found]}
            answer = await http.post("/topics/orders/acks", acks)
            assert answer.status in (200, 409), answer.body


async def is_waiting(port: int) -> None:
    """Return when a node waits for another one's answer to a poll."""
    async with raw_client(port) as http:
        metrics = ""
        while "waterclock_forwards_waiting 1.0" not in metrics:
            metrics = (await http.get("/metrics")).body.decode()


async def publish(client: waterclock.Client, numbers: range) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number in numbers:
            key = b"%d" % (number % KEYS)
            tasks.create_task(client.publish("orders", b"%d" % number, key=key))


async def consume(group: str, addresses: list[str], seen: Seen) -> None:
    """Run a parallel consumer."""

    async def process(record: Record) -> None:
        seen.note(record.value)

    await Pool(WaterclockSource("orders", group=group, address=addresses), process).run()


async def test_programs_go_on_without_an_error_when_their_home_is_killed(
    tmp_path, member, monkeypatch
):
    # Another home is looked for as long as it takes on this machine.
    monkeypatch.setattr("waterclock.server.cluster.forwarder.PLACE_S", 60.0)
    async with (
        three_nodes(tmp_path, member.endpoint) as ((a, _), ports, addresses, process),
        waterclock.connect(addresses[::-1], QUICK) as client,
        asyncio.TaskGroup() as tasks,  # an error of a program ends the test
    ):
        await client.topics.create("orders", partitions=6)
        groups = homed(a, "polled", "subscribed", "burrow")
        everyone = [Seen() for _ in groups]
        polled, subscribed, burrow = everyone
        programs = [
            tasks.create_task(poll(ports[0], groups[0], polled)),
            tasks.create_task(subscribe(client, groups[1], subscribed)),
            tasks.create_task(consume(groups[2], addresses, burrow)),
        ]
        await publish(client, BEFORE)
        for seen in everyone:
            await seen.until(BEFORE)
        await is_waiting(ports[0])
        publishing = tasks.create_task(publish(client, AFTER))
        process.kill()
        await publishing

        for seen in everyone:
            await seen.until(AFTER)
        for each in programs:
            each.cancel()
