"""A client of iPubSub's API as generators make them from its description: strict both ways.

It sends the described fields and leaves out what is not set, a null message too, as Go's does. It
refuses an answer that lacks a required field, has one that is not described, or one of another
type, and a time that is not RFC 3339.
"""

import json
import re
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tests.server.http_client import Answered
from tests.server.test_streams_api import Streaming

SEND, RECEIVE = "/api/v1/streams/send", "/api/v1/streams/receive"
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


class Undescribed(Exception):
    """An answer is not as the description has it."""


class Failed(Exception):
    """The server refused; as generated clients do, this one tells the status."""

    def __init__(self, answer: Answered) -> None:
        super().__init__(f"{answer.status}: {answer.body.decode()}")
        self.status = answer.status
        self.problem: dict[str, Any] = answer.json()


class ReceiveResponse(NamedTuple):
    """What the description calls so."""

    message: Any
    timestamp: datetime
    message_uuid: str | None = None
    db_resume_token: str | None = None


def response_of(body: bytes) -> ReceiveResponse:
    """Return a response; raise Undescribed if it is none."""
    given = json.loads(body, object_pairs_hook=_object)
    if not isinstance(given, dict):
        raise Undescribed(f"{given!r} is no object")
    for name in ("message", "timestamp"):
        if name not in given:
            raise Undescribed(f"no value given for required property {name}")
    unknown = given.keys() - {"message", "timestamp", "messageUuid", "dbResumeToken"}
    if unknown:
        raise Undescribed(f"unknown field {unknown}")
    texts = {name: given.get(name) for name in ("timestamp", "messageUuid", "dbResumeToken")}
    for name, text in texts.items():
        if name in given and not isinstance(text, str):
            raise Undescribed(f"{name} is {text!r}")
    if not _RFC3339.fullmatch(given["timestamp"]):
        raise Undescribed(f"timestamp {given['timestamp']!r} is not RFC 3339")
    return ReceiveResponse(
        given["message"],
        datetime.fromisoformat(given["timestamp"]),
        texts["messageUuid"],
        texts["dbResumeToken"],
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Undescribed(f"a field stands twice in {pairs}")
    return found


class PublishedClient:
    """Sends and receives with the published names; each call has a connection of its own."""

    def __init__(self, streaming: Streaming) -> None:
        self._streaming = streaming
        self._sent = 0

    async def send(
        self,
        stream: str,
        message: Any,
        *,
        uuid: str | None = None,
        size: int | None = None,
        blocking_s: int | None = None,
        is_stored: bool | None = None,
        ttl_s: int | None = None,
    ) -> str:
        """Send a message; return its id."""
        self._sent += 1
        uuid = uuid or f"00000000-0000-4000-8000-{self._sent:012d}"
        body = {
            "messageUuid": uuid,
            "streamId": stream,
            "message": message,
            "inMemoryStreamSize": size,
            "blockingSendTimeoutSeconds": blocking_s,
            "writeToDB": is_stored,
            "dbTTLSeconds": ttl_s,
        }
        given = {name: value for name, value in body.items() if value is not None}
        answer = await self._streaming.post(SEND, **given)
        if answer.status != 200:
            raise Failed(answer)
        return uuid

    async def receive(
        self,
        stream: str,
        *,
        timeout_s: int | None = None,
        is_stored: bool | None = None,
        token: str | None = None,
    ) -> ReceiveResponse:
        """Receive a message."""
        query = {
            "streamId": stream,
            "timeoutSeconds": timeout_s,
            "readFromDB": None if is_stored is None else str(is_stored).lower(),
            "dbResumeToken": token,
        }
        given = {name: value for name, value in query.items() if value is not None}
        answer = await self._streaming.get(f"{RECEIVE}?{urlencode(given)}")
        if answer.status != 200:
            raise Failed(answer)
        assert answer.headers["content-type"] == "application/json"
        return response_of(answer.body)
