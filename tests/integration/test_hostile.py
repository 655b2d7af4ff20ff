"""Nothing a client sends stops a node, hurts another client, or grows without bound.

Every method of the three services is here because the descriptors are read, not a list. `make fuzz
N=…` tries more of the same.
"""

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message as ProtoMessage
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from tests.integration.hostile_input import (
    METHODS,
    bomb,
    hostile,
    messages,
    valid_arrow,
)
from tests.integration.hostile_node import check_outcome
from waterclock.v1 import broker_pb2 as pb

UNARY = sorted(name for name, method in METHODS.items() if not method.client_streaming)
STREAMS = sorted(name for name, method in METHODS.items() if method.client_streaming)
GROWN_MIB_MAX = 256


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
