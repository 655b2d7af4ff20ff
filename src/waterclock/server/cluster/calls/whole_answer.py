"""The answer of another node to a request of HTTP, waited for until all of it is there."""

import asyncio

from waterclock.cluster.forwarded import NOT_OWNER, BadForward, ForwardedAnswer
from waterclock.cluster.peer_link.channels import Cancelled, Channel
from waterclock.model.errors import NotLeader, Unavailable, Unreachable
from waterclock.server.http.messages import Response


class Lost(Unavailable):
    """The other node was asked, and the link broke before it had answered."""


class WholeAnswer:
    """Hears one answer; await `heard`. Set `channel` before anything can come."""

    __slots__ = ("_body", "_head", "_node", "_status", "channel", "heard")

    def __init__(self, node: str) -> None:
        self.channel: Channel
        self.heard: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._node = node
        self._status = 0
        self._head: ForwardedAnswer | None = None
        self._body = bytearray()

    def answered(self, status: int, body: bytes, *, is_last: bool) -> None:
        """The answer begins."""
        if status == NOT_OWNER:
            self._fail(NotLeader(f"what {self._node} was asked for"))
            return
        try:
            self._head = ForwardedAnswer.decode(body)
        except BadForward as error:
            self.channel.cancel(str(error))
            self._fail(error)
            return
        self._status = status
        self._take(self._head.body, len(body), is_last=is_last)

    def piece(self, body: bytes, *, is_last: bool) -> None:
        """The answer goes on."""
        self._take(body, len(body), is_last=is_last)

    def failed(self, error: Exception) -> None:
        """The other node, or the way to it, is gone."""
        if isinstance(error, Cancelled):  # it was refused before anything was done
            self._fail(Unreachable(f"{self._node} does not answer: {error}"))
        else:
            self._fail(Lost(str(error)))

    def drained(self) -> None:
        """Nothing waits for that: the request is whole."""

    def _take(self, body: bytes, size: int, *, is_last: bool) -> None:
        self._body += body
        head = self._head
        assert head is not None
        if not is_last:
            self.channel.grant(size)
        elif not self.heard.done():
            answer = Response(self._status, bytes(self._body), head.content_type, head.headers)
            self.heard.set_result(answer)

    def _fail(self, error: Exception) -> None:
        if not self.heard.done():
            self.heard.set_exception(error)
