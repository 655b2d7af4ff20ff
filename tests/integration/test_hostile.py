"""Nothing a client sends stops a node, hurts another client, or grows without bound.

Every method of the three services is here because the descriptors are read, not a list. `make fuzz
N=…` tries more of the same.
"""

import asyncio
import os
import zlib
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
from tests.integration.hostile_node import CALL_S, HostileNode, Usage, check_outcome
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
