"""All connections of the native protocol: what they share, and how they stop.

They come in over the port of HTTP: a connection whose first byte is 0 speaks no HTTP, and is handed
over. TLS, its certificate and the address are that port's; who is there is asked as for HTTP and
gRPC, once, when the client logs in.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from waterclock.node.node import Node
from waterclock.node.task_groups import task_group
from waterclock.security.tls import common_name_of
from waterclock.server.access import Access
from waterclock.server.calls import BytesInFlight, Calls
from waterclock.server.counts import Counts
from waterclock.server.grpc.server import MethodTable, request_bytes_max
from waterclock.server.http.identity import host_of
from waterclock.server.http.server import HttpServer
from waterclock.server.native.link import STOPS, ClientLink

LINKS_MAX: Final = 10_000
"""Connections at once; each takes a few KiB."""
DRAIN_STEP_S: Final = 0.02


class NativeServer:
    """Serves the native protocol, while inside of `on`."""

    def __init__(
        self,
        node: Node,
        calls: Calls,
        access: Access,
        counts: Counts,
        publishing: BytesInFlight,
        methods: MethodTable,
    ) -> None:
        self.node = node
        self.calls = calls
        self.access = access
        self.counts = counts
        self.publishing = publishing
        """Bytes of all publishes, over whatever protocol."""
        self.receiving = BytesInFlight(
            "bytes of requests that arrive", node.config.server.receive_bytes_max
        )
        self.request_bytes_max = request_bytes_max(node.config)
        self.methods = methods
        self.tasks: asyncio.TaskGroup
        self.links: set[ClientLink] = set()
        self.is_stopping = False

    def __repr__(self) -> str:
        return f"<NativeServer {len(self.links)} links>"

    @asynccontextmanager
    async def on(self, http_server: HttpServer) -> AsyncIterator[None]:
        """Take connections of a port of HTTP while inside; those that are open then end."""
        async with task_group() as self.tasks:
            http_server.native = self.take
            try:
                yield
            finally:
                http_server.native = None
                self.close()

    def take(self, transport: asyncio.Transport, data: bytes) -> None:
        """Go on with a connection of which this has come so far."""
        certificate = transport.get_extra_info("peercert")
        link = ClientLink(self, host_of(transport), common_name_of(certificate))
        transport.set_protocol(link)
        link.connection_made(transport)
        if len(self.links) > LINKS_MAX:
            link.close(f"connections: {LINKS_MAX} are open already, which is the most")
        elif self.is_stopping:
            link.close(STOPS)
        else:
            link.data_received(data)

    def stop(self) -> None:
        """Take no more publishes and calls; what is under way is answered."""
        self.is_stopping = True
        for link in tuple(self.links):
            link.stop()

    async def drain(self, seconds: float) -> None:
        """Return when what was asked is answered and sent, or after so long."""
        try:
            async with asyncio.timeout(seconds):
                while any(link.is_busy for link in self.links):  # noqa: ASYNC110
                    await asyncio.sleep(DRAIN_STEP_S)
        except TimeoutError:
            return

    def close(self) -> None:
        """End all connections as they are."""
        for link in tuple(self.links):
            link.close(STOPS)
            link.abort_soon()
