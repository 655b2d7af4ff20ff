"""Routes served on a real socket, for tests of the protocol alone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waterclock.server.http.cors import Cors
from waterclock.server.http.routes import Routes, answer_from
from waterclock.server.http.server import HttpLimits, HttpServer, serve_http


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
