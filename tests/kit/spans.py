"""The spans that a test makes, as the SDK of OpenTelemetry sees them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """What has finished so far."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@contextmanager
def recorded_spans() -> Iterator[Spans]:
    """Record spans; the provider is ours alone, for a process can set one only once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "get_tracer_provider", lambda: provider)
        yield Spans(exporter)
    provider.shutdown()


def is_under(span: ReadableSpan, parent: ReadableSpan) -> bool:
    """Return whether a span is the child of another."""
    assert span.context is not None
    assert parent.context is not None
    return (
        span.parent is not None
        and span.parent.span_id == parent.context.span_id
        and span.context.trace_id == parent.context.trace_id
    )


def parent_text(span: ReadableSpan) -> bytes:
    """Return a span as `traceparent` names it."""
    assert span.context is not None
    context = span.context
    ids = f"{context.trace_id:032x}-{context.span_id:016x}"
    return f"00-{ids}-{context.trace_flags:02x}".encode()
