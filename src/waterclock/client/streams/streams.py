"""In-memory streams: send a message to a receiver that waits, or store it for later ones.

    await client.streams.send("chat-42", {"token": "Hello"})
    message = await client.streams.receive("chat-42", timeout="30s")

Messages are JSON values. A stream exists from its first use; see docs/streams.md.
"""

from collections.abc import Mapping
from typing import Any, overload
from urllib.parse import quote
from uuid import uuid4

import msgspec

from waterclock.client.streams.calls import StreamCalls, Wait, wait_ms_of
from waterclock.client.streams.following import Following
from waterclock.client.streams.http_request import HttpRequest
from waterclock.client.streams.results import (
    Json,
    Sent,
    StoredAt,
    StreamMessage,
    encoded,
    message_of,
    page_of,
)
from waterclock.model.errors import BadInput, MatchTimeout
from waterclock.model.views import NodeInfo, StreamInfo

NAMES_AT_ONCE = 1_000


class Streams:
    """Send to streams, receive from them, look after them."""

    def __init__(self, calls: StreamCalls) -> None:
        self._calls = calls

    def __repr__(self) -> str:
        return f"<Streams by {self._calls!r}>"

    def meet(self, node: NodeInfo) -> None:
        """Know the HTTP addresses that a node names; the client does this, before anything else."""
        self._calls.meet(node)

    def close(self) -> None:
        """Hang up; the client does this."""
        self._calls.close()

    # Sending

    async def send(
        self,
        stream: str,
        message: Json,
        *,
        message_id: str | None = None,
        timeout: Wait | None = None,  # noqa: ASYNC109 - the node waits so long, not we
        size: int | None = None,
        blocking_timeout: Wait | None = None,
        store: bool = False,
        ttl: Wait | None = None,
    ) -> Sent:
        """Send a message: it is in the stream, or was handed over, on return.

        The first message to a stream may say its `size`. In one of size 0 sender and receiver
        meet: if none comes within the `timeout`, MatchTimeout is raised. With a `blocking_timeout`
        the sender waits that long for room in a full stream, rather than overwrite its oldest
        message. With `store` it is stored as well, and never lost once this returns.

        After TimedOut or Unreachable nobody knows whether it was sent.
        """
        fields = _message(stream, message, message_id, ttl, is_stored=store)
        if size is not None:
            fields["inMemoryStreamSize"] = encoded(size)
        if store:
            fields["writeToDB"] = "true"
        blocking, wait = blocking_timeout, timeout
        wait_ms = None if wait is None else wait_ms_of("timeout", wait)
        if blocking is not None:
            wait_ms = wait_ms_of("blocking_timeout", blocking)

        def made(wait_ms: int | None) -> HttpRequest:
            if wait_ms is not None:
                # Both in seconds, and the one that is meant.
                name = "timeoutSeconds" if blocking is None else "blockingSendTimeoutSeconds"
                fields[name] = encoded(wait_ms / 1_000)
            return HttpRequest("POST", "/streams/send", body=_object(fields))

        with self._calls.sending(stream):
            answer = await self._calls.call(made, wait_ms=wait_ms)
        with self._calls.reading():
            return Sent(
                stream,
                answer["messageUuid"],
                answer["position"],
                answer["delivered"],
                answer.get("resumeToken") or None,
            )

    async def send_and_store(
        self,
        stream: str,
        message: Json,
        *,
        message_id: str | None = None,
        ttl: Wait | None = None,
    ) -> StoredAt:
        """Store a message, and give it to receivers that wait; it is durable on return.

        It is tried for as long as `delivery_timeout_ms` says. Storing a `message_id` again changes
        nothing, which makes it safe to try again after an error.
        """
        request = HttpRequest(
            "POST",
            "/streams/sendAndStore",
            body=_object(_message(stream, message, message_id, ttl, is_stored=True)),
        )
        retry_ms = self._calls.connection.settings.delivery_timeout_ms
        with self._calls.sending(stream):
            answer = await self._calls.call(lambda _: request, is_safe=True, retry_ms=retry_ms)
        with self._calls.reading():
            return StoredAt(
                stream,
                answer["messageUuid"],
                answer["position"],
                answer["resumeToken"],
                answer["isNew"],
            )

    # Receiving

    @overload
    async def receive(
        self,
        stream: str,
        *,
        timeout: Wait,  # noqa: ASYNC109
        consumer: str | None = None,
        resume: str | None = None,
        limit: None = None,
    ) -> StreamMessage | None: ...

    @overload
    async def receive(
        self,
        stream: str,
        *,
        timeout: Wait,  # noqa: ASYNC109
        consumer: str | None = None,
        resume: str | None = None,
        limit: int,
    ) -> list[StreamMessage]: ...

    async def receive(
        self,
        stream: str,
        *,
        timeout: Wait,  # noqa: ASYNC109 - the node waits so long, not we
        consumer: str | None = None,
        resume: str | None = None,
        limit: int | None = None,
    ) -> StreamMessage | list[StreamMessage] | None:
        """Return the next message, or None if none comes in time; with a `limit`, a list of up to
        so many, empty if none comes.

        Receivers compete: each message goes to one of them. A named `consumer` gets every message,
        and the node keeps how far it has come: past what it is given, or, with `resume`, to that
        message and no further. With `resume` one goes on after that message, for which it need not
        have been the receiver; "earliest" and "latest" name the ends, and "confirmed" where the
        consumer is. If what follows is lost, Gone is raised.
        """
        name, query = _name(stream), _query(consumer, resume, limit)

        def made(wait_ms: int | None) -> HttpRequest:
            fields = {"streamId": name, **query, "timeout": f"{wait_ms}ms"}
            return HttpRequest("GET", "/streams/receive", fields, is_poll=True)

        wait_ms = wait_ms_of("timeout", timeout)
        # From a position, reading takes nothing away: an answer that was lost can be had again.
        is_safe = resume is not None
        try:
            answer = await self._calls.call(made, wait_ms=wait_ms, is_safe=is_safe)
        except MatchTimeout:
            return None if limit is None else []
        with self._calls.reading():
            if limit is not None:
                return page_of(stream, answer)
            return message_of(stream, answer, missed=answer.get("missed", 0))

    def follow(
        self, stream: str, *, consumer: str | None = None, resume: str | None = None
    ) -> Following:
        """Return an async iterator over all messages, from the oldest there is, or after `resume`.

        It never ends by itself: connections that are lost are made again, and it goes on where it
        was, with no message lost or repeated. What the node has lost is raised as Gone, once; to go
        on behind the gap, iterate on. From "latest", that holds from the first message on.

        A named `consumer` begins after what it has confirmed: asking for more confirms what it got
        before, now and then, and so does `confirm()`. What it was given since comes again.
        """
        return Following(self._calls, _name(stream), consumer, resume)

    # Looking after

    async def list(self) -> list[str]:
        """Return the names of the streams in memory."""
        names: list[str] = []
        start = 0
        while True:
            fields = {"start": start, "limit": NAMES_AT_ONCE}
            page = await self._look(HttpRequest("GET", "/streams", fields))
            with self._calls.reading():
                names += page["streams"]
                start = page["next"]
            if not start:
                return names

    async def get(self, stream: str) -> StreamInfo:
        """Return what is known of a stream in memory; raises NotFound."""
        return self._info(await self._look(HttpRequest("GET", _path(stream))))

    async def resize(self, stream: str, size: int) -> StreamInfo:
        """Let a stream hold another number of messages; raises NotFound."""
        body = _object({"inMemoryStreamSize": encoded(size)})
        return self._info(await self._look(HttpRequest("PATCH", _path(stream), body=body)))

    async def delete(self, stream: str) -> None:
        """Forget a stream, in memory and in the store; raises NotFound. Receivers that wait there
        ask again."""
        request = HttpRequest("DELETE", _path(stream))
        await self._calls.call(lambda _: request)

    async def _look(self, request: HttpRequest) -> dict[str, Any]:
        return await self._calls.call(lambda _: request, is_safe=True)

    def _info(self, answer: Mapping[str, Any]) -> StreamInfo:
        with self._calls.reading():
            return msgspec.convert(answer, StreamInfo)


def _message(
    stream: str, message: Json, message_id: str | None, ttl: Wait | None, *, is_stored: bool
) -> dict[str, str]:
    """Return the members of a message to be sent, each as JSON."""
    fields = {"streamId": encoded(_name(stream)), "message": encoded(message)}
    if is_stored and message_id is None:
        # Made here, so that another attempt is the same message.
        message_id = str(uuid4())
    if message_id is not None:
        fields["messageUuid"] = encoded(_text("message_id", message_id))
    if ttl is not None:
        fields["ttl"] = encoded(f"{wait_ms_of('ttl', ttl)}ms")
    return fields


def _object(members: Mapping[str, str]) -> bytes:
    text = ",".join(f'"{name}":{value}' for name, value in members.items())
    try:
        return f"{{{text}}}".encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"message is not valid text: {error}") from error


def _query(consumer: str | None, resume: str | None, limit: int | None) -> dict[str, object]:
    query: dict[str, object] = {}
    if consumer is not None:
        query["consumerId"] = _text("consumer", consumer)
    if resume is not None:
        query["resumeToken"] = _text("resume", resume)
    if limit is not None:
        query["limit"] = limit
    return query


def _name(stream: str) -> str:
    return _text("stream", stream)


def _text(field: str, text: object) -> str:
    if not isinstance(text, str) or not text:
        raise BadInput(f"{field} must be text that is not empty, not {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{field}: {text!r} is not valid text") from error
    return text


def _path(stream: str) -> str:
    return f"/streams/{quote(_name(stream), safe='')}"
