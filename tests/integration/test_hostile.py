"""Nothing a client sends stops a node, hurts another client, or grows without bound.

Every method of the three services is here because the descriptors are read, not a list. `make fuzz
N=…` tries more of the same.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message as ProtoMessage
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.hostile_input import (
    METHODS,
    bomb,
    messages,
    valid_arrow,
)
from tests.integration.hostile_node import (
    CALL_S,
    DOCUMENTED,
    HostileNode,
    Usage,
    check_outcome,
)
from waterclock.v1 import broker_pb2 as pb

EXAMPLES = int(os.environ.get("WATERCLOCK_FUZZ", "0")) or 12
UNARY = sorted(name for name, method in METHODS.items() if not method.client_streaming)
STREAMS = sorted(name for name, method in METHODS.items() if method.client_streaming)
GROWN_MIB_MAX = 256
FILES_MAX = 200

hostile = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: Any) -> Iterator[HostileNode]:
    folder: Path = tmp_path_factory.mktemp("hostile")
    with HostileNode(folder) as running:
        yield running
        running.check_well()


@pytest.fixture(autouse=True)
def _well(node: HostileNode) -> Iterator[None]:
    node.run(node.furnish())
    yield
    node.run(node.sing())
    node.check_well()


def test_every_method_is_either_a_call_or_a_conversation():
    assert all(m.server_streaming for m in METHODS.values() if m.client_streaming)
    assert {m.name for m in METHODS.values() if m.client_streaming} == {
        "PublishStream",
        "Subscribe",
        "Replay",
    }


@pytest.mark.parametrize("name", UNARY)
def test_a_call_is_answered_with_a_clear_status_whatever_its_request(node, name):
    method = METHODS[name]

    @hostile
    @given(st.lists(messages(method.input_type), min_size=1, max_size=4))
    def attack(requests: list[ProtoMessage]) -> None:
        async def all_at_once() -> None:
            outcomes = await asyncio.gather(
                *(node.call(method, request.SerializeToString()) for request in requests)
            )
            for request, outcome in zip(requests, outcomes, strict=True):
                check_outcome(method, outcome, request)
            await node.sing()

        node.run(all_at_once())

    attack()


@pytest.mark.parametrize("name", STREAMS)
def test_a_conversation_ends_with_a_clear_status_whatever_is_said(node, name):
    method = METHODS[name]

    @hostile
    @given(
        st.lists(messages(method.input_type), max_size=5),
        st.sampled_from(["close", "close", "cancel", "wait"]),
        st.sampled_from(["open", "begin", "batch", None]),
    )
    def attack(requests: list[ProtoMessage], ending: str, first: str | None) -> None:
        opening = _opening(name, first)
        raws = [m.SerializeToString() for m in [*opening, *requests]]
        outcome = node.run(node.talk(method, raws, ending=ending))
        check_outcome(method, outcome, requests)
        node.run(node.sing())

    attack()


def _opening(name: str, first: str | None) -> list[ProtoMessage]:
    """Return a right beginning, so that what follows is heard, or none."""
    if first == "open" and name.endswith("Subscribe"):
        return [pb.SubscribeRequest(open=pb.SubscribeRequest.Open(topic="hostile", group="g"))]
    if first == "begin" and name.endswith("Replay"):
        return [pb.ReplayRequest(begin=pb.ReplayRequest.Begin(topic="hostile", name="again"))]
    if first == "batch" and name.endswith("PublishStream"):
        batch = pb.PublishBatchRequest(topic="hostile", arrow=valid_arrow(3))
        return [pb.PublishStreamRequest(sequence=1, batch=batch)]
    return []


@pytest.mark.parametrize("name", sorted(METHODS))
def test_bytes_that_are_no_protobuf_are_refused_clearly(node, name):
    method = METHODS[name]

    @hostile
    @given(st.binary(min_size=1, max_size=200))
    def attack(raw: bytes) -> None:
        if method.client_streaming:
            outcome = node.run(node.talk(method, [raw], ending="close"))
        else:
            outcome = node.run(node.call(method, raw))
        # Random bytes may be a message after all, of unknown fields.
        assert outcome.code not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL), outcome

    attack()
    node.run(node.sing())


# Sizes


def test_what_is_too_large_is_refused_and_named(node):
    too_many = valid_arrow(100_001)
    cases = [
        ("Publish", pb.PublishRequest(topic="hostile", message=pb.Message(value=bytes(1 << 21)))),
        ("Publish", pb.PublishRequest(topic="hostile", message=pb.Message(key=bytes(65_537)))),
        ("Publish", pb.PublishRequest(topic="hostile", message=pb.Message(message_id=bytes(256)))),
        (
            "Publish",
            pb.PublishRequest(
                topic="hostile", message=pb.Message(headers={str(i): b"" for i in range(65)})
            ),
        ),
        ("PublishBatch", pb.PublishBatchRequest(topic="hostile", arrow=too_many)),
        ("PublishBatch", pb.PublishBatchRequest(topic="hostile", arrow=bomb(64 << 20))),
        ("PublishBatch", pb.PublishBatchRequest(topic="hostile", arrow=bytes(5 << 20))),
    ]
    for name, request in cases:
        method = METHODS[f"waterclock.v1.Broker.{name}"]
        outcome = node.run(node.call(method, request.SerializeToString()))
        is_refused = outcome.code in (
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        )
        assert is_refused, (name, outcome)
        assert "waterclock-limit" in outcome.facts or "larger than max" in outcome.details, outcome


def test_a_bomb_inside_grpcs_own_compression_does_not_go_off(node):
    before = node.run(node.usage())
    method = METHODS["waterclock.v1.Broker.PublishBatch"]
    request = pb.PublishBatchRequest(topic="hostile", arrow=bytes(160 << 20)).SerializeToString()

    async def send() -> None:
        call = node.channel.unary_unary(f"/{method.containing_service.full_name}/{method.name}")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(request, timeout=60, compression=grpc.Compression.Gzip)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, refused.value
        await node.sing()

    node.run(send())
    assert node.run(node.usage()).resident_mib < before.resident_mib + GROWN_MIB_MAX


def test_long_lists_are_refused_and_named(node):
    million = [1] * 1_000_000
    scheduler, admin = "waterclock.v1.Scheduler", "waterclock.v1.Admin"
    cases: list[tuple[str, str, dict[str, Any]]] = [
        (f"{scheduler}.Cancel", "pending", {"pending": [{"message_id": b"x"}] * 100_001}),
        (f"{scheduler}.Reschedule", "due_ms", {"pending": [{}], "due_ms": million}),
        (f"{scheduler}.ListScheduled", "filter", {"filter": {"partitions": million}}),
        (f"{scheduler}.CancelWhere", "filter", {"filter": {"partitions": million}}),
        (f"{admin}.Redrive", "positions", {"positions": [{"offset": 1}] * 100_001}),
        (f"{admin}.PurgeDeadLetters", "positions", {"positions": [{"offset": 1}] * 100_001}),
        (f"{admin}.SeekGroup", "positions", {"positions": [{"offset": 1}] * 100_001}),
    ]
    for name, field, fields in cases:
        method = METHODS[name]
        request = GetMessageClass(method.input_type)(topic="hostile", **fields)
        outcome = node.run(node.call(method, request.SerializeToString()))
        assert outcome.code is grpc.StatusCode.INVALID_ARGUMENT, (name, outcome)
        assert field in outcome.details, (name, outcome)


# Conversations


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
            assert await node.node.tasks() >= before.tasks + 200

    node.run(open_many())
    node.run(_settled(node, before))


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
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /health/ready HTTP/1.1\r\nHost: x\r\n\r\n",
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
    health = b"GET /health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert node.run(node.send_bytes(node.node.http_port, health)).startswith(b"HTTP/1.1 200")


# Growth


def test_nothing_grows_with_what_was_refused(node, record_property):
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
    record_property("usage", f"{before} -> {after}")
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
            assert outcome.code in {*DOCUMENTED, grpc.StatusCode.UNAVAILABLE}, (name, outcome)
    await node.sing()
