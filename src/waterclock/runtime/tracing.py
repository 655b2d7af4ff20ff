"""Spans by OpenTelemetry, if the program uses it; else nothing, at no cost.

To use it is to have set a tracer provider before a client, node, dispatcher, worker or pool is
opened (`start_tracing` sets one for the programs of ours). That the package is installed says
nothing, for others depend on it; and a span that nobody sees costs more than most of what it would
be around. `tracer_of` says None then, and whoever asked takes the way without spans.

Names and attributes are those of OpenTelemetry's conventions for messaging. A message carries the
context of the span that sent it in its headers; what works on it makes a span under that context. A
span around several messages is under the context of the first, and links to the others.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Literal

from waterclock.model.errors import BadConfig
from waterclock.runtime.trace_context import TRACEPARENT, Header, Pairs

Attributes = Mapping[str, str | int | bool]
Kind = Literal["INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]
Span = Any
"""Of OpenTelemetry, which need not be installed."""
Context = Any

SYSTEM = "waterclock"
LINKS_MAX = 32
"""Contexts of one span at most; further messages of a batch are not looked at."""


class Tracer:
    """Makes the spans of one part of the system. `tracer_of` returns one."""

    def __init__(self, name: str, provider: Any, trace: ModuleType) -> None:  # noqa: ANN401
        self._trace = trace
        self._propagate = import_module("opentelemetry.propagate")
        self._contexts = import_module("opentelemetry.context")
        self._tracer = provider.get_tracer(name)
        self._name = name

    def __repr__(self) -> str:
        return f"<Tracer {self._name}>"

    def begin(
        self,
        name: str,
        kind: Kind,
        contexts: Sequence[Context] = (),
        *,
        attributes: Attributes,
        begun_ns: int | None = None,
    ) -> Span:
        """Begin a span under the first context, with links to the others; under the current span if
        there is none. You must end it."""
        trace = self._trace
        spans = [trace.get_current_span(context) for context in contexts[1:]]
        return self._tracer.start_span(
            name,
            context=contexts[0] if contexts else None,
            kind=trace.SpanKind[kind],
            attributes=attributes,
            links=[trace.Link(span.get_span_context()) for span in spans],
            start_time=begun_ns,
        )

    def inside(self, span: Span, *, notes_errors: bool = True) -> AbstractContextManager[Span]:
        """Let a span be the current one while inside; then it ends, with what was raised."""
        use: AbstractContextManager[Span] = self._trace.use_span(
            span,
            end_on_exit=True,
            record_exception=notes_errors,
            set_status_on_exception=notes_errors,
        )
        return use

    def current(self, span: Span) -> AbstractContextManager[Span]:
        """Let a span be the current one while inside. You must end it."""
        use: AbstractContextManager[Span] = self._trace.use_span(
            span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        )
        return use

    def link(self, span: Span, contexts: Iterable[Context]) -> None:
        """Link a span to those that others have made."""
        for context in contexts:
            span.add_link(self._trace.get_current_span(context).get_span_context())

    def fail(self, span: Span, reason: str) -> None:
        """Note that what a span is around failed."""
        span.set_attribute("error.type", reason)
        span.set_status(self._trace.StatusCode.ERROR)

    def has_current(self) -> bool:
        """Return whether a span is the current one. One that has ended is not: tasks that go on
        for long keep the context in which they were made."""
        return bool(self._trace.get_current_span().is_recording())

    def pairs(self, span: Span | None = None) -> Pairs:
        """Return the headers that carry the context of a span, or else that of the current one."""
        carrier: dict[str, str] = {}
        context = None if span is None else self._trace.set_span_in_context(span)
        self._propagate.inject(carrier, context)
        return [(name, text.encode()) for name, text in carrier.items()]

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what carries the context of the current span in a call of gRPC, or over HTTP."""
        return tuple((name, text.decode()) for name, text in self.pairs())

    def context_of(self, headers: Iterable[Header]) -> Context | None:
        """Return the context that headers carry, None if they carry none."""
        carrier = {name: text.decode("utf-8", "replace") for name, text in headers if text}
        context = self._propagate.extract(carrier)
        is_there = self._trace.get_current_span(context).get_span_context().is_valid
        return context if is_there else None

    def contexts_of(self, rows: Iterable[Sequence[Header] | None]) -> list[Context]:
        """Return the contexts that the headers of messages carry, each once, not too many."""
        found: dict[bytes | None, Context] = {}
        for headers in rows:
            parent = None if headers is None else dict(headers).get(TRACEPARENT)
            if headers is None or parent in found:
                continue
            if (context := self.context_of(headers)) is not None:
                found[parent] = context
                if len(found) == LINKS_MAX:
                    break
        return list(found.values())

    def enter(self, span: Span) -> Callable[[], None]:
        """Make a span the current one, here and in tasks made here, until what is returned is
        called, or until another takes its place; it does not end then."""
        before = self._contexts.get_current()
        # One that was entered and not left is not what to come back to.
        base = before.get(_BASE, before)
        entered = self._contexts.set_value(_BASE, base, self._trace.set_span_in_context(span, base))
        self._contexts.attach(entered)

        def leave() -> None:
            if self._contexts.get_current() is entered:
                self._contexts.attach(base)

        return leave


_BASE = "waterclock.base"
"""What is under a context that was entered for a message."""


def tracer_of(name: str) -> Tracer | None:
    """Return what makes spans under this name; None if OpenTelemetry is not in use.

    Who has set a provider has imported the package, so nothing is imported to find that out.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    try:
        return Tracer(name, provider, trace)
    except ImportError:  # half of the package is no use
        return None


def messaging(operation: str, destination: str, *, count: int | None = None) -> dict[str, Any]:
    """Return the attributes of a span around a message, or around so many."""
    attributes: dict[str, Any] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": destination,
    }
    if count is not None:
        attributes["messaging.batch.message_count"] = count
    return attributes


def id_text(message_id: bytes) -> str:
    """Return a message id as people read it: as text if it is some, else in hexadecimal."""
    try:
        text = message_id.decode()
    except UnicodeDecodeError:
        return message_id.hex()
    return text if text.isprintable() else message_id.hex()


@contextmanager
def tracing(service: str, *, is_enabled: bool) -> Iterator[None]:
    """Have spans made and exported while inside, if enabled, as the environment says (`OTEL_*`).

    A provider that is set already stays. Raises BadConfig for a package that is not there.
    """
    if not is_enabled or tracer_of(SYSTEM) is not None:
        yield
        return
    try:
        trace, sdk = import_module("opentelemetry.trace"), import_module("opentelemetry.sdk.trace")
    except ModuleNotFoundError as missing:
        problem = f"needs {missing.name}: pip install 'waterclock[otel]'"
        raise BadConfig("tracing", problem) from missing
    resources = import_module("opentelemetry.sdk.resources")
    named = resources.Resource.create({"service.name": service})
    # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say counts for more.
    given = resources.OTELResourceDetector().detect()
    provider = sdk.TracerProvider(resource=named.merge(given), shutdown_on_exit=False)
    for exporter in _exporters():
        export = import_module("opentelemetry.sdk.trace.export")
        provider.add_span_processor(export.BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


_PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


def _exporters() -> list[object]:
    """Return the exporters that OTEL_TRACES_EXPORTER names: `otlp` if it names none."""
    found = []
    for name in (os.environ.get("OTEL_TRACES_EXPORTER") or "otlp").split(","):
        wanted = name.strip()
        if wanted == "none":
            continue
        if wanted == "otlp":
            protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
                "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"
            )
            wanted = _PROTOCOLS.get(protocol, protocol)
        points = [*entry_points(group="opentelemetry_traces_exporter", name=wanted)]
        if not points:
            raise BadConfig(
                "OTEL_TRACES_EXPORTER",
                f"there is no exporter {wanted!r}: pip install 'waterclock[otel]'",
            )
        found.append(points[0].load()())
    return found
