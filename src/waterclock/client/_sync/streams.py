"""The blocking twin of `streams.py`: the same names, and calls that wait."""

from typing import overload

from waterclock.client.loop_thread import LoopThread
from waterclock.client.streams import streams
from waterclock.client.streams.calls import Wait
from waterclock.client.streams.following import Following
from waterclock.client.streams.results import Json, Sent, StoredAt, StreamInfo, StreamMessage


class Streams:
    """Send to streams, receive from them, look after them."""

    def __init__(self, background: LoopThread, asked: streams.Streams) -> None:
        self._background = background
        self._streams = asked

    def send(
        self,
        stream: str,
        message: Json,
        *,
        message_id: str | None = None,
        timeout: Wait | None = None,
        size: int | None = None,
        blocking_timeout: Wait | None = None,
        store: bool = False,
        ttl: Wait | None = None,
    ) -> Sent:
        """Send a message: it is in the stream, or was handed over, on return."""
        return self._background.run(
            self._streams.send(
                stream,
                message,
                message_id=message_id,
                timeout=timeout,
                size=size,
                blocking_timeout=blocking_timeout,
                store=store,
                ttl=ttl,
            )
        )

    def send_and_store(
        self,
        stream: str,
        message: Json,
        *,
        message_id: str | None = None,
        ttl: Wait | None = None,
    ) -> StoredAt:
        """Store a message, and give it to whoever waits; it is durable on return."""
        return self._background.run(
            self._streams.send_and_store(stream, message, message_id=message_id, ttl=ttl)
        )

    @overload
    def receive(
        self,
        stream: str,
        *,
        timeout: Wait,
        consumer: str | None = None,
        resume: str | None = None,
        limit: None = None,
    ) -> StreamMessage | None: ...

    @overload
    def receive(
        self,
        stream: str,
        *,
        timeout: Wait,
        consumer: str | None = None,
        resume: str | None = None,
        limit: int,
    ) -> list[StreamMessage]: ...

    def receive(
        self,
        stream: str,
        *,
        timeout: Wait,
        consumer: str | None = None,
        resume: str | None = None,
        limit: int | None = None,
    ) -> StreamMessage | list[StreamMessage] | None:
        """Return the next message, or None if none comes in time; with a `limit`, a list."""

        async def one_or_many() -> StreamMessage | list[StreamMessage] | None:
            if limit is None:
                return await self._streams.receive(
                    stream, timeout=timeout, consumer=consumer, resume=resume
                )
            return await self._streams.receive(
                stream, timeout=timeout, consumer=consumer, resume=resume, limit=limit
            )

        return self._background.run(one_or_many())

    def follow(
        self, stream: str, *, consumer: str | None = None, resume: str | None = None
    ) -> "BlockingFollowing":
        """Return an iterator over all messages, from the oldest there is, or after `resume`."""
        following = self._streams.follow(stream, consumer=consumer, resume=resume)
        return BlockingFollowing(self._background, following)

    def list(self) -> list[str]:
        """Return the names of the streams in memory."""
        return self._background.run(self._streams.list())

    def get(self, stream: str) -> StreamInfo:
        """Return what is known of a stream in memory; raises NotFound."""
        return self._background.run(self._streams.get(stream))

    def resize(self, stream: str, size: int) -> StreamInfo:
        """Let a stream hold another number of messages; raises NotFound."""
        return self._background.run(self._streams.resize(stream, size))

    def delete(self, stream: str) -> None:
        """Forget a stream, in memory and in the store; raises NotFound."""
        self._background.run(self._streams.delete(stream))


class BlockingFollowing:
    """Messages of a stream as they come; see `Following`."""

    def __init__(self, background: LoopThread, following: Following) -> None:
        self._background = background
        self._following = following

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._following)[1:]}"

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self._following.stream

    @property
    def resume_token(self) -> str | None:
        """To go on after the last message that was handed out; None if there was none."""
        return self._following.resume_token

    def confirm(self) -> None:
        """Tell the node that the messages handed out so far are done with."""
        self._background.run(self._following.confirm())

    def __iter__(self) -> "BlockingFollowing":
        return self

    def __next__(self) -> StreamMessage:
        # As many as there are come at once: the other thread is not asked for each.
        while (message := self._following.take()) is None:
            self._background.run(self._following.fill())
        return message
