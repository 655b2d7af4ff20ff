"""A worker's connection to a leader: frames in, frames out, and when either was silent for long."""

import asyncio
from collections.abc import Callable
from typing import cast

from waterclock.dispatch.decoder import WORKER_READS, Decoder
from waterclock.dispatch.frames import (
    BadFrame,
    Frame,
    Welcome,
    encode_close,
)


class LeaderLink(asyncio.Protocol):
    """One connection, dialled by either side; the worker speaks first."""

    def __init__(
        self,
        *,
        on_made: Callable[["LeaderLink"], None],
        on_frames: Callable[["LeaderLink", list[Frame]], None],
        on_lost: Callable[["LeaderLink"], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_made, self._on_frames, self._on_lost = on_made, on_frames, on_lost
        self._decoder = Decoder(WORKER_READS)
        self._transport: asyncio.Transport | None = None
        self.welcome: Welcome | None = None
        self.is_stale = False
        """Another leader with a higher epoch has welcomed us: nothing counts that comes here."""
        self.heard_at = self.said_at = self._loop.time()
        self.credit = 0
        """What we last said it may be."""
        self.extended_at = 0.0
        """When we last asked for more time."""

    def __repr__(self) -> str:
        epoch = self.welcome.epoch if self.welcome else "?"
        return f"<LeaderLink epoch {epoch}{', stale' if self.is_stale else ''}>"

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def epoch(self) -> int:
        """The leader's, 0 before its welcome."""
        return self.welcome.epoch if self.welcome else 0

    def send(self, frame: bytes) -> None:
        """Send a frame, if there is still somebody to send it to."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)
            self.said_at = self._loop.time()

    def close(self, reason: str = "", *, epoch: int = 0) -> None:
        """Close it, after a last frame that says why."""
        if reason:
            self.send(encode_close(epoch=epoch, reason=reason))
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close it at once: nobody is there who would read a last frame."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._on_made(self)

    def data_received(self, data: bytes) -> None:
        """Hand on whole frames."""
        self.heard_at = self._loop.time()
        try:
            frames = self._decoder.feed(data)
        except BadFrame as bad:
            self._on_frames(self, list(bad.frames))
            self.close(bad.reason)
            return
        if frames:
            self._on_frames(self, frames)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the worker."""
        self._on_lost(self)
