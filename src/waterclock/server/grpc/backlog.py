"""What connections have sent that no call has been given yet: the bound for streams of requests.

A stream waits for its next request by reading, and gRPC then takes in whatever comes, up to the
largest request there may be; that it has begun to come, gRPC does not say. So the sockets are
asked. What a connection has sent, less what its calls were given and what HTTP/2 and TLS add, is
what gRPC holds of it. If that is more than there is room for, over all connections, the streams of
the one with the most are ended.

Sockets are looked at each second, and at once when the process has grown. Where the system does not
tell (it is not Linux) there is no such bound.
"""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote

from grpc.aio import ServicerContext

from waterclock.model.errors import Unavailable
from waterclock.model.units import MIB

LOOK_S = 0.05
LOOKS_BETWEEN = 20
"""Every so many looks the sockets are asked, also if the process has not grown."""
GROWN_BYTES = 32 * MIB
NATIVE = "native:"
"""How a peer begins that does not speak gRPC: what is held of it is known where it is read."""
CONNECTIONS_MAX = 10_000
"""Those known, besides the ones that have streams."""

REQUEST_BYTES = 512
"""What a request costs beside itself, at most: headers, frames, records."""
SHARE = 50
"""One part in so many of what is sent either way is frames, records and windows."""

Context = ServicerContext[Any, Any]

# struct tcp_info: bytes_acked and bytes_received, since Linux 4.1.
_TCP_INFO = struct.Struct("@120xQQ")
_MAPPED = "::ffff:"
"""Before an address of IPv4, on a socket of both."""


class Traffic(NamedTuple):
    """Bytes that a socket has sent and received."""

    sent: int
    received: int


class Connection:
    """A connection, since its first call."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        """As sockets have it."""
        self.streams: set[asyncio.Timeout] = set()
        self.given = 0
        """What its calls were given since the start, and what that may have cost beside."""
        self.fd: int | None = None
        self._start = Traffic(0, 0)

    def held(self, now: Traffic) -> int:
        """Return what gRPC holds of it."""
        overhead = (now.sent - self._start.sent) // SHARE
        held = now.received - self._start.received - self.given - overhead
        if held < 0:  # requests that were compressed, or a rich estimate: nothing to draw on later
            self._start, self.given = now, 0
        return max(0, held)


class Backlog:
    """Bounds what is held of streams. Keep `run` running."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._connections: dict[str, Connection] = {}
        """By what gRPC calls them."""

    def __repr__(self) -> str:
        return f"<Backlog of {len(self._connections)} connections>"

    @asynccontextmanager
    async def watching(self, context: Context) -> AsyncIterator[None]:
        """Serve a stream inside; raises Unavailable if its connection sends more than there is room
        for."""
        if context.peer().startswith(NATIVE):
            yield
            return
        connection = self._connection(context)
        limit = asyncio.timeout(None)
        connection.streams.add(limit)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise Unavailable(
                "the connection has sent more than there is room for: send less at once"
            ) from None
        finally:
            connection.streams.discard(limit)

    def note(self, context: Context, size: int) -> None:
        """A call was given a request."""
        if context.peer().startswith(NATIVE):
            return
        self._connection(context).given += size + size // SHARE + REQUEST_BYTES

    def _connection(self, context: Context) -> Connection:
        peer = context.peer()
        connection = self._connections.get(peer)
        if connection is None:
            if len(self._connections) >= CONNECTIONS_MAX:
                self._forget()
            connection = self._connections[peer] = Connection(plain(peer))
        return connection

    def _forget(self) -> None:
        """Forget connections without streams; gRPC does not say when one is closed. Should one that
        has sent much open a stream later, that may be ended once for nothing."""
        for peer, connection in list(self._connections.items()):
            if not connection.streams:
                del self._connections[peer]

    async def run(self) -> None:
        """Look at the connections until cancelled."""
        looks, calm_bytes = 0, resident_bytes()
        while True:
            await asyncio.sleep(LOOK_S)
            looks += 1
            now_bytes = resident_bytes()
            calm_bytes = min(calm_bytes, now_bytes)
            if looks % LOOKS_BETWEEN and now_bytes < calm_bytes + GROWN_BYTES:
                continue
            if self.look() < GROWN_BYTES:
                calm_bytes = now_bytes

    def look(self) -> int:
        """End the streams of those who send too much; return how many bytes are held."""
        watched = [each for each in self._connections.values() if each.streams]
        _find_sockets(watched)
        held: list[tuple[int, Connection]] = []
        for connection in watched:
            traffic = traffic_of(connection.fd, connection.peer)
            if traffic is None:
                connection.fd = None
            else:
                held.append((connection.held(traffic), connection))
        total = left = sum(size for size, _ in held)
        now = asyncio.get_running_loop().time()
        for size, connection in sorted(held, key=lambda each: each[0], reverse=True):
            if left <= self._bytes_max:
                break
            left -= size
            for limit in connection.streams:
                if not limit.expired():
                    limit.reschedule(now)
        return total


def _find_sockets(watched: Sequence[Connection]) -> None:
    """Learn which socket each connection has: gRPC does not say."""
    if all(connection.fd is not None for connection in watched):
        return
    found = sockets()
    for connection in watched:
        connection.fd = found.get(connection.peer)


def traffic_of(fd: int | None, peer: str) -> Traffic | None:
    """Return what a socket has sent and received; None if it is not that connection's any more."""
    if fd is None:
        return None
    try:
        with _duplicate(fd) as own:
            if peer_of(own) != peer:
                return None
            info = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:  # it was closed
        return None
    return Traffic(*_TCP_INFO.unpack(info)) if len(info) == _TCP_INFO.size else None


def sockets() -> dict[str, int]:
    """Return the sockets of this process, by whom they are connected to."""
    found: dict[str, int] = {}
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:  # it is not Linux, or no file can be opened for now
        return found
    for name in names:
        try:
            with _duplicate(int(name)) as own:
                found[peer_of(own)] = int(name)
        except OSError:  # not a socket, or not connected
            continue
    return found


def _duplicate(fd: int) -> socket.socket:
    """Return a socket of our own beside gRPC's; raises OSError, also if it is no socket."""
    own = os.dup(fd)
    try:
        return socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise


def peer_of(own: socket.socket) -> str:
    """Return whom a socket is connected to, as `plain` has it; raises OSError."""
    if own.family not in (socket.AF_INET, socket.AF_INET6):
        raise OSError("not a socket of TCP")
    host, port, *_ = own.getpeername()
    return _peer(host, port)


def plain(peer: str) -> str:
    """Return what gRPC calls a peer, `ipv4:host:port` or `ipv6:[host]:port`, as sockets do."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _peer(host.strip("[]"), port)


def _peer(host: str, port: object) -> str:
    return f"{host.removeprefix(_MAPPED)} {port}"


def resident_bytes() -> int:
    """Return the memory of this process that is its own, 0 if the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except OSError:  # it is not Linux, or no file can be opened for now
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
