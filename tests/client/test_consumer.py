"""A subscription hands out everything in order, survives its stream, and leaves nothing behind."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.client.fake_node import FakeNode, FakeSession, fake_node
from waterclock.client.client import Client, connect
from waterclock.client.consumer.subscription import Subscription
from waterclock.client.settings import ClientSettings
from waterclock.model.errors import (
    BadInput,
    Busy,
    Closed,
    Stopping,
    StorageFull,
    UnknownTopic,
    Unreachable,
)
from waterclock.model.message import Message
from waterclock.v1.broker_pb2 import Answer, SubscribeResponse

QUICK = ClientSettings(
    retry_delay_ms=1, retry_delay_ms_max=2, ack_flush_ms=0, connect_timeout_ms=2_000
)


@contextlib.asynccontextmanager
async def connected(
    count: int = 0, settings: ClientSettings = QUICK
) -> AsyncIterator[tuple[FakeNode, Client]]:
    async with fake_node() as node, connect(node.address, settings) as client:
        await client.publish_many("orders", [Message(b"%d" % number) for number in range(count)])
        yield node, client


@contextlib.asynccontextmanager
async def subscribed(count: int = 0) -> AsyncIterator[tuple[FakeNode, Client, Subscription]]:
    async with (
        connected(count) as (node, client),
        client.subscribe("orders", group="billing") as messages,
    ):
        yield node, client, messages


async def take(messages: Subscription, count: int) -> list[bytes | None]:
    """Take so many messages and ack each."""
    found: list[bytes | None] = []
    async for message in messages:
        found.append(message.value)
        await message.ack()
        if len(found) == count:
            break
    return found


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, count)]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the client warned of; gRPC may complain about the loop of an earlier test."""
    return [
        record.getMessage()
        for record in caplog.records
        if (record.name, record.levelname) == ("waterclock.client", "WARNING")
    ]


def done(node: FakeNode) -> set[int]:
    return node.groups["orders", "billing"].done


async def test_messages_come_in_order_and_acks_arrive():
    async with connected(250) as (node, client):
        async with client.subscribe("orders", group="billing") as messages:
            assert await take(messages, 250) == numbers(250)
        assert done(node) == {*range(250)}
        assert len(node.sessions) == 0


async def test_a_message_tells_all_about_itself():
    async with connected() as (_, client):
        sent = await client.publish("orders", b"v", key=b"k", headers={"a": b"1"})
        async with client.subscribe("orders", group="billing") as messages:
            message = await anext(messages)

        assert (message.topic, message.partition, message.offset) == ("orders", 0, 0)
        assert (message.value, message.key, message.headers) == (b"v", b"k", {"a": b"1"})
        assert (message.id, message.attempt, message.due) == (sent.message_id, 1, None)
        assert (message.deadline - message.appended).total_seconds() == 30


async def test_what_comes_later_is_waited_for():
    async with (
        connected() as (_, client),
        client.subscribe("orders", group="billing") as messages,
        asyncio.TaskGroup() as tasks,
    ):
        taking = tasks.create_task(take(messages, 3))
        for value in numbers(3):
            await client.publish("orders", value)
        assert await taking == numbers(3)


async def test_a_failed_message_comes_again_and_a_hopeless_one_does_not():
    async with connected(3) as (node, client):
        seen = []
        async with client.subscribe("orders", group="billing") as messages:
            async for message in messages:
                seen.append((message.offset, message.attempt))
                if message.offset == 0 and message.attempt < 3:
                    message.nack()
                elif message.offset == 1:
                    message.reject()
                else:
                    message.ack()
                if len(seen) == 5:
                    break
        assert sorted(seen) == [(0, 1), (0, 2), (0, 3), (1, 1), (2, 1)]
        assert node.groups["orders", "billing"].dead == [1]
        assert done(node) == {0, 1, 2}


async def test_batches_are_acked_as_a_whole():
    async with connected(250) as (node, client):
        values: list[bytes] = []
        async with client.subscribe("orders", group="billing") as messages:
            async for batch in messages.batches():
                values += batch.rows.column("value").to_pylist()
                await batch.ack()
                if len(values) == 250:
                    break
        assert values == numbers(250)
        assert done(node) == {*range(250)}


async def test_batches_go_on_where_a_loop_over_messages_was_left():
    async with subscribed(10) as (_, _, messages):
        assert await take(messages, 4) == numbers(4)
        batch = await anext(messages.batches())

        assert batch.rows.column("value").to_pylist() == numbers(10, start=4)


async def test_leaving_gives_back_what_was_not_answered():
    async with connected(10) as (node, client):
        async with client.subscribe("orders", group="billing") as messages:
            await take(messages, 4)
            held = await anext(messages)
        assert node.groups["orders", "billing"].held == set()
        assert done(node) == {*range(4)}
        assert not held.ack()
        async with client.subscribe("orders", group="billing") as messages:
            assert await take(messages, 6) == numbers(10, start=4)


async def test_closing_the_client_leaves_too():
    async with fake_node() as node:
        async with connect(node.address, QUICK) as client:
            await client.publish("orders", b"x")
            messages = await client.subscribe("orders", group="billing").__aenter__()
            await take(messages, 1)
        assert done(node) == {0}
        with pytest.raises(StopAsyncIteration):
            await anext(messages)


async def test_a_subscription_needs_no_block():
    async with fake_node() as node:
        async with connect(node.address, QUICK) as client:
            await client.publish_many("orders", [Message(value) for value in numbers(3)])
            assert await take(client.subscribe("orders", group="billing"), 3) == numbers(3)
        assert done(node) == {0, 1, 2}


async def test_a_slow_consumer_holds_no_more_than_its_prefetch():
    async with connected(300) as (node, client):
        async with client.subscribe("orders", group="billing", prefetch=7) as messages:
            held = 0
            async for message in messages:
                held = max(held, len(node.sessions[0].held))
                message.ack()
                if message.offset == 299:
                    break
        assert held == 7
        assert done(node) == {*range(300)}


async def test_acks_do_not_linger_while_the_program_waits_for_room():
    async with (
        connected(9, ClientSettings(ack_flush_ms=60_000)) as (_, client),
        client.subscribe("orders", group="billing", prefetch=8) as messages,
    ):
        held = [await anext(messages) for _ in range(8)]
        held[0].ack()
        # The node gives nothing more before it hears of this one.
        assert (await anext(messages)).offset == 8


async def test_a_program_that_never_waits_lets_all_others_have_their_turns():
    loop, turns = asyncio.get_running_loop(), list[asyncio.Handle]()

    def turn() -> None:
        turns.append(loop.call_soon(turn))

    async with subscribed(1_000) as (_, _, messages):
        # All of it is here before the first is looked at.
        while len(messages._session.buffer) < 10:
            messages._arrived.clear()
            await messages._arrived.wait()
        turn()
        messages._yield_at = 0
        async for message in messages:
            messages._yield_at = 0  # as if each message took long
            message.ack()
            if message.offset == 900:
                break
        turns.pop().cancel()  # it is still to come
        assert len(turns) >= 900


async def test_a_node_that_restarts_delivers_again_what_was_not_acked():
    async with connected(20) as (node, client):
        async with client.subscribe("orders", group="billing") as messages:
            await take(messages, 5)
            held = await anext(messages)
            await node.until(lambda: len(done(node)) == 5)
            await node.stop()
            await node.start()
            await second_session(node)

            # What lay here is void: the same messages come anew, and only those.
            assert await take(messages, 15) == numbers(20, start=5)
            assert not held.is_held
            assert not await held.ack()
        assert done(node) == {*range(20)}


async def test_a_node_that_refuses_to_store_is_there_for_who_subscribes(caplog):
    async with connected(20) as (node, client):
        node.delivery_size = 1
        node.fails_before.extend([StorageFull("no space left")] * 100_000)
        async with client.subscribe("orders", group="billing") as messages:
            publishing = asyncio.create_task(client.publish("orders", b"last"))
            await node.until(lambda: len(node.batches) >= 3)
            assert await take(messages, 20) == numbers(20)
            node.fails_before.clear()
            await publishing
        warning = f"waiting for the node at {node.address}, which refuses: no space left"
        *waits, ends = said(caplog)
        assert waits == [warning]
        assert ends == f"the node at {node.address} accepts again, after 0 s"


async def test_a_wait_for_the_node_is_told_at_once_and_its_end_too(caplog):
    async with connected(1) as (node, client):
        async with client.subscribe("orders", group="billing") as messages:
            await node.stop()
            while not said(caplog):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await node.start()
            assert await take(messages, 1) == numbers(1)
        waits, ends = said(caplog)
        assert waits.startswith(f"waiting for the node at {node.address}: ")
        assert ends == f"the node at {node.address} is there, after 0 s"


@pytest.mark.parametrize("reason", [Stopping("restarting"), Unreachable("lost")])
async def test_a_stream_that_breaks_in_passing_is_opened_again(reason):
    async with subscribed(3) as (node, _, messages):
        await anext(messages)
        end(node.sessions[0], reason)
        await second_session(node)
        assert await take(messages, 3) == numbers(3)


@pytest.mark.parametrize("reason", [UnknownTopic("orders"), Busy("replaced"), BadInput("x")])
async def test_a_stream_that_ends_for_good_ends_the_iteration(reason):
    async with subscribed(1) as (node, _, messages):
        message = await anext(messages)
        end(node.sessions[0], reason)
        for _ in range(2):
            with pytest.raises(type(reason)):
                await anext(messages)
        assert not message.ack()


async def second_session(node: FakeNode) -> None:
    await node.until(lambda: node.groups["orders", "billing"].generation == 2)


def end(session: FakeSession, reason: Exception) -> None:
    session.breaks_with = reason  # type: ignore[assignment]
    session.changed.set()


async def test_a_wait_for_a_message_may_be_broken_off_without_losing_one():
    async with subscribed() as (_, client, messages):
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await anext(messages)
        await client.publish("orders", b"0")
        assert await take(messages, 1) == [b"0"]


async def test_several_tasks_share_the_messages_of_one_subscription():
    async with connected(200) as (_, client):
        values: list[bytes | None] = []

        async def work(messages: Subscription) -> None:
            async for message in messages:
                values.append(message.value)
                await asyncio.sleep(0)
                message.ack()
                if len(values) == 200:
                    await messages.leave()

        async with (
            client.subscribe("orders", group="billing") as messages,
            asyncio.TaskGroup() as tasks,
        ):
            for _ in range(5):
                tasks.create_task(work(messages))
        assert values == numbers(200)


async def test_a_revoked_partition_is_let_go_and_answered_to_the_end():
    async with connected(10) as (node, client):
        async with client.subscribe("orders", group="billing") as messages:
            first = await anext(messages)
            session = node.sessions[0]
            session.credit = 0  # the node hands out nothing more
            session.extra.append(
                SubscribeResponse(
                    revoked=SubscribeResponse.Revoked(
                        partition=0, generation=session.generation, deadline_ms=1
                    )
                )
            )
            session.changed.set()
            await node.until(lambda: len(session.held) == 1)
            first.ack()
            await node.until(lambda: not session.held)

        kinds = [answer.kind for request in session.requests for answer in request.answers]
        assert kinds == [Answer.GIVE_BACK, Answer.ACK]
        assert done(node) == {0}


async def test_what_cannot_be_opened_says_why():
    async with connected() as (node, client):
        with pytest.raises(BadInput, match="prefetch must be at least 1"):
            client.subscribe("orders", group="billing", prefetch=0)
        await node.stop()
        quick = ClientSettings(connect_timeout_ms=20, retry_delay_ms=1)
        client._connection.settings = quick
        with pytest.raises(Unreachable, match="no Waterclock node answers"):
            async with client.subscribe("orders", group="billing"):
                pass
        await node.start()


def test_a_subscription_of_a_closed_client_is_refused():
    with pytest.raises(Closed):
        Client("localhost").subscribe("orders", group="billing")


async def test_where_a_new_group_starts_is_said_on_the_wire():
    async with connected() as (node, client):
        async with client.subscribe("orders", group="a", start="latest"):
            assert node.sessions[0].requests[0].open.start == 1
        async with client.subscribe("orders", group="b", start="2026-01-01T00:00Z"):
            opened = node.sessions[0].requests[0].open
            assert (opened.start, opened.start_ms) == (2, 1_767_225_600_000)
