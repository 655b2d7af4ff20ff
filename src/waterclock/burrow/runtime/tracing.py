"""The trace of the message that a function works on, and a span around each call.

A function can ask which record it works on, however deep it is called. A trace is carried by the
W3C header `traceparent`; `trace_headers` hands it on.

Spans are made if the program uses OpenTelemetry; else nothing, at no cost. To use it is to have set
a tracer provider before the pool runs. That the package is installed says nothing, for others
depend on it; and a span that nobody sees costs more than all the pool does for a message. The
span's parent is the trace the message came with. A list of messages gets one span, under the trace
of the first. What a function raises is noted in its span.
"""

import importlib
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from waterclock.burrow.core.records import Header, Record
from waterclock.runtime.worker_pool import current_item

NAME = "waterclock.burrow"
_Start = Callable[..., AbstractContextManager[object]]
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16


@dataclass(frozen=True, slots=True)
class Trace:
    """Which trace a message belongs to (W3C Trace Context, level 1)."""

    trace_id: str
    span_id: str
    """The span of the sender."""
    flags: str = "01"
    state: str = ""
    """The header `tracestate`, as it came."""

    def headers(self) -> list[Header]:
        """Return the headers that carry it on."""
        parent = f"00-{self.trace_id}-{self.span_id}-{self.flags}"
        found: list[Header] = [("traceparent", parent.encode())]
        return [*found, ("tracestate", self.state.encode())] if self.state else found


def current_record() -> Record | None:
    """Return the record that is worked on; the first, for a function of lists."""
    found: Record | list[Record] | None = current_item.get()
    return found[0] if isinstance(found, list) else found


def current_trace() -> Trace | None:
    """Return the trace of the record that is worked on; None if it has none, or none that is
    well formed."""
    record = current_record()
    return trace_of(record.headers) if record is not None and record.headers else None


def trace_headers() -> list[Header]:
    """Return headers for messages that are sent on account of the present one."""
    trace = current_trace()
    return [] if trace is None else trace.headers()


def trace_of(headers: Sequence[Header]) -> Trace | None:
    """Return the trace that headers name."""
    found = dict(headers)
    match = _TRACEPARENT.fullmatch(found.get("traceparent") or b"")
    # A version "ff" and ids of zeros are not allowed.
    if match is None or match[1] == b"ff" or match[2] == _NO_TRACE or match[3] == _NO_SPAN:
        return None
    if match[1] == b"00" and len(match[0]) != 55:
        return None
    state = (found.get("tracestate") or b"").decode("ascii", "replace")
    return Trace(match[2].decode(), match[3].decode(), match[4].decode(), state)


def traced(function: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
    """Return the function with a span around it, or as it is if OpenTelemetry is not in use."""
    try:
        propagate = importlib.import_module("opentelemetry.propagate")
        trace = importlib.import_module("opentelemetry.trace")
    except ImportError:
        return function
    provider = trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return function
    start: _Start = provider.get_tracer(NAME).start_as_current_span

    async def call(item: Record | list[Record]) -> object:
        with _span(trace, start, propagate, item):
            awaited: Awaitable[object] = function(item)
            return await awaited

    def call_here(item: Record | list[Record]) -> object:
        with _span(trace, start, propagate, item):
            return function(item)

    return call if is_async else call_here


def _span(
    trace: ModuleType, start: _Start, propagate: ModuleType, item: Record | list[Record]
) -> AbstractContextManager[object]:
    record = item[0] if isinstance(item, list) else item
    carrier = {name: value.decode("utf-8", "replace") for name, value in record.headers if value}
    return start(
        f"process {record.topic}",
        context=propagate.extract(carrier),
        kind=trace.SpanKind.CONSUMER,
        attributes={
            "messaging.system": NAME,
            "messaging.operation.type": "process",
            "messaging.destination.name": record.topic,
            "messaging.destination.partition.id": str(record.partition),
            "messaging.kafka.offset": record.offset,
            "messaging.batch.message_count": len(item) if isinstance(item, list) else 1,
            "burrow.attempt": record.attempt,
        },
    )
