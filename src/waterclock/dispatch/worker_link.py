"""A leader's connection to a worker, dialled by either side: frames in, frames out.

Whoever says HELLO takes batches. Who says nothing for a while is a worker of the simple kind, which
takes one message a frame (commands 0 and 1) and as many at once as it is configured for. What is no
frame closes this connection, with a reason, and no other.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from waterclock.dispatch.core.batches import HandOut
from waterclock.dispatch.decoder import LEADER_READS, Decoder
from waterclock.dispatch.frames import (
    BadFrame,
    Frame,
    encode_close,
    encode_process_batch,
    encode_process_message,
)


class WorkerLink(asyncio.Protocol):
    """One connection. `key` is its number in the plan."""

    def __init__(
        self,
        key: int,
        *,
        on_made: Callable[["WorkerLink"], None],
        on_frames: Callable[["WorkerLink", list[Frame]], None],
        on_lost: Callable[["WorkerLink"], None],
        on_bad: Callable[["WorkerLink", str], None],
    ) -> None:
        self.key = key
        self._loop = asyncio.get_running_loop()
        self._on_made, self._on_frames = on_made, on_frames
        self._on_lost, self._on_bad = on_lost, on_bad
        self._decoder = Decoder(LEADER_READS)
        self._transport: asyncio.Transport | None = None
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self.name = ""
        self.is_joined = False
        self.is_simple = False
        """It said no hello: one message a frame, no epochs, no signs of life."""
        self.made_at = self.heard_at = self.said_at = self._loop.time()

    def __repr__(self) -> str:
        return f"<WorkerLink {self.key} {self.name or 'nameless'}>"

    @property
    def unsent_bytes(self) -> int:
        """What the other side has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, frame: bytes) -> None:
        """Send a frame, if there is still somebody to send it to."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)
            self.said_at = self._loop.time()

    def hand(self, out: HandOut, epoch: int) -> None:
        """Send messages in the way this worker understands."""
        if self.is_simple:
            frames = map(encode_process_message, out.uuids, out.bodies)
            self.send(b"".join(frames))
            return
        self.send(
            encode_process_batch(
                epoch=epoch,
                deliveries=min(out.deliveries, 65_535),
                uuids=out.uuids,
                births_ms=out.births_ms,
                bodies=out.bodies,
            )
        )

    def close(self, reason: str, *, epoch: int = 0) -> None:
        """Close it, after a last frame that says why."""
        if not self.is_simple:
            self.send(encode_close(epoch=epoch, reason=reason))
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close it at once."""
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
            if bad.frames:
                self._on_frames(self, list(bad.frames))
            self._on_bad(self, bad.reason)
            return
        if frames:
            self._on_frames(self, frames)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the leader."""
        if not self.lost.done():
            self.lost.set_result(None)
        self._on_lost(self)
