"""One request that another node answers: it waits as a poll does, with no task and no timer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from waterclock.cluster.forwarded import (
    NOT_OWNER,
    BadForward,
    ForwardedAnswer,
    ForwardedRequest,
    method_of,
)
from waterclock.cluster.peer_link.channels import Channel
from waterclock.model.errors import NotLeader, Unavailable, Unreachable
from waterclock.node.streams.host import Ownership
from waterclock.server.cluster.calls.forwarded_request import request_of, rights_of
from waterclock.server.cluster.reply import Reply
from waterclock.server.http.connection import HttpConnection
from waterclock.server.http.messages import (
    EVENTS,
    JSON,
    Pending,
    Request,
    Response,
    Streamed,
    problem,
)
from waterclock.server.http.problems import RETRY_AFTER, problem_of
from waterclock.server.streams.not_owner import NOT_OWNER_HERE

if TYPE_CHECKING:
    from waterclock.server.cluster.forwarder import Forwarder

ANSWER_BYTES_MAX = 64 << 20

Target = Callable[[], str | None]
"""Finds the node that is to answer; None if nobody is for now."""


class ForwardedCall(Pending):
    """A request on behalf of a client; the channel's listener on this node."""

    __slots__ = (
        "_body",
        "_feed",
        "_forwarder",
        "_head",
        "_status",
        "channel",
        "deadline",
        "encoded",
        "owner",
        "pause_s",
        "reply",
        "stream",
        "until",
    )

    def __init__(
        self,
        forwarder: "Forwarder",
        request: Request,
        stream: str,
        deadline: float,
        pause_s: float,
        *,
        left_ms: int,
    ) -> None:
        # As a `Pending`; set here, for this is done for every request that another node answers.
        self.on_gone = _gone
        self.is_over = False
        self._connection = self._early = self._origin = None
        self._response_flags = 0
        last_id = request.header(b"last-event-id") or b""
        method, path, query, body = request.method, request.path, request.query, request.body
        # One object, and not seven: thousands wait.
        self.encoded = ForwardedRequest(
            left_ms, method, path, query, last_id, body, rights=rights_of(request)
        ).encode()
        """As it is asked at first."""
        self.stream = stream
        self.deadline = deadline
        self.until = deadline
        """When to give up a node that says nothing."""
        self.pause_s = pause_s
        self.owner = ""
        """Who was asked last."""
        self.channel: Channel | None = None
        self.reply: Reply | None = None
        """Of this node, if the stream has become its own."""
        self._forwarder = forwarder
        self._status = 0
        self._head: ForwardedAnswer | None = None
        self._body: bytearray | None = None
        self._feed: _Feed | None = None

    @property
    def is_harmless(self) -> bool:
        """It may be carried out twice, and nobody is the worse for it."""
        return method_of(self.encoded) != b"POST"

    def request(self, left_ms: int) -> Request:
        """Return it as a request of this node."""
        asked = ForwardedRequest.decode(self.encoded)
        return request_of(asked._replace(left_ms=left_ms))

    def target(self, owners: Ownership) -> str | None:
        """Return who is to answer; None if this node is."""
        return owners.owner(self.stream)

    def left_ms(self, now: float) -> int:
        """Return how long the client still waits."""
        return max(1, int((self.deadline - now) * 1_000))

    def asked(self, now: float) -> None:
        """A node has it."""

    def lost(self, now: float) -> None:
        """That node did not answer, or was the wrong one."""

    def unstable(self, owners: Ownership) -> Response:
        """Return what to say if nobody can answer yet."""
        owner = owners.owner(self.stream)
        where = None if owner is None else owners.address(owner)
        whose = where or "this node"
        detail = f"the stream belongs to {whose}, which cannot answer yet: try again"
        return problem(424, detail, RETRY_AFTER, error="NotOwner", owner=where)

    def answer(self, response: Response | Streamed) -> bool:
        """Answer the client; nothing more is wanted of the other node."""
        self._forwarder.over(self)
        return super().answer(response)

    def give_up(self) -> None:
        """The time is over, and the other node says nothing. This one keeps to the time itself."""
        if self.reply is not None:
            return
        self._forwarder.failed(self)
        if self.channel is not None:
            self.channel.cancel("it took too long")
        self.answer(self._forwarder.no_answer(self, "it took too long"))

    # As one that asks this node

    @property
    def is_waiting(self) -> bool:
        """The client is still there."""
        return not self.is_over

    def take(self, answer: Response | Streamed) -> None:
        """Pass on what this node answers."""
        if answer == NOT_OWNER_HERE:
            self._forwarder.ask_again(self)
        else:
            self.answer(answer)

    # What the channel tells

    def answered(self, status: int, body: bytes, *, is_last: bool) -> None:
        """The answer begins."""
        self._forwarder.heard(self)
        if status == NOT_OWNER:
            self._forwarder.ask_again(self)
            return
        shared = self._forwarder.shared_connections
        if shared is not None and isinstance(self._connection, HttpConnection):
            shared.was_forwarded(self._connection, self.owner)
        try:
            head = ForwardedAnswer.decode(body)
            length = head.length if head.is_streamed else None
        except BadForward as error:
            assert self.channel is not None
            self.channel.cancel(str(error))
            self.answer(problem(502, f"{self.owner} answers nonsense: {error}"))
            return
        if head.is_streamed:
            assert self.channel is not None
            self._feed = _Feed(self.channel, may_end=head.content_type == EVENTS)
            self.answer(
                Streamed(
                    status,
                    self._feed.pieces(),
                    head.content_type,
                    head.headers,
                    length=length,
                    on_over=self._feed.stop,
                )
            )
            self._grant(len(body))
        elif is_last:
            # The same object as ours, which is written without being looked into.
            content_type = JSON if head.content_type == JSON else head.content_type
            self.answer(Response(status, head.body, content_type, head.headers))
        else:
            self._status, self._head, self._body = status, head, bytearray(head.body)
            self._grant(len(body))

    def piece(self, body: bytes, *, is_last: bool) -> None:
        """The answer goes on."""
        if self._feed is not None:
            self._feed.put(body, is_last=is_last)
            return
        assert self._body is not None
        assert self._head is not None
        self._body += body
        if len(self._body) > ANSWER_BYTES_MAX:
            assert self.channel is not None
            self.channel.cancel("the answer is too long")
            self.answer(problem(502, f"{self.owner} answers with more than is allowed"))
        elif is_last:
            head = self._head
            answer = Response(self._status, bytes(self._body), head.content_type, head.headers)
            self.answer(answer)
        else:
            self._grant(len(body))

    def failed(self, error: Exception) -> None:
        """The other node, or the way to it, is gone."""
        self._forwarder.failed(self)
        if self._feed is not None:
            self._feed.fail(f"{self.owner} did not send all of it: {error}")
        elif self.is_over:
            return
        elif self.is_harmless:
            if self.stream and isinstance(error, Unreachable):
                self._forwarder.broken_polls += 1
            self._body = self._head = None
            self._forwarder.ask_again(self)
        else:
            self.answer(self._forwarder.no_answer(self, str(error)))

    def drained(self) -> None:
        """Nothing waits for that: the request is whole."""

    def _grant(self, count: int) -> None:
        assert self.channel is not None
        self.channel.grant(count)

    def leave(self) -> None:
        """Ask no more: the client has gone, or this node stops."""
        self._forwarder.over(self)
        if self.channel is not None:
            self.channel.cancel("the client has gone")
        if self.reply is not None:
            self.reply.cancel()


class PlacedCall(ForwardedCall):
    """A request about topics, for the node that is to answer it by its place."""

    __slots__ = ("_asked_at", "_is_harmless", "_target", "wait_until")

    def __init__(
        self,
        forwarder: "Forwarder",
        request: Request,
        target: Target,
        deadline: float,
        pause_s: float,
        *,
        is_harmless: bool,
    ) -> None:
        super().__init__(forwarder, request, "", deadline, pause_s, left_ms=0)
        self._target = target
        self._is_harmless = is_harmless
        self._asked_at: float | None = None
        self.wait_until = 0.0
        """When the client's wait is over; 0: it says nothing of that."""

    @property
    def is_harmless(self) -> bool:
        return self._is_harmless

    def target(self, owners: Ownership) -> str | None:
        """Return who is to answer; if nobody is for now, this node's name: ask again."""
        found = self._target()
        return None if found == owners.node_id else found or owners.node_id

    def left_ms(self, now: float) -> int:
        """What is left of its wait, or 0: as long as the request says. The deadline is that of
        looking for a node."""
        return max(1, int((self.wait_until - now) * 1_000)) if self.wait_until else 0

    def asked(self, now: float) -> None:
        self._asked_at = now

    def lost(self, now: float) -> None:
        # The time that a node had was not spent on looking for one.
        if self._asked_at is not None:
            self.deadline += now - self._asked_at
            self._asked_at = None

    def unstable(self, owners: Ownership) -> Response:
        found = self._target()
        return problem_of(NotLeader("what this is about", leader=found or ""))


def _gone(call: ForwardedCall) -> None:
    call.leave()


class _Feed:
    """Pieces of an answer that go on to the client as they come."""

    def __init__(self, channel: Channel, *, may_end: bool) -> None:
        """With `may_end` it is whole wherever it ends: whoever listens comes back."""
        self._channel = channel
        self._may_end = may_end
        self._problem: str | None = None
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def put(self, piece: bytes, *, is_last: bool) -> None:
        """Take a piece; the channel's credit bounds how many."""
        if piece:
            self._queue.put_nowait(piece)
        if is_last:
            self._queue.put_nowait(None)

    def fail(self, problem: str) -> None:
        """Nothing more comes, and that was not all."""
        self._problem = None if self._may_end else problem
        self._queue.put_nowait(None)

    def stop(self) -> None:
        """The client has gone, or has all."""
        self._channel.cancel("the client has gone")

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield what comes, and let more come once it is taken."""
        while (piece := await self._queue.get()) is not None:
            yield piece
            self._channel.grant(len(piece))
        if self._problem is not None:
            raise Unavailable(self._problem)
