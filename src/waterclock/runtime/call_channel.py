"""One call over a channel of the peer link: items in and out, each direction with its brake.

What has come and was not taken is bounded by the channel's credit: that is given back when an item
is taken, or at once for the beginning of an item that is longer than the credit.
"""

import asyncio
from collections import deque

from waterclock.cluster.peer_link.channels import Channel
from waterclock.cluster.remote_calls import BadCall, Item, ItemDecoder


class CallChannel:
    """One end of a call; the channel's listener. Set `channel` before anything can come."""

    __slots__ = (
        "_decoder",
        "_drained",
        "_error",
        "_is_answered",
        "_is_over",
        "_items",
        "_owed",
        "_wanted",
        "channel",
        "on_failed",
    )

    def __init__(self) -> None:
        self.channel: Channel
        self._decoder = ItemDecoder()
        self._items: deque[Item] = deque()
        self._owed = 0
        """Credit to give back when the items that came are taken."""
        self._error: Exception | None = None
        self._is_over = False
        """The other side says no more."""
        self._is_answered = False
        self._wanted: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self.on_failed: asyncio.Task[None] | None = None
        """Cancelled when the other side has gone."""

    def __repr__(self) -> str:
        return f"<CallChannel {len(self._items)} items>"

    @property
    def pending_bytes(self) -> int:
        """What has come of an item that is not whole."""
        return self._decoder.size_bytes

    # What the call does

    async def take(self) -> Item | None:
        """Return what comes next; None if there is no more. Raises why the channel failed."""
        while not self._items:
            if self._error is not None:
                raise self._error
            if self._is_over:
                return None
            self._wanted = asyncio.get_running_loop().create_future()
            await self._wanted
        item = self._items.popleft()
        if not self._items and self._owed:
            self.channel.grant(self._owed)
            self._owed = 0
        return item

    async def send(self, data: bytes, *, is_last: bool = False) -> None:
        """Say more of the request; returns when there is room for more."""
        self.channel.send(data, is_last=is_last)
        await self._until_drained()

    async def answer(self, data: bytes, *, is_last: bool = False) -> None:
        """Say more of the answer; returns when there is room for more, or nobody hears."""
        self._say(data, is_last=is_last)
        if not is_last:
            await self._until_drained()

    def end_now(self, data: bytes) -> None:
        """Say the last of the answer."""
        self._say(data, is_last=True)

    def _say(self, data: bytes, *, is_last: bool) -> None:
        if self._is_answered:
            self.channel.send(data, is_last=is_last)
        else:
            self._is_answered = True
            self.channel.answer(0, data, is_last=is_last)

    async def _until_drained(self) -> None:
        if self.channel.is_blocked and self.channel.is_open:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def hear(self, data: bytes, *, is_last: bool) -> None:
        """Take a piece of what the other side says."""
        try:
            self._items.extend(self._decoder.feed(data))
        except BadCall as error:
            self.channel.cancel(str(error))
            self.failed(error)
            return
        self._is_over |= is_last
        if self._items:
            self._owed += len(data)
        else:
            self.channel.grant(len(data))
        self._wake()

    # What the channel tells

    def answered(self, status: int, body: bytes, *, is_last: bool) -> None:
        self.hear(body, is_last=is_last)

    def piece(self, body: bytes, *, is_last: bool) -> None:
        self.hear(body, is_last=is_last)

    def failed(self, error: Exception) -> None:
        """The other side, or the way to it, is gone."""
        self._error = error
        self._wake()
        self.drained()
        if self.on_failed is not None:
            self.on_failed.cancel()

    def drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)
