"""Whatever is read back says when it was stored: each message by itself, also where several that
were stored one after the other come together."""

import json
from contextlib import asynccontextmanager

import pytest

from tests.kit.clock import ManualClock
from tests.server.http_client import raw_client
from tests.server.members import Member
from tests.server.served import running_server
from tests.server.test_replay_stream import Reader
from waterclock.client.consumer.rows import LoggedMessage, MessageRows
from waterclock.model.clock import time_of
from waterclock.v1 import broker_pb2 as pb
from waterclock.v1 import scheduler_pb2 as scheduler

STEPS_MS = (0, 7, 60_000)
BOTH = pytest.mark.parametrize("format_", [pb.FORMAT_ARROW, pb.FORMAT_MESSAGES])


@asynccontextmanager
async def asked(folder, clock):
    async with running_server(folder, clock=clock) as it, raw_client(it.server.http_port) as client:
        yield it, client


async def published(it, clock):
    """Publish batches of two, one after the other; return when each message was stored."""
    times = []
    for number, step_ms in enumerate(STEPS_MS):
        clock.advance(step_ms)
        await it.publish(b"%d-a" % number, b"%d-b" % number)
        times += [clock.now_ms()] * 2
    clock.advance(5_000)
    return times


def times_of(messages):
    """Return what messages over gRPC say, as any client reads them."""
    count = len(messages.rows) or 6
    assert messages.append_ms, "what clients read that know of no more"
    return list(messages.append_times) or [messages.append_ms] * count


@BOTH
async def test_a_replay_over_grpc_says_when(tmp_path, format_):
    clock = ManualClock()
    async with running_server(tmp_path, clock=clock) as it:
        times = await published(it, clock)
        batch = (await (await Reader(it, topic="orders", format=format_).begin()).next()).batch

        assert times_of(batch.messages) == times
        assert batch.messages.append_ms == times[-1]


@BOTH
async def test_a_delivery_over_grpc_says_when(tmp_path, format_):
    clock = ManualClock()
    async with running_server(tmp_path, clock=clock) as it:
        times = await published(it, clock)
        member = Member(it, format=format_)
        await member.open()
        delivery = await member.delivery()

        assert times_of(delivery.messages) == times


async def test_what_was_stored_together_says_so_once(tmp_path):
    clock = ManualClock()
    async with running_server(tmp_path, clock=clock) as it:
        await it.publish(b"a", b"b")
        await it.publish(b"c")
        batch = (await (await Reader(it, topic="orders").begin()).next()).batch

        assert (batch.messages.append_ms, list(batch.messages.append_times)) == (clock.now_ms(), [])


async def test_the_client_reads_them_from_nodes_of_both_kinds(tmp_path):
    clock = ManualClock()
    async with running_server(tmp_path, clock=clock) as it:
        times = await published(it, clock)
        batch = (await (await Reader(it, topic="orders").begin()).next()).batch
        new = MessageRows("orders", 0, batch.bounds, batch.messages)
        del batch.messages.append_times[:]
        old = MessageRows("orders", 0, batch.bounds, batch.messages)

        assert [LoggedMessage(new, row).appended for row in range(6)] == list(map(time_of, times))
        assert [LoggedMessage(old, row).appended for row in range(6)] == [time_of(times[-1])] * 6


async def test_replays_reads_polls_and_events_over_http_say_when(tmp_path):
    clock = ManualClock()
    async with asked(tmp_path, clock) as (it, client):
        times = await published(it, clock)
        for path in ("replay", "partitions/0/messages"):
            *lines, last = (await client.get(f"/topics/orders/{path}")).body.splitlines()
            assert [json.loads(line)["appendedMs"] for line in lines] == times
            assert "appendedMs" not in json.loads(last)
        polled = (await client.get("/topics/orders/messages?group=g&limit=6")).json()["messages"]
        assert [message["appendedMs"] for message in polled] == times

        head = b"GET /topics/orders/events?group=h HTTP/1.1\r\nHost: localhost\r\n\r\n"
        client.send(head)
        await client.head()
        events = b""
        while events.count(b"data: ") < 6:
            events += await client.chunk()
        shown = [json.loads(each[6:]) for each in events.splitlines() if each[:6] == b"data: "]
        assert [message["appendedMs"] for message in shown] == times


async def test_a_message_for_later_says_when_it_was_stored_and_then_when_it_fired(tmp_path):
    clock = ManualClock()
    async with asked(tmp_path, clock) as (it, client):
        stored_ms = clock.now_ms()
        for number in range(2):
            body = {"value": f"{number}", "delay": "1h"}
            assert (await client.post("/topics/orders/messages", body)).status == 201
            clock.advance(1_000)
        listed = await it.scheduler.ListScheduled(scheduler.ListScheduledRequest(topic="orders"))
        shown = (await client.get("/topics/orders/scheduled")).json()["scheduled"]

        expected = [stored_ms, stored_ms + 1_000]
        assert [each.appended_ms for each in listed.scheduled] == expected
        assert [each["appendedMs"] for each in shown] == expected
        clock.advance(3_600_000)
        first, _ = (await client.get("/topics/orders/messages?group=g&limit=2")).json()["messages"]
        assert first["appendedMs"] == clock.now_ms() > first["dueMs"]
