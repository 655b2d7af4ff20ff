"""A span around each call, if the program uses OpenTelemetry; else nothing, at no cost.

To use it is to have set a tracer provider before the pool runs. That the package is installed says
nothing, for others depend on it; and a span that nobody sees costs more than all the pool does for
a message.

The span's parent is the trace the message came with. A list of messages gets one span, under the
trace of the first. What a function raises is noted in its span.
"""

import importlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from waterclock.burrow.core.records import Record

NAME = "waterclock.burrow"
_Start = Callable[..., AbstractContextManager[object]]


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
