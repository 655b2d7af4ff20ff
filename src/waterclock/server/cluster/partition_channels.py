"""Both ends of what one partition asks of another over the peer link."""

from collections.abc import Callable
from typing import Final

from waterclock.cluster.hot_streams.frames import DONE, NOT_PART, BadPartition
from waterclock.cluster.peer_link.channels import Channel
from waterclock.model.errors import Unreachable

ANSWER_BYTES_MAX: Final = 64 << 20


class Asking:
    """Who asks: `heard` takes the whole answer once, or None if there is none; `broke` is called
    before that if the link broke, and an answer may have been on it."""

    __slots__ = ("_body", "_broke", "_heard", "channel")

    def __init__(
        self, heard: Callable[[bytes | None], None], broke: Callable[[], None] | None = None
    ) -> None:
        self._heard = heard
        self._broke = broke
        self._body: bytearray | None = None
        self.channel: Channel | None = None

    def answered(self, status: int, body: bytes, *, is_last: bool) -> None:
        """The answer begins, and ends if it is short."""
        if status != DONE:
            self._hear(None)
        elif is_last:
            self._hear(body)
        else:
            self._body = bytearray(body)
            self._grant(len(body))

    def piece(self, body: bytes, *, is_last: bool) -> None:
        """The answer goes on."""
        if self._body is None:
            return  # it said no, at length
        self._body += body
        if len(self._body) > ANSWER_BYTES_MAX:
            self._refuse("the answer is too long")
        elif is_last:
            self._hear(bytes(self._body))
        else:
            self._grant(len(body))

    def failed(self, error: Exception) -> None:
        """No answer comes."""
        if self._broke is not None and isinstance(error, Unreachable):
            self._broke()
        self._hear(None)

    def drained(self) -> None:
        """Nothing waits for that."""

    def _hear(self, body: bytes | None) -> None:
        try:
            self._heard(body)
        except BadPartition as error:
            self._refuse(str(error))

    def _refuse(self, why: str) -> None:
        if self.channel is not None:
            self.channel.cancel(why)
        self._heard(None)

    def _grant(self, count: int) -> None:
        assert self.channel is not None
        self.channel.grant(count)


class Waiting:
    """Who is asked: answers now, or when there is something to say."""

    __slots__ = ("_channel",)

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        channel.listener = self

    def answer(self, body: bytes) -> None:
        """Say it; nothing happens if nobody waits for it any more."""
        if self._channel.is_open:
            self._channel.answer(DONE, body)

    def refuse(self) -> None:
        """Say that this node has no part in it."""
        if self._channel.is_open:
            self._channel.answer(NOT_PART)

    def answered(self, status: int, body: bytes, *, is_last: bool) -> None:
        raise AssertionError("we were asked")

    def piece(self, body: bytes, *, is_last: bool) -> None:
        raise AssertionError("the request was whole")

    def failed(self, error: Exception) -> None:
        """Nobody waits any more: `answer` will find that out."""

    def drained(self) -> None:
        """Nothing waits for that."""
