"""A span around each call of gRPC and each request of HTTP, on a node that traces.

    waterclock.v1.Admin/CreateTopic    POST /topics/{topic}/messages    SERVER

A call has one if it carries a context (`traceparent` in the metadata, or the headers), or if it is
among the `tracing.sample_percent` of the others. Streams that go on have none, for a span without
an end is no use: their batches have (`node/partition/tracing.py`). A caller who is not known costs
nobody a span: over HTTP the handler is not called, and over gRPC its span is dropped.
"""

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from grpc import StatusCode

from waterclock.runtime.trace_context import TRACEPARENT, Header
from waterclock.runtime.tracing import Attributes, Span, Tracer, tracer_of
from waterclock.server.http.messages import Answered, Handler, Request, Response, Streamed
from waterclock.server.http.operations import Operation
from waterclock.server.http.problems import problem_of

Result = TypeVar("Result")
GrpcHandler = Callable[[object, Any], Awaitable[Result]]

_FAULTS = {
    StatusCode.UNKNOWN,
    StatusCode.DEADLINE_EXCEEDED,
    StatusCode.UNIMPLEMENTED,
    StatusCode.INTERNAL,
    StatusCode.UNAVAILABLE,
    StatusCode.DATA_LOSS,
}
"""What is the server's fault, by the conventions for RPC; of the rest the caller may judge."""


class CallSpans:
    """Makes the spans of one node's calls."""

    def __init__(self, tracer: Tracer, *, sample_percent: int) -> None:
        self._tracer = tracer
        self._sample = sample_percent / 100

    def __repr__(self) -> str:
        return f"<CallSpans by {self._tracer!r}>"

    def grpc(self, method: str, handle: GrpcHandler[Result]) -> GrpcHandler[Result]:
        """Return the handler of a method, given as `package.Service/Method`, with spans."""
        tracer = self._tracer
        service, _, name = method.rpartition("/")
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}

        async def traced(request: object, context: Any) -> Result:  # noqa: ANN401 - of gRPC
            span = self._begin(method, _metadata(context), attributes)
            if span is None:
                return await handle(request, context)
            code = StatusCode.OK
            # Not ended on the way out: a stranger's is dropped.
            with tracer.current(span):
                try:
                    return await handle(request, context)
                except asyncio.CancelledError:
                    code = StatusCode.CANCELLED
                    raise
                finally:
                    self._ended(span, _CODES.get(context.code(), code))

        return traced

    def http(self, operation: Operation) -> Operation:
        """Return an operation with spans."""
        handler = operation.handler
        is_later = inspect.iscoroutinefunction(handler)
        wrap = self._later if is_later else self._at_once
        return replace(operation, handler=wrap(operation, handler))

    def _later(self, operation: Operation, handler: Any) -> Handler:  # noqa: ANN401
        async def traced(request: Request) -> Answered:
            span = self._begin_request(operation, request)
            if span is None:
                found: Answered = await handler(request)
                return found
            with self._tracer.inside(span, notes_errors=False):
                try:
                    answered: Answered = await handler(request)
                except Exception as error:
                    answered = problem_of(error, request)
                self._answered(span, answered)
                return answered

        return traced

    def _at_once(self, operation: Operation, handler: Any) -> Handler:  # noqa: ANN401
        def traced(request: Request) -> Any:  # noqa: ANN401 - whatever a handler may answer
            span = self._begin_request(operation, request)
            if span is None:
                return handler(request)
            with self._tracer.inside(span, notes_errors=False):
                try:
                    answered = handler(request)
                except Exception as error:
                    answered = problem_of(error, request)
                self._answered(span, answered)
                return answered

        return traced

    def _begin_request(self, operation: Operation, request: Request) -> Span | None:
        headers = [
            (name.decode("latin-1").lower(), value)
            for name, value in request.headers
            if len(name) <= len(TRACEPARENT)
        ]
        name = f"{operation.method} {operation.path}"
        attributes = {"http.request.method": operation.method, "http.route": operation.path}
        return self._begin(name, headers, attributes)

    def _begin(self, name: str, headers: Iterable[Header], attributes: Attributes) -> Span | None:
        context = self._tracer.context_of(headers)
        if context is None and random.random() >= self._sample:
            return None
        contexts = [] if context is None else [context]
        return self._tracer.begin(name, "SERVER", contexts, attributes=attributes)

    def _answered(self, span: Span, answered: object) -> None:
        """Note how a request was answered; one that waits, or goes on, began well."""
        if isinstance(answered, Response | Streamed):
            span.set_attribute("http.response.status_code", answered.status)
            if answered.status >= 500:
                self._tracer.fail(span, str(answered.status))

    def _ended(self, span: Span, code: StatusCode) -> None:
        number: int = code.value[0]
        span.set_attribute("rpc.grpc.status_code", number)
        if code in _FAULTS:
            self._tracer.fail(span, code.name)
        if code is not StatusCode.UNAUTHENTICATED:
            span.end()


def call_spans(*, sample_percent: int) -> CallSpans | None:
    """Return what makes spans for calls; None if OpenTelemetry is not in use."""
    tracer = tracer_of("waterclock.node")
    return None if tracer is None else CallSpans(tracer, sample_percent=sample_percent)


_CODES: dict[object, StatusCode] = {
    key: code for code in StatusCode if code is not StatusCode.OK for key in (code, code.value[0])
}
"""gRPC says either, and OK of a call that was not answered yet."""


def _metadata(context: Any) -> list[Header]:  # noqa: ANN401 - of gRPC
    return [
        (name, text.encode() if isinstance(text, str) else text)
        for name, text in context.invocation_metadata() or ()
    ]
