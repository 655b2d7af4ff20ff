"""Requests of clients to any node: one connection each, as many clients have it."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from tests.server.http_client import RawClient

HTTP_PORT = 8080
CONNECT_S = 2.0


class NotAsked(Exception):
    """There was no connection: nothing was asked."""


class Broken(Exception):
    """The connection broke after the request was sent, or nothing came for too long."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response."""

    status: int
    value: Any


async def ask(
    host: str, method: str, path: str, value: object = None, *, within_s: float = 10.0
) -> Answer:
    """Ask a node; raise NotAsked or Broken."""
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, HTTP_PORT)
    except (OSError, TimeoutError) as error:
        raise NotAsked(str(error)) from error
    try:
        async with asyncio.timeout(within_s):
            return await _asked(RawClient(reader, writer), method, host, path, value)
    except (OSError, EOFError, TimeoutError) as error:
        raise Broken(f"{type(error).__name__} {error}") from error
    finally:
        writer.transport.abort()


async def _asked(client: RawClient, method: str, host: str, path: str, value: object) -> Answer:
    body = b"" if value is None else json.dumps(value).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = await client.ask(head.encode() + body)
    return Answer(answer.status, json.loads(answer.body) if answer.body else None)
