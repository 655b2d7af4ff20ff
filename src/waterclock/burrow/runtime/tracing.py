"""The trace of the message that a function works on, and a span around each call.

A function can ask which record it works on, however deep it is called. A trace is carried by the
W3C header `traceparent`; `trace_headers` hands it on.

Spans are made if the program uses OpenTelemetry (`runtime/tracing.py`). The span's parent is the
trace the message came with. A list of messages gets one span, under the trace of the first, with
links to those of the others. What a function raises is noted in its span.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

from waterclock.burrow.core.records import Header, Record
from waterclock.runtime.trace_context import Trace, trace_of
from waterclock.runtime.tracing import Tracer, messaging, tracer_of
from waterclock.runtime.worker_pool import current_item

__all__ = ["Trace", "current_record", "current_trace", "trace_headers", "trace_of", "traced"]

NAME = "waterclock.burrow"


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


def traced(function: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
    """Return the function with a span around it, or as it is if OpenTelemetry is not in use."""
    tracer = tracer_of(NAME)
    if tracer is None:
        return function

    async def call(item: Record | list[Record]) -> object:
        with _span(tracer, item):
            awaited: Awaitable[object] = function(item)
            return await awaited

    def call_here(item: Record | list[Record]) -> object:
        with _span(tracer, item):
            return function(item)

    return call if is_async else call_here


def _span(tracer: Tracer, item: Record | list[Record]) -> AbstractContextManager[object]:
    records = item if isinstance(item, list) else [item]
    record = records[0]
    attributes = messaging("process", record.topic, count=len(records)) | {
        "messaging.system": NAME,
        "messaging.destination.partition.id": str(record.partition),
        "messaging.kafka.offset": record.offset,
        "burrow.attempt": record.attempt,
    }
    contexts = tracer.contexts_of(each.headers for each in records)
    return tracer.inside(
        tracer.begin(f"process {record.topic}", "CONSUMER", contexts, attributes=attributes)
    )
