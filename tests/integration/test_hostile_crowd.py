"""Hostile conversations, garbage on the ports, and what a node has in use after all of it."""

import asyncio
import logging
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.hostile_input import EXAMPLES, METHODS, hostile, messages, valid_arrow
from tests.integration.hostile_node import (
    CALL_S,
    DOCUMENTED,
    HostileNode,
    Usage,
    check_outcome,
    documented,
)
from waterclock.log.schema import encode, from_messages
from waterclock.model.message import Message
from waterclock.v1 import admin_pb2 as ap
from waterclock.v1 import broker_pb2 as pb

log = logging.getLogger(__name__)

GROWN_MIB_MAX = 256
FILES_MAX = 200


def _answer(**fields: Any) -> bytes:
    answer = pb.Answer(**fields)
    return pb.SubscribeRequest(answers=[answer]).SerializeToString()


OPEN = pb.SubscribeRequest(open=pb.SubscribeRequest.Open(topic="hostile", group="g"))


@pytest.mark.parametrize("kind", pb.Answer.Kind.values())
@pytest.mark.parametrize("generation", [-1, 0, 1, 2**63 - 1])
def test_answers_for_what_was_never_delivered_change_nothing(node, kind, generation):
    method = METHODS["waterclock.v1.Broker.Subscribe"]
    said = [
        _answer(partition=2, generation=generation, bounds=[0, 2**62], kind=kind, at_ms=2**62),
        _answer(partition=0, generation=generation, bounds=[10**9, 10**9 + 5], kind=kind),
    ]
    outcome = node.run(node.talk(method, [OPEN.SerializeToString(), *said], ending="wait"))
    check_outcome(method, outcome, said)


def test_a_second_opening_of_the_same_stream_is_refused(node):
    method = METHODS["waterclock.v1.Broker.Subscribe"]
    raw = OPEN.SerializeToString()
    outcome = node.run(node.talk(method, [raw, raw], ending="wait"))
    assert outcome.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "open" in outcome.details


def test_absurd_stretches_of_the_past_are_refused_or_empty(node):
    method = METHODS["waterclock.v1.Broker.Replay"]
    far = 2**63 - 1
    begins: list[dict[str, Any]] = [
        {"offsets": {"start": far, "count": far}},
        {"offsets": {"start": far}},
        {"offsets": {"start": -1}},
        {"times": {"start_ms": far, "end_ms": far}},
        {"times": {"start_ms": 5, "end_ms": 1}},
        {"times": {"start_ms": 0, "end_ms": far, "by_due": True}},
        {"partitions": [0, 0, 0, 0]},
        {"partitions": [far >> 40, -1]},
        {"times": {}, "offsets": {}},
        {"name": "no/name"},
        {"checkpoint_every": far},
        {"checkpoint_every": -1},
    ]
    for fields in begins:
        begin = pb.ReplayRequest.Begin(topic="hostile", **fields)
        raw = pb.ReplayRequest(begin=begin).SerializeToString()
        outcome = node.run(node.talk(method, [raw], ending="close"))
        check_outcome(method, outcome, begin)


def test_streams_that_are_opened_and_left_alone_cost_no_task_once_they_are_gone(node):
    node.run(_settled(node))
    before = node.run(node.usage())

    async def open_many() -> None:
        async with grpc.aio.insecure_channel(
            node.node.address, options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            calls: list[Any] = [
                channel.stream_stream(f"/waterclock.v1.Broker/{name}")()
                for name in ("Subscribe", "Replay", "PublishStream")
                for _ in range(100)
            ]
            for call in calls[:50]:
                await call.write(OPEN.SerializeToString())
            await node.sing()
            async with asyncio.timeout(30):
                # They are opened one after the other.
                while await node.node.tasks() < before.tasks + 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

    node.run(open_many())
    node.run(_settled(node, before))


def test_who_asks_for_everything_and_reads_nothing_holds_no_memory(node):
    topic = "unread"
    arrow = bytes(encode(from_messages([Message(bytes(900_000), message_id=b"%d")] * 2)))

    async def hold() -> tuple[Usage, Usage]:
        before = await node.usage()
        credit = pb.Credit(messages=1_000_000, bytes=1 << 34)
        calls: list[Any] = []
        for number in range(8):
            calls.append(node.broker.Subscribe())
            opening = pb.SubscribeRequest.Open(topic=topic, group=f"g-{number}")
            await calls[-1].write(pb.SubscribeRequest(open=opening, credit=credit))
        for _ in range(60):
            await node.broker.PublishBatch(
                pb.PublishBatchRequest(topic=topic, arrow=arrow, allow_duplicate=True)
            )
        for _ in range(8):
            calls.append(node.broker.Replay())
            begin = pb.ReplayRequest.Begin(topic=topic)
            await calls[-1].write(pb.ReplayRequest(begin=begin))
        for _ in range(20):
            await node.sing()
        during = await node.usage()
        for call in calls:
            call.cancel()
        await node.admin.DeleteTopic(ap.DeleteTopicRequest(topic=topic))
        return before, during

    before, during = node.run(hold())
    log.info("%s -> %s", before, during)
    # 16 readers of 108 MB each, had they been sent it.
    assert during.resident_mib < before.resident_mib + GROWN_MIB_MAX, (before, during)


async def _settled(node: HostileNode, before: Usage | None = None) -> None:
    """Wait until the node has let go of what was there."""
    last = -1
    async with asyncio.timeout(CALL_S):
        while True:
            await node.sing()
            tasks = await node.node.tasks()
            if tasks == last if before is None else tasks <= before.tasks:
                return
            last = tasks
            await asyncio.sleep(0.05)


def test_what_deletes_a_topic_under_a_redrive_of_it_ends_both_clearly(node):
    async def race(topic: str) -> None:
        await node.broker.PublishBatch(pb.PublishBatchRequest(topic=topic, arrow=valid_arrow(60)))
        call = node.broker.Subscribe()
        opening = pb.SubscribeRequest.Open(topic=topic, group="g")
        await call.write(
            pb.SubscribeRequest(open=opening, credit=pb.Credit(messages=4, bytes=9999))
        )
        rejected = 0
        while rejected < 60:
            event = await call.read()
            if event.HasField("delivery"):
                delivery = event.delivery
                rejected += sum(delivery.bounds[1::2]) - sum(delivery.bounds[::2])
                answer = pb.Answer(
                    generation=delivery.generation, bounds=delivery.bounds, kind=pb.Answer.REJECT
                )
                await call.write(pb.SubscribeRequest(answers=[answer]))
        call.cancel()
        admin = "waterclock.v1.Admin"
        redrive, delete = METHODS[f"{admin}.Redrive"], METHODS[f"{admin}.DeleteTopic"]
        raw = ap.DeleteTopicRequest(topic=topic).SerializeToString()
        outcomes = await asyncio.gather(node.call(redrive, raw), node.call(delete, raw))
        for outcome in outcomes:
            assert outcome.code in {*DOCUMENTED, grpc.StatusCode.UNAVAILABLE}, outcome
        await node.call(delete, ap.DeleteTopicRequest(topic=f"{topic}.dlq").SerializeToString())

    for number in range(5):
        node.run(race(f"redriven-{number}"))


# Not even gRPC, nor HTTP


@hostile
@given(raw=st.binary(min_size=1, max_size=400), is_rude=st.booleans(), has_preface=st.booleans())
def test_garbage_on_the_grpc_port_hurts_only_its_sender(node, raw, is_rude, has_preface):
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if has_preface else b""
    node.run(node.send_bytes(node.node.grpc_port, preface + raw, is_rude=is_rude))
    node.run(node.sing())


HTTP_PIECES = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /health/live HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"ffffffffffffffff\r\n",
        b"0\r\n\r\n",
        b"Host: \xff\xfe\r\n",
        b"GET /%00%ff%zz/../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"Expect: 100-continue\r\n\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"X: " + b"y" * 20_000 + b"\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
    ]
)


@hostile
@given(
    pieces=st.lists(HTTP_PIECES | st.binary(max_size=100), min_size=1, max_size=6),
    is_rude=st.booleans(),
)
def test_garbage_on_the_http_port_hurts_only_its_sender(node, pieces, is_rude):
    got = node.run(node.send_bytes(node.node.http_port, *pieces, is_rude=is_rude))
    assert not got or got.startswith(b"HTTP/1."), got
    assert b" 500 " not in got, got
    health = b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert node.run(node.send_bytes(node.node.http_port, health)).startswith(b"HTTP/1.1 200")


# Growth


def test_nothing_grows_with_what_was_refused(node):
    @settings(hostile, max_examples=2)
    @given(st.data())
    def warm_up(data: st.DataObject) -> None:
        node.run(_attack_all(node, data))

    warm_up()
    node.run(_settled(node))
    before = node.run(node.usage())

    @settings(hostile, max_examples=max(5, EXAMPLES // 4))
    @given(st.data())
    def attack(data: st.DataObject) -> None:
        node.run(_attack_all(node, data))

    attack()
    node.run(_settled(node))
    after = node.run(node.usage())
    log.info("%s -> %s", before, after)
    assert after.resident_mib < before.resident_mib + GROWN_MIB_MAX, (before, after)
    assert after.open_files < before.open_files + FILES_MAX, (before, after)
    assert after.tasks < before.tasks + 40, (before, after)


async def _attack_all(node: HostileNode, data: st.DataObject) -> None:
    """One request for each method, all at once, many times over."""
    raws = {
        name: data.draw(messages(method.input_type)).SerializeToString()
        for name, method in METHODS.items()
    }
    for _ in range(20):
        outcomes = await asyncio.gather(
            *(
                node.talk(METHODS[name], [raw], ending="cancel")
                if METHODS[name].client_streaming
                else node.call(METHODS[name], raw)
                for name, raw in raws.items()
            )
        )
        # They cross each other: what one of them uses, another deletes.
        for name, outcome in zip(raws, outcomes, strict=True):
            allowed = documented(METHODS[name]) | {grpc.StatusCode.UNAVAILABLE}
            assert outcome.code in allowed, (name, outcome)
    await node.sing()
