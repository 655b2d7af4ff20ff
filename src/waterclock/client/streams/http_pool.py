"""Connections to one HTTP address, kept open between requests and shared by all callers.

Each request has a connection for itself while it lasts. There are at most so many at once; the
next caller waits for one. Those that only wait for a message (polls) have connections of their own,
so that they never keep away the very send they wait for.
"""

import asyncio
import ssl

from waterclock.client.errors import NotConnected, needs_tls, tls_failure, unreachable
from waterclock.client.streams.http_request import (
    ConnectionBroken,
    HttpAnswer,
    HttpRequest,
    encoded_request,
    request_head,
)
from waterclock.client.streams.http_wire import HttpConnection
from waterclock.client.tls_probe import speaks_tls
from waterclock.model.errors import Closed, Overloaded, TimedOut, WaterclockError
from waterclock.security.credential import Credential
from waterclock.security.tls import client_context

IDLE_S = 30.0
"""A connection that was idle for longer is not used again: less than nodes and most proxies keep
one, so that a request does not meet a connection that is being closed."""


class HttpPool:
    """Connections to the node at a URL such as `http://localhost:8080`.

    With a credential they are of TLS, and its token goes with every request.
    """

    def __init__(
        self, url: str, *, connections_max: int, credential: Credential | None = None
    ) -> None:
        self.url = url
        self._host, self._port, self._head = request_head(url, credential)
        self._tls = None if credential is None else client_context(credential.ca_pem)
        self._connections_max = connections_max
        self._places = {is_poll: asyncio.Semaphore(connections_max) for is_poll in (False, True)}
        self._idle: list[HttpConnection] = []
        """The one used last is at the end."""
        self._all: set[HttpConnection] = set()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<HttpPool {self.url}, {len(self._all)} open, {len(self._idle)} idle>"

    def __len__(self) -> int:
        return len(self._all)

    @property
    def idle(self) -> int:
        """How many connections wait for a request."""
        return len(self._idle)

    async def ask(self, request: HttpRequest, *, timeout_s: float) -> HttpAnswer:
        """Return the answer to a request; if none comes in time, raise TimedOut."""
        data = encoded_request(self._head, request)
        stage = "waiting"
        try:
            async with asyncio.timeout(timeout_s), self._places[request.is_poll]:
                stage = "connecting"
                connection = self._take() or await self._connect()
                stage = "asking"
                return await self._ask(connection, data)
        except TimeoutError:
            raise self._too_late(stage) from None

    def _too_late(self, stage: str) -> WaterclockError:
        match stage:
            case "waiting":
                return Overloaded("requests about streams", self._connections_max)
            case "connecting":
                return self._not_connected("no answer")
            case _:
                return TimedOut(f"{self.url} did not answer in time")

    async def _ask(self, connection: HttpConnection, data: bytes) -> HttpAnswer:
        try:
            answer = await connection.ask(data)
        except ConnectionBroken as error:
            self._check_open()
            if not connection.has_heard and await self._lacks_tls():
                raise needs_tls(self.url) from None
            lost = f"the connection to {self.url} was lost, what was asked may have happened"
            raise ConnectionBroken(f"{lost}: {error}") from None
        if connection.is_usable and not self._is_closed:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        return answer

    def close(self) -> None:
        """Hang up; calls that wait for an answer raise Closed."""
        self._is_closed = True
        for connection in [*self._all]:
            connection.abort()

    def _take(self) -> HttpConnection | None:
        self._check_open()
        oldest = asyncio.get_running_loop().time() - IDLE_S
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.pop(0).abort()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
        return None

    async def _connect(self) -> HttpConnection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: HttpConnection(self._lost), self._host, self._port, ssl=self._tls
            )
        except ssl.SSLError as error:
            failure = tls_failure(self.url, str(error))
            raise failure or self._not_connected(error.reason or str(error)) from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise self._not_connected(reason) from None
        self._all.add(connection)
        if self._is_closed:
            connection.abort()
        self._check_open()
        return connection

    async def _lacks_tls(self) -> bool:
        return self._tls is None and await speaks_tls(self._host, self._port)

    def _not_connected(self, reason: str) -> NotConnected:
        return NotConnected(str(unreachable(self.url, reason)))

    def _lost(self, connection: HttpConnection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the client was closed")
