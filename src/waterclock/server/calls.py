"""Every gRPC call passes here: bounded, counted, its errors translated, and ended when the node is.

On a secure node a guard looks who calls before the request is read, and what the request needs
before it is worked on (`grpc/guard.py`).

A method of the API takes a request and returns a response, or talks over a stream; it knows nothing
of gRPC but that. A caller who goes away, or whose deadline passes, cancels its call; what it has
published by then is stored all the same.

The bytes that calls hold are bounded too, of gRPC and of HTTP: beyond the bound a call is refused,
or waits.

When the node stops, calls that only wait (for messages, for a turn) end at once with `Stopping`,
and the others are let finish.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message
from grpc import StatusCode
from grpc.aio import EOF, BaseError, InternalError, ServicerContext

from waterclock.model.errors import (
    BadInput,
    Overloaded,
    QuotaExceeded,
    Stopping,
    WaterclockError,
)
from waterclock.node.counters import Histogram
from waterclock.runtime.structured_log import REQUEST_ID, LateRequestId
from waterclock.server.access import CALLER
from waterclock.server.arrivals import Arrivals
from waterclock.server.grpc.backlog import Backlog
from waterclock.server.grpc.guard import Guard, HeldCall
from waterclock.server.statuses import Status, status_of

Response = TypeVar("Response")
Context = ServicerContext[Any, Any]

Parser = Callable[[bytes], Message]
Unary = Callable[[Any], Awaitable[Response]]
UnaryHandler = Callable[[object, Context], Awaitable[Response]]
StreamingMethod = Callable[[Any, "Stream"], Awaitable[None]]
StreamHandler = Callable[[object, Context], Awaitable[None]]

REQUEST_ID_KEY = "x-request-id"
"""In the metadata of a call, and in the trailing metadata of its answer."""


class BytesInFlight:
    """Counts bytes. What alone is over the bound may come when there is nothing else."""

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self._waiters: deque[asyncio.Future[None]] = deque()
        self.held = 0

    def __repr__(self) -> str:
        return f"<BytesInFlight {self.held} of {self._limit} {self._what}>"

    def holding(self, size: int) -> "HeldBytes":
        """Count bytes while inside; raises Overloaded if there are too many."""
        return HeldBytes(self, size)

    def acquire_nowait(self, size: int) -> None:
        """Count bytes; raises Overloaded if there are too many. You must `release` them."""
        if not self.has_room(size):
            raise Overloaded(self._what, self._limit)
        self.held += size

    async def acquire(self, size: int) -> None:
        """Count bytes, once there is room for them. You must `release` them."""
        while not self.has_room(size):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # It may have been woken, and nobody else was.
                self._wake()
                raise
        self.held += size

    def release(self, size: int) -> None:
        """Count bytes no more."""
        self.held -= size
        if self._waiters:
            self._wake()

    def has_room(self, size: int) -> bool:
        """Whether so many could be counted now."""
        return not self.held or self.held + size <= self._limit

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)


class HeldBytes:
    """Bytes that are counted inside. A class: a generator costs each publish several times that."""

    __slots__ = ("_counted", "_size")

    def __init__(self, counted: BytesInFlight, size: int) -> None:
        self._counted = counted
        self._size = size

    def __enter__(self) -> None:
        self._counted.acquire_nowait(self._size)

    def __exit__(self, *_: object) -> None:
        self._counted.release(self._size)


class Stream:
    """What a method that is a streaming_call sees of its call."""

    __slots__ = ("_backlog", "_context", "_held", "_parse", "write")

    def __init__(
        self, context: Context, parse: Parser, backlog: Backlog, held: HeldCall | None = None
    ) -> None:
        self._context = context
        self._parse = parse
        self._backlog = backlog
        self._held = held
        self.write: Callable[[bytes], Awaitable[None]] = context.write
        """Returns when gRPC has taken the message: the brake for a client that does not read."""

    async def read(self) -> Any:  # noqa: ANN401 - of the type the method takes
        """Return the next request, or None if there are no more.

        Who may not ask it is refused here; of a stream of publishes, ask `refusal_of` each.
        """
        data = await self._context.read()
        if data is EOF:
            return None
        self._backlog.note(self._context, len(data))
        request = self._parse(data)
        if self._held is not None:
            await self._held.admit(request, len(data))
        return request

    def serve_by(self, call: "StreamingCall") -> None:
        """Name what serves the stream: it hears when a node in front of this one stops."""

    def refusal_of(self, request: Message) -> WaterclockError | None:
        """Return why a request may not be worked on: it is answered so, and the stream goes on."""
        return None if self._held is None else self._held.refusal_of(request)


def parser_of(kind: type[Message]) -> Parser:
    """Return what makes requests of bytes; it raises BadInput."""
    parse = kind.FromString

    def parsed(data: bytes) -> Message:
        try:
            return parse(data)
        except DecodeError:
            raise BadInput("the request is not a message of this method") from None

    return parsed


class StreamingCall(Protocol):
    """A stream that wants to end well when the node stops."""

    def stop(self) -> None:
        """Begin nothing new; end soon."""
        ...

    def end(self) -> None: ...


class MethodCounters:
    """Calls of one method since the node started."""

    __slots__ = ("codes", "is_stream", "milliseconds", "streaming")

    def __init__(self, *, is_stream: bool = False) -> None:
        self.is_stream = is_stream
        self.streaming = 0
        """Under way, if they are streams."""
        self.codes: dict[StatusCode, int] = {}
        self.milliseconds = Histogram()
        """Of calls with one answer; a stream's length says nothing."""

    def note(self, code: StatusCode) -> None:
        """Count a call that ended."""
        self.codes[code] = self.codes.get(code, 0) + 1


class Calls:
    """The calls being worked on."""

    def __init__(
        self, calls_max: int, arrivals: Arrivals, backlog: Backlog, guard: Guard | None = None
    ) -> None:
        """Without a guard everyone may call everything."""
        self.calls_max = calls_max
        self._arrivals = arrivals
        self._backlog = backlog
        self._guard = guard
        self.check: Callable[[str, Message], None] | None = None
        """Refuses requests, by method, whoever asks; None: takes them all."""
        self.in_flight = 0
        self.is_stopping = False
        self.methods: dict[str, MethodCounters] = {}
        self.streaming_calls: set[StreamingCall] = set()
        """Those under way; each adds and removes itself."""
        self._waits: set[asyncio.Timeout] = set()

    def __repr__(self) -> str:
        return f"<Calls {self.in_flight} of {self.calls_max}>"

    def unary(
        self, method: str, work: Unary[Response], kind: type[Message]
    ) -> UnaryHandler[Response]:
        """Return the handler of a method with one answer to one request of a kind.

        It reads the request itself: of a handler that is given one, gRPC would take it in before.
        """
        counters = self.methods.setdefault(method, MethodCounters())
        answer = self._answering(method, work, kind)

        async def handle(_: object, context: Context) -> Response:
            begun = time.perf_counter()
            code = StatusCode.OK
            request_id = _begin_request(context)
            self.in_flight += 1
            try:
                self._check_admitted()
                return await answer(context)
            except asyncio.CancelledError:
                code = StatusCode.CANCELLED
                raise
            except BaseError:  # of gRPC itself: it has stopped under the call
                code = StatusCode.UNAVAILABLE
                raise
            except Exception as error:
                status = self._failed(error, method, context, request_id)
                code = status.code
            finally:
                self.in_flight -= 1
                counters.note(code)
                counters.milliseconds.observe((time.perf_counter() - begun) * 1_000)
                _end_request(context, request_id)
            await _abort(context, status)

        return handle

    def stream(
        self, method: str, work: StreamingMethod, kind: type[Message], *, reads: bool
    ) -> StreamHandler:
        """Return the handler of a method that writes as it goes, and perhaps `reads` too: then it
        is given no request."""
        counters = self.methods.setdefault(method, MethodCounters(is_stream=True))
        talk = self._talking(method, work, kind, reads=reads)

        async def handle(_: object, context: Context) -> None:
            code = StatusCode.OK
            request_id = _begin_request(context)
            self.in_flight += 1
            counters.streaming += 1
            try:
                self._check_admitted()
                await talk(context)
                return
            except asyncio.CancelledError:
                code = StatusCode.CANCELLED
                raise
            except BaseError:  # of gRPC itself: it has stopped, or the client went while we wrote
                code = StatusCode.UNAVAILABLE
                # Nobody is there to be answered; anything else, gRPC would log as a bug of ours.
                raise asyncio.CancelledError from None
            except Exception as error:
                status = self._failed(error, method, context, request_id)
                code = status.code
            finally:
                self.in_flight -= 1
                counters.streaming -= 1
                counters.note(code)
                _end_request(context, request_id)
            await _abort(context, status)

        return handle

    def _answering(
        self, method: str, work: Unary[Response], kind: type[Message]
    ) -> Callable[[Context], Awaitable[Response]]:
        """Return what reads the request of a call and answers it, if who asks may ask it."""
        parse, read, received = self._parser(method, kind), self._arrivals.read, self._received

        async def answer(context: Context) -> Response:
            data = await read(context.read, context.peer)
            return await work(parse(received(context, data)))

        guard = self._guard
        if guard is None:
            return answer
        guarded = guard.method(method, kind, reads=False)
        if guarded.is_open:
            return answer

        async def answer_known(context: Context) -> Response:
            try:
                with guard.entered(context) as principal:
                    if wait_ms := guarded.turn_ms(principal):
                        await guarded.wait(principal, wait_ms, context)
                    data = received(context, await read(context.read, context.peer))
                    request = parse(data)
                    permit = guarded.permit(principal, request)
                    guarded.take_bytes(permit.principal, len(data))
                    CALLER.set(permit.principal)
                    done = work(request)
                    if guarded.is_audited:
                        done = guarded.audited(context, permit, done)
                    response = await done
                    if guarded.show is not None:
                        guarded.show(permit.principal.rights, response)
                    return response
            except QuotaExceeded as error:
                refusal = error
            raise await guard.held_back(refusal, context)

        return answer_known

    def _talking(
        self, method: str, work: StreamingMethod, kind: type[Message], *, reads: bool
    ) -> Callable[[Context], Awaitable[None]]:
        """Return what serves a call that writes as it goes, for as long as who asks may ask it."""
        parse, read, received = self._parser(method, kind), self._arrivals.read, self._received
        backlog = self._backlog

        async def talk(context: Context, held: HeldCall | None = None) -> None:
            if reads:
                if held is None:
                    await _send_headers(context)
                async with backlog.watching(context):
                    await work(None, Stream(context, parse, backlog, held))
                return
            request = parse(received(context, await read(context.read, context.peer)))
            if held is not None:
                held.check(request)
            await work(request, Stream(context, parse, backlog, held))

        guard = self._guard
        if guard is None:
            return talk
        guarded = guard.method(method, kind, reads=reads)
        if guarded.is_open:
            return talk

        async def talk_with_known(context: Context) -> None:
            with guard.entered(context) as principal:
                CALLER.set(principal)
                await _send_headers(context)
                with guarded.held(principal, context) as held:
                    await talk(context, held)

        return talk_with_known

    def _parser(self, method: str, kind: type[Message]) -> Parser:
        """Return what makes requests of bytes, and refuses those that the node does not take."""
        parse, check = parser_of(kind), self.check
        if check is None:
            return parse

        def checked(data: bytes) -> Message:
            request = parse(data)
            check(method, request)
            return request

        return checked

    def _received(self, context: Context, data: object) -> bytes:
        """Return the request that was read, counted."""
        if data is EOF:
            raise BadInput("the call has no request")
        assert isinstance(data, bytes)
        self._backlog.note(context, len(data))
        return data

    def _failed(
        self, error: Exception, method: str, context: Context, request_id: LateRequestId
    ) -> Status:
        """Return how to answer a call that failed; its id is told with it. A refusal is counted."""
        if self._guard is not None:
            self._guard.denied(method, context, error)
        status = status_of(error, method)
        return status._replace(trailers=(*status.trailers, (REQUEST_ID_KEY, request_id.text)))

    def _check_admitted(self) -> None:
        if self.is_stopping:
            raise _stopping()
        if self.in_flight > self.calls_max:
            raise Overloaded("calls", self.calls_max)

    # Stopping

    @asynccontextmanager
    async def waiting(self, seconds: float | None = None) -> AsyncIterator[None]:
        """Wait inside: TimeoutError after so many seconds, Stopping when the node stops."""
        if self.is_stopping:
            raise _stopping()
        try:
            async with asyncio.timeout(seconds) as wait:
                self._waits.add(wait)
                try:
                    yield
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            if self.is_stopping:
                raise _stopping() from None
            raise

    def stop(self) -> None:
        """End what only waits; refuse what comes now."""
        self.is_stopping = True
        now = asyncio.get_running_loop().time()
        for wait in tuple(self._waits):
            if not wait.expired():
                wait.reschedule(now)
        for streaming_call in tuple(self.streaming_calls):
            streaming_call.stop()

    def end(self) -> None:
        """End streaming_calls that go on after `stop`."""
        for streaming_call in tuple(self.streaming_calls):
            streaming_call.end()


def _stopping() -> Stopping:
    return Stopping("the node is stopping: try again, or elsewhere")


def _begin_request(context: Context) -> LateRequestId:
    """Note that a call is answered from here on, by the id in its metadata or by one of ours."""
    request_id = LateRequestId(_given_id, context)
    REQUEST_ID.set(request_id)
    return request_id


def _given_id(context: Context) -> str | None:
    found = [v for key, v in context.invocation_metadata() or () if key == REQUEST_ID_KEY]
    return found[0] if found and isinstance(found[0], str) else None


def _end_request(context: Context, request_id: LateRequestId) -> None:
    """Tell the client the id under which something was logged, if something was."""
    if request_id.known:
        context.set_trailing_metadata(((REQUEST_ID_KEY, request_id.known),))
    request_id.call = None


async def _send_headers(context: Context) -> None:
    """Begin to answer, before anything of ours can cancel the call.

    The first write would do so by the way. But if it is cancelled, gRPC does not know that headers
    have gone, sends them again with the status, is refused, and the client waits for ever.
    """
    await context.send_initial_metadata(())


async def _abort(context: Context, status: Status) -> NoReturn:
    try:
        await context.abort(status.code, status.details, status.trailers)
    except InternalError:
        # gRPC has ended the call itself, as it does with a request that is too large. Anything
        # else, it would log as a bug of ours.
        raise asyncio.CancelledError from None
