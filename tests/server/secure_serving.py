"""A secure node in a thread of its own, and a client of its HTTP port that blocks."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple, cast

from tests.kit.aside import aside
from tests.server.served import config_in
from waterclock.model.units import DAY_MS
from waterclock.node.node import running_node
from waterclock.runtime.clock import SystemClock
from waterclock.security.folder import Grant, SecureFolder
from waterclock.security.quotas import UNBOUNDED, Quotas
from waterclock.security.rights import RightKind, parse_rights
from waterclock.security.tls import client_context
from waterclock.server.app import Server, serve

CLOCK = SystemClock()


class Answer(NamedTuple):
    """What a node said."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class SecureNode:
    """A node that is served, and its secure folder."""

    def __init__(self, folder: SecureFolder, server: Server, loop: asyncio.AbstractEventLoop):
        self.folder = folder
        self.server = server
        self.loop = loop
        self.port = server.http_port
        self.context = client_context(folder.ca.read_bytes())
        self.admin = f"Bearer {folder.admin_credential.read_text().strip()}"

    def add(
        self,
        name: str,
        quotas: Quotas = UNBOUNDED,
        *,
        lasts_ms: int = DAY_MS,
        **rights: str,
    ) -> str:
        """Let somebody in, now; return what they send."""
        now_ms = CLOCK.now_ms()
        kinds = {cast(RightKind, kind): texts.split() for kind, texts in rights.items()}
        grant = Grant(rights=parse_rights(kinds), quotas=quotas, expires_ms=now_ms + lasts_ms)
        credential = self.folder.add(name, grant, now_ms=now_ms, is_replacing=True)
        assert credential is not None
        self.reload()
        return f"Bearer {credential.token}"

    def reload(self) -> None:
        """Have the node go by its folder."""
        assert asyncio.run_coroutine_threadsafe(self.server.access.reload(), self.loop).result()

    def connect(self, context: ssl.SSLContext | None = None) -> HTTPSConnection:
        return HTTPSConnection("localhost", self.port, context=context or self.context, timeout=30)

    def ask(
        self,
        method: str,
        path: str,
        bearer: str | None,
        body: object = None,
        connection: HTTPSConnection | None = None,
    ) -> Answer:
        """Send one request, over a connection of its own unless one is given."""
        used = connection or self.connect()
        try:
            headers = {} if bearer is None else {"Authorization": bearer}
            data = None if body is None else json.dumps(body)
            used.request(method, path, body=data, headers=headers)
            answer = used.getresponse()
            facts = {name.lower(): value for name, value in answer.getheaders()}
            is_stream = facts.get("content-type", "").startswith("text/event-stream")
            return Answer(answer.status, facts, b"" if is_stream else answer.read())
        finally:
            if connection is None:
                used.close()


@contextmanager
def secure_node(folder: Path) -> Iterator[SecureNode]:
    """Secure a node, and serve it in a thread of its own."""
    secure = SecureFolder(folder / "secure")
    folder.mkdir(exist_ok=True)
    secure.make(grpc_port=1, http_port=2, now_ms=CLOCK.now_ms())
    config = config_in(folder)

    @asynccontextmanager
    async def opening() -> AsyncIterator[SecureNode]:
        async with running_node(config, CLOCK) as node, serve(node, config) as server:
            yield SecureNode(secure, server, asyncio.get_running_loop())

    with aside(opening) as it:
        yield it
