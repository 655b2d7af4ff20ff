"""Spans around calls, as the SDK of OpenTelemetry sees them."""

import asyncio
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.burrow.memory_source import MemoryBroker, MemorySource
from waterclock.burrow import Pool
from waterclock.burrow.core.records import Record
from waterclock.burrow.runtime.tracing import traced

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def intervals(monkeypatch):
    """Return what has finished; the provider is ours alone, for a process can set one only once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter.get_finished_spans
    provider.shutdown()


def test_a_call_has_a_span_under_the_trace_of_its_message(intervals):
    inside = []

    async def process(record: Record) -> None:
        inside.append(trace.get_current_span().get_span_context())

    record = Record("orders", 1, 17, None, b"v", [("traceparent", PARENT), ("empty", None)])
    asyncio.run(traced(process, is_async=True)(record))

    (span,) = intervals()
    assert span.name == "process orders"
    assert span.kind == trace.SpanKind.CONSUMER
    assert format(span.context.trace_id, "032x") == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert format(span.parent.span_id, "016x") == "00f067aa0ba902b7"
    assert span.parent.is_remote
    assert span.attributes["messaging.destination.partition.id"] == "1"
    assert span.attributes["messaging.kafka.offset"] == 17
    assert span.attributes["burrow.attempt"] == 1
    assert inside == [span.context]


def test_a_message_without_a_trace_begins_one(intervals):
    traced(print, is_async=False)(Record("orders", 0, 0, None, b"v", [("traceparent", b"no")]))

    (span,) = intervals()
    assert span.parent is None


def test_a_plain_function_of_lists_has_one_span(intervals):
    records = [Record("orders", 0, offset, None, b"v") for offset in range(3)]

    assert traced(len, is_async=False)(records) == 3
    (span,) = intervals()
    assert span.attributes["messaging.batch.message_count"] == 3


def test_what_a_function_raises_is_in_its_span(intervals):
    async def process(record: Record) -> None:
        raise ValueError("no such customer")

    with pytest.raises(ValueError, match="no such customer"):
        asyncio.run(traced(process, is_async=True)(Record("orders", 0, 0, None, b"v")))

    (span,) = intervals()
    assert span.status.status_code == trace.StatusCode.ERROR
    assert span.events[0].attributes["exception.message"] == "no such customer"


def test_in_a_pool_each_attempt_is_a_span_and_calls_that_overlap_keep_theirs_apart(intervals):
    broker = MemoryBroker()
    broker.fill(20)
    done = []

    async def process(record: Record) -> None:
        mine = trace.get_current_span()
        await asyncio.sleep(0)
        assert trace.get_current_span() is mine
        if record.value == b"7" and record.attempt == 1:
            raise ValueError("once")
        done.append(record.offset)
        if len(done) == 20:
            pool.stop()

    pool = Pool(MemorySource(broker), process, workers=10, retry_delay_s=0.001)
    asyncio.run(pool.run())

    found = intervals()
    assert len(found) == 21
    assert sorted(span.attributes["burrow.attempt"] for span in found) == [1] * 20 + [2]
    assert sum(span.status.status_code == trace.StatusCode.ERROR for span in found) == 1


def test_without_a_provider_the_function_is_left_as_it_is():
    assert traced(print, is_async=False) is print


def test_without_opentelemetry_the_function_is_left_as_it_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.propagate", None)

    assert traced(print, is_async=False) is print
