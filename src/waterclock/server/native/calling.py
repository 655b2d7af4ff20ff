"""Calls over the native protocol: any method of the gRPC API, served by the same handlers.

A handler sees a context with as much of gRPC's as it uses; so rights, bounds, routing to other
nodes, metrics and errors are the same, and only the bytes around a call are others. Each direction
of a call has its brake, by the credit of its channel: a client that does not read has nothing more
read from the log for it.
"""

import asyncio
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, cast

import grpc
from grpc.aio import EOF

from waterclock.cluster.peer_link.channels import PIECE_BYTES, Channel
from waterclock.cluster.peer_link.client_frames import CallEnd, CallOpening
from waterclock.cluster.peer_link.frames import BadFrame
from waterclock.cluster.remote_calls import END, ended, message
from waterclock.model.errors import LimitExceeded, Overloaded, WaterclockError
from waterclock.runtime.call_channel import CallChannel
from waterclock.server.grpc.backlog import NATIVE
from waterclock.server.grpc.guard import AUTHORIZATION, COMMON_NAME
from waterclock.server.grpc.server import ServedMethod
from waterclock.server.statuses import status_of

if TYPE_CHECKING:
    from waterclock.server.native.link import ClientLink

DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
Pairs = tuple[tuple[str, str], ...]


class Aborted(Exception):
    """A handler has ended its call with a status."""


class ClientCall(CallChannel):
    """One call; what of its requests has come and is not whole counts against a bound."""

    __slots__ = ("_counted", "_link")

    def __init__(self, link: "ClientLink", channel: Channel) -> None:
        super().__init__()
        self.channel = channel
        channel.listener = self
        self._link = link
        self._counted = 0

    def begin(self, body: bytes, *, is_last: bool) -> None:
        """Take a call; what is missing of it comes later."""
        try:
            opening, at = CallOpening.decode(body)
        except BadFrame as error:
            self.channel.cancel(error.reason)
            return
        server = self._link.server
        method = server.methods.get(opening.method)
        if method is None:
            end = CallEnd(grpc.StatusCode.UNIMPLEMENTED.value[0], f"no method {opening.method}")
            self.channel.answer(0, ended(end.encode()))
            return
        self._link.open_calls += 1
        # What is logged for this call bears its id; what the link logs later must not.
        work = server.tasks.create_task(self._serve(method, opening), context=copy_context())
        self.on_failed = work
        work.add_done_callback(self._over)
        self.hear(body[at:], is_last=is_last)

    async def _serve(self, method: ServedMethod, opening: CallOpening) -> None:
        context, last = CallContext(self, self._link, opening), b""
        try:
            async with asyncio.timeout(opening.left_ms / 1_000 if opening.left_ms else None):
                answer = await method.handle(None, context)
                if method.serialize is not None:
                    last = message(method.serialize(answer))
                if len(last) > PIECE_BYTES:
                    await self.answer(last)
                    last = b""
        except Aborted:
            pass
        except TimeoutError:
            if self.channel.is_blocked:  # an end would not be taken, either
                self.channel.cancel("the deadline has passed")
                return
            last, context.end = b"", CallEnd(DEADLINE_EXCEEDED, "the deadline has passed")
        except Exception as error:
            status = status_of(error, opening.method)
            last, context.end = b"", CallEnd(status.code.value[0], status.details)
        # It counts until what it says before its end is taken: without credit that is kept.
        await self._until_drained()
        self.on_failed = None
        end = context.end
        is_well = not end.code and not end.metadata
        await self.answer(last + ended(b"" if is_well else end.encode()), is_last=True)

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._link.open_calls -= 1
        self._count(0)
        if task.cancelled():
            self.channel.cancel("the call was ended")

    # What comes

    def hear(self, data: bytes, *, is_last: bool) -> None:
        """Take a piece of what the client says, if there is room for it."""
        super().hear(data, is_last=is_last)
        pending, server = self.pending_bytes, self._link.server
        if pending > server.request_bytes_max:
            self._give_up(LimitExceeded("request bytes", server.request_bytes_max, got=pending))
            return
        try:
            self._count(pending)
        except Overloaded as error:
            self._give_up(error)

    def _count(self, size: int) -> None:
        """Count what has come of a request that is not whole."""
        receiving = self._link.server.receiving
        if size > self._counted:
            receiving.acquire_nowait(size - self._counted)
        elif size < self._counted:
            receiving.release(self._counted - size)
        self._counted = size

    def _give_up(self, error: WaterclockError) -> None:
        """Refuse the call in the midst of a request; the connection goes on."""
        status = status_of(error, "a call")
        end = CallEnd(status.code.value[0], status.details, list(status.trailers))
        self.end_now(ended(end.encode()))
        self.failed(error)


class CallContext:
    """A call as handlers see it: as much of gRPC's context as they use."""

    def __init__(self, call: ClientCall, link: "ClientLink", opening: CallOpening) -> None:
        self._call = call
        self._link = link
        self._opening = opening
        self._begun = asyncio.get_running_loop().time()
        self._has_ended = False
        self.end = CallEnd()

    def __repr__(self) -> str:
        return f"<CallContext of {self._opening.method}>"

    def peer(self) -> str:
        """Return who calls; one connection is one peer."""
        return f"{NATIVE}[{self._link.host}]:{id(self._link)}"

    def invocation_metadata(self) -> Pairs:
        """Return what came with the call, and the credential that the client has logged in with."""
        given = tuple(pair for pair in self._opening.metadata if pair[0] != AUTHORIZATION)
        login = self._link.authorization
        return ((AUTHORIZATION, login), *given) if login else given

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return the name in the certificate of the connection."""
        name = self._link.common_name
        return {} if name is None else {COMMON_NAME: [name.encode()]}

    def time_remaining(self) -> float | None:
        """Return how many seconds the client waits yet, if it has said so."""
        if not self._opening.left_ms:
            return None
        passed_s = asyncio.get_running_loop().time() - self._begun
        return max(0.0, self._opening.left_ms / 1_000 - passed_s)

    def code(self) -> grpc.StatusCode | None:
        """Return the status that the call was ended with."""
        return next((each for each in grpc.StatusCode if each.value[0] == self.end.code), None)

    async def read(self) -> Any:  # noqa: ANN401 - bytes, or gRPC's own end
        """Return the next request; EOF if there are no more."""
        if self._has_ended:
            return EOF
        try:
            item = await self._call.take()
        except WaterclockError as error:
            # Whoever serves the call is cancelled, too. An error of ours that comes before that,
            # out of a group of tasks, would look like another node's: the call would be asked again
            # for a client that has gone.
            raise asyncio.CancelledError from error
        if item is None or item.kind == END:
            self._has_ended = True
            return EOF
        return item.body

    async def write(self, data: bytes) -> None:
        """Answer; returns when there is room for more."""
        await self._call.answer(message(data))

    async def send_initial_metadata(self, _: Pairs) -> None:
        """An answer has no head of its own here."""

    def set_trailing_metadata(self, metadata: Pairs) -> None:
        """Tell these with the end."""
        self.end = CallEnd(self.end.code, self.end.details, list(metadata))

    async def abort(self, code: grpc.StatusCode, details: str, metadata: Pairs) -> None:
        """End the call with a status."""
        self.end = CallEnd(cast(Any, code).value[0], details, list(metadata))
        raise Aborted
