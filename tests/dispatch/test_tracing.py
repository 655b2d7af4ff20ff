"""Spans of dispatchers and workers: a trace goes on from a stream's entry to what is written."""

import asyncio
import json

import pytest
from opentelemetry import trace

from tests.kit.spans import is_under, parent_text, recorded_spans
from tests.server.served import running_server
from waterclock.client.client import connect
from waterclock.dispatch import DispatcherConfig, WorkerConfig, run_dispatcher, run_worker
from waterclock.dispatch.core.batches import HandOut
from waterclock.dispatch.tracing import (
    dispatch_spans,
    handler_spans,
    pairs_of,
    split_fields,
    text_of,
)
from waterclock.dispatch.worker.handlers import handler_of

ONE, TWO = (bytes([n]) * 16 for n in (1, 2))
PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
FIELDS = [b"data", b"{}", b"traceparent", PARENT]


@pytest.fixture
def spans():
    with recorded_spans() as recorded:
        yield recorded


class Link:
    """What a message came by."""

    def __init__(self, contexts: dict[bytes, bytes]) -> None:
        self.contexts = contexts


def handle(message: object) -> object:
    return message


def out(*uuids: bytes, deliveries: int = 1) -> HandOut:
    return HandOut(1, deliveries, [*uuids], [0] * len(uuids), [b"{}"] * len(uuids))


def test_the_context_of_an_entry_is_no_part_of_its_body():
    assert split_fields(FIELDS) == ([b"data", b"{}"], PARENT)
    assert split_fields([*FIELDS, b"tracestate", b"v=1"]) == ([b"data", b"{}"], PARENT + b" v=1")


@pytest.mark.parametrize(
    "fields",
    [
        [b"n", b"7", b"place", b"cellar"],
        [b"data", b"{}", b"traceparent", b"nonsense"],
        [b"traceparent", PARENT, b"tracestate", b"v=1"],
    ],
)
def test_fields_that_are_no_context_are_left_as_they_are(fields):
    assert split_fields(fields) == (fields, b"")


def test_a_context_is_carried_by_frames_as_it_is_by_headers():
    pairs = [("traceparent", PARENT), ("tracestate", b"v=1")]

    assert pairs_of(text_of(dict(pairs))) == pairs
    assert pairs_of(text_of({"traceparent": PARENT, "tracestate": b"x" * 2_000})) == pairs[:1]


def test_each_time_a_message_is_handed_out_is_a_span_until_it_is_done(spans):
    mine = dispatch_spans("readings")
    assert mine is not None
    mine.add({ONE: PARENT})

    (first,) = mine.handed_out(out(ONE, TWO)).values()
    (second,) = mine.handed_out(out(ONE, deliveries=2)).values()
    mine.done([ONE, TWO])

    assert mine.handed_out(out(ONE)) == {}
    found = spans.named("dispatch readings")
    assert [first, second] == [parent_text(span) for span in found]
    assert [span.attributes["dispatch.deliveries"] for span in found] == [1, 2]
    assert {f"{span.parent.span_id:016x}" for span in found} == {"00f067aa0ba902b7"}


async def test_a_handler_is_called_in_a_span_under_that_of_the_dispatcher(spans):
    mine = handler_spans(handler_of(handle))
    assert mine is not None

    async def fail(_: object) -> object:
        return ValueError("no such device")

    mine.around(lambda _: None)((ONE, 0, b"{}", 1, Link({ONE: PARENT})))
    await mine.around_async(fail)((TWO, 0, b"{}", 1, Link({})))

    good, bad = spans.named("process handle")
    assert f"{good.parent.span_id:016x}" == "00f067aa0ba902b7"
    assert good.kind == trace.SpanKind.CONSUMER
    assert bad.parent is None
    assert bad.status.status_code == trace.StatusCode.ERROR


def test_without_a_provider_there_are_no_spans():
    assert dispatch_spans("readings") is None
    assert handler_spans(handler_of(handle)) is None


async def test_one_trace_leads_from_an_entry_to_the_consumer_of_what_a_worker_wrote(
    spans, server, look, name, tmp_path
):
    def count(message: dict[str, int]) -> dict[str, int]:
        inside.append(trace.get_current_span().get_span_context())
        return {"n": message["n"] + 1}

    inside: list[trace.SpanContext] = []
    where = {"redis": (server.address,), "prefix": name}
    dispatch = DispatcherConfig(**where, source=f"{name}-in", output=f"{name}-out", port=0)
    tracer = trace.get_tracer_provider().get_tracer("sensor")
    with tracer.start_as_current_span("measure") as span:
        context = span.get_span_context()
        parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
        look.xadd(f"{name}-in", {"data": json.dumps({"n": 1}), "traceparent": parent})
    async with running_server(tmp_path) as served:
        address = served.server.addresses.grpc
        worker = WorkerConfig(**where, sink="waterclock", servers=(address,), topic="measured")
        async with connect(address) as client, asyncio.TaskGroup() as tasks:
            programs = [
                tasks.create_task(run_dispatcher(dispatch)),
                tasks.create_task(run_worker(worker, handler=count)),
            ]
            async with client.subscribe("measured", group="billing") as messages:
                async for message in messages:
                    assert json.loads(message.value or b"") == {"n": 2}
                    message.ack()
                    break
            for program in programs:
                program.cancel()

    dispatched = spans.one(f"dispatch {name}-in")
    (handled,) = [
        s for s in spans.all() if s.name.startswith("process ") and "measured" not in s.name
    ]
    assert is_under(dispatched, spans.one("measure"))
    assert is_under(handled, dispatched)
    assert inside == [handled.context]
    assert is_under(spans.one("process measured"), handled)
    assert is_under(spans.one("append measured"), handled)
