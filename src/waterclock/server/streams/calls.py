"""Requests about streams while they wait: each learns once what became of it, and answers.

A poll that waits is two small objects, this and the core's; it has no task and no timer.
"""

from collections.abc import Callable

from waterclock.node.streams.host import StreamHost
from waterclock.server.http.messages import Pending, Response, Streamed, problem
from waterclock.server.http.problems import RETRY_AFTER
from waterclock.server.streams.not_owner import NOT_OWNER_HERE
from waterclock.server.streams.responses import (
    OVERWRITTEN,
    Vocabulary,
    incarnation_of,
    message_uuid,
)
from waterclock.streams.effects import Deliver
from waterclock.streams.tokens import LIVE, STORED, Token, Tokens
from waterclock.streams.waiters import Receiver, Sender, Waiter


class Call(Pending):
    """A request that may have to wait."""

    __slots__ = ("_host", "stream", "vocabulary", "waiter")

    def __init__(self, host: StreamHost, stream: str, vocabulary: Vocabulary) -> None:
        super().__init__(_leave)
        self._host = host
        self.stream = stream
        self.vocabulary = vocabulary
        self.waiter: Waiter | None = None

    def answer(self, response: Response | Streamed) -> bool:
        """Answer, and let go of the waiter: the two hold each other."""
        self.waiter = None
        return super().answer(response)

    def leave(self) -> None:
        """Wait no more."""
        if self.waiter is not None:
            self._host.table.leave(self.waiter)

    def incarnation(self) -> int:
        """Return which stream of this name it is."""
        return incarnation_of(self._host, self.stream)

    def timed_out(self) -> None:
        """Answer that there was no match in time."""
        self.answer(self.vocabulary.timed_out())

    def dismissed(self) -> None:
        """Answer that the client should ask again."""
        detail = "the node is stopping, or the stream was deleted: ask again"
        self.answer(problem(503, detail, RETRY_AFTER, error="Stopping"))

    def moved(self) -> None:
        """Tell the node that asks to ask another one."""
        self.answer(NOT_OWNER_HERE)


def _leave(call: Call) -> None:
    call.leave()


class SendCall(Call):
    __slots__ = ("token",)

    def __init__(self, host: StreamHost, stream: str, vocabulary: Vocabulary) -> None:
        super().__init__(host, stream, vocabulary)
        self.token = ""
        """To go on after this message, if it is stored."""

    def moved(self) -> None:
        """Have the node that asks send the message elsewhere; not if it is stored: that would find
        that it was sent."""
        if self.token:
            self.dismissed()
        else:
            super().moved()

    def accepted(self, position: int, receivers: int) -> None:
        """Answer that the message was taken."""
        assert isinstance(self.waiter, Sender)
        uuid = message_uuid(self.waiter.item, self.incarnation(), position)
        is_delivered = receivers > 0
        response = self.vocabulary.sent(
            self.stream, uuid, position, self.token, is_delivered=is_delivered
        )
        self.answer(response)


class LocalSendCall(SendCall):
    """Of a client of this node, in a cluster."""

    __slots__ = ("_on_moved", "body")

    def __init__(
        self,
        host: StreamHost,
        stream: str,
        vocabulary: Vocabulary,
        body: bytes,
        on_moved: "Callable[[LocalSendCall], None]",
    ) -> None:
        super().__init__(host, stream, vocabulary)
        self.body = body
        """Of the request."""
        self._on_moved = on_moved

    def moved(self) -> None:
        """Send the message to the node that the stream goes to."""
        if self.token:
            self.dismissed()
        else:
            self._on_moved(self)


class ReceiveCall(Call):
    __slots__ = ("_is_list", "_on_store", "_tokens", "is_stored")

    def __init__(
        self,
        host: StreamHost,
        stream: str,
        vocabulary: Vocabulary,
        tokens: Tokens,
        *,
        is_list: bool,
        on_store: "Callable[[ReceiveCall, Receiver], None] | None" = None,
    ) -> None:
        # As a `Call`; set here, for this is done for every poll that waits.
        self.on_gone = _leave
        self.is_over = False
        self._connection = self._early = self._origin = None
        self._response_flags = 0
        self._host = host
        self.stream = stream
        self.vocabulary = vocabulary
        self.waiter = None
        self._tokens = tokens
        self._is_list = is_list
        self._on_store = on_store
        self.is_stored = False
        """Its position is one in the store."""

    def delivered(self, given: Deliver) -> bool:
        """Answer with messages."""
        common = self.stream, self._tokens
        if self._is_list:
            return self.answer(self.vocabulary.received_list(given, self.incarnation(), *common))
        item, position = given.items[0], given.positions[0]
        response = self.vocabulary.received(
            item, self.incarnation(), position, *common, missed=given.missed
        )
        return self.answer(response)

    def refused(self, missed: int, oldest: int) -> None:
        """Answer that what was to follow is gone."""
        token = Token(LIVE, self.incarnation(), oldest)
        self.gone(missed, self._tokens.encode(self.stream, token))

    def gone(self, missed: int, token: str, detail: str = OVERWRITTEN) -> None:
        """Answer that what was to follow is gone, and how to go on."""
        self.answer(self.vocabulary.gone(missed, token, detail))

    def timed_out(self) -> None:
        """Answer that nothing came, and from where to ask again, so that nothing is passed over."""
        assert isinstance(self.waiter, Receiver)
        after = self.waiter.after
        if after is None:
            super().timed_out()
            return
        token = (
            Token(STORED, 0, after) if self.is_stored else Token(LIVE, self.incarnation(), after)
        )
        self.answer(self.vocabulary.timed_out(self._tokens.encode(self.stream, token)))

    def must_read(self, receiver: Receiver) -> None:
        """Have the store read again."""
        assert self._on_store is not None
        self._on_store(self, receiver)


class LatestReceiveCall(ReceiveCall):
    """Waits for what comes from now on: asked again elsewhere it would pass over what came in
    between."""

    __slots__ = ()

    def moved(self) -> None:
        """Answer as if the time were over: the client goes on from where the stream is now."""
        self.timed_out()


class LocalReceiveCall(ReceiveCall):
    """Of a client of this node, in a cluster."""

    __slots__ = ("_on_moved", "query")

    def __init__(
        self,
        host: StreamHost,
        stream: str,
        vocabulary: Vocabulary,
        tokens: Tokens,
        query: bytes,
        on_moved: "Callable[[LocalReceiveCall], None]",
        *,
        is_list: bool,
        on_store: "Callable[[ReceiveCall, Receiver], None] | None" = None,
    ) -> None:
        super().__init__(host, stream, vocabulary, tokens, is_list=is_list, on_store=on_store)
        self.query = query
        """Of the request."""
        self._on_moved = on_moved

    def moved(self) -> None:
        """Ask the node that the stream goes to."""
        self._on_moved(self)
