"""Publishing over HTTP: one message, or many at once, now or later."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, cast

from msgspec import UNSET, Meta, UnsetType

from waterclock.log.batch import encode_batch
from waterclock.log.expiry import expiring
from waterclock.model.errors import LimitExceeded
from waterclock.model.limits import Limits, check
from waterclock.model.message import ACKS, Acks, Message, check_acks
from waterclock.node.node import Node
from waterclock.node.publish.publisher import Published
from waterclock.runtime.trace_context import (
    STATE_BYTES_MAX,
    TRACEPARENT,
    TRACESTATE,
    is_traceparent,
)
from waterclock.security.rights import Needs
from waterclock.server.calls import BytesInFlight
from waterclock.server.cluster.calls.place import HERE
from waterclock.server.http.input import LIMIT, body_of, parameters_of, text
from waterclock.server.http.messages import Request, Response, json
from waterclock.server.http.operations import Operation, ResponseSpec
from waterclock.server.http.problems import BadField
from waterclock.server.rest.models import (
    ONE_OF_EACH,
    MessageRequest,
    Partition,
    RequestModel,
    ResponseModel,
    TopicParameters,
    expires_of,
    message_of,
)

Answering = Annotated[
    str,
    text(
        check_acks,
        "Answer when a majority of the replicas has flushed it, the leader has, or all replicas "
        "have. On a node that is alone these are the same.",
        *ACKS,
        enum=list(ACKS),
    ),
]


class PublishOne(MessageRequest):
    """A message, and how to publish it."""

    partition: Partition | UnsetType = UNSET
    allow_duplicate: bool = False
    acks: Answering = "quorum"


Messages = Annotated[
    list[Annotated[MessageRequest, Meta(extra_json_schema=ONE_OF_EACH)]],
    Meta(min_length=1, extra_json_schema={"maxItems": LIMIT + "batch_messages_max"}),
]


class PublishMany(RequestModel):
    """Messages, and how to publish them."""

    messages: Messages
    partition: Partition | UnsetType = UNSET
    allow_duplicate: bool = False
    acks: Answering = "quorum"


class _Publish(PublishOne):
    """Either of both."""

    messages: Messages | UnsetType = UNSET


_OF_ONE = tuple(MessageRequest.__struct_fields__)
_PARENT, _STATE = TRACEPARENT.encode(), TRACESTATE.encode()


class PublishedOne(ResponseModel):
    """Where a message is."""

    partition: int
    offset: int
    message_id: str
    is_new: bool = True
    """False: it was published before, and this is where."""
    made_partitions: int | UnsetType = UNSET
    """Only where there was no such topic: it was made, with so many partitions."""


class PublishedMany(ResponseModel):
    """Where messages are, one for each in their order."""

    messages: list[PublishedOne]
    made_partitions: int | UnsetType = UNSET
    """Only where there was no such topic: it was made, with so many partitions."""


class PublishApi:
    def __init__(self, node: Node, publishing: BytesInFlight) -> None:
        self._node = node
        self._publishing = publishing

    def operations(self) -> list[Operation]:
        """Return its part of the table."""
        models = (PublishedOne, PublishedMany)
        return [
            Operation(
                "POST", "/topics/{topic}/messages", self.publish, "publish",
                "Publish a message, or several as `messages`.",
                {
                    200: ResponseSpec("It was published before.", models),
                    201: ResponseSpec("It is stored.", models),
                },
                tag="messages",
                description="What is stored is durable when this is answered. A message without "
                "`messageId` gets one; publishing an id again changes nothing and tells where it "
                "is. If one of several is refused, so are all. A topic that is not there is made "
                "(unless `topics.auto_create` is off), and `madePartitions` says so. The headers "
                "`traceparent` and `tracestate` of the request become those of messages that have "
                "no `traceparent`.",
                parameters=TopicParameters,
                body=(Annotated[PublishOne, Meta(extra_json_schema=ONE_OF_EACH)], PublishMany),
                body_example={"value": "hello", "key": "ada", "delay": "5s"},
                problems=(404, 409, 507),
                place=HERE,
                needs=Needs("publish", topic="topic"), makes=("topic",),
            ),
        ]  # fmt: skip

    async def publish(self, request: Request) -> Response:
        topic = parameters_of(request, TopicParameters).topic
        with self._publishing.holding(len(request.body)):
            given = body_of(request, _Publish)
            now_ms = self._node.clock.now_ms()
            context = _context(request)
            if given.messages is UNSET:
                return await self._publish_one(topic, given, now_ms, context)
            for name in _OF_ONE:
                if getattr(given, name) not in (UNSET, {}):
                    raise BadField(name, "is given beside messages")
            messages = _all(given.messages, now_ms, self._node.config.limits)
            if context:
                limits = self._node.config.limits
                messages = [_carrying(message, context, limits) for message in messages]
            return await self._publish_many(topic, given, messages, now_ms)

    async def _publish_one(
        self, topic: str, one: PublishOne, now_ms: int, context: Mapping[str, bytes]
    ) -> Response:
        limits = self._node.config.limits
        message = message_of(one, now_ms, limits)
        if context:
            message = _carrying(message, context, limits)
        published = await self._node.batcher.publish(
            topic,
            message,
            partition=None if one.partition is UNSET else one.partition,
            allow_duplicate=one.allow_duplicate,
            expires_ms=expires_of(one, message, now_ms),
            acks=cast(Acks, one.acks),
        )
        response = _render(message, published.partition, published.offset, is_new=published.is_new)
        response.made_partitions = published.made_partitions or UNSET
        return json(201 if published.is_new else 200, response)

    async def _publish_many(
        self, topic: str, given: PublishOne, messages: list[Message], now_ms: int
    ) -> Response:
        limits = self._node.config.limits
        check("messages", len(messages), limits.batch_messages_max)
        batch = encode_batch(messages, limits, now_ms=now_ms)
        partition = None if given.partition is UNSET else given.partition
        found, made_partitions = await self._node.topics.ensure(topic, partition=partition)
        published = await self._node.publisher.publish_parsed(
            found,
            batch,
            partition=partition,
            allow_duplicate=given.allow_duplicate,
            acks=cast(Acks, given.acks),
        )
        rendered = _render_all(messages, published)
        is_new = any(one.is_new for one in rendered)
        answer = PublishedMany(messages=rendered, made_partitions=made_partitions or UNSET)
        return json(201 if is_new else 200, answer)


def _all(requests: list[MessageRequest], now_ms: int, limits: Limits) -> list[Message]:
    messages: list[Message] = []
    try:
        for request in requests:
            messages.append(_expiring(request, now_ms, limits))  # noqa: PERF401 - its length says which
    except (BadField, LimitExceeded) as error:
        raise error.within(f"messages[{len(messages)}]") from error
    return messages


def _context(request: Request) -> Mapping[str, bytes]:
    """Return the headers of a request that name the trace it belongs to, if it does."""
    parent = request.header(_PARENT)
    if parent is None or not is_traceparent(parent):
        return {}
    state = request.header(_STATE) or b""
    if not state or len(state) > STATE_BYTES_MAX or not state.isascii():
        return {TRACEPARENT: parent}
    return {TRACEPARENT: parent, TRACESTATE: state}


def _carrying(message: Message, context: Mapping[str, bytes], limits: Limits) -> Message:
    """Return a message with a context, unless it has one, or no room for it."""
    headers = message.headers or {}
    joined = {**headers, **context}
    size = sum(len(name.encode()) + len(text) for name, text in joined.items())
    has_room = len(joined) <= limits.headers_max and size <= limits.header_bytes_max
    if TRACEPARENT in headers or not has_room:
        return message
    return replace(message, headers=joined)


def _expiring(request: MessageRequest, now_ms: int, limits: Limits) -> Message:
    message = message_of(request, now_ms, limits)
    expires_ms = expires_of(request, message, now_ms)
    return message if expires_ms is None else expiring(message, expires_ms)


def _render(message: Message, partition: int, offset: int, *, is_new: bool) -> PublishedOne:
    message_id = (message.message_id or b"").decode()
    return PublishedOne(partition=partition, offset=offset, message_id=message_id, is_new=is_new)


def _render_all(messages: list[Message], published: Published) -> list[PublishedOne]:
    count = len(messages)
    first = published.first_offset
    offsets = range(first, first + count) if published.offsets is None else published.offsets
    partitions = [published.partition] * count
    if published.partitions is not None:
        partitions = published.partitions.tolist()
    old = set() if published.duplicates is None else set(published.duplicates.tolist())
    return [
        _render(message, partition, int(offset), is_new=row not in old)
        for row, (message, partition, offset) in enumerate(
            zip(messages, partitions, offsets, strict=True)
        )
    ]
