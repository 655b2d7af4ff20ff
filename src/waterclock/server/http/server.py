"""All HTTP connections of one port: the listener, the limits, and the sweep that ends idle ones."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

from waterclock.model.config import Config
from waterclock.model.units import KIB, MIB
from waterclock.node.task_groups import task_group
from waterclock.server.access import Access
from waterclock.server.addresses import bind_errors
from waterclock.server.calls import BytesInFlight
from waterclock.server.http.connection import HttpConnection
from waterclock.server.http.counters import HttpCounters
from waterclock.server.http.cross_origin import CrossOriginGuard
from waterclock.server.http.known_heads import KnownHeads
from waterclock.server.http.messages import Handler, PlainHead, Request, Response
from waterclock.server.http.parser import STAYS
from waterclock.server.http.problems import problem_of

SWEEP_S = 1.0
DRAIN_STEP_S = 0.02
HANDSHAKE_S = 10.0
"""How long TLS may take to begin; slow loris again."""
SHUTDOWN_S = 5.0
"""How long a client has to read what it was sent last, and to close."""
BACKLOG = 4_096
"""Clients that may be connecting at once; the kernel may allow fewer."""
BODIES_BYTES_MAX = 512 * MIB
AROUND_BYTES = 1 * MIB
"""Of a body, beside the message: names of fields, escapes, headers, a list of other messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What HTTP clients may ask for."""

    connections_max: int = 20_000
    head_bytes_max: int = 16 * KIB
    body_bytes_max: int = 11 * MIB
    """Of one request, and of those of a connection that are ahead of their turn."""
    bodies_bytes_max: int = BODIES_BYTES_MAX
    """Of all requests that are being received, wait for their turn or are worked on."""
    pipelined_max: int = 1_000
    """Requests ahead of their turn, beyond those that came in one piece."""
    idle_s: int = 75
    """More than what proxies keep, so that they end a quiet connection, not we under them."""
    request_s: int = 30


def http_limits(config: Config) -> HttpLimits:
    """Return limits that let every message through that the node would take."""
    message_bytes = max(config.limits.message_bytes_max, config.streams.message_bytes_max)
    # In base64 it is a third longer, and there is something around it.
    body_bytes = message_bytes * 4 // 3 + AROUND_BYTES
    at_once = max(body_bytes, BODIES_BYTES_MAX)
    return HttpLimits(body_bytes_max=body_bytes, bodies_bytes_max=at_once)


class HttpServer:
    """All connections of one port. Make one with `serve_http`."""

    def __init__(
        self,
        answer: Handler,
        limits: HttpLimits,
        tasks: asyncio.TaskGroup,
        guard: CrossOriginGuard | None = None,
        stopping: Handler | None = None,
        access: Access | None = None,
        counters: HttpCounters | None = None,
    ) -> None:
        self.access = access if access is not None and access.is_secure else None
        """Who is let in; None: anyone."""
        self.counters = counters or HttpCounters()
        self.known_heads = KnownHeads(limits.head_bytes_max, limits.body_bytes_max)
        self.take(answer, guard=guard, stopping=stopping, access=access)
        self.limits = limits
        self.tasks = tasks
        self.loop = asyncio.get_running_loop()
        self.connections: set[HttpConnection] = set()
        self.bodies = BytesInFlight("bytes of HTTP requests", limits.bodies_bytes_max)
        self.native: Callable[[asyncio.Transport, bytes], None] | None = None
        """What goes on with connections that begin with a byte 0, and so speak no HTTP."""
        self.sweeps = 0
        self.is_stopping = False
        self.port = 0
        self._listeners: list[asyncio.Server] = []

    def __repr__(self) -> str:
        return f"<HttpServer :{self.port} {len(self.connections)} connections>"

    def take(
        self,
        answer: Handler,
        *,
        guard: CrossOriginGuard | None = None,
        stopping: Handler | None = None,
        access: Access | None = None,
    ) -> None:
        """Have requests answered so from now on, those of connections that stand as well."""
        self.answer = answer
        self._stopping = stopping or answer
        self.guard = guard or CrossOriginGuard()
        self.is_audited = access is not None and access.audit is not None
        self.known_heads.clear()
        self._renew_date()  # and the head of answers, in which the guard has lines

    async def listen(self, host: str, port: int, *, is_shared: bool = False) -> None:
        """Take connections, also of a port that other processes share; `port` is that of the first
        that is not. Raises BadConfig if the address is not to be had."""
        tls: dict[str, Any] = {} if self.access is None else tls_options(self.access)
        if is_shared:
            tls["reuse_port"] = True

        def connected() -> HttpConnection:
            connection = HttpConnection(self)
            connection.moves = 0 if is_shared else STAYS
            return connection

        with bind_errors("cluster.http_port", host, port):
            listener = await self.loop.create_server(connected, host, port, backlog=BACKLOG, **tls)
        self._listeners.append(listener)
        self.port = self.port or listener.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Take no connections and answer nothing any more; twice does no harm."""
        for listener in self._listeners:
            listener.close()
        self.stop()
        for connection in tuple(self.connections):
            connection.abort()

    def hand_over(self, transport: asyncio.Transport, data: bytes) -> None:
        """Have the native protocol go on with a connection of which this has come."""
        assert self.native is not None
        self.native(transport, data)

    def problem_of(self, error: BaseException, request: Request | None = None) -> Response:
        """Return what to answer; a refusal is counted."""
        if self.access is not None:
            self.access.refusals.note(error, "http")
        return problem_of(error, request)

    def sweep(self) -> None:
        """Count one more sweep: end connections that have outstayed, renew the date."""
        self.sweeps += 1
        self._renew_date()
        for connection in tuple(self.connections):
            connection.sweep()

    def _renew_date(self) -> None:
        self.date = _date_line()
        self.plain_head = PlainHead(self.date, self.guard.plain)

    async def keep_sweeping(self) -> None:
        """Sweep about once a second, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sweep()

    def stop(self) -> None:
        """Let answers under way be the last of their connections; those in pieces end here."""
        self.is_stopping = True
        self.answer = self._stopping
        self.known_heads.clear()
        for connection in tuple(self.connections):
            connection.stop()

    def recheck(self) -> None:
        """End what is under way for those who may not have it any more."""
        assert self.access is not None
        for connection in tuple(self.connections):
            connection.recheck(self.access)

    async def drain(self, seconds: float) -> None:
        """Return when what was asked is answered and sent, or after so long."""
        try:
            async with asyncio.timeout(seconds):
                while any(connection.is_busy for connection in self.connections):  # noqa: ASYNC110
                    await asyncio.sleep(DRAIN_STEP_S)
        except TimeoutError:
            return


@asynccontextmanager
async def serve_http(
    answer: Handler,
    *,
    host: str,
    port: int,
    limits: HttpLimits | None = None,
    guard: CrossOriginGuard | None = None,
    stopping: Handler | None = None,
    access: Access | None = None,
    counters: HttpCounters | None = None,
) -> AsyncIterator[HttpServer]:
    """Listen until left; whatever is still asked then goes unanswered. Once it stops, requests are
    answered by `stopping`. With a secure `access` it speaks TLS and asks for credentials."""
    async with task_group() as tasks:
        bounds = limits or HttpLimits()
        server = HttpServer(answer, bounds, tasks, guard, stopping, access, counters)
        if server.access is not None:
            server.access.on_recheck.append(server.recheck)
        await server.listen(host, port)
        sweeping = tasks.create_task(server.keep_sweeping())
        try:
            yield server
        finally:
            sweeping.cancel()
            server.close()


def tls_options(access: Access) -> dict[str, Any]:
    """Return what a listener needs to speak TLS."""
    return {
        "ssl": _listening_context(access),
        "ssl_handshake_timeout": HANDSHAKE_S,
        "ssl_shutdown_timeout": SHUTDOWN_S,
    }


def _listening_context(access: Access) -> ssl.SSLContext:
    """Return the context to listen with: each handshake takes the newest certificate."""

    def choose(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = access.context

    context = access.context
    context.sni_callback = choose
    return context


def _date_line() -> bytes:
    return f"Date: {formatdate(usegmt=True)}\r\n".encode()
