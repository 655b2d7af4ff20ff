"""Metrics and health over HTTP, for those who scrape and probe: `/metrics` and `/health`.

A few lines of HTTP/1.1 by hand: one request a connection, of which only the path is read.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 8_192
REQUEST_S_MAX = 5.0


class Health:
    """Answers for one program. `facts` has at least `is_healthy`."""

    def __init__(self, collector: Collector, facts: Callable[[], Mapping[str, object]]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._facts = facts

    async def serve(self, host: str, port: int) -> None:
        """Answer until cancelled."""
        server = await asyncio.start_server(self._answer, host, port, limit=REQUEST_BYTES_MAX)
        try:
            await server.serve_forever()
        finally:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self.response(head.split(b" ", 2)[1].decode(errors="replace")))
                await writer.drain()
        except (OSError, TimeoutError, EOFError, IndexError, asyncio.LimitOverrunError) as error:
            log.debug("probe_failed error=%r", error)
        finally:
            writer.close()

    def response(self, path: str) -> bytes:
        """Return the whole answer to a GET of a path."""
        status, kind, body = "404 Not Found", "text/plain", b"only /metrics and /health are here\n"
        if path.startswith("/metrics"):
            status, kind = "200 OK", "text/plain; version=0.0.4; charset=utf-8"
            body = generate_latest(self._registry)
        elif path.startswith("/health"):
            facts = self._facts()
            status = "200 OK" if facts["is_healthy"] else "503 Service Unavailable"
            kind, body = "application/json", json.dumps(facts).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        return f"{head}Connection: close\r\n\r\n".encode() + body
