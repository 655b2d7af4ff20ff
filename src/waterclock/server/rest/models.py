"""Messages and times as JSON: the types that all operations on topics share.

Bytes are text where they are UTF-8, else base64 in a field of its own: `value` or `valueBase64`,
`key` or `keyBase64`, `messageId` or `messageIdBase64`. Either may be given, one of both.
"""

import base64
import binascii
import os
import re
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import NODEFAULT, UNSET, Meta, UnsetType
from msgspec.structs import FieldInfo

from waterclock.model.ids import UUID7_ENTROPY_BYTES, Millis, uuid7
from waterclock.model.limits import Limits, check
from waterclock.model.message import Message
from waterclock.model.names import (
    DEAD_LETTERS,
    NAME_CHARS_MAX,
    check_any_topic_name,
    check_name,
    check_topic_name,
)
from waterclock.model.views import DeadLetter, Recurrence, ScheduledMessage, View
from waterclock.node.groups.positions import POSITIONS_MAX
from waterclock.node.topics import PARTITIONS_MAX
from waterclock.schedule.cron import TEXT_CHARS_MAX
from waterclock.schedule.duration import parse_duration
from waterclock.schedule.when import FORMS, PAST_FORMS, parse_moment, parse_past
from waterclock.server.http.input import END, LIMIT, described, read_text, text
from waterclock.server.http.problems import BadField

NAME = r"^([A-Za-z0-9][A-Za-z0-9._-]*|_([A-Za-z0-9.-][A-Za-z0-9._-]*)?)" + END
ANY_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]*" + END
"""The node's own, too."""
BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?" + END
TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999; what is later is microseconds taken for milliseconds."""
DURATION_FORMAT, TIME_FORMAT = "waterclock-duration", "waterclock-time"
"""What descriptions call texts that no pattern can tell."""
Model = TypeVar("Model", bound="ResponseModel")
OFFSET_MAX = (1 << 53) - 1
"""What every JSON parser reads exactly."""
_TIME_EXAMPLE, _DELAY_EXAMPLE = "2026-11-15T10:00:00Z", "90s"


def _name(what: str, example: str) -> Meta:
    about = f"Of a {what}."
    return text(
        partial(check_name, what),
        about,
        example,
        pattern=NAME,
        minLength=1,
        maxLength=NAME_CHARS_MAX,
    )


_DEAD_LETTERS = {
    "maxLength": NAME_CHARS_MAX + len(DEAD_LETTERS),
    "pattern": re.escape(DEAD_LETTERS) + END,
}


def _topic_name(check_text: Callable[[str], None], pattern: str) -> Meta:
    return text(
        check_text,
        "Of a topic.",
        "orders",
        pattern=pattern,
        minLength=1,
        anyOf=[{"maxLength": NAME_CHARS_MAX}, _DEAD_LETTERS],
    )


TopicName = Annotated[str, _topic_name(check_topic_name, NAME)]
AnyTopicName = Annotated[str, _topic_name(check_any_topic_name, ANY_NAME)]
Group = Annotated[str, _name("group", "billing")]
Name = Annotated[str, _name("name", "nightly")]
Duration = Annotated[
    str, text(parse_duration, "A length of time.", "90s", "1h30m", format=DURATION_FORMAT)
]
Delay = Annotated[
    str,
    described("From now: 90s, 1h30m or '5 minutes'.", _DELAY_EXAMPLE, format=DURATION_FORMAT),
]
Time = Annotated[
    str,
    described(
        f"RFC 3339. People may write more, in UTC unless a zone is named: {FORMS}.",
        _TIME_EXAMPLE,
        format=TIME_FORMAT,
    ),
]
Earlier = Annotated[
    str,
    described(
        f"RFC 3339. People may write more, in UTC unless a zone is named: {PAST_FORMS}.",
        _TIME_EXAMPLE,
        format=TIME_FORMAT,
    ),
]
TimeMs = Annotated[int, Meta(ge=0, le=TIME_MS_MAX, description="Milliseconds since 1970.")]
DueMs = Annotated[
    int,
    Meta(
        ge=0,
        description="Milliseconds since 1970, no farther ahead than `limits.due_horizon_ms_max`.",
        extra_json_schema={"maximum": LIMIT + "due_ms_max"},
    ),
]
MessageId = Annotated[
    str,
    Meta(
        min_length=1,
        description="Bytes of UTF-8 count.",
        extra_json_schema={"maxLength": LIMIT + "message_id_bytes_max"},
    ),
]
Headers = Annotated[
    dict[str, str], Meta(extra_json_schema={"maxProperties": LIMIT + "headers_max"})
]
Base64 = Annotated[
    str,
    Meta(description="Bytes in base64.", examples=["AAEC"], extra_json_schema={"pattern": BASE64}),
]
Partition = Annotated[int, Meta(ge=0, le=PARTITIONS_MAX - 1, description="Of a partition.")]
Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX, description="In a partition.")]


def exclusive(*fields: str) -> dict[str, Any]:
    """Return the rule, for a description, that at most one of some fields is given."""
    pairs = [(a, b) for i, a in enumerate(fields) for b in fields[i + 1 :]]
    return {"allOf": [{"not": {"required": [a, b]}} for a, b in pairs]}


class RequestModel(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """What clients send: a field nobody knows is a mistake."""


class ResponseModel(msgspec.Struct, rename="camel", kw_only=True):
    """A body that the server sends; fields that are not set are left out."""


class TopicParameters(RequestModel):
    topic: TopicName


class AnyTopicParameters(RequestModel):
    """For what only reads: the topic may be the node's own."""

    topic: AnyTopicName


class PositionRequest(RequestModel):
    partition: Partition
    offset: Offset


Positions = Annotated[tuple[PositionRequest, ...], Meta(max_length=POSITIONS_MAX)]


class MessageRequest(RequestModel):
    """A message to be published: at most one of `value`, `valueBase64` and `json`, none being a
    tombstone; and at most one of `at`, `dueMs` and `delay`, none being now."""

    value: str | UnsetType = UNSET
    value_base64: Base64 | UnsetType = UNSET
    json: msgspec.Raw | UnsetType = UNSET
    key: str | UnsetType = UNSET
    key_base64: Base64 | UnsetType = UNSET
    headers: Headers = {}
    message_id: MessageId | UnsetType = UNSET
    at: Time | UnsetType = UNSET
    due_ms: DueMs | UnsetType = UNSET
    delay: Delay | UnsetType = UNSET
    expires_at: Time | UnsetType = UNSET
    expires_ms: TimeMs | UnsetType = UNSET
    expires_in: (
        Annotated[Delay, Meta(description="From when it is due: 90s, 1h30m or '5 minutes'.")]
        | UnsetType
    ) = UNSET


ONE_OF_EACH = {
    "allOf": [
        *exclusive("value", "valueBase64", "json")["allOf"],
        *exclusive("key", "keyBase64")["allOf"],
        *exclusive("at", "dueMs", "delay")["allOf"],
        *exclusive("expiresAt", "expiresMs", "expiresIn")["allOf"],
    ]
}


class MessageResponse(ResponseModel, omit_defaults=True):
    message_id: str | UnsetType = UNSET
    message_id_base64: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    key_base64: str | UnsetType = UNSET
    value: str | UnsetType = UNSET
    value_base64: str | UnsetType = UNSET
    headers: dict[str, str] = {}
    headers_base64: dict[str, str] = {}
    due_ms: int | UnsetType = UNSET
    appended_ms: int | UnsetType = UNSET
    """When it was stored; one for later, when it became due and was delivered."""


def one_of(**given: object) -> str | None:
    """Return the name of the field that is given, if one is; raise BadField if two are."""
    names = [name for name, value in given.items() if value is not UNSET]
    if len(names) > 1:
        raise BadField(names[1], f"is given beside {names[0]}: give one of both")
    return names[0] if names else None


def message_of(request: MessageRequest, now_ms: int, limits: Limits) -> Message:
    """Return what a client sent; without an id it is given one that can be written."""
    message_id = request.message_id
    if message_id is UNSET:
        message_id = str(uuid.UUID(bytes=uuid7(Millis(now_ms), os.urandom(UUID7_ENTROPY_BYTES))))
    due_ms = due_of(request.at, request.due_ms, request.delay, now_ms, limits)
    return Message(
        _value(request),
        key=bytes_of(request.key, request.key_base64, "key", "keyBase64"),
        message_id=message_id.encode(),
        headers={name: value.encode() for name, value in request.headers.items()} or None,
        due_ms=None if due_ms is None else Millis(due_ms),
    )


_DUE_FIELDS = ("at", "dueMs", "delay")
_EXPIRY_FIELDS = ("expiresAt", "expiresMs", "expiresIn")


def expires_of(request: MessageRequest, message: Message, now_ms: int) -> int | None:
    """Return until when a message is of use; a length of time counts from when it is due."""
    begin_ms = max(now_ms, message.due_ms or 0)
    return moment_of(
        request.expires_at, request.expires_ms, request.expires_in, begin_ms, fields=_EXPIRY_FIELDS
    )


def due_of(
    at: str | UnsetType,
    due_ms: int | UnsetType,
    delay: str | UnsetType,
    now_ms: int,
    limits: Limits,
) -> int | None:
    """Return when a message is due, None for now; what is too far ahead is refused by its field."""
    found = moment_of(at, due_ms, delay, now_ms, fields=_DUE_FIELDS)
    if found is not None:
        field = one_of(at=at, dueMs=due_ms, delay=delay) or ""
        limits.check_due(Millis(found), now_ms=Millis(now_ms), field=field)
    return found


def moment_of(
    at: str | UnsetType,
    time_ms: int | UnsetType,
    after: str | UnsetType,
    now_ms: int,
    *,
    fields: tuple[str, str, str],
) -> int | None:
    """Return a time that is given as text, in milliseconds, or from now; None if it is not."""
    found = one_of(**dict(zip(fields, (at, time_ms, after), strict=True)))
    if found is None:
        return None
    if at is not UNSET:
        return read_text(lambda: parse_moment(at, now_ms), fields[0], _TIME_EXAMPLE)
    if time_ms is not UNSET:
        return time_ms
    assert after is not UNSET
    return read_text(lambda: _after(after, now_ms), fields[2], _DELAY_EXAMPLE)


def past_of(given: str, now_ms: int, *, field: str = "since") -> Millis:
    """Return the time of since and until."""
    return read_text(lambda: parse_past(given, now_ms, field="when"), field, _TIME_EXAMPLE)


def _after(given: str, now_ms: int) -> Millis:
    check("when", len(given), TEXT_CHARS_MAX)
    return Millis(now_ms + parse_duration(given.strip().removeprefix("+")))


def bytes_of(
    text: str | UnsetType, encoded: str | UnsetType, field: str, field_base64: str
) -> bytes | None:
    """Return bytes given as text or in base64; None if they are not."""
    one_of(**{field: text, field_base64: encoded})
    if text is not UNSET:
        return text.encode()
    return None if encoded is UNSET else _decoded(field_base64, encoded)


def _value(request: MessageRequest) -> bytes | None:
    one_of(value=request.value, valueBase64=request.value_base64, json=request.json)
    if request.json is not UNSET:
        return bytes(request.json)
    return bytes_of(request.value, request.value_base64, "value", "valueBase64")


def _decoded(field: str, encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise BadField(field, "is not base64, such as AAEC") from None


def render_fields(
    message_id: bytes | None,
    key: bytes | None,
    value: bytes | None,
    headers: Mapping[str, bytes] | None,
    due_ms: int | None,
) -> dict[str, Any]:
    """Return the fields of a `MessageResponse`."""
    fields: dict[str, Any] = {}
    for name, raw in (("message_id", message_id), ("key", key), ("value", value)):
        if raw is None:
            continue
        text = text_of(raw)
        if text is None:
            fields[name + "_base64"] = base64.b64encode(raw).decode()
        else:
            fields[name] = text
    if headers:
        texts = {name: text_of(value) for name, value in headers.items()}
        fields["headers"] = {name: text for name, text in texts.items() if text is not None}
        fields["headers_base64"] = {
            name: base64.b64encode(headers[name]).decode()
            for name, text in texts.items()
            if text is None
        }
    if due_ms is not None:
        fields["due_ms"] = due_ms
    return fields


def render_message(message: Message) -> dict[str, Any]:
    """Return the fields of a `MessageResponse` of a message."""
    return render_fields(
        message.message_id, message.key, message.value, message.headers, message.due_ms
    )


def text_of(raw: bytes) -> str | None:
    """Return bytes as text, if they are."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _defined(info: FieldInfo) -> tuple[str, Any] | tuple[str, Any, Any]:
    """Return a field as a struct is defined by it."""
    if info.default_factory is not NODEFAULT:
        return info.name, info.type, msgspec.field(default_factory=info.default_factory)
    return (info.name, info.type) if info.required else (info.name, info.type, info.default)


def with_fields_of(
    view: type[View], *, but: tuple[str, ...] = ()
) -> Callable[[type[Model]], type[Model]]:
    """Give a model the fields of a view that it has not itself; of the message it has its own."""

    def with_fields(model: type[Model]) -> type[Model]:
        known = {"message", *but, *model.__struct_fields__}
        fields = [_defined(f) for f in msgspec.structs.fields(view) if f.name not in known]
        made = msgspec.defstruct(
            model.__name__,
            fields,
            bases=(model,),
            module=model.__module__,
            namespace={"__doc__": model.__doc__},
            kw_only=True,
        )
        return cast("type[Model]", made)

    return with_fields


def render(model: type[Model], view: DeadLetter | Recurrence | ScheduledMessage) -> Model:
    """Return a view as HTTP has it: the fields of its message beside its own, or in `message`."""
    names = {*model.__struct_fields__} & {*view.__struct_fields__} - {"message"}
    fields = {name: getattr(view, name) for name in names}
    message = render_message(view.message)
    if "message" in model.__struct_fields__:
        return model(**fields, message=MessageResponse(**message))
    return model(**fields, **message)
