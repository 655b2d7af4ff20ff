"""In-memory streams over HTTP: send, receive, send and store, and look at them.

    POST /streams/send          200 taken or handed over, 424 no receiver came in time
    GET  /streams/receive       200 a message, 424 none came in time, 410 the position is gone
    POST /streams/sendAndStore  201 stored
    GET  /streams/events        the same as server-sent events
    GET  /streams, /streams/{streamId}; PATCH and DELETE of one

All of it also below /api/v1, but for send and receive, which are there as iPubSub has them
(`published.py`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from msgspec import Raw

from waterclock.model.errors import CapacityReached
from waterclock.model.limits import check
from waterclock.model.sections import MatchingConfig
from waterclock.node.node import Node
from waterclock.node.streams.host import StreamHost
from waterclock.server.http.input import body_of, parameters_of
from waterclock.server.http.messages import (
    JSON,
    Answered,
    Later,
    Pending,
    Request,
    Response,
    problem,
)
from waterclock.server.http.problems import BadField
from waterclock.server.streams.calls import (
    Call,
    LatestReceiveCall,
    LocalReceiveCall,
    LocalSendCall,
    ReceiveCall,
    SendCall,
)
from waterclock.server.streams.events import StreamEvents
from waterclock.server.streams.listing import StreamListing
from waterclock.server.streams.models import (
    ReceiveParameters,
    ResizeBody,
    SendBody,
    StoreBody,
    StreamParameters,
    asked_in,
    decode_send,
    span_ms,
)
from waterclock.server.streams.not_owner import NOT_OWNER_HERE
from waterclock.server.streams.reader import LATEST, StoredReader
from waterclock.server.streams.responses import VOCABULARIES, Vocabulary, message_uuid
from waterclock.stores.base import Record, Stored
from waterclock.streams.ring import Item
from waterclock.streams.tokens import STORED, Token
from waterclock.streams.waiters import Receiver, Sender

if TYPE_CHECKING:
    from waterclock.server.cluster.forwarder import Forwarder
    from waterclock.server.cluster.hot_streams import HotStreams

PLAIN = VOCABULARIES["message"]


class StreamsApi:
    """Answers requests about streams."""

    def __init__(self, node: Node, *, is_clustered: bool) -> None:
        """With `is_clustered`, whoever waits may have to move, be it since before there is a
        forwarder."""
        self._node = node
        self._is_clustered = is_clustered
        self.forwarder: Forwarder | None = None
        """Asks the owners of other streams, if the node has a cluster."""
        self.on_stray: Callable[[str], None] | None = None
        """Called with a stream of another node into which something was put: it moved meanwhile."""
        self.hot_streams: HotStreams | None = None
        """Knows which streams are split over nodes, if any may be."""
        self.listing = StreamListing(node)
        self._host: StreamHost = node.streams
        self._tokens = node.stream_tokens
        self.matching: MatchingConfig = node.config.matching
        self.config = node.config.streams
        self._reading = StoredReader(node)
        self._events = StreamEvents(node)
        self._on_send_moved = self._send_moved
        self._on_receive_moved = self._receive_moved

    # Sending

    def send(self, request: Request) -> Answered | Later:
        """Take a message, and answer when it is in the stream or was handed over."""
        if request.content is None and (response := self._put_plain(request)) is not None:
            return response
        body = body_of(request, SendBody)
        return self.take_message(request, body, body.vocabulary)

    def _put_plain(self, request: Request) -> Answered | None:
        """Send the short way, which is for what is sent most; None if it is not so simple."""
        if not request.body.isascii():
            return None
        try:
            body = decode_send(request.body)
        except (ValueError, RecursionError):
            return None
        raw, stream = body.message, body.stream_id
        if type(raw) is not Raw or body.is_special:
            return None
        content = bytes(raw)
        if len(content) > self.config.message_bytes_max:
            return None
        if self._is_clustered and not self._is_whole_here(stream):
            return self._plain_elsewhere(request, stream)
        # A stream that is known has a name that was checked.
        put = self._host.put(stream, Item(content, "", self._node.clock.now_ms()))
        if put is None:
            return None
        if self.hot_streams is not None:
            self.hot_streams.used(stream)
        return PLAIN.put(stream, put)

    def take_message(
        self,
        request: Request,
        body: SendBody,
        vocabulary: Vocabulary,
        *,
        routing_ms: int | None = None,
    ) -> Answered | Later:
        """Do so in any vocabulary. With `routing_ms` the owner of the stream is looked for so long,
        however short the time for a match is."""
        content = self._content(request, body)
        if not self._is_clustered and body.is_plain:
            plain = Item(content, body.uuid, self._node.clock.now_ms())
            if (response := self._put(body.stream_id, plain, vocabulary)) is not None:
                return response
        timeout_ms = self._timeout(request, body.timeout, body.timeout_seconds)
        patience = body.blocking_send_timeout_seconds
        if patience is not None:
            timeout_ms = self._timeout(request, None, patience, field="blockingSendTimeout")
        wait_ms = timeout_ms if routing_ms is None else routing_ms
        if body.write_to_db:
            elsewhere = self._ordered_elsewhere(request, body.stream_id, wait_ms)
        else:
            elsewhere = self._part_elsewhere(request, body.stream_id, wait_ms, is_send=True)
        if elsewhere is not None:
            return elsewhere
        size = body.in_memory_stream_size
        if size is None:
            size = self.config.ring_messages
        self._check_size(size)
        item = self._item(body, content)
        is_at_once = patience is None and not body.write_to_db
        if is_at_once and (response := self._put(body.stream_id, item, vocabulary)) is not None:
            return response
        if body.write_to_db and vocabulary.is_of_store_only and not patience:
            return self._store_only(body, content, vocabulary)
        if body.write_to_db:
            call = SendCall(self._host, body.stream_id, vocabulary)
            is_blocking = bool(patience)
            return self._store_and_send(
                call, body, content, size, timeout_ms, is_blocking=is_blocking
            )
        host, stream = self._host, body.stream_id
        if not self._is_clustered or request.left_ms:
            call = SendCall(host, stream, vocabulary)
        else:
            call = LocalSendCall(host, stream, vocabulary, request.body, self._on_send_moved)
        return self._sent(call, item, size, timeout_ms, is_blocking=bool(patience))

    def _put(self, stream: str, item: Item, vocabulary: Vocabulary) -> Response | None:
        """Send a message the short way; None if that cannot be."""
        put = self._host.put(stream, item)
        if put is None:
            return None
        incarnation, position, given = put
        uuid = message_uuid(item, incarnation, position)
        return vocabulary.sent(stream, uuid, position, is_delivered=given is not None)

    def _sent(
        self, call: SendCall, item: Item, size: int, timeout_ms: int, *, is_blocking: bool
    ) -> SendCall:
        deadline_ms = self._host.now_ms() + timeout_ms
        sender = Sender(call.stream, item, call, deadline_ms=deadline_ms, is_blocking=is_blocking)
        call.waiter = sender
        self._host.send(sender, size=size)
        return call

    async def _store_and_send(
        self,
        call: SendCall,
        body: SendBody,
        content: bytes,
        size: int,
        timeout_ms: int,
        *,
        is_blocking: bool,
    ) -> Answered:
        item, token, position, is_new = await self._stored(body, content, is_for_all=False)
        if not is_new:  # it was sent then
            return call.vocabulary.sent(
                body.stream_id, item.message_id, position, token, is_delivered=False
            )
        call.token = token
        self._sent(call, item, size, timeout_ms, is_blocking=is_blocking)
        self._send_stray(body.stream_id)
        return call

    async def _store_only(self, body: SendBody, content: bytes, vocabulary: Vocabulary) -> Response:
        item, token, position, _ = await self._stored(body, content, is_for_all=True)
        return vocabulary.sent(body.stream_id, item.message_id, position, token, is_delivered=False)

    def send_and_store(self, request: Request) -> Answered | Later:
        """Store a message; receivers that wait get it too."""
        body = body_of(request, StoreBody)
        content = self._content(request, body)
        return self._ordered_elsewhere(request, body.stream_id) or self._store(body, content)

    async def _store(self, body: StoreBody, content: bytes) -> Response:
        item, token, position, is_new = await self._stored(body, content, is_for_all=True)
        rendered = b'{"streamId":%b,%b%b,"position":%d,"resumeToken":"%b","isNew":%b}' % (
            msgspec.json.encode(body.stream_id),
            body.vocabulary.uuid,
            msgspec.json.encode(item.message_id),
            position,
            token.encode(),
            b"true" if is_new else b"false",
        )
        return Response(201, rendered, JSON)

    async def _stored(
        self, body: StoreBody, content: bytes, *, is_for_all: bool
    ) -> tuple[Item, str, int, bool]:
        """Store a message, and put it into the stream too, `is_for_all` or if its sender has gone:
        receivers that wait are to get it, whatever becomes of the sender."""
        item = self._item(body, content)
        uuid = body.uuid or str(uuid4())
        ttl_ms = body.ttl_ms()
        expires_ms = None if ttl_ms is None else self._node.clock.now_ms() + ttl_ms
        item = item._replace(message_id=uuid)

        def then(stored: Stored, is_heard: bool, stored_ms: int) -> None:
            nonlocal item
            item = item._replace(sent_ms=stored_ms, stored=stored.position)
            if is_for_all or not is_heard:
                self._host.offer(body.stream_id, item)
                self._send_stray(body.stream_id)

        record = Record(uuid, content, expires_ms)
        stored = await self._node.persister.store(body.stream_id, record, then)
        token = self._tokens.encode(body.stream_id, Token(STORED, 0, stored.position))
        return item, token, stored.position, stored.is_new

    def _content(self, request: Request, body: StoreBody) -> bytes:
        content = body.content()
        if len(content) > self.config.message_bytes_max:
            check("message bytes", len(content), self.config.message_bytes_max)
        if not request.body.isascii():
            try:
                content.decode()
            except UnicodeDecodeError:
                raise BadField("message", "is not UTF-8") from None
        return content

    def _item(self, body: StoreBody, content: bytes) -> Item:
        ttl_ms = body.ttl_ms()
        expires_ms = 0 if ttl_ms is None else max(1, self._host.now_ms() + ttl_ms)
        return Item(content, body.uuid, self._node.clock.now_ms(), expires_ms)

    # Receiving

    def receive(self, request: Request) -> Answered | Later:
        """Answer with what there is, or wait for it."""
        asked = asked_in(request)
        vocabulary = PLAIN if asked.as_ == "message" else VOCABULARIES[asked.as_]
        if asked.is_special:
            return self.give_message(request, asked, vocabulary)
        timeout_ms = self.matching.default_timeout_ms
        if self._is_clustered:
            if not self._is_whole_here(asked.stream_id):
                elsewhere = self._plain_elsewhere(request, asked.stream_id)
                return elsewhere or self.give_message(request, asked, vocabulary)
            if self.hot_streams is not None:
                self.hot_streams.used(asked.stream_id)
            if request.left_ms:
                timeout_ms = min(timeout_ms, request.left_ms)
        return self._give(request, asked, vocabulary, timeout_ms)

    def give_message(
        self, request: Request, asked: ReceiveParameters, vocabulary: Vocabulary
    ) -> Answered | Later:
        """Do so in any vocabulary."""
        name = asked.stream_id
        # All is read before anything is taken: what comes after must not fail.
        timeout_ms = self._timeout(request, asked.timeout, asked.timeout_seconds)
        if asked.consumer_id is None and asked.resume_token is None:
            elsewhere = self._part_elsewhere(request, name, timeout_ms, is_send=False)
        else:
            elsewhere = self._ordered_elsewhere(request, name, timeout_ms)
        if elsewhere is not None:
            return elsewhere
        return self._give(request, asked, vocabulary, timeout_ms)

    def _give(
        self, request: Request, asked: ReceiveParameters, vocabulary: Vocabulary, timeout_ms: int
    ) -> Answered:
        """Answer for a stream of this node."""
        name, now_ms = asked.stream_id, self._host.now_ms()
        if asked.is_competing:
            taken = self._host.take(name, now_ms=now_ms)
            if taken is not None:
                incarnation, position, item, missed = taken
                return vocabulary.received(
                    item, incarnation, position, name, self._tokens, missed=missed
                )
        deadline_ms = now_ms + timeout_ms
        if not self._is_clustered:
            is_list, on_store = asked.limit is not None, self._reading.read_on
            call = ReceiveCall(
                self._host, name, vocabulary, self._tokens, is_list=is_list, on_store=on_store
            )
        else:
            call = self._movable(request, asked, vocabulary)
        receiver = Receiver(
            name,
            call,
            deadline_ms=deadline_ms,
            consumer=asked.consumer_id or "",
            limit=asked.limit or 1,
        )
        call.waiter = receiver
        if asked.is_competing:
            self._host.wait(receiver, now_ms=now_ms)
        elif asked.resume_token is None:
            self._host.receive(receiver)
        else:
            self._reading.resume(call, receiver, asked.resume_token)
        return call

    def _movable(
        self, request: Request, asked: ReceiveParameters, vocabulary: Vocabulary
    ) -> ReceiveCall:
        """Return what waits for a receiver, and knows what to do if the stream moves."""
        common = (self._host, asked.stream_id, vocabulary, self._tokens)
        is_list, on_store = asked.limit is not None, self._reading.read_on
        if asked.resume_token == LATEST:
            return LatestReceiveCall(*common, is_list=is_list, on_store=on_store)
        if request.left_ms:
            return ReceiveCall(*common, is_list=is_list, on_store=on_store)
        moved = self._on_receive_moved
        return LocalReceiveCall(*common, request.query, moved, is_list=is_list, on_store=on_store)

    def events(self, request: Request) -> Answered | Later:
        """Answer with messages as they come."""
        asked = asked_in(request)
        if asked.timeout is None and asked.timeout_seconds is None:
            listen_ms = self._timeout(request, None, self.matching.max_timeout_ms / 1_000)
        else:
            listen_ms = self._timeout(request, asked.timeout, asked.timeout_seconds)
        elsewhere = self._ordered_elsewhere(request, asked.stream_id, listen_ms)
        return elsewhere or self._events.open(request, asked, listen_ms)

    # Looking

    def get(self, request: Request) -> Answered:
        """Answer with what is known of a stream."""
        name = parameters_of(request, StreamParameters).stream_id
        return self._elsewhere(request, name) or self.listing.known(name)

    def resize(self, request: Request) -> Answered:
        """Let a stream hold another number of messages."""
        name = parameters_of(request, StreamParameters).stream_id
        size = body_of(request, ResizeBody).in_memory_stream_size
        self._check_size(size)
        if (elsewhere := self._elsewhere(request, name)) is not None:
            return elsewhere
        if self._host.table.find(name) is None:
            return problem(404, f"there is no stream {name!r} in memory", error="NotFound")
        self._host.resize(name, size)
        return self.listing.known(name)

    def delete(self, request: Request) -> Answered | Later:
        """Forget a stream, in memory and in the store."""
        name = parameters_of(request, StreamParameters).stream_id
        return self._elsewhere(request, name) or self._delete(name)

    async def _delete(self, name: str) -> Response:
        if self.hot_streams is not None:
            self.hot_streams.deleted(name)
        was_in_memory = self._host.delete(name)  # at once, also if the store is away
        stored = await self._node.persister.delete(name)
        if not was_in_memory and not stored:
            return problem(404, f"there is no stream {name!r}", error="NotFound")
        return Response(204)

    # All

    def _check_size(self, size: int) -> None:
        if size > self.config.ring_messages_max:
            raise CapacityReached("inMemoryStreamSize", self.config.ring_messages_max, got=size)

    def _elsewhere(
        self, request: Request, stream: str, timeout_ms: int | None = None
    ) -> Answered | None:
        """Return who answers if another node owns the stream."""
        if self._node.ownership.owner(stream) is None:
            return None
        if request.left_ms:
            return NOT_OWNER_HERE
        assert self.forwarder is not None
        if timeout_ms is None:
            timeout_ms = self.matching.default_timeout_ms
        return self.forwarder.forward(request, stream, timeout_ms)

    def _ordered_elsewhere(
        self, request: Request, stream: str, timeout_ms: int | None = None
    ) -> Answered | None:
        """Return who answers what needs the messages of a stream in one order."""
        elsewhere = self._elsewhere(request, stream, timeout_ms)
        if elsewhere is None and self.hot_streams is not None:
            self.hot_streams.ordered(stream)
        return elsewhere

    def _is_whole_here(self, stream: str) -> bool:
        """Whether this node of a cluster answers for a stream by itself: it owns and has it, and no
        other node has a part."""
        hot = self.hot_streams
        is_split = hot is not None and stream in hot.routes
        return not is_split and self._node.ownership.owner(stream) is None

    def _plain_elsewhere(self, request: Request, stream: str) -> Pending | None:
        """Return who answers for a stream of another node, and reads the request; None if there is
        more to it: the stream is split, or this node was asked by another one."""
        hot = self.hot_streams
        if self.forwarder is None or request.left_ms or (hot is not None and hot.knows(stream)):
            return None
        return self.forwarder.forward(request, stream, self.matching.default_timeout_ms)

    def _part_elsewhere(
        self, request: Request, stream: str, timeout_ms: int, *, is_send: bool
    ) -> Answered | None:
        """Return who answers a send or a poll, if this node has no part of the stream."""
        if not self._is_clustered:
            return None
        hot = self.hot_streams
        if hot is None:
            return self._elsewhere(request, stream, timeout_ms)
        if not request.left_ms and (first := hot.place(stream, is_send=is_send)) is not None:
            assert self.forwarder is not None
            return self.forwarder.forward(request, stream, timeout_ms, first=first)
        elsewhere = None
        if not hot.has_part(stream):
            elsewhere = self._elsewhere(request, stream, timeout_ms)
        if elsewhere is None:
            hot.used(stream)
        return elsewhere

    def _send_moved(self, call: LocalSendCall) -> None:
        self._take_over(call, Request(b"POST", call.vocabulary.send_path, b"", [], call.body))

    def _receive_moved(self, call: LocalReceiveCall) -> None:
        path = call.vocabulary.receive_path
        self._take_over(call, Request(b"GET", path, call.query, [], b""))

    def _take_over(self, call: Call, request: Request) -> None:
        """Have the owner of a stream that has moved answer, in the time that is left."""
        assert self.forwarder is not None
        assert call.waiter is not None
        left_ms = max(1, call.waiter.deadline_ms - self._host.now_ms())
        call.waiter = None
        self.forwarder.take_over(call, request, call.stream, left_ms)

    def _send_stray(self, stream: str) -> None:
        """Have a stream brought to its owner, if that is no longer this node."""
        if self.on_stray is not None and self._node.ownership.owner(stream) is not None:
            self.on_stray(stream)

    def _timeout(
        self, request: Request, text: str | None, seconds: float | None, *, field: str = "timeout"
    ) -> int:
        timeout_ms = span_ms(field, text, seconds)
        if timeout_ms is None:
            timeout_ms = self.matching.default_timeout_ms
        most_ms = request.left_ms or self.matching.max_timeout_ms
        return min(timeout_ms, most_ms)
