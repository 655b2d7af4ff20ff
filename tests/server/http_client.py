"""A raw HTTP client: sends bytes as they are, reads answers one by one."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

TURNS = 50
LOOK_EVERY_S = 0.002


async def until(claim: Callable[[], object]) -> None:
    """Let the loop turn until a claim holds; what takes longer than its turns leaves others a core.

    Another process, a disk or a timer is waited for then, and a loop that only turns would keep
    them from what they are to do.
    """
    for _ in range(TURNS):
        if claim():
            return
        await asyncio.sleep(0)
    while not claim():  # noqa: ASYNC110 - the claim is about the server's insides
        await asyncio.sleep(LOOK_EVERY_S)


class Answered(NamedTuple):
    """One response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        """Write, unless the server has closed."""
        if not self.writer.is_closing():
            self.writer.write(data)

    def pause_reading(self) -> None:
        """Leave what comes in the socket."""
        cast(asyncio.Transport, self.writer.transport).pause_reading()

    def resume_reading(self) -> None:
        """Take what has come."""
        cast(asyncio.Transport, self.writer.transport).resume_reading()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Return status and headers of the next answer; what follows is left to be read."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status_line, *lines = head.strip().split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        return int(status_line.split()[1]), headers

    async def chunk(self) -> bytes:
        """Return the next chunk of a body; the last is empty."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size + 2)
        assert data[-2:] == b"\r\n"
        return data[:-2]

    async def answer(self, *, to_head: bool = False) -> Answered:
        status, headers = await self.head()
        if to_head:
            return Answered(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while chunk := await self.chunk():
                body += chunk
            return Answered(status, headers, body)
        size = int(headers.get("content-length", 0))
        return Answered(status, headers, await self.reader.readexactly(size))

    async def ask(self, request: bytes) -> Answered:
        self.send(request)
        return await self.answer()

    async def post(self, path: str, value: Any, method: str = "POST") -> Answered:
        """Send a value as JSON."""
        body = json.dumps(value).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        return await self.ask(head.encode() + body)

    async def delete(self, path: str) -> Answered:
        return await self.ask(f"DELETE {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    async def get(self, path: str) -> Answered:
        return await self.ask(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    async def is_closed(self) -> bool:
        """Wait until the server closes; False if it says something more."""
        return await self.reader.read(1) == b""


@asynccontextmanager
async def raw_client(port: int) -> AsyncIterator[RawClient]:
    """Connect to a port of this machine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
