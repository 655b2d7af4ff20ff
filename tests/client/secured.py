"""Nodes that speak TLS and ask for a token: the fake one, and scripted answers over HTTPS."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import grpc

from tests.client.fake_node import FakeNode
from tests.client.http_peers import Said, Scripted
from waterclock.model.errors import NotAuthenticated, WaterclockError
from waterclock.security.credential import Credential
from waterclock.security.folder import SecureFolder
from waterclock.security.tls import server_context
from waterclock.server.statuses import status_of


def secured_folder(path: Path) -> SecureFolder:
    """Make a folder as `secure init` does."""
    folder = SecureFolder(path)
    folder.make(grpc_port=9000, http_port=8080, now_ms=time.time_ns() // 1_000_000)
    return folder


def credential_of(folder: SecureFolder, address: str = "", http_address: str = "") -> Credential:
    """Return the admin's, leading elsewhere."""
    known = Credential.read(f"@{folder.admin_credential}")
    return replace(
        known,
        grpc_address=address or known.grpc_address,
        http_address=http_address or known.http_address,
    )


class Guard(grpc.aio.ServerInterceptor):
    """Lets calls through that bear the token, until told otherwise."""

    def __init__(self, token: str) -> None:
        self._bearer = f"Bearer {token}"
        self.calls: list[str] = []
        self.refusal: WaterclockError | None = None

    async def intercept_service(self, continuation, details):
        self.calls.append(details.method)
        sent = dict(details.invocation_metadata).get("authorization")
        error = self.refusal
        if sent != self._bearer:
            error = NotAuthenticated("no token was sent")
        if error is None:
            return await continuation(details)
        return await _refused(continuation, details, error)


async def _refused(continuation, details, error):
    status = status_of(error, "guard")

    async def refuse(request: object, context: grpc.aio.ServicerContext[object, object]) -> None:
        await context.abort(status.code, status.details, status.trailers)

    handler = await continuation(details)
    if handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(refuse)
    return grpc.unary_unary_rpc_method_handler(refuse)


class SecuredNode(FakeNode):
    """The fake node, behind TLS and a guard."""

    def __init__(self, folder: SecureFolder) -> None:
        super().__init__()
        self.folder = folder
        self.guard = Guard(credential_of(folder).token)

    @property
    def credential(self) -> Credential:
        return credential_of(self.folder, self.address)

    def interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        return [self.guard]

    def listen(self, server: grpc.aio.Server, address: str) -> int:
        pair = (self.folder.node_key.read_bytes(), self.folder.node_certificate.read_bytes())
        return server.add_secure_port(address, grpc.ssl_server_credentials([pair]))


@contextlib.asynccontextmanager
async def secured_node(folder: SecureFolder, host: str = "127.0.0.1") -> AsyncIterator[SecuredNode]:
    """One that is running."""
    node = SecuredNode(folder)  # type: ignore[abstract]
    node.host = host
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


@contextlib.asynccontextmanager
async def scripted_tls(
    folder: SecureFolder, answers: Callable[[int], Said]
) -> AsyncIterator[Scripted]:
    """Listen for HTTPS on a free port of this machine."""
    peer = Scripted(answers)
    context = server_context(folder.node_certificate, folder.node_key)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=context)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
