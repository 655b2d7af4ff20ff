"""What other nodes ask for their clients: answered here, over the link, as HTTP would be.

The node that was asked first has checked who asks and what they may. A request that waits costs
what it costs over HTTP, and its channel; no task waits for it.
"""

import asyncio
from collections.abc import Callable
from contextvars import copy_context

from waterclock.cluster.forwarded import BadForward, ForwardedAnswer, ForwardedRequest
from waterclock.cluster.peer_link.channels import Channel
from waterclock.model.errors import BadInput
from waterclock.server.cluster.calls.forwarded_request import request_of
from waterclock.server.cluster.reply import Reply
from waterclock.server.http.messages import Handler, Request, Response, Streamed
from waterclock.server.http.problems import problem_of
from waterclock.server.http.sending import dispose
from waterclock.server.statuses import log_unforeseen

HEAD_BYTES_MAX = 64 << 10
"""Beside the body: path, query and what is with them."""

STOPS = "the node stops"


class Answering:
    """Answers forwarded requests with `handler`; a body has at most `body_bytes_max`."""

    def __init__(self, handler: Handler, tasks: asyncio.TaskGroup, *, body_bytes_max: int) -> None:
        self._handler = handler
        self._tasks = tasks
        self._bytes_max = HEAD_BYTES_MAX + body_bytes_max
        self._is_over = False

    def end(self) -> None:
        """Answer nothing more: who would do so has stopped."""
        self._is_over = True

    def requested(self, channel: Channel, body: bytes, *, is_last: bool) -> None:
        """Take a request; what is missing of it comes later."""
        if is_last:
            self.answer(channel, body)
        else:
            Arriving(channel, body, self._bytes_max, self.answer)

    def answer(self, channel: Channel, data: bytes) -> None:
        """Answer a whole request."""
        if self._is_over:
            channel.cancel(STOPS)
            return
        try:
            asked = ForwardedRequest.decode(data)
        except BadForward as error:
            channel.cancel(str(error))
            return
        try:
            request = request_of(asked)
        except BadInput as error:
            channel.cancel(str(error))
            return
        # What is logged for this request bears its id; what the link logs later must not.
        copy_context().run(self._run, channel, request)

    def _run(self, channel: Channel, request: Request) -> None:
        try:
            answered = self._handler(request)
        except Exception as error:
            answered = problem_of(error, request)
        if type(answered) is Response:
            answer_whole(channel, answered)
            return
        asking = _Asking(channel, self._tasks)
        channel.listener = asking
        asking.reply.begin(answered, request)


def answer_whole(channel: Channel, response: Response) -> None:
    """Say an answer that is there as a whole."""
    status, body, content_type, headers = response
    channel.answer(status, ForwardedAnswer(False, content_type, headers, body).encode())


class Arriving:
    """A request that has not arrived whole; when it has, `whole` is called with it."""

    __slots__ = ("_body", "_bytes_max", "_channel", "_whole")

    def __init__(
        self,
        channel: Channel,
        body: bytes,
        bytes_max: int,
        whole: Callable[[Channel, bytes], None],
    ) -> None:
        self._channel = channel
        self._body = bytearray(body)
        self._bytes_max = bytes_max
        self._whole = whole
        channel.listener = self
        channel.grant(len(body))

    def answered(self, status: int, body: bytes, *, is_last: bool) -> None:
        raise AssertionError("we were asked")

    def piece(self, body: bytes, *, is_last: bool) -> None:
        """Wait for the last one."""
        self._body += body
        if len(self._body) > self._bytes_max:
            self._channel.cancel(f"a request of more than {self._bytes_max} bytes")
        elif is_last:
            self._whole(self._channel, bytes(self._body))
        else:
            self._channel.grant(len(body))

    def failed(self, error: Exception) -> None:
        """Forget it: nobody waits for an answer."""

    def drained(self) -> None:
        raise AssertionError("nothing was said")


class _Asking:
    """The node that asks, behind its channel."""

    __slots__ = ("_channel", "_drained", "_sending", "_tasks", "reply")

    def __init__(self, channel: Channel, tasks: asyncio.TaskGroup) -> None:
        self.reply = Reply(self, tasks)
        self._channel = channel
        self._tasks = tasks
        self._drained: asyncio.Future[None] | None = None
        self._sending: asyncio.Task[None] | None = None

    @property
    def is_waiting(self) -> bool:
        return self._channel.is_open

    def take(self, answer: Response | Streamed) -> None:
        """Say the answer, or its pieces as they come."""
        if isinstance(answer, Streamed):
            self._sending = self._tasks.create_task(self._send(answer))
            return
        answer_whole(self._channel, answer)

    async def _send(self, streamed: Streamed) -> None:
        length = b"" if streamed.length is None else b"%d" % streamed.length
        head = ForwardedAnswer(True, streamed.content_type, streamed.headers, length)
        self._channel.answer(streamed.status, head.encode(), is_last=False)
        try:
            async for piece in streamed.pieces:
                self._channel.send(bytes(piece))
                if self._channel.is_blocked:
                    self._drained = asyncio.get_running_loop().create_future()
                    await self._drained
            self._channel.send(b"", is_last=True)
        except Exception as error:
            log_unforeseen(repr(streamed), error)
            self._channel.cancel("something unforeseen happened")
        finally:
            close = getattr(streamed.pieces, "aclose", None)
            if close is not None:
                await close()
            dispose(streamed)

    # What the channel tells

    def answered(self, status: int, body: bytes, *, is_last: bool) -> None:
        raise AssertionError("we were asked")

    def piece(self, body: bytes, *, is_last: bool) -> None:
        raise AssertionError("the request was whole")

    def failed(self, error: Exception) -> None:
        """Stop: the client, or the node that asks for it, has gone."""
        self.reply.cancel()
        if self._sending is not None:
            self._sending.cancel()

    def drained(self) -> None:
        """Go on with the pieces."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
