"""A client of several nodes goes on when one of them fails, and the program hears nothing of it."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import grpc
import pytest

from tests.client.doors import Door, doors_to
from tests.client.fake_node import FakeNode, fake_node
from tests.client.secured import secured_node
from waterclock.client.client import Client, connect
from waterclock.client.settings import ClientSettings
from waterclock.model.errors import (
    AlreadyExists,
    Fenced,
    NotLeader,
    Stopping,
    UnknownTopic,
    Unreachable,
    WaterclockError,
)
from waterclock.model.message import Message
from waterclock.server.statuses import status_of
from waterclock.v1 import admin_pb2

QUICK = ClientSettings(retry_delay_ms=1, retry_delay_ms_max=20)


@contextlib.asynccontextmanager
async def two_doors() -> AsyncIterator[tuple[FakeNode, list[Door], Client]]:
    """A node, two addresses of it, and a client of both."""
    async with (
        fake_node() as node,
        doors_to(node.port) as doors,
        connect(",".join(door.address for door in doors), QUICK) as client,
    ):
        yield node, doors, client


@contextlib.asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[FakeNode, FakeNode, Client]]:
    """The node that a client is at, another that has the same topics, and the client."""
    async with fake_node() as one, fake_node() as two:
        two.topics, two.groups = one.topics, one.groups
        async with connect([one.address, two.address], QUICK) as client:
            at_one = client._connection.address == one.address
            yield (one, two, client) if at_one else (two, one, client)


def current(doors: list[Door], client: Client) -> Door:
    return next(door for door in doors if door.address == client._connection.address)


def switches(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records if record.name == "waterclock.client"]
    return [each for each in said if each.startswith("going on")]


async def test_of_several_addresses_one_that_answers_is_enough():
    async with fake_node() as gone:
        pass
    async with fake_node() as node:
        for _ in range(4):
            async with connect([gone.address, node.address], QUICK) as client:
                assert (await client.node()).name == "fake"


async def test_if_none_answers_all_are_named():
    async with fake_node() as one, fake_node() as two:
        pass
    with pytest.raises(Unreachable) as caught:
        async with connect([one.address, two.address], ClientSettings(connect_timeout_ms=50)):
            pass
    assert one.address in str(caught.value)
    assert two.address in str(caught.value)


async def test_publishes_go_on_elsewhere_once_and_in_order(caplog):
    caplog.set_level(logging.WARNING, "waterclock.client")
    async with two_doors() as (node, doors, client):
        first = current(doors, client)
        async with asyncio.TaskGroup() as tasks:
            for number in range(2_000):
                key = b"k%d" % (number % 7)
                tasks.create_task(client.publish("orders", b"%d" % number, key=key))
                if number % 100 == 0:
                    await asyncio.sleep(0)
                if number == 1_000:
                    await node.until(lambda: bool(node.batches))
                    first.shut()

        rows = node.topics["orders"].rows
        assert len(rows) == 2_000
        numbers: dict[object, list[int]] = {}
        for row in rows:
            numbers.setdefault(row["key"], []).append(int(row["value"]))  # type: ignore[call-overload]
        assert all(each == sorted(each) for each in numbers.values())
        while client._connection._home == first.address:  # noqa: ASYNC110 - it is told in a log
            await asyncio.sleep(0)
        assert current(doors, client) is not first
    said = switches(caplog)
    assert len(said) == 1, said
    assert first.address in said[0]


async def test_an_answer_that_was_lost_is_no_second_message():
    async with two_doors() as (node, _, client):
        node.fails_after.append(ConnectionError())
        receipt = await client.publish("orders", b"x")

        assert (receipt.is_new, len(node.topics["orders"].rows)) == (False, 1)


async def test_publishes_wait_while_no_node_is_there():
    async with two_doors() as (_, doors, client):
        await client.publish("orders", b"0")
        for door in doors:
            door.shut()
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(client.publish("orders", b"%d" % n)) for n in range(1, 5)]
            await asyncio.sleep(0)
            await doors[0].open()
            offsets = [(await each).offset for each in waiting]

        assert sorted(offsets) == [1, 2, 3, 4]


async def test_a_subscription_goes_on_elsewhere():
    async with two_doors() as (node, doors, client):
        await client.publish_many("orders", [Message(b"%d" % n) for n in range(100)])
        first, seen = current(doors, client), set()
        async with client.subscribe("orders", group="billing", prefetch=20) as messages:
            async for message in messages:
                seen.add(message.value)
                await message.ack()
                if len(seen) == 50:
                    first.shut()
                if len(seen) == 100:
                    break
        await node.until(lambda: len(node.groups["orders", "billing"].done) == 100)


async def test_a_replay_without_a_name_goes_on_behind_what_it_has_had():
    async with two_doors() as (node, _, client):
        await client.publish_many("orders", [Message(b"%d" % n) for n in range(250)])
        node.replay_breaks = ["lost"]
        replay = client.replay("orders")
        seen = [message.offset async for message in replay]

        assert seen == [*range(250)]
        node.replayed = 0
        assert [message.offset async for message in replay] == seen, "again is from the start"


async def test_a_node_that_stops_sends_its_producers_elsewhere():
    async with two_nodes() as (one, two, client):
        one.fails_before.extend([Stopping("going down")] * 100)
        await client.publish("orders", b"x")

        assert len(one.batches) == 1
        assert len(two.batches) == 1


@pytest.mark.parametrize("error", [NotLeader("orders/0", leader="c"), Fenced("b went")])
async def test_a_node_that_cannot_do_it_is_asked_once_more_and_then_another(error):
    async with two_nodes() as (one, two, client):
        one.fails_before.extend([error] * 100)
        await client.publish("orders", b"x")

        assert len(one.batches) == 2
        assert len(two.batches) == 1


async def test_a_client_that_was_given_one_node_knows_the_others_by_it():
    async with fake_node() as one, fake_node() as two:
        two.topics = one.topics
        for node, name in ((one, "one"), (two, "two")):
            node.name = name
            node.named = [
                admin_pb2.NodeAddress(name="one", address=one.address),
                admin_pb2.NodeAddress(name="two", address=two.address),
            ]
        async with connect(one.address, QUICK) as client:
            await client.publish("orders", b"0")
            await one.stop()
            await client.publish("orders", b"1")

            assert [row["value"] for row in one.topics["orders"].rows] == [b"0", b"1"]
            assert (await client.node()).name == "two"
        await one.start()  # for the fixture, which stops it


def test_nodes_at_home_elsewhere_are_not_asked_from_here():
    from waterclock.client.calls import others_of

    named = [
        admin_pb2.NodeAddress(name="a", address="127.0.0.1:9000"),
        admin_pb2.NodeAddress(name="b", address="127.0.0.1:9001"),
        admin_pb2.NodeAddress(name="c", address="10.0.0.3:9000"),
    ]
    node = admin_pb2.NodeInfo(name="a", nodes=named)

    assert others_of(node, "localhost:9000") == ["127.0.0.1:9001", "10.0.0.3:9000"]
    assert others_of(node, "10.0.0.1:9000") == ["10.0.0.3:9000"]


async def test_a_token_is_not_sent_to_a_node_of_another_ca(secure_folder, other_folder):
    async with secured_node(secure_folder) as node, secured_node(other_folder) as stranger:
        for _ in range(4):
            addresses = [node.address, stranger.address]
            async with connect(addresses, QUICK, credential=node.credential) as client:
                await client.publish("orders", b"x")
        assert stranger.guard.calls == []

        node.named = [admin_pb2.NodeAddress(name="stranger", address=stranger.address)]
        async with connect(node.address, QUICK, credential=node.credential) as client:
            node.fails_before.append(Stopping("for a moment"))
            await client.publish("orders", b"y")
        assert stranger.guard.calls == []


class Admin(FakeNode):
    """A fake whose answers about topics are lost on the way, or that refuses them, as told."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []
        self.loses = 0
        self.refusals: list[WaterclockError] = []
        self.asked = 0

    async def _answer(self, context, error: WaterclockError | None = None):
        self.asked += 1
        if self.loses:
            self.loses -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        if error is not None:
            status = status_of(error, "a test")
            await context.abort(status.code, status.details, status.trailers)

    async def CreateTopic(self, request, context):
        if self.refusals:
            await self._answer(context, self.refusals.pop())
        error = AlreadyExists("topic", request.topic) if request.topic in self.made else None
        if error is None:
            self.made.append(request.topic)
        await self._answer(context, error)
        return admin_pb2.Topic(topic=request.topic)

    async def DeleteTopic(self, request, context):
        error = None if request.topic in self.made else UnknownTopic(request.topic)
        if error is None:
            self.made.remove(request.topic)
        await self._answer(context, error)
        return admin_pb2.DeleteTopicResponse()

    async def GetTopic(self, request, context):
        await self._answer(context)
        return admin_pb2.Topic(topic=request.topic)

    async def Redrive(self, request, context):
        await self._answer(context)
        return admin_pb2.RedriveResponse(redriven=1)


@contextlib.asynccontextmanager
async def administered() -> AsyncIterator[tuple[Admin, Client]]:
    """Two addresses of a node that may fail at what administrators ask."""
    node = Admin()  # type: ignore[abstract]
    await node.start()
    try:
        async with doors_to(node.port) as doors, connect([d.address for d in doors], QUICK) as it:
            yield node, it
    finally:
        await node.stop()


async def test_what_changes_nothing_is_asked_again():
    async with administered() as (node, client):
        node.loses = 3

        assert (await client.topics.get("orders")).name == "orders"
        assert node.asked == 4


async def test_a_topic_whose_making_was_not_heard_of_is_made_and_no_error():
    async with administered() as (node, client):
        node.loses = 1
        assert (await client.topics.create("orders")).name == "orders"
        assert node.made == ["orders"]

        with pytest.raises(AlreadyExists):
            await client.topics.create("orders")

        node.loses = 1
        await client.topics.delete("orders")
        assert node.made == []
        with pytest.raises(UnknownTopic):
            await client.topics.delete("orders")


async def test_what_was_refused_can_be_asked_of_another_whatever_it_is():
    async with administered() as (node, client):
        node.refusals = [NotLeader("__meta"), Stopping("going down")]

        assert (await client.topics.create("orders")).name == "orders"


async def test_what_counts_what_it_did_is_not_repeated_if_it_may_have_happened():
    async with administered() as (node, client):
        node.loses = 1
        with pytest.raises(Unreachable):
            await client.dead_letters.redrive("orders")

        assert node.asked == 1
        assert await client.dead_letters.redrive("orders") == 1


async def test_a_call_ends_in_its_own_time_if_no_node_comes_back():
    async with fake_node() as node, doors_to(node.port) as doors:
        settings = ClientSettings(retry_delay_ms=1, retry_delay_ms_max=20, call_timeout_ms=100)
        async with connect([door.address for door in doors], settings) as client:
            for door in doors:
                door.shut()
            with pytest.raises(Unreachable):
                await client.node()
