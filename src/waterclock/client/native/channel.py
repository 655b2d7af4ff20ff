"""The methods of the gRPC API over a link of the native protocol, in the shape of a channel of
gRPC's: stubs are made from it, and whoever calls them sees the same answers and errors."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import grpc
from grpc.aio import EOF, AioRpcError, Metadata

from waterclock.client.native.link import NodeLink
from waterclock.cluster.peer_link.client_frames import CALL, CallEnd, CallOpening
from waterclock.cluster.remote_calls import END, ended, message
from waterclock.model.errors import WaterclockError
from waterclock.runtime.call_channel import CallChannel

Pairs = tuple[tuple[str, str], ...] | list[tuple[str, str]]
Request = TypeVar("Request")

BROKEN = CallEnd(grpc.StatusCode.UNAVAILABLE.value[0], "the call broke off")
"""How a call ended of which no end came."""
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class NativeChannel:
    """The methods of one node. Make stubs from it."""

    def __init__(self, link: NodeLink) -> None:
        self.link = link

    def __repr__(self) -> str:
        return f"<NativeChannel over {self.link!r}>"

    def unary_unary(
        self,
        path: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        _registered_method: bool = False,
    ) -> "UnaryMethod":
        return UnaryMethod(self.link, path, request_serializer, response_deserializer)

    def unary_stream(
        self,
        path: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        _registered_method: bool = False,
    ) -> "AnswersMethod":
        return AnswersMethod(self.link, path, request_serializer, response_deserializer)

    def stream_stream(
        self,
        path: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        _registered_method: bool = False,
    ) -> "StreamMethod":
        return StreamMethod(self.link, path, request_serializer, response_deserializer)


class _Method:
    __slots__ = ("_deserialize", "_link", "_path", "_serialize")

    def __init__(
        self,
        link: NodeLink,
        path: str,
        serialize: Callable[[Any], bytes],
        deserialize: Callable[[bytes], Any],
    ) -> None:
        self._link = link
        self._path = path.removeprefix("/")
        self._serialize = serialize
        self._deserialize = deserialize

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path}>"

    def _opening(self, timeout_s: float | None, metadata: Pairs | None) -> bytes:
        left_ms = 0 if timeout_s is None else max(1, int(timeout_s * 1_000))
        return CallOpening(self._path, left_ms, tuple(metadata or ())).encode()


class UnaryMethod(_Method):
    """A method with one request and one answer."""

    __slots__ = ()

    async def __call__(
        self,
        request: object,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - gRPC's name for it
        metadata: Pairs | None = None,
        wait_for_ready: bool | None = None,
    ) -> Any:  # noqa: ANN401 - of the method's type
        body = message(self._serialize(request)) + ended(b"")
        stream = StreamCall(self._link, self._serialize, self._deserialize)
        stream.open(self._opening(timeout, metadata) + body, is_last=True)
        try:
            async with asyncio.timeout(timeout):
                answer = await stream.read()
                if answer is EOF:
                    raise rpc_error(grpc.StatusCode.INTERNAL, "there was no answer")
                await stream.read()
                return answer
        except TimeoutError:
            raise rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
        finally:
            stream.cancel()


class AnswersMethod(_Method):
    """A method with one request and many answers."""

    __slots__ = ()

    def __call__(
        self,
        request: object,
        *,
        timeout: float | None = None,
        metadata: Pairs | None = None,
        wait_for_ready: bool | None = None,
    ) -> "StreamCall":
        body = message(self._serialize(request)) + ended(b"")
        stream = StreamCall(self._link, self._serialize, self._deserialize)
        stream.open(self._opening(timeout, metadata) + body, is_last=True)
        return stream


class StreamMethod(_Method):
    """A method with many requests and answers."""

    __slots__ = ()

    def __call__(
        self,
        *,
        timeout: float | None = None,
        metadata: Pairs | None = None,
        wait_for_ready: bool | None = None,
    ) -> "StreamCall":
        stream = StreamCall(self._link, self._serialize, self._deserialize)
        stream.open(self._opening(timeout, metadata))
        return stream


class StreamCall:
    """A call under way, in the shape of gRPC's."""

    __slots__ = ("_call", "_deserialize", "_end", "_link", "_serialize")

    def __init__(
        self,
        link: NodeLink,
        serialize: Callable[[Any], bytes],
        deserialize: Callable[[bytes], Any],
    ) -> None:
        self._link = link
        self._serialize = serialize
        self._deserialize = deserialize
        self._call = CallChannel()
        self._end: CallEnd | None = None

    def __repr__(self) -> str:
        return f"<StreamCall over {self._link!r}>"

    def open(self, opening: bytes, *, is_last: bool = False) -> None:
        """Begin it."""
        channels = self._link.channels
        self._call.channel = channels.open(CALL, opening, self._call, is_last=is_last)
        if not self._link.is_up:
            self._call.channel.cancel()
            self._call.failed(self._link.lost())

    async def write(self, request: object) -> None:
        """Say more; returns when there is room for more."""
        await self._call.send(message(self._serialize(request)))

    async def done_writing(self) -> None:
        """Say that this was all."""
        await self._call.send(ended(b""), is_last=True)

    async def read(self) -> Any:  # noqa: ANN401 - of the method's type, or EOF
        """Return the next answer; EOF once all is well and over. Raises AioRpcError."""
        if self._end is None:
            try:
                item = await self._call.take()
            except WaterclockError as error:
                raise rpc_error(grpc.StatusCode.UNAVAILABLE, str(error)) from error
            if item is not None and item.kind != END:
                return self._deserialize(item.body)
            self._end = BROKEN
            if item is not None:
                self._end = CallEnd.decode(item.body)
        if not self._end.code:
            return EOF
        code = _CODES.get(self._end.code, grpc.StatusCode.UNKNOWN)
        raise rpc_error(code, self._end.details, self._end.metadata)

    async def code(self) -> grpc.StatusCode:
        """Return how it ended; read first until it has."""
        return _CODES.get((self._end or BROKEN).code, grpc.StatusCode.UNKNOWN)

    async def details(self) -> str:
        """Return why it ended so."""
        return (self._end or BROKEN).details

    def cancel(self) -> bool:
        """End it, whatever is under way."""
        is_open = self._call.channel.is_open
        self._call.channel.cancel("the client gave it up")
        return is_open


def rpc_error(code: grpc.StatusCode, details: str, metadata: Pairs = ()) -> AioRpcError:
    """Return an error as gRPC raises it."""
    return AioRpcError(code, Metadata(), Metadata(*metadata), details)
