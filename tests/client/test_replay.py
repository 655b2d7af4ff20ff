"""A replay reports what the loop has gone past, and one with a name survives its stream."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.client.fake_node import fake_node
from waterclock.client.client import connect
from waterclock.client.due import past_ms
from waterclock.client.settings import ClientSettings
from waterclock.model.errors import BadInput, Unreachable
from waterclock.model.message import Message

QUICK = ClientSettings(retry_delay_ms=1, retry_delay_ms_max=1)
NOW_MS = 1_800_000_000_000


async def test_everything_comes_once_and_the_node_hears_the_end_of_it():
    async with fake_node() as node, connect(node.address, QUICK) as client:
        await client.publish_many("orders", [Message(b"%d" % n) for n in range(250)])
        seen = [message.offset async for message in client.replay("orders", name="audit")]

        assert seen == [*range(250)]
        assert node.replayed == 250
        assert node.replay_heard_end


async def test_a_named_replay_goes_on_after_its_stream_broke():
    async with fake_node() as node, connect(node.address, QUICK) as client:
        await client.publish_many("orders", [Message(b"%d" % n) for n in range(250)])
        node.replay_breaks = ["lost", "lost again"]
        seen = [message.offset async for message in client.replay("orders", name="audit")]

        assert seen == [*range(250)]


async def test_reports_that_were_lost_with_their_stream_are_told_with_the_next():
    async with fake_node() as node, connect(node.address, QUICK) as client:
        await client.publish_many("orders", [Message(b"%d" % n) for n in range(250)])
        node.replay_forgets, node.replay_breaks = True, ["lost", "lost again"]
        seen = [message.offset async for message in client.replay("orders", name="audit")]

        assert seen == [*range(250)]


async def test_a_replay_begun_again_keeps_its_bounds():
    async with fake_node() as node, connect(node.address, QUICK) as client:
        await client.publish_many("orders", [Message(b"%d" % n) for n in range(250)])
        node.replay_breaks = ["lost"]
        asked = client.replay("orders", name="audit", since=datetime(2026, 1, 1, tzinfo=UTC))
        async for _ in asked:
            pass

        first, second = node.replays
        assert first == second
        assert first.times.start_ms == 1_767_225_600_000


async def test_a_replay_without_a_name_ends_with_its_stream():
    async with fake_node() as node, connect(node.address, QUICK) as client:
        await client.publish_many("orders", [Message(b"%d" % n) for n in range(250)])
        node.replay_breaks = ["lost"]
        with pytest.raises(Unreachable):
            _ = [message async for message in client.replay("orders")]


def test_delays_count_backwards():
    hour = 3_600_000
    assert past_ms(timedelta(hours=1), NOW_MS, field="since") == NOW_MS - hour
    assert past_ms("-1h", NOW_MS, field="since") == NOW_MS - hour
    assert past_ms("+1h", NOW_MS, field="until") == NOW_MS + hour
    assert past_ms(datetime(2026, 1, 1, tzinfo=UTC), NOW_MS, field="since") == 1_767_225_600_000
    with pytest.raises(BadInput):
        past_ms("once", NOW_MS, field="since")
