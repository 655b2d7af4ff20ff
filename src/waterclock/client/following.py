"""Following a stream: every message once, in order, through lost connections and restarts.

It asks by long polls, each from behind the last message that came: an answer that is lost on the
way is asked for again, and nothing is taken twice. A node that is away is waited for.
"""

import asyncio
from collections import deque
from typing import Any

from waterclock.client.http_pool import HttpRequest
from waterclock.client.retry import is_transient
from waterclock.client.stream_calls import StreamCalls
from waterclock.client.stream_results import StreamMessage, page_of
from waterclock.model.errors import Closed, Gone, NobodyCame, WaterclockError

MESSAGES_AT_ONCE = 64
EARLIEST = "earliest"
LATEST = "latest"
QUICK_MS = 1_000
"""A node that lets nobody wait for so long is asked again after a pause."""


class Following:
    """Messages of a stream as they come. Iterate with `async for`; to end, leave the loop."""

    def __init__(
        self, calls: StreamCalls, stream: str, consumer: str | None, resume: str | None
    ) -> None:
        self.stream = stream
        self._calls = calls
        self._consumer = consumer
        self._behind = resume if resume or consumer else EARLIEST
        """What the next poll goes on after."""
        self._waiting: deque[StreamMessage] = deque()
        self._turn = asyncio.Lock()
        self.resume_token = resume
        """To go on after the last message that was handed out; None if there was none."""

    def __repr__(self) -> str:
        return f"<Following {self.stream!r} from {self.resume_token or self._behind}>"

    def __aiter__(self) -> "Following":
        return self

    async def __anext__(self) -> StreamMessage:
        while (message := self.take()) is None:
            await self.fill()
        return message

    def take(self) -> StreamMessage | None:
        """Hand out a message that has come, if there is one."""
        if not self._waiting:
            return None
        message = self._waiting.popleft()
        self.resume_token = message.resume_token
        return message

    async def fill(self) -> None:
        """Wait until there are messages to take. Who is cancelled here has lost nothing."""
        async with self._turn:
            if not self._waiting:
                await self._fill()

    async def _fill(self) -> None:
        connection = self._calls.connection
        backoff = connection.backoff()
        while True:
            began_ms = connection.clock.monotonic_ms()
            try:
                answer = await self._poll()
            except Gone as gone:
                # The next poll goes on behind the gap. A stream the node has forgotten begins anew:
                # of what is in it now, nothing was seen.
                token = gone.resume_token
                self._behind = EARLIEST if token in ("", LATEST) else token
                raise
            except NobodyCame as nobody:
                self._behind = nobody.resume_token or self._behind
                if connection.clock.monotonic_ms() - began_ms >= QUICK_MS:
                    backoff.reset()
                    continue
            except WaterclockError as error:
                if isinstance(error, Closed) or not is_transient(error):
                    raise
            else:
                with self._calls.reading():
                    batch = page_of(self.stream, answer)
                    self._behind = batch[-1].resume_token
                self._waiting.extend(batch)
                return
            await asyncio.sleep(backoff.next_ms() / 1_000)

    async def _poll(self) -> dict[str, Any]:
        query: dict[str, object] = {"streamId": self.stream, "limit": MESSAGES_AT_ONCE}
        if self._consumer is not None:
            query["consumerId"] = self._consumer
        if self._behind is not None:
            query["resumeToken"] = self._behind
        request = HttpRequest("GET", "/streams/receive", query, is_poll=True)
        return await self._calls.call(lambda _: request, wait_ms=None, is_safe=True)
