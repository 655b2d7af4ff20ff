"""What is at the other end of an HTTP client: scripted bytes, or a proxy that can be cut."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

Said = list[bytes]
"""Pieces to write. The connection is kept, unless the last piece is `END`."""
END = b""


class Scripted:
    """A server that answers the n-th request it gets, on whichever connection, as told."""

    def __init__(self, answers: Callable[[int], Said]) -> None:
        self._answers = answers
        self.requests: list[bytes] = []
        self.connections = 0
        self.open = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        size = int(line.partition(b":")[2])
                self.requests.append(head + await reader.readexactly(size))
                said = self._answers(len(self.requests) - 1)
                for piece in said:
                    writer.write(piece)
                    await writer.drain()
                if said and said[-1] == END:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def scripted(answers: Callable[[int], Said]) -> AsyncIterator[Scripted]:
    """Listen on a free port of this machine."""
    peer = Scripted(answers)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()


def ok(body: bytes, headers: bytes = b"") -> list[bytes]:
    """Return a whole answer."""
    return [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%b\r\n%b" % (len(body), headers, body)]


def refusal(status: int, body: bytes = b"") -> list[bytes]:
    """Return an answer that is an error."""
    return [b"HTTP/1.1 %d Some Error\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)]


class Proxy:
    """Passes bytes on, until it is cut; it remembers what went by."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.connections = 0
        self.passed = 0
        """Bytes from the server."""
        self.cut_after: int | None = None
        """Cut, once, after so many bytes from the server; the rest of them is lost."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break every connection, as a failing network does."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            other_reader, other = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, other}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass(reader, other))
                tasks.create_task(self._pass(other_reader, writer, is_counted=True))
        finally:
            self._writers -= {writer, other}
            writer.transport.abort()
            other.transport.abort()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_counted: bool = False,
    ) -> None:
        try:
            while data := await reader.read(65_536):
                if is_counted and self.cut_after is not None:
                    left = self.cut_after - self.passed
                    if len(data) >= left:
                        self.cut_after = None
                        writer.write(data[:left])
                        await writer.drain()
                        self.cut()
                        return
                self.passed += len(data) if is_counted else 0
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def proxy_of(port: int) -> AsyncIterator[Proxy]:
    """Stand between clients and a port of this machine."""
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
