"""Requests of clients to any node: one connection each, as many clients have it."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from tests.server.http_client import Answered, RawClient

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
    body = b"" if value is None else json.dumps(value).encode()
    answer = await _asked(host, method, path, body, within_s=within_s)
    return Answer(answer.status, json.loads(answer.body) if answer.body else None)


async def ask_bytes(host: str, path: str, *, within_s: float = 10.0) -> Answered:
    """Ask a node for what is no JSON, with its headers; raise NotAsked or Broken."""
    return await _asked(host, "GET", path, b"", within_s=within_s)


async def _asked(host: str, method: str, path: str, body: bytes, *, within_s: float) -> Answered:
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, HTTP_PORT)
    except (OSError, TimeoutError) as error:
        raise NotAsked(str(error)) from error
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        async with asyncio.timeout(within_s):
            return await RawClient(reader, writer).ask(head.encode() + body)
    except (OSError, EOFError, TimeoutError) as error:
        raise Broken(f"{type(error).__name__} {error}") from error
    finally:
        writer.transport.abort()
