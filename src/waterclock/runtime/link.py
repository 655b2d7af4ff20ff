"""One connection on an event loop: what every protocol over it needs to know and to do."""

import asyncio
from typing import cast


class Link(asyncio.Protocol):
    """A connection that is open, or was. It is used once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.heard_at = self.said_at = self._loop.time()

    @property
    def is_open(self) -> bool:
        """Whether something can be sent, as far as anybody knows."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        """What the other side has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, data: bytes) -> None:
        """Send bytes, if the connection is still open."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            self.said_at = self._loop.time()

    def abort(self) -> None:
        """Close at once: what is not sent yet is not sent any more."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has no such base
