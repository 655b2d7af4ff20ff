"""A secure node, and calls to its gRPC port with one credential or another."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc

from tests.server.served import config_in
from waterclock.model.units import DAY_MS
from waterclock.node.node import running_node
from waterclock.runtime.clock import SystemClock
from waterclock.security.folder import Grant, SecureFolder
from waterclock.security.quotas import UNBOUNDED, Quotas
from waterclock.security.rights import RightKind, parse_rights
from waterclock.server.app import Server, serve

CLOCK = SystemClock()
Metadata = tuple[tuple[str, str], ...]


class SecureServed:
    """A node that is served, its secure folder, and a channel that trusts its CA."""

    def __init__(self, folder: SecureFolder, server: Server, channel: grpc.aio.Channel) -> None:
        self.folder = folder
        self.server = server
        self.channel = channel
        self.admin = bearer(folder.admin_credential.read_text().strip())

    async def add(
        self, name: str, quotas: Quotas = UNBOUNDED, *, lasts_ms: int = DAY_MS, **rights: str
    ) -> Metadata:
        """Let somebody in, now; return what they send."""
        now_ms = CLOCK.now_ms()
        kinds = {cast(RightKind, kind): texts.split() for kind, texts in rights.items()}
        grant = Grant(rights=parse_rights(kinds), quotas=quotas, expires_ms=now_ms + lasts_ms)
        credential = self.folder.add(name, grant, now_ms=now_ms, is_replacing=True)
        assert credential is not None
        assert await self.server.access.reload()
        return bearer(credential.encode())

    def unary(self, path: str, request: Any, metadata: Metadata | None) -> Any:
        """Call a method of one request and one answer, whatever it is; the answer is in bytes."""
        method: Any = self.channel.unary_unary(path)
        return method(request.SerializeToString(), metadata=metadata, timeout=30)

    def stream(self, path: str, metadata: Metadata | None) -> Any:
        return self.channel.stream_stream(path)(metadata=metadata, timeout=30)


def bearer(text: str) -> Metadata:
    return (("authorization", f"Bearer {text}"),)


@asynccontextmanager
async def secure_server(folder: Path, **sections: Any) -> AsyncIterator[SecureServed]:
    """Secure a node, serve it and connect to it."""
    secure = SecureFolder(folder / "secure")
    secure.make(grpc_port=1, http_port=2, now_ms=CLOCK.now_ms())
    config = config_in(folder, **sections)
    credentials = grpc.ssl_channel_credentials(secure.ca.read_bytes())
    async with running_node(config, CLOCK) as node, serve(node, config) as server:
        address = f"localhost:{server.grpc_port}"
        async with grpc.aio.secure_channel(address, credentials) as channel:
            yield SecureServed(secure, server, channel)
