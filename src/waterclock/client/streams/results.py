"""What streams answer with: where a message went, messages, and what is known of a stream.

A message is a JSON value: None, True or False, a number, text, a list or a dict of these.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from waterclock.model.clock import time_of
from waterclock.model.errors import BadInput, NodeFailed

Json = Any
"""None, bool, int, float, str, or lists and dicts of them."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that is in its stream, or was handed over."""

    stream: str
    message_id: str
    position: int
    is_delivered: bool
    """A receiver was waiting for it."""
    resume_token: str | None
    """To go on after it, if it is stored."""


@dataclass(frozen=True, slots=True)
class StoredAt:
    """Where a message is stored."""

    stream: str
    message_id: str
    position: int
    resume_token: str
    """To go on after it."""
    is_new: bool
    """False: the id was stored before, nothing was written, and this is the first one."""


@dataclass(frozen=True, slots=True)
class StreamMessage:
    stream: str
    id: str
    value: Json
    position: int
    sent: datetime
    resume_token: str
    """To go on after it, with `receive` or `follow`, also in another program."""
    missed: int
    """So many messages right before it came too fast for this receiver, and are lost to it."""


def encoded(value: Json) -> str:
    """Return a value as JSON; raise BadInput if it is none."""
    if isinstance(value, bytes | bytearray | memoryview):
        raise BadInput(
            f"message must be a JSON value, not {type(value).__name__}: decode it, encode it as"
            " base64, or publish it to a topic, which takes bytes"
        )
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise BadInput(f"message is not a JSON value: {error}") from error
    except RecursionError:
        raise BadInput("message is nested too deeply for JSON") from None


def decoded(body: bytes, address: str) -> dict[str, Any]:
    """Return an answer, which is a JSON object; raise NodeFailed if it is none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise NodeFailed(f"{address} answered what is no JSON object: {body[:100]!r}")
    return found


def message_of(stream: str, fields: Mapping[str, Any], *, missed: int) -> StreamMessage:
    """Return a message from the fields of a response."""
    return StreamMessage(
        stream=stream,
        id=fields["messageUuid"],
        value=fields["message"],
        position=fields["position"],
        sent=time_of(fields["sentMs"]),
        resume_token=fields["resumeToken"],
        missed=missed,
    )


def page_of(stream: str, fields: Mapping[str, Any]) -> list[StreamMessage]:
    """Return a page of messages; what was missed came before the first."""
    missed = fields["missed"]
    return [
        message_of(stream, each, missed=0 if at else missed)
        for at, each in enumerate(fields["messages"])
    ]
