"""Spans around calls, with a stand-in for OpenTelemetry: it is no dependency of ours."""

import asyncio
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from waterclock.burrow.records import Record
from waterclock.burrow.spans import traced

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def spans(monkeypatch):
    found: list[tuple[str, Any, dict[str, Any]]] = []
    open_now: list[str] = []

    @contextmanager
    def start(name, *, context, kind, attributes):
        found.append((name, context, attributes))
        open_now.append(name)
        yield
        open_now.remove(name)

    trace: Any = ModuleType("opentelemetry.trace")
    trace.get_tracer = lambda name: SimpleNamespace(start_as_current_span=start)
    trace.SpanKind = SimpleNamespace(CONSUMER="consumer")
    propagate: Any = ModuleType("opentelemetry.propagate")
    propagate.extract = dict
    monkeypatch.setitem(sys.modules, "opentelemetry", ModuleType("opentelemetry"))
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", trace)
    monkeypatch.setitem(sys.modules, "opentelemetry.propagate", propagate)
    return SimpleNamespace(found=found, open_now=open_now)


def test_a_call_has_a_span_under_the_trace_of_its_message(spans):
    async def process(record: Record) -> list[str]:
        return list(spans.open_now)

    record = Record("orders", 1, 17, None, b"v", [("traceparent", PARENT), ("empty", None)])
    during = asyncio.run(traced(process, is_async=True)(record))

    assert during == ["process orders"]
    assert spans.open_now == []
    ((_, context, attributes),) = spans.found
    assert context == {"traceparent": PARENT.decode()}
    assert attributes["messaging.kafka.offset"] == 17


def test_a_plain_function_of_lists_has_one_span(spans):
    records = [Record("orders", 0, offset, None, b"v") for offset in range(3)]

    assert traced(len, is_async=False)(records) == 3
    assert spans.found[0][2]["messaging.batch.message_count"] == 3


def test_without_opentelemetry_the_function_is_left_as_it_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.propagate", None)

    assert traced(print, is_async=False) is print
