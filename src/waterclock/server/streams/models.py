"""Requests about streams and their responses: two vocabularies for one thing.

Some clients call a message *output*. A sender is answered in the field names it used; receivers say
which they want with `as`.
"""

from functools import lru_cache
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from waterclock.model.errors import BadInput
from waterclock.schedule.duration import parse_duration
from waterclock.server.http.input import END, parameters_of, text
from waterclock.server.http.messages import Request
from waterclock.server.http.problems import BadField
from waterclock.server.rest.models import Duration
from waterclock.server.streams.responses import VOCABULARIES, Vocabulary
from waterclock.stores.base import (
    MESSAGE_ID_BYTES_MAX,
    STREAM_BYTES_MAX,
    message_key,
    stream_key,
)

RECEIVE_LIMIT_MAX = 1_000
QUERY_CHARS_KEPT = 300
"""A longer query is read anew each time: made-up ones should not fill our memory."""

StreamId = Annotated[
    str,
    text(
        stream_key,
        f"Names the stream: any text of up to {STREAM_BYTES_MAX} bytes of UTF-8.",
        "chat-42",
        minLength=1,
        maxLength=STREAM_BYTES_MAX,
    ),
]
MessageUuid = Annotated[
    str,
    text(
        message_key,
        "Names the message. Storing the same again changes nothing. "
        f"Up to {MESSAGE_ID_BYTES_MAX} bytes of UTF-8.",
        minLength=1,
        maxLength=MESSAGE_ID_BYTES_MAX,
    ),
]
Seconds = Annotated[float, Meta(description="A length of time in seconds.", ge=0, le=1e9)]
Anything = Annotated[
    msgspec.Raw | UnsetType, Meta(description="Any JSON.", examples=[{"token": "Hello"}])
]


def _alone(one: str, other: str) -> dict[str, object]:
    """Describe a body that has one field and not the other."""
    others = [{"required": [name]} for name in (other, f"{other}Uuid")]
    return {"required": [one], "not": {"anyOf": others}}


ONE_VOCABULARY = {"oneOf": [_alone("message", "output"), _alone("output", "message")]}


class StoreBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """A message to be stored; give `message` or `output`, and the id that goes with it."""

    stream_id: StreamId
    message: Anything = UNSET
    output: Anything = UNSET
    message_uuid: MessageUuid | UnsetType = UNSET
    output_uuid: MessageUuid | UnsetType = UNSET
    ttl: Duration | None = None
    ttl_seconds: Seconds | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        """How the sender calls things."""
        return VOCABULARIES["message" if self.output is UNSET else "output"]

    def content(self) -> bytes:
        """Return the message as JSON."""
        if isinstance(self.message, msgspec.Raw) and self.output is self.output_uuid is UNSET:
            return bytes(self.message)
        if (self.message is UNSET) is (self.output is UNSET):
            raise BadField("message", "give exactly one of message and output")
        stray = self.message_uuid if self.message is UNSET else self.output_uuid
        if not isinstance(stray, UnsetType):
            raise BadField("messageUuid", "belongs to message, outputUuid to output")
        raw = self.output if isinstance(self.message, UnsetType) else self.message
        assert isinstance(raw, msgspec.Raw)
        return bytes(raw)

    @property
    def uuid(self) -> str:
        """Return the id, empty if none was given."""
        given = self.output_uuid if isinstance(self.message_uuid, UnsetType) else self.message_uuid
        return "" if isinstance(given, UnsetType) else given

    def ttl_ms(self) -> int | None:
        """Return how long the message is of use."""
        return span_ms("ttl", self.ttl, self.ttl_seconds)


class SendBody(StoreBody, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """A message to be sent."""

    timeout: Duration | None = None
    timeout_seconds: Seconds | None = None
    in_memory_stream_size: (
        Annotated[int, Meta(description="Messages the stream holds; 0: meet.", ge=0)] | None
    ) = None
    blocking_send_timeout_seconds: (
        Annotated[
            float,
            Meta(description="Wait so long for room, rather than overwrite.", ge=0, le=1e9),
        ]
        | None
    ) = None
    write_to_db: bool = msgspec.field(name="writeToDB", default=False)

    @property
    def is_special(self) -> bool:
        """Whether there is more in it than a stream and a message, however that is called."""
        return not (
            self.message_uuid is UNSET
            and self.output is UNSET
            and self.output_uuid is UNSET
            and self.timeout is None
            and self.timeout_seconds is None
            and self.is_plain
        )

    @property
    def is_plain(self) -> bool:
        """Whether it is sent as most are: without a wish of its own for the stream or the wait."""
        return (
            self.blocking_send_timeout_seconds is None
            and self.in_memory_stream_size is None
            and self.ttl is None
            and self.ttl_seconds is None
            and not self.write_to_db
        )


decode_send = msgspec.json.Decoder(SendBody).decode


class StreamParameters(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Which stream is meant."""

    stream_id: StreamId


class ReceiveParameters(
    msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True, frozen=True
):
    """Which messages are wanted."""

    stream_id: StreamId
    timeout: Duration | None = None
    timeout_seconds: Seconds | None = None
    consumer_id: (
        Annotated[
            str,
            Meta(
                description="With a name, a consumer gets every message; without, one of the "
                "receivers that wait gets it.",
                min_length=1,
                max_length=256,
            ),
        ]
        | None
    ) = None
    resume_token: (
        Annotated[
            str,
            Meta(
                description="Go on after this one; or `earliest`, `latest`; or, with a consumer's "
                "name, `confirmed`: after what it has confirmed by coming with the token of it.",
                extra_json_schema={"pattern": "^(earliest|latest|confirmed|[0-9a-f]{60})" + END},
            ),
        ]
        | None
    ) = None
    limit: (
        Annotated[
            int,
            Meta(
                description="Up to so many at once, as a list; without, one by itself.",
                ge=1,
                le=RECEIVE_LIMIT_MAX,
            ),
        ]
        | None
    ) = None
    as_: Annotated[Literal["message", "output"], Meta(description="How a message is called.")] = (
        msgspec.field(name="as", default="message")
    )

    @property
    def is_competing(self) -> bool:
        """Whether one message is asked for, in competition with all who ask so."""
        return self.consumer_id is None and self.resume_token is None and self.limit is None

    @property
    def is_special(self) -> bool:
        """Whether there is more to it than a stream, and how a message is called."""
        return not (self.is_competing and self.timeout is None and self.timeout_seconds is None)


def asked_in(request: Request) -> ReceiveParameters:
    """Return what a receiver asks for. Polls say the same again and again: it is read once."""
    if type(request.parameters) is ReceiveParameters:
        return request.parameters
    query = request.query
    return _read(query) if len(query) <= QUERY_CHARS_KEPT else _read.__wrapped__(query)


@lru_cache(maxsize=10_000)
def _read(query: bytes) -> ReceiveParameters:
    return parameters_of(Request(b"GET", b"", query, [], b""), ReceiveParameters)


class SendResponse(msgspec.Struct, rename="camel", omit_defaults=True):
    """What became of a message."""

    stream_id: str
    position: int
    delivered: bool
    message_uuid: str = ""
    output_uuid: str = ""
    resume_token: str = ""


class StoreResponse(msgspec.Struct, rename="camel", omit_defaults=True):
    """Where a message is stored."""

    stream_id: str
    position: int
    resume_token: str
    is_new: bool
    message_uuid: str = ""
    output_uuid: str = ""


class ReceivedMessage(msgspec.Struct, rename="camel", omit_defaults=True):
    """A message, and the token to go on after it."""

    position: int
    sent_ms: int
    resume_token: str
    message: msgspec.Raw | UnsetType = UNSET
    output: msgspec.Raw | UnsetType = UNSET
    message_uuid: str = ""
    output_uuid: str = ""
    stream_id: str = ""
    missed: int = 0


class ReceivedPage(msgspec.Struct, rename="camel"):
    """Messages, oldest first."""

    stream_id: str
    messages: list[ReceivedMessage]
    missed: int
    resume_token: str


class StreamList(msgspec.Struct, rename="camel", omit_defaults=True):
    """Some of the streams in memory."""

    streams: list[str]
    next: int
    """Ask again from here; 0: there are no more."""
    unreachable: list[str] = []
    """Nodes of the cluster that did not answer: their streams are missing."""


class ResizeBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """How many messages a stream is to hold."""

    in_memory_stream_size: Annotated[int, Meta(ge=0)]


def span_ms(field: str, text: str | None, seconds: float | None) -> int | None:
    """Return a length of time, given as text or in seconds; if both are, seconds count."""
    if text is not None and seconds is None:
        try:
            return _parsed(text)
        except BadInput as error:
            raise BadField(field, str(error)) from None
    return None if seconds is None else int(seconds * 1_000)


@lru_cache(maxsize=1_000)  # clients say the same few over and over
def _parsed(text: str) -> int:
    return parse_duration(text)
