"""Spans of a node: of calls that carry a context, of batches that are appended, of timers."""

import asyncio
from datetime import timedelta

import grpc
import pytest
from opentelemetry import trace

from tests.kit.clock import ManualClock
from tests.kit.spans import is_under, parent_text, recorded_spans
from tests.server.grpc_secure import secure_server
from tests.server.http_client import raw_client
from tests.server.served import running_server
from waterclock.client.client import connect
from waterclock.model.limits import Limits
from waterclock.model.sections import TracingConfig
from waterclock.v1 import admin_pb2
from waterclock.v1 import broker_pb2 as pb

TRACE, SENDER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SENDER}-01"
CONTEXT = (("traceparent", PARENT),)
PATH = "/topics/orders/messages"


@pytest.fixture
def spans():
    with recorded_spans() as recorded:
        yield recorded


def post(body: str, headers: str = "") -> bytes:
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}{headers}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def names(span):
    return f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}"


async def test_one_trace_leads_from_the_producer_through_the_node_to_the_consumer(spans, tmp_path):
    clock = ManualClock()
    async with (
        running_server(tmp_path, clock=clock) as served,
        connect(served.server.addresses.grpc) as client,
    ):
        receipt = await client.publish("orders", b"later", at=timedelta(seconds=10))
        clock.advance(10_500)
        topic = served.node.topics.find("orders")
        assert topic is not None
        topic.partition(receipt.partition).scheduler.firing.fire_slice()
        async with client.subscribe("orders", group="billing") as messages:
            async for message in messages:
                assert message.headers["traceparent"] == parent_text(spans.one("send orders"))
                message.ack()
                break

    sent = spans.one("send orders")
    appended, fired = spans.one("append orders"), spans.one("fire orders")
    assert is_under(appended, sent)
    assert is_under(fired, sent)
    assert is_under(spans.one("process orders"), sent)
    assert appended.kind == trace.SpanKind.SERVER
    assert appended.attributes["messaging.destination.partition.id"] == str(receipt.partition)
    # From when it was due until it was written.
    assert 400_000_000 <= fired.end_time - fired.start_time <= 500_000_000


async def test_a_call_that_carries_a_context_has_a_span_and_others_have_none(spans, tmp_path):
    request = pb.PublishRequest(topic="orders", message=pb.Message(value=b"1"))
    async with running_server(tmp_path) as served:
        await served.broker.Publish(request)
        assert spans.all() == []
        await served.broker.Publish(request, metadata=CONTEXT)

    span = spans.one("waterclock.v1.Broker/Publish")
    assert span.kind == trace.SpanKind.SERVER
    assert names(span) == (TRACE, SENDER)
    assert dict(span.attributes) == {
        "rpc.system": "grpc",
        "rpc.service": "waterclock.v1.Broker",
        "rpc.method": "Publish",
        "rpc.grpc.status_code": 0,
    }


async def test_calls_without_a_context_are_sampled_by_the_setting(spans, tmp_path):
    async with running_server(tmp_path, tracing=TracingConfig(sample_percent=100)) as served:
        await served.admin.GetNode(admin_pb2.GetNodeRequest())

    assert spans.one("waterclock.v1.Admin/GetNode").parent is None


async def test_a_call_that_is_refused_says_so_in_its_span(spans, tmp_path):
    async with running_server(tmp_path) as served:
        with pytest.raises(grpc.aio.AioRpcError):
            await served.admin.GetTopic(admin_pb2.GetTopicRequest(topic="none"), metadata=CONTEXT)

    span = spans.one("waterclock.v1.Admin/GetTopic")
    assert span.attributes["rpc.grpc.status_code"] == grpc.StatusCode.NOT_FOUND.value[0]
    assert span.status.status_code == trace.StatusCode.UNSET


async def test_a_call_of_a_stranger_makes_no_span(spans, tmp_path):
    path = "/waterclock.v1.Admin/ListTopics"
    async with secure_server(tmp_path) as served:
        with pytest.raises(grpc.aio.AioRpcError):
            await served.unary(path, admin_pb2.ListTopicsRequest(), CONTEXT)
        assert spans.all() == []
        await served.unary(path, admin_pb2.ListTopicsRequest(), (*served.admin, *CONTEXT))

    assert len(spans.named("waterclock.v1.Admin/ListTopics")) == 1


async def test_a_request_over_http_has_a_span_with_its_route_and_status(spans, tmp_path):
    async with running_server(tmp_path) as served, raw_client(served.server.http_port) as client:
        client.send(post('{"value": "1"}', f"TraceParent: {PARENT}\r\n"))
        assert (await client.answer()).status == 201
        client.send(post("nonsense", f"traceparent: {PARENT}\r\n"))
        assert (await client.answer()).status == 400
        client.send(post('{"value": "2"}'))
        assert (await client.answer()).status == 201

    good, bad = spans.named("POST /topics/{topic}/messages")
    assert names(good) == names(bad) == (TRACE, SENDER)
    assert dict(good.attributes) == {
        "http.request.method": "POST",
        "http.route": "/topics/{topic}/messages",
        "http.response.status_code": 201,
    }
    assert bad.attributes["http.response.status_code"] == 400
    assert is_under(spans.one("append orders"), good)


async def test_batches_on_their_way_to_several_partitions_have_a_span_in_each(spans, tmp_path):
    async with running_server(tmp_path) as served, connect(served.server.addresses.grpc) as client:
        await client.topics.create("orders", partitions=2)
        await asyncio.gather(*(client.publish("orders", b"", key=b"%d" % n) for n in range(20)))

    appended = {span.attributes["messaging.destination.partition.id"]: span for span in
                spans.named("append orders")}  # fmt: skip
    assert set(appended) == {"0", "1"}
    assert all(span.links for span in appended.values())


async def test_a_message_over_http_carries_the_context_of_its_request_unless_it_has_one(tmp_path):
    """Also on a node that makes no spans."""
    headers = f"traceparent: {PARENT}\r\ntracestate: vendor=1\r\n"
    own = '{"value": "2", "headers": {"traceparent": "mine"}}'
    both = '{"messages": [{"value": "3"}, {"value": "4", "headers": {"a": "b"}}]}'
    async with running_server(tmp_path) as served, raw_client(served.server.http_port) as client:
        for body in ('{"value": "1"}', own, both):
            client.send(post(body, headers))
            assert (await client.answer()).status == 201
        client.send(post('{"value": "5"}', "traceparent: nonsense\r\n"))
        assert (await client.answer()).status == 201
        taken = (await client.get(f"{PATH}?group=g&limit=5")).json()["messages"]

    carried = {"traceparent": PARENT, "tracestate": "vendor=1"}
    assert {message["value"]: message.get("headers", {}) for message in taken} == {
        "1": carried,
        "2": {"traceparent": "mine"},
        "3": carried,
        "4": {"a": "b"} | carried,
        "5": {},
    }


async def test_a_message_that_has_no_room_for_a_context_is_stored_without(tmp_path):
    limits = Limits(headers_max=1)
    async with (
        running_server(tmp_path, limits=limits) as served,
        raw_client(served.server.http_port) as client,
    ):
        client.send(post('{"value": "1", "headers": {"a": "b"}}', f"traceparent: {PARENT}\r\n"))
        assert (await client.answer()).status == 201
        (message,) = (await client.get(f"{PATH}?group=g")).json()["messages"]

    assert message["headers"] == {"a": "b"}
