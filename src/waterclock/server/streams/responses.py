"""Responses to senders and receivers: JSON put together by hand, a message goes out as it came.

A `Vocabulary` is how an API calls things. Ours has two, for some clients call a message *output*;
`published.py` has a third.
"""

from typing import Any, NamedTuple

import msgspec

from waterclock.node.streams.host import StreamHost
from waterclock.server.http.messages import JSON, Response, problem
from waterclock.streams.effects import Deliver
from waterclock.streams.ring import Item
from waterclock.streams.streams import Put
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


class Vocabulary:
    """How an API calls a message and its id, and what it answers with."""

    send_path = b"/streams/send"
    receive_path = b"/streams/receive"
    is_of_store_only = False
    """Positions are of stored messages only, and what has expired between them is passed over."""

    def __init__(self, word: bytes) -> None:
        self.message = b'"%b":' % word
        self.uuid = b'"%bUuid":' % word
        self._sent = b'{"streamId":%%b,"%bUuid":"%%016x-%%x","position":%%d,"delivered":%%b}' % word
        self._plain = (
            b'{"streamId":%%b,"%b":%%b,"%bUuid":"%%016x-%%x","position":%%d,"sentMs":%%d,'
            b'"resumeToken":"%%b"}' % (word, word)
        )
        """Of a message without an id of its own that is not stored."""

    def sent(
        self, stream: str, uuid: str, position: int, token: str = "", *, is_delivered: bool
    ) -> Response:
        """Return the response to a sender."""
        body = b'{"streamId":%b,%b%b,"position":%d,"delivered":%b%b}' % (
            _encode(stream),
            self.uuid,
            _encode(uuid),
            position,
            b"true" if is_delivered else b"false",
            b',"resumeToken":"%b"' % token.encode() if token else b"",
        )
        return Response(200, body, JSON)

    def put(self, stream: str, put: Put) -> Response:
        """Return the response to the sender of a message without an id, that was put in a ring."""
        incarnation, position, given = put
        delivered = b"true" if given is not None else b"false"
        body = self._sent % (_encode(stream), incarnation, position, position, delivered)
        return Response(200, body, JSON)

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
        """Return the response to a receiver of one message."""
        if item.stored or missed or item.message_id:
            facts = self.render(item, incarnation, position, stream, tokens).facts
            lost = b',"missed":%d' % missed if missed else b""
            return Response(200, b'{"streamId":%b,%b%b}' % (_encode(stream), facts, lost), JSON)
        # What most are answered with, and the same as above, at once.
        body = self._plain % (
            _encode(stream),
            item.body,
            incarnation,
            position,
            position,
            item.sent_ms,
            tokens.render(stream, LIVE, incarnation, position),
        )
        return Response(200, body, JSON)

    def received_list(
        self, given: Deliver, incarnation: int, stream: str, tokens: Tokens
    ) -> Response:
        """Return the response to a receiver of several messages."""
        messages = self.render_all(given, incarnation, stream, tokens)
        body = b'{"streamId":%b,"messages":[%b],"missed":%d,"resumeToken":"%b"}' % (
            _encode(stream),
            b",".join(b"{%b}" % message.facts for message in messages),
            given.missed,
            messages[-1].token.encode(),
        )
        return Response(200, body, JSON)

    def render_all(
        self, given: Deliver, incarnation: int, stream: str, tokens: Tokens
    ) -> list[RenderedMessage]:
        """Return messages as JSON, each with its token."""
        pairs = zip(given.positions, given.items, strict=True)
        return [self.render(item, incarnation, at, stream, tokens) for at, item in pairs]

    def render(
        self, item: Item, incarnation: int, position: int, stream: str, tokens: Tokens
    ) -> RenderedMessage:
        """Return a message as JSON, with its token."""
        facts = (STORED, 0, item.stored) if item.stored else (LIVE, incarnation, position)
        token = tokens.encode(stream, Token(*facts))
        said = b'%b%b,%b%b,"position":%d,"sentMs":%d,"resumeToken":"%b"' % (
            self.message,
            item.body,
            self.uuid,
            _encode(message_uuid(item, incarnation, position)),
            facts[2],
            item.sent_ms,
            token.encode(),
        )
        return RenderedMessage(token, said)

    def timed_out(self, token: str = "") -> Response:
        """Return what to say if nothing came, and from where to ask again, if that is known."""
        again: dict[str, Any] = {"resumeToken": token} if token else {}
        return problem(424, MATCH_TIMEOUT, error="MatchTimeout", **again)

    def gone(self, missed: int, token: str, detail: str) -> Response:
        """Return what to say if what was to follow is gone, and how to go on."""
        return problem(410, detail, **gone_members(missed, token))


VOCABULARIES = {word: Vocabulary(word.encode()) for word in ("message", "output")}
