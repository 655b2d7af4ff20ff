"""Doors to one node: addresses of their own, which open and shut as nodes come and go."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.client.http_peers import Proxy


class Door(Proxy):
    """A proxy that stops listening, and listens again at the same address."""

    _server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def open(self) -> None:
        """Listen; connections go to the node."""
        self._server = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def shut(self) -> None:
        """Be gone, as a node that is killed: what is open breaks, and nothing new is taken."""
        assert self._server is not None
        self._server.close()
        self.cut()

    def lead_to(self, port: int) -> None:
        """Have new connections go to another port."""
        self._target = port


@asynccontextmanager
async def doors_to(port: int, count: int = 2) -> AsyncIterator[list[Door]]:
    """Open some doors to a port of this machine."""
    doors = [Door(port) for _ in range(count)]
    for door in doors:
        await door.open()
    try:
        yield doors
    finally:
        for door in doors:
            door.shut()
