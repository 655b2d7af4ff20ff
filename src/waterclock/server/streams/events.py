"""A stream as server-sent events: each message an event, its resume token the event's id.

A browser that loses the connection comes back with `Last-Event-ID` and goes on where it was.
Without a consumer's name every subscriber gets every message, beginning with the oldest there is.

    event: gone         what was to follow is lost; `missed` says how much, and events go on
    : ping              first, and now and then, so that proxies do not take quiet for dead
"""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec

from waterclock.model.errors import StoreUnavailable, WaterclockError
from waterclock.node.node import Node
from waterclock.server.http.messages import (
    EVENTS,
    KEEP_ALIVE_MS,
    Answered,
    Request,
    Streamed,
    problem,
)
from waterclock.server.http.problems import RETRY_AFTER
from waterclock.server.streams.models import ReceiveParameters
from waterclock.server.streams.reader import CONFIRMED, EARLIEST, LATEST, deliver_of
from waterclock.server.streams.responses import (
    FORGOTTEN,
    VOCABULARIES,
    gone_members,
    incarnation_of,
)
from waterclock.stores.base import END
from waterclock.streams.effects import Deliver
from waterclock.streams.tokens import LIVE, STORED, Token
from waterclock.streams.waiters import Receiver

EVENTS_AT_ONCE = 100
HEADERS = b"Cache-Control: no-store\r\nX-Accel-Buffering: no\r\n"
PING = b": ping\n\n"


class _Gone(NamedTuple):
    missed: int
    oldest: int


class _Feed:
    """Hears of messages for one subscriber; it is asked for one thing at a time."""

    def __init__(self) -> None:
        self.news: asyncio.Future[Deliver | _Gone | str] = _future()

    def tell(self, news: "Deliver | _Gone | str") -> bool:
        if self.news.done():
            return False
        self.news.set_result(news)
        return True

    def delivered(self, given: Deliver) -> bool:
        return self.tell(given)

    def refused(self, missed: int, oldest: int) -> None:
        self.tell(_Gone(missed, oldest))

    def must_read(self, receiver: Receiver) -> None:
        self.tell("read")

    def timed_out(self) -> None:
        self.tell("quiet")

    def dismissed(self) -> None:
        self.tell("over")

    def moved(self) -> None:
        self.tell("over")  # whoever listens comes back with the id of the last event


def _gone_event(missed: int) -> bytes:
    return b'event: gone\ndata: {"missed":%d}\n\n' % missed


def _future() -> "asyncio.Future[Deliver | _Gone | str]":
    return asyncio.get_running_loop().create_future()


class StreamEvents:
    """Serves subscribers."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._host = node.streams
        self._tokens = node.stream_tokens

    async def open(self, request: Request, asked: ReceiveParameters, listen_ms: int) -> Answered:
        """Begin to serve one, for so long; what is wrong with its token is said at once."""
        last_id = request.header(b"last-event-id")
        token = last_id.decode("latin-1") if last_id else asked.resume_token
        if token == CONFIRMED and asked.consumer_id is not None:
            token = None  # the stream remembers, by the consumer's name
        elif token is None and asked.consumer_id is None:
            token = EARLIEST
        subscriber = _Subscriber(self._node, asked, listen_ms)
        try:
            await subscriber.begin(token)
            if subscriber.is_gone and last_id:
                await subscriber.begin(None if asked.consumer_id else EARLIEST)
        except StoreUnavailable as error:
            return problem(503, str(error), RETRY_AFTER, error="StoreUnavailable")
        if subscriber.is_gone and not last_id:
            return problem(410, FORGOTTEN, **gone_members(0, EARLIEST))
        return Streamed(200, subscriber.pieces(), EVENTS, HEADERS)


class _Subscriber:
    """One subscriber: where it stands, in memory or in the store."""

    def __init__(self, node: Node, asked: ReceiveParameters, listen_ms: int) -> None:
        self._node = node
        self._host = node.streams
        self._ends_ms = self._host.now_ms() + listen_ms
        self._name = asked.stream_id
        self._vocabulary = VOCABULARIES[asked.as_]
        self._consumer = asked.consumer_id or ""
        self._after: int | None = None
        self._is_stored = False
        self.is_gone = False

    async def begin(self, token: str | None) -> None:
        """Find the place to begin at; None: the consumer's own."""
        self._after, self._is_stored = None, False
        if token in (EARLIEST, LATEST):
            page = await self._node.persister.read(
                self._name, after=END if token == LATEST else 0, limit=1
            )
            stream = self._host.table.find(self._name)
            ring = None if stream is None else stream.ring
            if page.last:
                self._is_stored = True
                first = page.messages[0].position if page.messages else page.last + 1
                self._after = first - 1
            elif ring is not None:
                self._after = ring.end if token == LATEST else ring.first - 1
            else:
                self._after = 0
        elif token is not None:
            found = self._node.token_of(self._name, token)
            if found.kind == STORED:
                self._node.persister.check_allowed()
            self._is_stored = found.kind == STORED
            self._after = found.position
            self.is_gone = not self._is_stored and found.incarnation != incarnation_of(
                self._host, self._name
            )

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield events until the time is over, the node stops, or the client has gone."""
        yield self._id() + PING
        if self.is_gone:
            # A browser comes back with the id it has, and would take 410 for the end. It is given
            # another, perhaps an empty one, and hears what there is.
            yield (self._id() or b"id:\n") + _gone_event(0)
        while self._host.now_ms() < self._ends_ms:
            if self._node.ownership.owner(self._name) is not None:
                return  # it moved meanwhile: whoever listens comes back, and is sent there
            try:
                news = await self._next()
            except WaterclockError:  # no store, or no room to wait: it comes back and hears why
                return
            match news:
                case Deliver():
                    yield self._events(news)
                case _Gone(missed, oldest):
                    self._after = oldest
                    yield self._id() + _gone_event(missed)
                case "quiet":
                    yield PING
                case "over":
                    return

    async def _next(self) -> "Deliver | _Gone | str":
        """Return what comes next for this subscriber."""
        feed = _Feed()
        receiver = Receiver(
            self._name,
            feed,
            deadline_ms=min(self._host.now_ms() + KEEP_ALIVE_MS, self._ends_ms),
            consumer=self._consumer,
            after=self._after,
            limit=EVENTS_AT_ONCE,
            is_poll=False,
        )
        if not self._is_stored:
            self._host.receive(receiver)
        elif (found := await self._read(receiver)) is not None:
            return found
        try:
            return await feed.news
        except asyncio.CancelledError:
            if feed.news.done() and not feed.news.cancelled():
                news = feed.news.result()
                if isinstance(news, Deliver):
                    self._host.give_back(news)
            raise
        finally:
            self._host.table.leave(receiver)

    async def _read(self, receiver: Receiver) -> Deliver | _Gone | None:
        """Return what the store has; None: the receiver waits for more."""
        after = self._after
        assert after is not None
        if self._consumer:
            self._host.confirm(self._name, self._consumer, after)
        with self._host.table.reading(self._name):
            page = await self._node.persister.read(self._name, after=after, limit=EVENTS_AT_ONCE)
            if page.last < after:  # another store, or an older copy: nothing in it was seen
                return _Gone(0, 0)
            first = page.messages[0].position if page.messages else page.last + 1
            if first > after + 1:
                return _Gone(first - after - 1, first - 1)
            if page.messages:
                given = deliver_of(receiver, page, after=after)
                self._host.note_read(given)
                return given
            self._host.tail(receiver)
        return None

    def _events(self, given: Deliver) -> bytes:
        if self._after is not None:  # otherwise the stream remembers, by the consumer's name
            self._after = given.positions[-1]
        tokens = self._node.stream_tokens
        incarnation = incarnation_of(self._host, self._name)
        messages = self._vocabulary.render_all(given, incarnation, self._name, tokens)
        missed = b'"missed":%d,' % given.missed if given.missed else b""
        name = msgspec.json.encode(self._name)
        pieces = []
        for token, facts in messages:
            if b"\n" in facts or b"\r" in facts:  # between values: either would end the line
                facts = msgspec.json.format(b"{%b}" % facts, indent=-1)[1:-1]
            pieces.append(
                b'id: %b\ndata: {"streamId":%b,%b%b}\n\n' % (token.encode(), name, missed, facts)
            )
            missed = b""
        return b"".join(pieces)

    def _id(self) -> bytes:
        """Return where this listener stands, so that it can come back to it."""
        incarnation = incarnation_of(self._host, self._name)
        if self._after is None or not (self._is_stored or incarnation):
            return b""
        facts = (STORED, 0) if self._is_stored else (LIVE, incarnation)
        token = self._node.stream_tokens.encode(self._name, Token(*facts, self._after))
        return b"id: %b\n" % token.encode()
