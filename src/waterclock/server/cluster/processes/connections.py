"""Connections of the shared port go to the process that answers them, so that requests need no hop.

The kernel gives a connection to any process. If another one has to be asked for what comes over it,
again and again, it is handed to that one: the descriptor, and the bytes that have come and nobody
has looked at, in one message between the two. The client notices nothing. Only a connection with
nothing under way is handed: no request half read or waiting, no answer unsent. TLS stays where it
is, for its keys cannot be handed.

A connection whose requests are for several processes would go back and forth. So each time it was
handed it has to be worth four times as much before it is again.

Processes find each other by names that only this machine knows (`unix(7)`, abstract), made of the
address that they share. Both sides look that the other is of the same user. What is sent to a
process that ends before it reads it is closed by the kernel, as its other connections are.
"""

import asyncio
import logging
import os
import socket
import struct
import sys
from typing import Final

from waterclock.model.units import KIB
from waterclock.server.http.connection import HttpConnection
from waterclock.server.http.server import HttpServer

FORWARDED_MIN: Final = 4
"""After so many requests that another process answered, a connection is handed to it. Lower is
sooner right, and hands more connections that ask for a little of everything."""
MOVES_MAX: Final = 10
"""From then on it stays: to be worth it would take millions of requests."""
DATA_BYTES_MAX: Final = 32 * KIB
"""Of a request that has begun; a longer one is forwarded."""
BACKLOG: Final = 64
PAUSE_S: Final = 1.0
"""Before processes are heard again, if there was no descriptor left for what they bring."""
_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user and group."""

log = logging.getLogger(__name__)


class SharedConnections:
    """Hands connections of a server to other processes, and takes theirs."""

    def __init__(self, server: HttpServer, address: str, name: str) -> None:
        """`address` is what the processes share, `name` this one's."""
        self._server = server
        self._address = address
        self._loop = server.loop
        self._links: dict[str, socket.socket] = {}
        """To other processes, by name."""
        self._heard: set[socket.socket] = set()
        """From other processes."""
        self.handed = 0
        self.taken = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        try:
            self._listener.bind(self._path(name))
        except OSError:
            self._listener.close()
            raise
        self._listener.listen(BACKLOG)
        self._hear()

    def __repr__(self) -> str:
        return f"<SharedConnections {self.handed} handed, {self.taken} taken>"

    def _path(self, name: str) -> str:
        return f"\0waterclock/{self._address}/{name}"

    # Handing

    def was_forwarded(self, connection: HttpConnection, owner: str) -> None:
        """Note that another process has answered a request that came over a connection."""
        if not 0 <= connection.moves < MOVES_MAX:
            return
        connection.forwarded += 1
        if connection.forwarded >= FORWARDED_MIN << 2 * connection.moves:
            connection.hear_next(_Leaving(self, connection, owner))

    def hand(self, connection: HttpConnection, owner: str, data: bytes) -> bool:
        """Let a connection go to another process, with what has come of it; False if it cannot."""
        if len(data) > DATA_BYTES_MAX or not connection.is_between_requests:
            return False
        link = self._links.get(owner) or self._connect(owner)
        if link is None:
            return False
        message = b"%c%b" % (connection.moves + 1, data)
        try:
            socket.send_fds(link, [message], [connection.descriptor])
        except BlockingIOError:  # it has a lot to do: this one stays for now
            return False
        except OSError as error:
            log.debug("%s takes no connections: %s", owner, error)
            self._links.pop(owner).close()
            return False
        self.handed += 1
        return True

    def _connect(self, owner: str) -> socket.socket | None:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.setblocking(False)
        try:
            link.connect(self._path(owner))
        except OSError as error:
            log.debug("%s takes no connections: %s", owner, error)
            link.close()
            return None
        if not _is_ours(link):
            link.close()
            return None
        self._links[owner] = link
        return link

    # Taking

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log.warning("handed_connections_wait: %s", error)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(PAUSE_S, self._hear)
                return
            link.setblocking(False)
            if _is_ours(link):
                self._heard.add(link)
                self._loop.add_reader(link, self._read, link)
            else:
                link.close()

    def _hear(self) -> None:
        """Let other processes come."""
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _read(self, link: socket.socket) -> None:
        """Take all that was handed; what there is no descriptor for stays with the kernel."""
        while True:
            try:
                os.close(os.dup(link.fileno()))  # else the next one would come without its own
            except OSError as error:
                if self._listener.fileno() >= 0:
                    self._pause(link, error)
                    return
            try:
                data, descriptors, _, _ = socket.recv_fds(link, DATA_BYTES_MAX + 1, 1)
            except BlockingIOError:
                return
            except OSError:
                data, descriptors = b"", []
            if not data:
                self._forget(link)
                return
            if not descriptors:  # another thread took the last one, or this process ends
                log.warning("handed_connection_lost: no descriptor came with it")
                continue
            self.taken += 1
            given = socket.socket(fileno=descriptors[0])
            given.setblocking(False)
            given.set_inheritable(False)  # as that of a connection that was accepted
            self._server.tasks.create_task(self._take(given, data[0], data[1:]))

    def _pause(self, link: socket.socket, error: OSError) -> None:
        """Read on when descriptors may be free again."""
        log.warning("handed_connections_wait: %s", error)
        self._loop.remove_reader(link)
        self._loop.call_later(PAUSE_S, self._resume, link)

    def _resume(self, link: socket.socket) -> None:
        if link in self._heard:
            self._loop.add_reader(link, self._read, link)

    async def _take(self, given: socket.socket, moves: int, data: bytes) -> None:
        connection = HttpConnection(self._server)
        connection.moves = moves
        try:
            await self._loop.connect_accepted_socket(lambda: _Arriving(connection, data), given)
        except OSError as error:  # it is gone
            log.debug("a connection that was handed over is gone: %s", error)
            given.close()

    def _forget(self, link: socket.socket) -> None:
        self._loop.remove_reader(link)
        self._heard.discard(link)
        link.close()

    def close(self) -> None:
        """Hand and take no more; what was handed to this process by now is taken yet. Twice does no
        harm."""
        if self._listener.fileno() < 0:
            return
        self._loop.remove_reader(self._listener)
        self._accept()
        self._listener.close()
        for link in self._links.values():
            link.close()
        self._links.clear()
        for link in tuple(self._heard):
            link.shutdown(socket.SHUT_RD)  # from here on, who sends hears that nobody reads
            self._read(link)


class _Leaving(asyncio.Protocol):
    """Hears what comes next of a connection that should go to another process."""

    def __init__(self, shared: SharedConnections, connection: HttpConnection, owner: str) -> None:
        self._shared = shared
        self._connection = connection
        self._owner = owner

    def data_received(self, data: bytes) -> None:
        """Let it go with this, or go on as before."""
        connection = self._connection
        connection.hear_next(connection)
        if self._shared.hand(connection, self._owner, data):
            connection.leave()
        else:
            connection.data_received(data)

    def eof_received(self) -> bool | None:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


class _Arriving(asyncio.Protocol):
    """Begins with what has come before; the connection goes on."""

    def __init__(self, connection: HttpConnection, data: bytes) -> None:
        self._connection = connection
        self._data = data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.set_protocol(self._connection)
        self._connection.connection_made(transport)
        self._connection.data_received(self._data)


def _is_ours(link: socket.socket) -> bool:
    """Whether a process of the same user is on the other side."""
    found = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(found)
    return bool(user == os.geteuid())


def shared_connections(server: HttpServer, address: str, name: str) -> SharedConnections | None:
    """Return what brings connections to the process that answers them; None where the system has no
    names for that, or another has the name: then requests take their hop, as before."""
    if sys.platform != "linux":
        return None
    try:
        return SharedConnections(server, address, name)
    except OSError as error:
        log.warning("connections_stay name=%s reason=%s", name, error)
        return None
