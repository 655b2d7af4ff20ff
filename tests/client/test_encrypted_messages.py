"""A client with keys: the node stores what it cannot read, and readers with the keys can."""

import pyarrow as pa
import pytest

from tests.client.fake_node import fake_node
from waterclock.client.client import connect
from waterclock.client.due import Every
from waterclock.client.encryption import MAGIC, OVERHEAD_BYTES, Keys
from waterclock.client.schedule import recurrence_name
from waterclock.model.errors import BadInput, CannotDecrypt, LimitExceeded
from waterclock.model.message import Message

KEYS = Keys([bytes(range(32))])
SECRET = b"100 coins for ada"


async def test_every_way_of_publishing_encrypts():
    async with fake_node() as node, connect(node.address, keys=KEYS) as client:
        await client.publish("orders", SECRET, key=b"ada")
        await client.publish_many("orders", [Message(SECRET, key=b"ada"), Message(None, key=b"b")])
        rows = pa.record_batch({"value": [SECRET, None], "key": [b"ada", b"b"]})
        await client.publish_arrow("orders", rows)
        await client.publish("orders", None, key=b"ada")

    stored = node.topics["orders"].rows
    assert [row["key"] for row in stored] == [b"ada", b"ada", b"b", b"ada", b"b", b"ada"]
    sealed = [row["value"] for row in stored if row["value"] is not None]
    assert [value[:3] for value in sealed] == [MAGIC] * 3  # type: ignore[index]
    assert [KEYS.decrypt("orders", b"ada", value) for value in sealed] == [SECRET] * 3  # type: ignore[arg-type]
    assert stored[2]["value"] is stored[4]["value"] is stored[5]["value"] is None


async def test_a_subscription_decrypts_messages_and_batches():
    async with fake_node() as node, connect(node.address, keys=KEYS) as client:
        await client.publish_many("orders", [Message(SECRET), Message(b"2", key=b"k")])
        async with client.subscribe("orders", group="one") as messages:
            got = [(message.value, message.ack()) async for message in taken(messages, 2)]
        async with client.subscribe("orders", group="two") as messages:
            async for batch in messages.batches():
                assert batch.rows.column("value").to_pylist() == [SECRET, b"2"]
                assert batch.rows.schema == batch._delivery.rows.schema
                break

    assert [value for value, _ in got] == [SECRET, b"2"]


async def test_a_replay_decrypts():
    async with fake_node() as node, connect(node.address, keys=KEYS) as client:
        await client.publish_many("orders", [Message(SECRET), Message(None, key=b"k")])

        assert [message.value async for message in client.replay("orders")] == [SECRET, None]


async def test_a_value_that_cannot_be_decrypted_leaves_the_others_and_can_be_rejected():
    async with fake_node() as node, connect(node.address) as stranger:
        await stranger.publish_many("orders", [Message(b"forged"), Message(MAGIC + bytes(60))])
        async with connect(node.address, keys=KEYS) as client:
            await client.publish("orders", SECRET)
            read = []
            async with client.subscribe("orders", group="billing") as messages:
                async for message in taken(messages, 3):
                    try:
                        read.append(message.value)
                    except CannotDecrypt:
                        message.reject()
                    else:
                        message.ack()
                await node.until(lambda: len(node.groups["orders", "billing"].dead) == 2)

    assert read == [SECRET]


async def test_a_limit_counts_what_is_stored():
    async with fake_node() as node, connect(node.address, keys=KEYS) as client:
        most = node.limits.message_bytes_max
        with pytest.raises(LimitExceeded, match="message bytes"):
            await client.publish("orders", bytes(most - OVERHEAD_BYTES + 1))
        with pytest.raises(LimitExceeded, match="message bytes"):
            await client.publish_many("orders", [Message(bytes(most - OVERHEAD_BYTES + 1))])


async def test_streams_are_not_sent_in_the_open_by_a_client_with_keys():
    async with fake_node() as node, connect(node.address, keys=KEYS) as client:
        with pytest.raises(BadInput, match="streams are not encrypted"):
            await client.streams.send("chat", "hello")


def test_the_name_of_a_recurrence_does_not_tell_its_value():
    rule = Every("1h")
    blind = recurrence_name("orders", rule, SECRET, None, KEYS)

    assert blind == recurrence_name(
        "orders", rule, SECRET, None, Keys([bytes(range(32)), bytes(32)])
    )
    assert blind != recurrence_name("orders", rule, SECRET, None, None)


def test_keys_may_be_a_file_and_a_client_does_not_show_them(tmp_path):
    with pytest.raises(BadInput, match=r"keys file .*: No such file"):
        connect(keys=tmp_path / "nowhere")

    client = connect(keys=KEYS)
    assert repr(bytes(range(32))) not in repr(client) + repr(vars(client._connection))


async def taken(messages, count):
    """Yield so many."""
    async for message in messages:
        yield message
        count -= 1
        if not count:
            return
