"""Routes served on a real socket, for tests of the protocol alone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import uvloop

from waterclock.server.http.cors import Cors
from waterclock.server.http.routes import Routes, answer_from
from waterclock.server.http.server import HttpLimits, HttpServer, serve_http


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test in a loop as nodes have it, with an end for those that hang."""

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test()

    uvloop.run(bounded())


@asynccontextmanager
async def served(
    routes: Routes, limits: HttpLimits | None = None, cors: Cors | None = None
) -> AsyncIterator[HttpServer]:
    """Serve routes on a free port."""
    answer = answer_from(routes)
    async with serve_http(answer, host="127.0.0.1", port=0, limits=limits, cors=cors) as server:
        yield server


def get(path: str, *headers: str, version: str = "1.1") -> bytes:
    """Return the bytes of a GET."""
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"GET {path} HTTP/{version}\r\nHost: x\r\n{lines}\r\n".encode()
