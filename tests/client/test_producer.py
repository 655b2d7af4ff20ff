"""The producer batches by itself, keeps each key's order, and lets nobody pay for a neighbour."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.client.fake_node import FakeNode, fake_node
from waterclock.client.client import Client, connect
from waterclock.client.results import Receipt, SomeFailed
from waterclock.client.settings import ClientSettings
from waterclock.model.errors import (
    BadBatch,
    BadInput,
    Closed,
    LimitExceeded,
    NotEnoughReplicas,
    NotFound,
    Overloaded,
    StorageFull,
    TimedOut,
    Unreachable,
)
from waterclock.model.message import ACKS, Acks, Message
from waterclock.v1 import broker_pb2

QUICK = ClientSettings(
    retry_delay_ms=1, retry_delay_ms_max=2, connect_timeout_ms=2_000, close_timeout_ms=2_000
)


@contextlib.asynccontextmanager
async def connected(settings: ClientSettings = QUICK) -> AsyncIterator[tuple[FakeNode, Client]]:
    async with fake_node() as node, connect(node.address, settings) as client:
        yield node, client


async def publish_all(client: Client, *values: bytes, key: bytes | None = None) -> list[Receipt]:
    return await asyncio.gather(*(client.publish("orders", value, key=key) for value in values))


def values(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_what_is_published_together_travels_together():
    async with connected() as (node, client):
        receipts = await publish_all(client, *values(50))

        assert node.batches == [values(50)]
        assert [receipt.offset for receipt in receipts] == list(range(50))
        assert all(receipt.is_new and receipt.topic == "orders" for receipt in receipts)
        assert [r.message_id for r in receipts] == [*node.topics["orders"].seen]


async def test_while_a_batch_is_in_flight_the_next_gathers():
    async with connected(ClientSettings(linger_ms=10_000)) as (node, client):
        node.is_open.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.publish("orders", b"first"))
            await node.until(lambda: len(node.batches) == 1)
            for value in values(20):
                tasks.create_task(client.publish("orders", value))
                await asyncio.sleep(0)
            assert len(node.batches) == 1
            node.is_open.set()

        assert node.batches == [[b"first"], values(20)]


async def test_a_full_batch_does_not_wait_for_the_one_in_flight():
    async with connected(ClientSettings(linger_ms=10_000, batch_messages=3)) as (node, client):
        node.is_open.clear()
        async with asyncio.TaskGroup() as tasks:
            for value in values(20):
                tasks.create_task(client.publish("orders", value))
            await node.until(lambda: len(node.batches) == 4)
            assert node.in_flight_max == 4
            node.is_open.set()

        assert node.in_flight_max == 4
        assert sorted(v for batch in node.batches for v in batch if isinstance(v, bytes)) == (
            sorted(values(20))
        )


async def test_nobody_lingers_for_ever():
    async with connected(ClientSettings(linger_ms=1)) as (node, client):
        node.is_open.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.publish("orders", b"first"))
            await node.until(lambda: len(node.batches) == 1)
            tasks.create_task(client.publish("orders", b"second"))
            await node.until(lambda: len(node.batches) == 2)
            node.is_open.set()


@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize(
    "reason", [Overloaded("calls", 1), StorageFull("full"), ConnectionError(), TimedOut("x")]
)
async def test_a_publish_that_failed_in_passing_is_stored_once(lost, reason):
    async with connected() as (node, client):
        failures = node.fails_before if lost == "before" else node.fails_after
        failures.extend([reason, reason])
        receipts = await publish_all(client, *values(3))

        assert node.topics["orders"].values == values(3)
        assert [receipt.offset for receipt in receipts] == [0, 1, 2]
        assert len({request.arrow for request in node.requests}) == 1


async def test_a_key_keeps_its_order_when_batches_fail_and_are_sent_again():
    settings = ClientSettings(batch_messages=2, linger_ms=0, retry_delay_ms=1)
    async with connected(settings) as (node, client):
        for number in range(30):
            failure = Overloaded("calls", 1) if number % 3 == 0 else None
            node.fails_before.append(failure)
            node.fails_after.append(ConnectionError() if number % 7 == 3 else None)
        await asyncio.gather(
            *(client.publish("orders", value, key=b"%d" % (at % 3))
              for at, value in enumerate(values(60)))
        )  # fmt: skip

        rows = node.topics["orders"].rows
        for key in (b"0", b"1", b"2"):
            mine = [row["value"] for row in rows if row["key"] == key]
            assert mine == [v for at, v in enumerate(values(60)) if b"%d" % (at % 3) == key]
        assert len(rows) == 60


async def test_a_message_the_node_refuses_fails_alone():
    async with connected() as (node, client):
        node.refuses = lambda row: BadBatch("value", "x") if row["value"] == b"7" else None
        answers = await asyncio.gather(
            *(client.publish("orders", value) for value in values(20)), return_exceptions=True
        )

        assert isinstance(answers[7], BadBatch)
        assert [isinstance(answer, Receipt) for answer in answers].count(True) == 19
        assert node.topics["orders"].values == [v for v in values(20) if v != b"7"]


async def test_a_batch_refused_as_a_whole_fails_as_a_whole_and_is_not_taken_apart():
    async with connected() as (node, client):
        for reason in (NotFound("partition", "9"), LimitExceeded("topics", 1), BadInput("x")):
            node.fails_before.append(reason)
            with pytest.raises(type(reason)):
                await client.publish_many("orders", [Message(v) for v in values(100)])

        assert len(node.batches) == 3


async def test_a_bad_message_is_refused_before_it_joins_a_batch():
    async with connected() as (node, client):
        with pytest.raises(BadInput, match="value must be bytes, not str: encode it"):
            await client.publish("orders", "text")  # type: ignore[call-overload]
        with pytest.raises(BadInput, match="key must be bytes"):
            await client.publish("orders", b"", key=3)  # type: ignore[call-overload]
        with pytest.raises(BadInput, match=r"headers\['a'\] must be bytes"):
            await client.publish("orders", b"", headers={"a": "b"})  # type: ignore[dict-item]
        with pytest.raises(BadInput, match="is not valid text"):
            await client.publish("orders", b"", headers={"\udc80": b"b"})
        with pytest.raises(BadInput, match="message_id must not be empty"):
            await client.publish("orders", b"", message_id=b"")
        with pytest.raises(LimitExceeded) as caught:
            await client.publish("orders", bytes(10_001))
        assert (caught.value.field, caught.value.limit) == ("message bytes", 10_000)
        with pytest.raises(BadInput, match="topic name"):
            await client.publish("no such!", b"")
        with pytest.raises(BadInput, match="acks: 'some' is not one of quorum, leader, all"):
            await client.publish("orders", b"", acks="some")  # type: ignore[call-overload]

        assert node.batches == []
        assert "0 of" in repr(client._producer._send_buffer)


async def test_bytes_in_other_clothes_are_bytes():
    async with connected() as (node, client):
        await client.publish("orders", memoryview(b"seen"), key=bytearray(b"k"))  # type: ignore[call-overload]

        assert node.topics["orders"].rows[0]["value"] == b"seen"


async def test_a_repeated_id_is_answered_with_the_first_offset():
    async with connected() as (node, client):
        first = await client.publish("orders", b"a", message_id=b"id")
        await client.publish("orders", b"b")
        again = await client.publish("orders", b"a", message_id=b"id")

        assert (first.offset, first.is_new) == (0, True)
        assert (again.offset, again.is_new) == (0, False)
        assert [request.is_sticky for request in node.requests] == [False, True, False]


async def test_a_publish_says_when_it_is_to_be_answered_or_the_settings_do():
    async with connected(ClientSettings(acks="leader")) as (node, client):
        rows = pa.record_batch({"value": [b"c"]})
        levels: list[Acks | None] = [None, "quorum", "all"]
        for acks in levels:
            await client.publish("orders", b"a", acks=acks)
            await client.publish_many("orders", [Message(b"b")], acks=acks)
            await client.publish_arrow("orders", rows, acks=acks)
        with pytest.raises(BadInput, match="acks: '' is not one of"):
            await client.publish_arrow("orders", rows, acks="")  # type: ignore[arg-type]

        asked = [ACKS[request.acks] for request in node.requests]
        assert asked == ["leader"] * 3 + ["quorum"] * 3 + ["all"] * 3
        assert {f"ACKS_{name.upper()}": i for i, name in enumerate(ACKS)} == dict(
            broker_pb2.Acks.items()
        )


async def test_what_a_replica_lacks_is_asked_for_again_unless_that_would_store_it_twice():
    async with connected(ClientSettings(retry_delay_ms=1)) as (node, client):
        node.fails_after.extend([NotEnoughReplicas("not c")] * 3)
        once = await client.publish("orders", b"a", acks="all")
        assert (once.is_new, len(node.requests)) == (False, 4)

        node.fails_after.append(NotEnoughReplicas("not c"))
        with pytest.raises(NotEnoughReplicas):
            await client.publish("orders", b"b", acks="all", allow_duplicate=True)
        assert len(node.requests) == 5


async def test_a_cancelled_caller_takes_its_message_along_if_it_was_not_sent():
    async with connected(ClientSettings(linger_ms=10_000)) as (node, client):
        node.is_open.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.publish("orders", b"first"))
            await node.until(lambda: len(node.batches) == 1)
            tasks.create_task(client.publish("orders", b"kept"))
            impatient = tasks.create_task(client.publish("orders", b"withdrawn"))
            many = [Message(b"m-1"), Message(b"m-2")]
            bulk = tasks.create_task(client.publish_many("orders", many))
            last = tasks.create_task(client.publish("orders", b"last"))
            await asyncio.sleep(0)
            impatient.cancel()
            await asyncio.wait([impatient])
            node.is_open.set()

        assert node.batches[1] == [b"kept", b"m-1", b"m-2", b"last"]
        assert last.result().offset == 4
        assert [receipt.offset for receipt in bulk.result()] == [2, 3]


async def test_a_publish_may_be_given_a_time_limit():
    async with connected() as (node, client):
        node.is_open.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await client.publish("orders", b"late")
        node.is_open.set()

        assert (await client.publish("orders", b"next")).topic == "orders"


async def test_beyond_the_buffer_publishes_wait():
    settings = ClientSettings(buffer_bytes_max=1_000, batch_bytes=1_024)
    async with connected(settings) as (node, client):
        node.is_open.clear()
        async with asyncio.TaskGroup() as tasks:
            sends = [tasks.create_task(client.publish("orders", bytes(300))) for _ in range(9)]
            await node.until(lambda: len(node.batches) == 1)
            assert "7 waiting" in repr(client._producer._send_buffer)
            node.is_open.set()

        assert sorted(task.result().offset for task in sends) == list(range(9))
        assert max(map(len, node.batches)) <= 3


async def test_a_publish_gives_up_when_its_time_is_over():
    settings = ClientSettings(delivery_timeout_ms=500, call_timeout_ms=20, retry_delay_ms=1)
    async with connected(settings) as (node, client):
        node.is_open.clear()
        with pytest.raises(TimedOut, match="it may have been published"):
            await client.publish("orders", b"lost")
        assert len(node.batches) > 1
        node.is_open.set()


async def test_a_node_that_comes_back_is_found_again():
    async with connected() as (node, client):
        await client.publish("orders", b"before")
        await node.stop()
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(client.publish("orders", b"meanwhile"))
            await asyncio.sleep(0)
            await node.start()

        assert sending.result().offset == 1
        assert node.topics["orders"].values == [b"before", b"meanwhile"]


async def test_a_node_that_stays_away_is_told_of_by_its_address():
    settings = ClientSettings(delivery_timeout_ms=30, retry_delay_ms=1)
    async with connected(settings) as (node, client):
        await node.stop()
        with pytest.raises(Unreachable, match=f"no Waterclock node answers at {node.address}"):
            await client.publish("orders", b"lost")
        await node.start()


async def test_many_messages_become_as_few_batches_as_they_fit():
    async with connected(ClientSettings(batch_messages=400)) as (node, client):
        receipts = await client.publish_many("orders", [Message(v) for v in values(1_000)])

        assert [len(batch) for batch in node.batches] == [400, 400, 200]
        assert node.topics["orders"].values == values(1_000)
        assert [receipt.offset for receipt in receipts] == list(range(1_000))


async def test_many_messages_fail_one_by_one():
    async with connected() as (node, client):
        node.refuses = lambda row: LimitExceeded("key bytes", 3) if row["value"] == b"2" else None
        with pytest.raises(SomeFailed, match="1 of 5 messages were not published") as caught:
            await client.publish_many("orders", [Message(value) for value in values(5)])

        kinds = [type(result) for result in caught.value.results]
        assert kinds == [Receipt, Receipt, LimitExceeded, Receipt, Receipt]


async def test_many_messages_with_a_wrong_one_are_refused_before_any_is_sent():
    async with connected() as (node, client):
        for wrong, why in [
            (Message("text"), r"messages\[1\]: value must be bytes"),  # type: ignore[arg-type]
            (Message(bytes(10_001)), r"messages\[1\]: message bytes exceeds"),
            (Message(b"", message_id=b""), "must not be empty"),
            (Message(b"", due_ms=-1), "due_ms must be"),  # type: ignore[arg-type]
            (Message(b"", headers={"a": 3}), "must be bytes"),  # type: ignore[dict-item]
            ("text", "must be a Message"),
        ]:
            with pytest.raises(BadInput, match=why):
                await client.publish_many("orders", [Message(b"fine"), wrong])  # type: ignore[list-item]
        assert await client.publish_many("orders", []) == []
        assert node.batches == []


async def test_leaving_sends_what_waits():
    async with fake_node() as node, asyncio.TaskGroup() as tasks:
        node.is_open.clear()
        async with connect(node.address, ClientSettings(linger_ms=10_000)) as client:
            first = tasks.create_task(client.publish("orders", b"first"))
            await node.until(lambda: len(node.batches) == 1)
            second = tasks.create_task(client.publish("orders", b"second"))
            await asyncio.sleep(0)
            node.is_open.set()

        assert first.done()
        assert second.result().offset == 1
        with pytest.raises(Closed):
            await client.publish("orders", b"third")


async def test_leaving_does_not_wait_for_ever():
    async with fake_node() as node:
        node.is_open.clear()
        async with connect(node.address, ClientSettings(close_timeout_ms=10)) as client:
            callers = asyncio.gather(
                *(client.publish("orders", value, key=b"k") for value in values(2)),
                client.publish_many("orders", [Message(b"m", key=b"k")]),
                return_exceptions=True,
            )
            await node.until(lambda: len(node.batches) == 1)
            more = asyncio.gather(
                client.publish("orders", b"waiting", key=b"k"), return_exceptions=True
            )
            await asyncio.sleep(0)

        assert {type(answer) for answer in [*await callers, *await more]} == {Closed}


async def test_leaving_waits_for_arrow_batches():
    async with fake_node() as node, asyncio.TaskGroup() as tasks:
        node.is_open.clear()
        rows = pa.record_batch({"value": [b"a"]})
        async with connect(node.address) as client:
            call = tasks.create_task(client.publish_arrow("orders", rows))
            await node.until(lambda: len(node.batches) == 1)
            node.is_open.set()

        assert len(call.result()) == 1


async def test_leaving_does_not_wait_for_ever_for_arrow_batches():
    async with fake_node() as node:
        node.is_open.clear()
        rows = pa.record_batch({"value": [b"a"]})
        async with connect(node.address, replace(QUICK, close_timeout_ms=10)) as client:
            call = asyncio.ensure_future(client.publish_arrow("orders", rows))
            await node.until(lambda: len(node.batches) == 1)

        with pytest.raises(Closed):
            await call
        with pytest.raises(Closed):
            await client.publish_arrow("orders", rows)


async def test_leaving_lets_nobody_wait_for_room():
    settings = ClientSettings(close_timeout_ms=10, buffer_bytes_max=1_000, linger_ms=10_000)
    async with fake_node() as node:
        node.is_open.clear()
        async with connect(node.address, settings) as client:
            first = asyncio.gather(client.publish("orders", b"0", key=b"k"), return_exceptions=True)
            await node.until(lambda: len(node.batches) == 1)
            others = asyncio.gather(
                *(client.publish("orders", bytes(500), key=b"k") for _ in range(9)),
                return_exceptions=True,
            )
            await asyncio.sleep(0)

        assert {type(answer) for answer in [*await first, *await others]} == {Closed}


async def test_a_client_can_be_opened_again():
    async with fake_node() as node:
        client = connect(node.address)
        for number in range(2):
            async with client:
                assert (await client.publish("orders", b"x")).offset == number
