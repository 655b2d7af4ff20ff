"""Responses to senders and receivers: JSON put together by hand, a message goes out as it came."""

from typing import Any, NamedTuple

import msgspec

from waterclock.node.streams.host import StreamHost
from waterclock.server.http.messages import JSON, Response
from waterclock.server.streams.models import FieldNames
from waterclock.streams.effects import Deliver
from waterclock.streams.ring import Item
from waterclock.streams.tokens import LIVE, STORED, Token, Tokens

MATCH_TIMEOUT = "no match within the timeout"
OVERWRITTEN = "what follows the resume token was overwritten or has expired"
FORGOTTEN = "the resume token is of a stream that was forgotten"
AHEAD = "the store does not reach to the resume token: it is another one, or an older copy of it"

_encode = msgspec.json.encode


class RenderedMessage(NamedTuple):
    """A message as JSON, with its token."""

    token: str
    facts: bytes
    """As JSON, without braces."""


def gone_members(missed: int, token: str) -> dict[str, Any]:
    """Return the members of a 410 besides its detail."""
    return {"error": "Gone", "field": "resumeToken", "missed": missed, "resumeToken": token}


def incarnation_of(host: StreamHost, name: str) -> int:
    """Return which stream of this name is in memory; 0 if there is none."""
    stream = host.table.find(name)
    return 0 if stream is None else stream.incarnation


def message_uuid(item: Item, incarnation: int, position: int) -> str:
    """Return the id of a message; if its sender gave none, one that is made of where it is."""
    return item.message_id or f"{incarnation:016x}-{position:x}"


def sent(
    stream: str,
    field_names: FieldNames,
    uuid: str,
    position: int,
    token: str = "",
    *,
    is_delivered: bool,
) -> Response:
    """Return the response to a sender."""
    body = b'{"streamId":%b,%b%b,"position":%d,"delivered":%b%b}' % (
        _encode(stream),
        field_names.uuid,
        _encode(uuid),
        position,
        b"true" if is_delivered else b"false",
        b',"resumeToken":"%b"' % token.encode() if token else b"",
    )
    return Response(200, body, JSON)


def render(
    item: Item,
    incarnation: int,
    position: int,
    stream: str,
    field_names: FieldNames,
    tokens: Tokens,
) -> RenderedMessage:
    """Return a message as JSON, with its token."""
    facts = (STORED, 0, item.stored) if item.stored else (LIVE, incarnation, position)
    token = tokens.encode(stream, Token(*facts))
    said = b'%b%b,%b%b,"position":%d,"sentMs":%d,"resumeToken":"%b"' % (
        field_names.message,
        item.body,
        field_names.uuid,
        _encode(message_uuid(item, incarnation, position)),
        facts[2],
        item.sent_ms,
        token.encode(),
    )
    return RenderedMessage(token, said)


def render_messages(
    given: Deliver, incarnation: int, stream: str, field_names: FieldNames, tokens: Tokens
) -> list[RenderedMessage]:
    """Return messages as JSON, each with its token."""
    pairs = zip(given.positions, given.items, strict=True)
    return [render(item, incarnation, at, stream, field_names, tokens) for at, item in pairs]


def received(stream: str, message: RenderedMessage, missed: int) -> Response:
    """Return the response to a receiver of one message."""
    lost = b',"missed":%d' % missed if missed else b""
    return Response(200, b'{"streamId":%b,%b%b}' % (_encode(stream), message.facts, lost), JSON)


def received_list(stream: str, messages: list[RenderedMessage], missed: int) -> Response:
    """Return the response to a receiver of several messages."""
    body = b'{"streamId":%b,"messages":[%b],"missed":%d,"resumeToken":"%b"}' % (
        _encode(stream),
        b",".join(b"{%b}" % message.facts for message in messages),
        missed,
        messages[-1].token.encode(),
    )
    return Response(200, body, JSON)
