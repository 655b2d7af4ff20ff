"""The API of iPubSub as it is published: send and receive below /api/v1, field by field.

    POST /api/v1/streams/send       200 sent, 424 no room or no receiver within the timeout
    GET  /api/v1/streams/receive    200 a message, 424 none within the timeout

Clients that are generated from its description refuse a field they do not know and miss one that
they do. So what is read and written here is what stands there, and no more; streams are the same
ones as at /streams, whose answers say more.

A message that is read from the store comes with its token; whoever asks with none begins with the
oldest. What has expired is passed over: the description knows no answer that tells of a gap. Go's
clients leave out a message that is null, though the description demands it: so no message is null.
"""

import re
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from waterclock.model.clock import rfc3339
from waterclock.model.errors import ForgedToken, LimitExceeded
from waterclock.server.http.input import LIMIT, body_of, parameters_of
from waterclock.server.http.messages import JSON, Answered, Later, Request, Response, problem
from waterclock.server.http.problems import BadField
from waterclock.server.streams.api import StreamsApi
from waterclock.server.streams.models import (
    QUERY_CHARS_KEPT,
    Anything,
    MessageUuid,
    ReceiveParameters,
    SendBody,
    StreamId,
)
from waterclock.server.streams.reader import EARLIEST
from waterclock.server.streams.responses import MATCH_TIMEOUT, Vocabulary, message_uuid
from waterclock.streams.ring import Item
from waterclock.streams.tokens import STORED, Token, Tokens

SEND_PATH = "/api/v1/streams/send"
RECEIVE_PATH = "/api/v1/streams/receive"
DB_TTL_S = 24 * 60 * 60
"""How long a stored message is kept if its sender does not say."""
INT32_MAX = (1 << 31) - 1
"""Generated clients have whole numbers of 32 bits."""
TOKEN_FORMAT = "waterclock-token"
_DB_TOKEN = "dbResumeToken"
_TOKEN = re.compile(r"[0-9a-f]{60}")
_NULL = msgspec.Raw(b"null")

_encode = msgspec.json.encode


class PublishedSend(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """A message to be sent, and whether it is to be stored."""

    message_uuid: MessageUuid
    stream_id: StreamId
    message: Anything = UNSET
    in_memory_stream_size: (
        Annotated[
            int,
            Meta(
                description="Messages the stream holds in memory, as its first sender says; 0: a "
                "message is handed over or not at all. If not given, the node says: 100.",
                ge=0,
                extra_json_schema={"maximum": LIMIT + "ring_messages_max"},
            ),
        ]
        | None
    ) = None
    blocking_send_timeout_seconds: (
        Annotated[
            int,
            Meta(
                description="Wait so long for room, rather than overwrite the oldest message.",
                ge=0,
                le=INT32_MAX,
            ),
        ]
        | None
    ) = None
    write_to_db: Annotated[bool, Meta(description="Store it.")] | None = msgspec.field(
        name="writeToDB", default=None
    )
    db_ttl_seconds: (
        Annotated[
            int,
            Meta(description="How long it is kept there; 24 hours if not.", ge=1, le=INT32_MAX),
        ]
        | None
    ) = msgspec.field(name="dbTTLSeconds", default=None)


class PublishedSent(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """The message was sent; one that is stored has its token."""

    message_uuid: str
    db_resume_token: str = ""


class PublishedReceive(
    msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True, frozen=True
):
    """Which message is wanted."""

    stream_id: StreamId
    timeout_seconds: (
        Annotated[int, Meta(description="How long to wait; 30 if not given.", ge=0, le=INT32_MAX)]
        | None
    ) = None
    read_from_db: (
        Annotated[
            bool,
            Meta(description="Read stored messages: the oldest, or the one after the token."),
        ]
        | None
    ) = msgspec.field(name="readFromDB", default=None)
    db_resume_token: Annotated[
        str,
        Meta(
            description="Of the last message read: go on after it. Empty is none.",
            extra_json_schema={"format": TOKEN_FORMAT},
        ),
    ] = ""


class PublishedMessage(
    msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """A message; one that is stored has its token."""

    message: msgspec.Raw
    timestamp: Annotated[datetime, Meta(tz=True, description="When it was sent, or stored.")]
    message_uuid: str | UnsetType = UNSET
    db_resume_token: str | UnsetType = UNSET


class PublishedVocabulary(Vocabulary):
    """Answers with the published fields, and no others."""

    send_path = SEND_PATH.encode()
    receive_path = RECEIVE_PATH.encode()
    is_of_store_only = True

    def sent(
        self, stream: str, uuid: str, position: int, token: str = "", *, is_delivered: bool
    ) -> Response:
        """Return the response to a sender; the description says nothing of its body."""
        resume = b',"dbResumeToken":"%b"' % token.encode() if token else b""
        return Response(200, b'{"messageUuid":%b%b}' % (_encode(uuid), resume), JSON)

    def received(
        self,
        item: Item,
        incarnation: int,
        position: int,
        stream: str,
        tokens: Tokens,
        *,
        missed: int,
    ) -> Response:
        """Return the response to a receiver."""
        resume = b""
        if item.stored:
            token = tokens.encode(stream, Token(STORED, 0, item.stored))
            resume = b',"dbResumeToken":"%b"' % token.encode()
        body = b'{"messageUuid":%b,"message":%b,"timestamp":"%b"%b}' % (
            _encode(message_uuid(item, incarnation, position)),
            item.body,
            rfc3339(item.sent_ms).encode(),
            resume,
        )
        return Response(200, body, JSON)

    def timed_out(self, token: str = "") -> Response:
        """Return what to say if nothing came, and from where to ask again, if that is known."""
        again: dict[str, Any] = {_DB_TOKEN: token} if token else {}
        return problem(424, MATCH_TIMEOUT, error="MatchTimeout", **again)

    def gone(self, missed: int, token: str, detail: str) -> Response:
        """Return what to say of a token whose place is not in the store."""
        return problem(400, f"{_DB_TOKEN}: {detail}", error="BadInput", field=_DB_TOKEN)


PUBLISHED = PublishedVocabulary(b"message")


class PublishedApi:
    """Answers requests as iPubSub does, from the streams of the node."""

    def __init__(self, streams: StreamsApi) -> None:
        self._streams = streams
        self._ring_messages_max = streams.config.ring_messages_max
        self._routing_ms = streams.matching.default_timeout_ms

    def send(self, request: Request) -> Answered | Later:
        """Take a message. Without a timeout nobody is waited for; the owner of the stream is."""
        given = body_of(request, PublishedSend)
        size = given.in_memory_stream_size
        if size is not None and size > self._ring_messages_max:
            raise LimitExceeded("inMemoryStreamSize", self._ring_messages_max, got=size)
        patience = given.blocking_send_timeout_seconds or None
        ttl_s = (given.db_ttl_seconds or DB_TTL_S) if given.write_to_db else None
        body = SendBody(
            stream_id=given.stream_id,
            message=_NULL if given.message is UNSET else given.message,
            message_uuid=given.message_uuid,
            ttl_seconds=ttl_s,
            timeout_seconds=0,
            in_memory_stream_size=size,
            blocking_send_timeout_seconds=patience,
            write_to_db=bool(given.write_to_db),
        )
        routing_ms = None if patience else self._routing_ms
        return self._streams.take_message(request, body, PUBLISHED, routing_ms=routing_ms)

    def receive(self, request: Request) -> Answered | Later:
        """Answer with the next message, or wait for it."""
        try:
            return self._streams.give_message(request, _asked(request), PUBLISHED)
        except ForgedToken:
            raise BadField(_DB_TOKEN, "is not a token of this stream") from None


def _asked(request: Request) -> ReceiveParameters:
    """Return what a receiver asks for, read once for all that ask the same."""
    if type(request.parameters) is PublishedReceive:
        return _as_ours(request.parameters)
    query = request.query
    return _read(query) if len(query) <= QUERY_CHARS_KEPT else _read.__wrapped__(query)


@lru_cache(maxsize=10_000)
def _read(query: bytes) -> ReceiveParameters:
    return _as_ours(parameters_of(Request(b"GET", b"", query, [], b""), PublishedReceive))


def _as_ours(given: PublishedReceive) -> ReceiveParameters:
    token = given.db_resume_token
    if token and given.read_from_db is False:
        raise BadField("readFromDB", f"is false, and a {_DB_TOKEN} is given: give one of both")
    if token and not _TOKEN.fullmatch(token):
        raise BadField(_DB_TOKEN, "is not a token")
    return ReceiveParameters(
        stream_id=given.stream_id,
        timeout_seconds=given.timeout_seconds,
        resume_token=token or (EARLIEST if given.read_from_db else None),
    )
