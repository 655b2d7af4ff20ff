"""Spans of a client: a message carries the context of the one that sent it to the one that works
on it."""

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry import trace

import waterclock
from tests.kit.spans import is_under, parent_text, recorded_spans
from tests.server.served import running_server
from waterclock.client.client import Client, connect
from waterclock.client.producer.producer import Producer
from waterclock.log.schema import HEADERS, binaries, maps
from waterclock.model.message import Message

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def spans():
    with recorded_spans() as recorded:
        yield recorded


async def take(
    client: Client, count: int, topic: str = "orders"
) -> list[waterclock.ReceivedMessage]:
    found: list[waterclock.ReceivedMessage] = []
    async with client.subscribe(topic, group="billing") as messages:
        async for message in messages:
            found.append(message)
            message.ack()
            if len(found) == count:
                return found
    return found


async def test_a_message_is_processed_under_the_span_that_sent_it(spans, tmp_path):
    inside = []
    async with running_server(tmp_path) as served, connect(served.server.addresses.grpc) as client:
        receipt = await client.publish("orders", b"one", headers={"kind": b"new"})
        async with client.subscribe("orders", group="billing") as messages:
            async for message in messages:
                inside.append(trace.get_current_span().get_span_context())
                assert message.headers == {
                    "kind": b"new", "traceparent": parent_text(spans.one("send orders"))
                }  # fmt: skip
                message.ack()
                assert not trace.get_current_span().get_span_context().is_valid
                break

    sent, processed = spans.one("send orders"), spans.one("process orders")
    assert (sent.kind, processed.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
    assert is_under(processed, sent)
    assert inside == [processed.context]
    assert dict(sent.attributes) == {
        "messaging.system": "waterclock",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": str(receipt.partition),
        "messaging.message.id": receipt.message_id.hex(),
        "server.address": served.server.addresses.grpc,
    }
    assert dict(processed.attributes) == {
        "messaging.system": "waterclock",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": str(receipt.partition),
        "messaging.message.id": receipt.message_id.hex(),
        "messaging.consumer.group.name": "billing",
        "waterclock.offset": receipt.offset,
        "waterclock.attempt": 1,
        "waterclock.answer": "ack",
    }


async def test_the_messages_of_a_call_share_the_context_of_its_span(spans, tmp_path):
    rows = pa.record_batch([binaries([b"3", b"4"])], names=["value"])
    async with running_server(tmp_path) as served, connect(served.server.addresses.grpc) as client:
        await client.publish_many(
            "orders", [Message(b"1"), Message(b"2", headers={"traceparent": PARENT})]
        )
        await client.publish_arrow("orders", rows)
        found = {each.value: each.headers["traceparent"] for each in await take(client, 4)}

    many, arrow = spans.named("send orders")
    assert many.attributes["messaging.batch.message_count"] == 2
    # A message that came with a context keeps it.
    assert found[b"2"] == PARENT
    assert found[b"1"] == parent_text(many)
    assert found[b"3"] == found[b"4"] == parent_text(arrow)


async def test_a_span_links_to_the_context_that_a_message_came_with(spans, tmp_path):
    async with running_server(tmp_path) as served, connect(served.server.addresses.grpc) as client:
        await client.publish("orders", b"on", headers={"traceparent": PARENT})

    (link,) = spans.one("send orders").links
    assert f"{link.context.span_id:016x}" == "00f067aa0ba902b7"


async def test_arrow_rows_that_have_headers_are_sent_as_they_are(spans, tmp_path):
    columns = [binaries([b"1", b"2"]), maps([[("kind", b"new")], None], HEADERS)]
    rows = pa.record_batch(columns, names=["value", "headers"])
    async with running_server(tmp_path) as served, connect(served.server.addresses.grpc) as client:
        await client.publish_arrow("orders", rows)
        found = {each.value: each.headers for each in await take(client, 2)}

    assert found == {b"1": {"kind": b"new"}, b"2": {}}


async def test_a_batch_is_processed_in_one_span_under_the_first_with_links(spans, tmp_path):
    inside = []
    async with running_server(tmp_path) as served, connect(served.server.addresses.grpc) as client:
        await asyncio.gather(client.publish("orders", b"1"), client.publish("orders", b"2"))
        async with client.subscribe("orders", group="billing", prefetch=2) as messages:
            async for batch in messages.batches():
                assert len(batch) == 2
                inside.append(trace.get_current_span().get_span_context())
                batch.ack()
                break

    sent = {span.context.span_id for span in spans.named("send orders")}
    processed = spans.one("process orders")
    linked = {link.context.span_id for link in processed.links}
    assert {processed.parent.span_id} | linked == sent
    assert len(linked) == 1
    assert processed.attributes["messaging.batch.message_count"] == 2
    assert inside == [processed.context]


async def test_an_answer_other_than_ack_is_a_failure_and_none_ends_with_the_message(
    spans, tmp_path
):
    async with running_server(tmp_path) as served, connect(served.server.addresses.grpc) as client:
        await client.publish_many("orders", [Message(b"1"), Message(b"2"), Message(b"3")])
        async with client.subscribe("orders", group="billing") as messages:
            async for message in messages:
                if message.value == b"1":
                    message.reject()
                elif message.value == b"3":
                    message.ack()
                    break

    answers = [span.attributes.get("waterclock.answer") for span in spans.named("process orders")]
    assert answers == ["reject", None, "ack"]
    rejected = spans.named("process orders")[0]
    assert rejected.status.status_code == trace.StatusCode.ERROR


async def test_a_message_to_a_stream_is_sent_in_a_span_that_the_node_goes_on_under(spans, tmp_path):
    async with running_server(tmp_path) as served, connect(served.server.addresses.grpc) as client:
        await client.streams.send("chat", {"token": "hello"}, size=8)
        await client.streams.list()

    assert is_under(spans.one("POST /streams/send"), spans.one("send chat"))
    assert spans.named("GET /streams") == []


async def test_what_publishing_raises_is_in_its_span(spans, tmp_path):
    async with running_server(tmp_path) as served, connect(served.server.addresses.grpc) as client:
        with pytest.raises(waterclock.BadInput):
            await client.publish("no topic!", b"1")

    assert spans.one("send no topic!").status.status_code == trace.StatusCode.ERROR


async def test_the_blocking_client_is_traced_alike(spans, tmp_path):
    def program(address: str) -> None:
        tracer = trace.get_tracer_provider().get_tracer("program")
        with waterclock.connect_blocking(address) as client:
            with tracer.start_as_current_span("order"):
                client.publish("orders", b"1")
            with client.subscribe("orders", group="billing") as messages:
                for message in messages:
                    inside.append(trace.get_current_span().get_span_context())
                    message.ack()
                    break

    inside: list[trace.SpanContext] = []
    async with running_server(tmp_path) as served:
        await asyncio.to_thread(program, served.server.addresses.grpc)

    sent, processed = spans.one("send orders"), spans.one("process orders")
    assert is_under(sent, spans.one("order"))
    assert is_under(processed, sent)
    assert inside == [processed.context]


async def test_without_a_provider_headers_are_left_as_they_are(tmp_path: Path):
    async with running_server(tmp_path) as served, connect(served.server.addresses.grpc) as client:
        assert type(client._producer) is Producer
        await client.publish("orders", b"1")
        await client.publish_many("orders", [Message(b"2", headers={"traceparent": PARENT})])
        await client.publish_arrow("orders", pa.record_batch([binaries([b"3"])], names=["value"]))
        found = await take(client, 3)

    assert {each.value: each.headers for each in found} == {
        b"1": {}, b"2": {"traceparent": PARENT}, b"3": {}
    }  # fmt: skip
    assert {type(each) for each in found} == {waterclock.ReceivedMessage}


async def test_a_message_without_room_for_a_context_goes_without_one(spans, tmp_path):
    async with running_server(tmp_path) as served, connect(served.server.addresses.grpc) as client:
        bytes_max = served.node.config.limits.message_bytes_max
        full = b"x" * (bytes_max - 16)  # the id that it is given
        many = {f"h{number}": b"" for number in range(64)}
        await client.publish("orders", full)
        await client.publish("orders", b"one", headers=many)
        await client.publish_many("orders", [Message(full), Message(b"two")])
        batch = pa.RecordBatch.from_arrays([binaries([full, b"three"])], ["value"])
        await client.publish_arrow("orders", batch)
        found = [set(message.headers) for message in await take(client, 6)]

    has_context = {"traceparent"}
    assert sorted(found, key=len) == [set(), set(), set(), set(), has_context, set(many)]
    assert len(spans.named("send orders")) == 4
