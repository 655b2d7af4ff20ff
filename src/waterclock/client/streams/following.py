"""Following a stream: every message once, in order, through lost connections and restarts.

It asks by long polls, each from behind the last message that came: an answer that is lost on the
way is asked for again, and nothing is taken twice. A node that is away is waited for.

For a named consumer that is also how the node hears how far it has come: each poll confirms what
was handed out before it, and one that never comes back has confirmed nothing else. So a consumer
gets every message at least once: after a crash, those since its last poll again.
"""

from collections import deque
from contextlib import suppress
from typing import Any

from waterclock.client.nodes import NodeWait
from waterclock.client.retry import is_transient
from waterclock.client.streams.calls import StreamCalls
from waterclock.client.streams.http_request import HttpRequest
from waterclock.client.streams.results import StreamMessage, page_of
from waterclock.model.errors import Closed, Gone, MatchTimeout, WaterclockError

MESSAGES_AT_ONCE = 64
EARLIEST = "earliest"
LATEST = "latest"
CONFIRMED = "confirmed"
QUICK_MS = 1_000
"""A node that answers sooner, without a message, is asked again after a pause."""


class Following:
    """Messages of a stream as they come. Iterate with `async for`; to end, leave the loop."""

    def __init__(
        self, calls: StreamCalls, stream: str, consumer: str | None, resume: str | None
    ) -> None:
        self.stream = stream
        self._calls = calls
        self._wait = NodeWait(calls.connection.nodes, calls.connection.clock)
        self._consumer = consumer
        self._behind = resume or (EARLIEST if consumer is None else CONFIRMED)
        """What the next poll goes on after."""
        self._waiting: deque[StreamMessage] = deque()
        from asyncio import Lock  # here, for commands that follow nothing load this module too

        self._turn = Lock()
        self.resume_token = resume
        """To go on after the last message that was handed out; None if there was none."""

    def __repr__(self) -> str:
        return f"<Following {self.stream!r} from {self.resume_token or self._behind}>"

    async def confirm(self) -> None:
        """Tell the node that the messages handed out so far are done with: before leaving, so that
        this consumer does not get them again. A follower that goes on does so by itself."""
        token = self.resume_token
        if self._consumer is None or token in (None, EARLIEST, LATEST, CONFIRMED):
            return
        query = {**self._query(limit=1), "resumeToken": token, "timeout": "0ms"}
        request = HttpRequest("GET", "/streams/receive", query, is_poll=True)
        with suppress(MatchTimeout, Gone):
            await self._calls.call(lambda _: request, is_safe=True)

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
        """Wait until there are messages to take. Cancelling the wait loses none."""
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
            except MatchTimeout as timeout:
                self._behind = timeout.resume_token or self._behind
                if connection.clock.monotonic_ms() - began_ms >= QUICK_MS:
                    backoff.reset()
                    continue
            except WaterclockError as error:
                if isinstance(error, Closed) or not is_transient(error):
                    raise
                self._wait.away(error)
            else:
                self._wait.here()
                with self._calls.reading():
                    batch = page_of(self.stream, answer)
                    self._behind = batch[-1].resume_token
                self._waiting.extend(batch)
                return
            await connection.pause(backoff.next_ms())

    async def _poll(self) -> dict[str, Any]:
        query = {**self._query(limit=MESSAGES_AT_ONCE), "resumeToken": self._behind}
        request = HttpRequest("GET", "/streams/receive", query, is_poll=True)
        # It says from where, so it takes nothing away: an answer that was lost can be had again.
        return await self._calls.call(lambda _: request, wait_ms=None, is_safe=True)

    def _query(self, *, limit: int) -> dict[str, object]:
        query: dict[str, object] = {"streamId": self.stream, "limit": limit}
        if self._consumer is not None:
            query["consumerId"] = self._consumer
        return query
