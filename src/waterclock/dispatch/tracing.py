"""The spans of dispatchers and workers, in programs that use OpenTelemetry.

    dispatch readings    PRODUCER    from when a leader reads a message until it hands it out
    process handle       CONSUMER    the handler of a worker, and what is made of its result

A stream entry carries a context in its fields `traceparent` and `tracestate`, which are no part of
the body. The leader tells the worker under which span each message was handed out, by a frame
before the batch; messages that carry none cost nothing there.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from waterclock.dispatch.core.batches import HandOut
from waterclock.dispatch.frames import CONTEXT_BYTES_MAX
from waterclock.dispatch.worker.handler_pool import Item
from waterclock.dispatch.worker.handlers import Handler
from waterclock.runtime.trace_context import TRACEPARENT, TRACESTATE, Pairs, is_traceparent
from waterclock.runtime.tracing import Span, Tracer, messaging, tracer_of

NAME = "waterclock.dispatch"
_FIELDS = (TRACEPARENT.encode(), TRACESTATE.encode())


class DispatchSpans:
    """The spans of one leader: what waits to be handed out, or to be acknowledged."""

    def __init__(self, tracer: Tracer, source: str) -> None:
        self._tracer = tracer
        self._source = source
        self._waiting: dict[bytes, tuple[Pairs, int | None]] = {}
        """By uuid: the context it came with, and when it was read if it was never handed out."""

    def __repr__(self) -> str:
        return f"<DispatchSpans of {self._source}, {len(self._waiting)} messages>"

    def add(self, contexts: Mapping[bytes, bytes]) -> None:
        """Take note of messages that carry a context."""
        now_ns = time.time_ns()
        for uuid, text in contexts.items():
            self._waiting.setdefault(uuid, (pairs_of(text), now_ns))

    def handed_out(self, out: HandOut) -> dict[bytes, bytes]:
        """Return under which spans messages are handed out, those that carry a context."""
        waiting = self._waiting
        found = {}
        for uuid in out.uuids if waiting else ():
            if uuid in waiting:
                pairs, read_ns = waiting[uuid]
                waiting[uuid] = pairs, None
                found[uuid] = self._hand_out(uuid, pairs, read_ns, out.deliveries)
        return found

    def _hand_out(self, uuid: bytes, pairs: Pairs, read_ns: int | None, deliveries: int) -> bytes:
        attributes = messaging("send", self._source) | {
            "messaging.system": NAME,
            "messaging.message.id": uuid.hex(),
            "dispatch.deliveries": deliveries,
        }
        context = self._tracer.context_of(pairs)
        span = self._tracer.begin(
            f"dispatch {self._source}",
            "PRODUCER",
            [] if context is None else [context],
            attributes=attributes,
            begun_ns=read_ns,
        )
        span.end()
        return text_of(dict(self._tracer.pairs(span)))

    def done(self, uuids: Sequence[bytes]) -> None:
        """Forget messages that are acknowledged, or given up."""
        for uuid in uuids if self._waiting else ():
            self._waiting.pop(uuid, None)


class HandlerSpans:
    """The spans of one worker."""

    def __init__(self, tracer: Tracer, handler: str) -> None:
        self._tracer = tracer
        self._handler = handler

    def __repr__(self) -> str:
        return f"<HandlerSpans of {self._handler}>"

    def around(self, call: Callable[[Item], object]) -> Callable[[Item], object]:
        """Return a call with a span."""

        def traced(item: Item) -> object:
            with self._span(item):
                return call(item)

        return traced

    def around_async(
        self, call: Callable[[Item], Awaitable[object]]
    ) -> Callable[[Item], Awaitable[object]]:
        """Return a call that is awaited with a span; it returns what went wrong."""

        async def traced(item: Item) -> object:
            with self._span(item) as span:
                result = await call(item)
                if isinstance(result, BaseException):
                    span.record_exception(result)
                    self._tracer.fail(span, type(result).__name__)
                return result

        return traced

    def _span(self, item: Item) -> AbstractContextManager[Span]:
        uuid, _, _, deliveries, link = item
        contexts: Mapping[bytes, bytes] = getattr(link, "contexts", {})
        context = self._tracer.context_of(pairs_of(contexts.get(uuid, b"")))
        attributes: dict[str, Any] = {
            "messaging.system": NAME,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.message.id": uuid.hex(),
            "dispatch.deliveries": deliveries,
        }
        span = self._tracer.begin(
            f"process {self._handler}",
            "CONSUMER",
            [] if context is None else [context],
            attributes=attributes,
        )
        return self._tracer.inside(span)


def dispatch_spans(source: str) -> DispatchSpans | None:
    """Return what makes the spans of a leader; None if OpenTelemetry is not in use."""
    tracer = tracer_of(NAME)
    return None if tracer is None else DispatchSpans(tracer, source)


def handler_spans(handler: Handler) -> HandlerSpans | None:
    """Return what makes the spans of a worker; None if OpenTelemetry is not in use."""
    tracer = tracer_of(NAME)
    name: str = getattr(handler.call, "__name__", handler.name)
    return None if tracer is None else HandlerSpans(tracer, name)


def split_fields(fields: list[bytes]) -> tuple[list[bytes], bytes]:
    """Return the fields of an entry without its context, and that; it is empty if there is none."""
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    if not is_traceparent(named.get(_FIELDS[0], b"")) or named.keys() <= set(_FIELDS):
        return fields, b""
    kept = [
        each
        for at in range(0, len(fields), 2)
        if fields[at] not in _FIELDS
        for each in fields[at : at + 2]
    ]
    parent, state = (named.get(name, b"") for name in _FIELDS)
    return kept, text_of({TRACEPARENT: parent, TRACESTATE: state})


def text_of(pairs: Mapping[str, bytes]) -> bytes:
    """Return a context as frames carry it; a state that is too long stays behind."""
    parent, state = pairs.get(TRACEPARENT, b""), pairs.get(TRACESTATE, b"")
    whole = b"%b %b" % (parent, state)
    return whole if state and len(whole) <= CONTEXT_BYTES_MAX else parent


def pairs_of(text: bytes) -> Pairs:
    """Return a context as headers carry it."""
    parent, _, state = text.partition(b" ")
    found = [(TRACEPARENT, parent), (TRACESTATE, state)]
    return [(name, value) for name, value in found if value]
