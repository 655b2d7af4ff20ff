"""Requests about streams while they wait: each is told what became of it, once, and answers.

A poll that waits is two small objects, this and the core's; it has no task and no timer.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from waterclock.node.stream_host import StreamHost
from waterclock.server.http_messages import JSON, Pending, Response, problem
from waterclock.server.problems import RETRY_AFTER
from waterclock.server.stream_shapes import Words
from waterclock.streams.effects import Deliver
from waterclock.streams.ring import Item
from waterclock.streams.tokens import LIVE, STORED, Token, Tokens
from waterclock.streams.waiting import Receiver, Sender, Waiter

NOBODY_CAME = "nobody came within the timeout"
OVERWRITTEN = "what follows the resume token was overwritten or has expired"
FORGOTTEN = "the resume token is of a stream that was forgotten"

_encode = msgspec.json.encode


def gone_members(missed: int, token: str) -> dict[str, Any]:
    """Return what a 410 tells besides its words."""
    return {"error": "Gone", "field": "resumeToken", "missed": missed, "resumeToken": token}


def message_uuid(item: Item, incarnation: int, position: int) -> str:
    """Return the id of a message; if its sender gave none, one that is made of where it is."""
    return item.message_id or f"{incarnation:016x}-{position:x}"


class Call(Pending):
    """A request that may have to wait."""

    __slots__ = ("_host", "stream", "waiter", "words")

    def __init__(self, host: StreamHost, stream: str, words: Words) -> None:
        super().__init__(_leave)
        self._host = host
        self.stream = stream
        self.words = words
        self.waiter: Waiter | None = None

    def leave(self) -> None:
        """Wait no more."""
        if self.waiter is not None:
            self._host.leave(self.waiter)

    def incarnation(self) -> int:
        """Return which stream of this name it is."""
        stream = self._host.find(self.stream)
        return 0 if stream is None else stream.incarnation

    # Told to all

    def accepted(self, position: int, receivers: int) -> None:
        """Not told to receivers."""
        raise AssertionError(self)

    def delivered(self, given: Deliver) -> bool:
        """Not told to senders."""
        raise AssertionError(self)

    def refused(self, missed: int, oldest: int) -> None:
        """Not told to senders."""
        raise AssertionError(self)

    def must_read(self, receiver: Receiver) -> None:
        """Not told to those who do not read from the store."""
        raise AssertionError(self)

    def timed_out(self) -> None:
        """Answer that nobody came."""
        self.answer(problem(424, NOBODY_CAME, error="TimedOut"))

    def dismissed(self) -> None:
        """Answer that the client should ask again."""
        detail = "the node is stopping, or the stream was deleted: ask again"
        self.answer(problem(503, detail, RETRY_AFTER, error="Stopping"))


def _leave(call: Call) -> None:
    call.leave()


class SendCall(Call):
    """A request to send."""

    __slots__ = ("_token",)

    def __init__(self, host: StreamHost, stream: str, words: Words, *, token: str = "") -> None:
        super().__init__(host, stream, words)
        self._token = token
        """To go on after this message, if it is stored."""

    def accepted(self, position: int, receivers: int) -> None:
        """Answer that the message was taken."""
        assert isinstance(self.waiter, Sender)
        uuid = message_uuid(self.waiter.item, self.incarnation(), position)
        token = b',"resumeToken":' + _encode(self._token) if self._token else b""
        body = b'{"streamId":%b,%b%b,"position":%d,"delivered":%b%b}' % (
            _encode(self.stream),
            self.words.uuid,
            _encode(uuid),
            position,
            b"true" if receivers else b"false",
            token,
        )
        self.answer(Response(200, body, JSON))


class ReceiveCall(Call):
    """A request to receive."""

    __slots__ = ("_is_list", "_on_store", "_tokens", "is_stored")

    def __init__(
        self,
        host: StreamHost,
        stream: str,
        words: Words,
        tokens: Tokens,
        *,
        is_list: bool,
        on_store: "Callable[[ReceiveCall, Receiver], None] | None" = None,
    ) -> None:
        super().__init__(host, stream, words)
        self._tokens = tokens
        self._is_list = is_list
        self._on_store = on_store
        self.is_stored = False
        """Its position is one in the store."""

    def delivered(self, given: Deliver) -> bool:
        """Answer with messages."""
        return self.answer(Response(200, self._body(given), JSON))

    def _body(self, given: Deliver) -> bytes:
        told = told_messages(given, self.incarnation(), self.stream, self.words, self._tokens)
        missed = b',"missed":%d' % given.missed if given.missed else b""
        name = _encode(self.stream)
        if not self._is_list:
            return b'{"streamId":%b,%b%b}' % (name, told[0][1], missed)
        messages = b",".join(b"{%b}" % each for _, each in told)
        last = _encode(told[-1][0])
        return b'{"streamId":%b,"messages":[%b],"missed":%d,"resumeToken":%b}' % (
            name,
            messages,
            given.missed,
            last,
        )

    def refused(self, missed: int, oldest: int) -> None:
        """Answer that what was to follow is gone."""
        token = Token(LIVE, self.incarnation(), oldest)
        self.gone(missed, self._tokens.encode(self.stream, token))

    def gone(self, missed: int, token: str, detail: str = OVERWRITTEN) -> None:
        """Answer that what was to follow is gone, and how to go on."""
        self.answer(problem(410, detail, **gone_members(missed, token)))

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
        text = self._tokens.encode(self.stream, token)
        self.answer(problem(424, NOBODY_CAME, error="TimedOut", resumeToken=text))

    def must_read(self, receiver: Receiver) -> None:
        """Have the store read again."""
        assert self._on_store is not None
        self._on_store(self, receiver)


def told_messages(
    given: Deliver, incarnation: int, stream: str, words: Words, tokens: Tokens
) -> list[tuple[str, bytes]]:
    """Return for each message its token, and what is told of it as JSON, without braces."""
    told = []
    for position, item in zip(given.positions, given.items, strict=True):
        facts = (STORED, 0, item.stored) if item.stored else (LIVE, incarnation, position)
        token = Token(*facts)
        text = tokens.encode(stream, token)
        said = b'%b%b,%b%b,"position":%d,"sentMs":%d,"resumeToken":"%b"' % (
            words.message,
            item.body,
            words.uuid,
            _encode(message_uuid(item, incarnation, position)),
            token.position,
            item.sent_ms,
            text.encode(),
        )
        told.append((text, said))
    return told
