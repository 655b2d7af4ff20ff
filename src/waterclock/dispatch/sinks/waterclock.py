"""Writes to a Waterclock topic: the uuid becomes the message id, so the node stores each once.

The node knows nothing of epochs; a late leader is refused by the worker, which takes frames of the
highest epoch it has seen only, and what slips through is a repeat that the node finds. Like every
dedup this one has a window, the topic's: a message older than ours, which must not be longer, is
not sent (`LATE`).
"""

import json
import logging
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from waterclock.client.client import Client, connect
from waterclock.client.target import Given
from waterclock.dispatch.core.identity import known_until_ms
from waterclock.dispatch.sinks.sink import AWAY, LATE, WRITTEN, Writing
from waterclock.dispatch.worker.handlers import PermanentError
from waterclock.model.errors import BadInput, CapacityReached, WaterclockError
from waterclock.model.message import Message
from waterclock.runtime.tracing import tracer_of
from waterclock.security.credential import Credential

log = logging.getLogger(__name__)


class CarryingBody(NamedTuple):
    """A body, and the context of the span in which it was made."""

    value: bytes
    headers: Mapping[str, bytes]


class WaterclockSink:
    """A topic of a node. See `sinks.Sink`."""

    def __init__(
        self, client: Client, *, topic: str, window_ms: int = 300_000, bucket_ms: int = 60_000
    ) -> None:
        self._client = client
        self._topic = topic
        self._window_ms, self._bucket_ms = window_ms, bucket_ms
        self._tracer = tracer_of("waterclock.dispatch")

    @classmethod
    async def open(
        cls,
        address: Given | None,
        *,
        topic: str,
        credential: Credential | str | None = None,
        window_ms: int = 300_000,
        bucket_ms: int = 60_000,
    ) -> "WaterclockSink":
        """Connect to the node at `host:port`, or one of several, or where the credential says."""
        client = connect(address, credential=credential)
        await client.__aenter__()
        return cls(client, topic=topic, window_ms=window_ms, bucket_ms=bucket_ms)

    def __repr__(self) -> str:
        return f"<WaterclockSink to {self._topic}>"

    def prepare(self, value: object) -> bytes | CarryingBody:
        """Return the body: bytes and text as they are, anything else as JSON; in a program that
        uses OpenTelemetry with the context, for the message goes on under it."""
        body = self._body(value)
        return body if self._tracer is None else CarryingBody(body, dict(self._tracer.pairs()))

    def _body(self, value: object) -> bytes:
        if isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode()
        try:
            return json.dumps(dict(value) if isinstance(value, Mapping) else value).encode()
        except (TypeError, ValueError) as error:
            raise PermanentError(f"what the handler returned is no JSON: {error}") from None

    async def write(self, writing: Writing) -> list[int]:
        """Publish what is young enough; what the node has already it answers the same way."""
        now_ms = time.time_ns() // 1_000_000
        window_ms, bucket_ms = self._window_ms, self._bucket_ms
        statuses = [
            LATE
            if now_ms >= known_until_ms(birth_ms, bucket_ms=bucket_ms, window_ms=window_ms)
            else AWAY
            for birth_ms in writing.births_ms
        ]
        rows = [row for row, status in enumerate(statuses) if status == AWAY]
        messages = [_message(writing.values[row], writing.uuids[row]) for row in rows]
        try:
            await self._client.publish_many(self._topic, messages)
        except CapacityReached as full:  # not the messages' fault: there may be room later
            log.warning("publish_failed topic=%s error=%s", self._topic, full)
            return statuses
        except BadInput:
            raise
        except WaterclockError as error:
            log.warning(
                "publish_failed topic=%s messages=%d error=%s", self._topic, len(rows), error
            )
            return statuses
        for row in rows:
            statuses[row] = WRITTEN
        return statuses

    async def close(self) -> None:
        """Hang up."""
        await self._client.__aexit__(None, None, None)


def _message(value: Any, uuid: bytes) -> Message:  # noqa: ANN401 - what `prepare` returned
    if isinstance(value, CarryingBody):
        return Message(value.value, message_id=uuid, headers=value.headers)
    return Message(value, message_id=uuid)
