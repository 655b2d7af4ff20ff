"""Routes served on a real socket, for tests of the protocol alone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waterclock.server.http.cross_origin import CrossOriginGuard
from waterclock.server.http.routes import Routes, answer_from
from waterclock.server.http.server import HttpLimits, HttpServer, serve_http


def guard_of(*origins: str) -> CrossOriginGuard:
    """Return a guard that takes any Host, and pages of these origins."""
    return CrossOriginGuard(origins=origins, hosts=("*",))


@asynccontextmanager
async def served(
    routes: Routes, limits: HttpLimits | None = None, guard: CrossOriginGuard | None = None
) -> AsyncIterator[HttpServer]:
    """Serve routes on a free port."""
    answer, guard = answer_from(routes), guard or guard_of()
    async with serve_http(answer, host="127.0.0.1", port=0, limits=limits, guard=guard) as server:
        yield server


def get(path: str, *headers: str, version: str = "1.1") -> bytes:
    """Return the bytes of a GET."""
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"GET {path} HTTP/{version}\r\nHost: localhost\r\n{lines}\r\n".encode()
