"""The sink that writes to a secured node, and to one of several."""

import time

import pytest

from tests.client.doors import doors_to
from tests.client.fake_node import fake_node
from tests.client.secured import secured_folder, secured_node
from waterclock.dispatch.sinks.sink import AWAY, WRITTEN, Writing
from waterclock.dispatch.sinks.waterclock import WaterclockSink
from waterclock.model.errors import Forbidden, NotAuthenticated


def writing(value: bytes) -> Writing:
    now_ms = time.time_ns() // 1_000_000
    return Writing(1, [b"a" * 16], [now_ms], [value])


async def test_a_secured_node_is_written_to_with_a_credential(tmp_path):
    async with secured_node(secured_folder(tmp_path / "secure")) as node:
        with pytest.raises(NotAuthenticated, match="give a credential"):
            await WaterclockSink.open(node.address, topic="processed")

        sink = await WaterclockSink.open(None, topic="processed", credential=node.credential)
        assert await sink.write(writing(b"one")) == [WRITTEN]
        assert node.topics["processed"].values == [b"one"]
        await sink.close()


async def test_a_refusal_says_what_to_do_and_keeps_the_messages(tmp_path, caplog):
    async with secured_node(secured_folder(tmp_path / "secure")) as node:
        sink = await WaterclockSink.open(None, topic="processed", credential=node.credential)
        node.guard.refusal = Forbidden("publish", "topic 'processed'", principal="workers")
        assert await sink.write(writing(b"one")) == [AWAY]
        await sink.close()

    assert "secure add workers --replace --publish GLOB" in caplog.text
    assert node.credential.token not in caplog.text


async def test_where_a_node_fails_another_is_written_to():
    async with fake_node() as node, doors_to(node.port) as doors:
        sink = await WaterclockSink.open([door.address for door in doors], topic="processed")
        at = sink._client._connection.address
        next(door for door in doors if door.address == at).shut()

        assert await sink.write(writing(b"one")) == [WRITTEN]
        assert node.topics["processed"].values == [b"one"]
        await sink.close()
