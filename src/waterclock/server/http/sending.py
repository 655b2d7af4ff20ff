"""An answer in pieces on its way out: one task that pulls, writes, and waits for the client.

the pieces end           the last chunk is written, the connection goes on
the client goes          the task is cancelled where it waits
the server stops         likewise, but the last chunk is written: what was sent is whole pieces;
                         one with a Content-Length goes on to its end
the pieces raise         the connection is cut off, so that nobody takes a part for the whole
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from waterclock.model.errors import Unavailable
from waterclock.server.http.messages import Answered, Pending, Piece, Streamed
from waterclock.server.statuses import log_unforeseen

if TYPE_CHECKING:
    from waterclock.server.http.connection import HttpConnection

log = logging.getLogger(__name__)


class Sending:
    """Sends the pieces of one answer."""

    __slots__ = (
        "_connection",
        "_drained",
        "_is_whole",
        "_streamed",
        "_task",
        "is_chunked",
        "is_last",
    )

    _task: asyncio.Task[None]

    def __init__(
        self, streamed: Streamed, connection: "HttpConnection", *, is_chunked: bool, is_last: bool
    ) -> None:
        self.is_chunked = is_chunked
        self.is_last = is_last
        self._streamed = streamed
        self._connection = connection
        self._drained: asyncio.Future[None] | None = None
        self._is_whole = True

    def __repr__(self) -> str:
        return f"<Sending {self._streamed!r}>"

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to pull; the head is written."""
        self._task = tasks.create_task(self._run())
        self._task.add_done_callback(self._over)

    def cancel(self) -> None:
        """End because the client has gone."""
        self._is_whole = False
        self._task.cancel()

    def stop(self) -> None:
        """End because the server stops."""
        if self._streamed.length is None:
            self._task.cancel()

    def resume(self) -> None:
        """Go on: what was written is sent."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def _run(self) -> None:
        try:
            try:
                async for piece in self._streamed.pieces:
                    if piece and not self._connection.send_piece(self._framed(piece)):
                        await self._wait_until_drained()
            finally:
                close = getattr(self._streamed.pieces, "aclose", None)
                if close is not None:
                    await close()
        except Unavailable as error:  # of another node: the client sees that it is not whole
            self._is_whole = False
            log.warning("answer_cut_off answer=%r error=%s", self._streamed, error)
        except Exception as error:
            self._is_whole = False
            log_unforeseen(repr(self._streamed), error)

    async def _wait_until_drained(self) -> None:
        self._drained = asyncio.get_running_loop().create_future()
        try:
            await self._drained
        finally:
            self._drained = None

    def _framed(self, piece: Piece) -> list[Piece]:
        return [b"%x\r\n" % len(piece), piece, b"\r\n"] if self.is_chunked else [piece]

    def _over(self, _: asyncio.Task[None]) -> None:
        dispose(self._streamed)
        self._connection.sent(self, is_whole=self._is_whole)


def dispose(answered: Answered) -> None:
    """Let go of an answer that is over, or that nobody will get."""
    if isinstance(answered, Pending):
        answered.cancel()
    elif isinstance(answered, Streamed) and answered.on_over is not None:
        on_over, answered.on_over = answered.on_over, None
        on_over()
