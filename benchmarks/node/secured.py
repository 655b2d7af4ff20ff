"""Nodes with and without security, and raw clients that speak to each in the same way.

What a client needs to know comes in its environment: the port of HTTP, whether there is TLS, and
the credentials of those who are let in. Requests are encoded before the clock starts.
"""

import asyncio
import json
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Literal, cast

import grpc
import uvloop

from benchmarks.client import Stopwatch
from benchmarks.load import answer_bytes, post
from benchmarks.messages import VALUE_BYTES, Producer
from benchmarks.node.running import is_ready
from benchmarks.node.wire import (
    OPTIONS,
    call_all,
    fresh_topic,
    publish_request,
    published,
    stream_all,
)
from benchmarks.peers.server import Server, free_port, started
from waterclock.client.channel import AuthorizedChannel
from waterclock.security.credential import Credential
from waterclock.security.folder import Grant, SecureFolder
from waterclock.security.quotas import UNBOUNDED, Quotas
from waterclock.security.rights import parse_rights
from waterclock.security.tls import client_context
from waterclock.v1 import broker_pb2

Kind = Literal["plain", "token", "tls"]
"""Open to all; with tokens and no TLS, which only a benchmark has; as people run it."""

ADMIN = "admin"
HTTP_PORT, CREDENTIALS, HAS_TLS = "BENCH_HTTP_PORT", "BENCH_CREDENTIALS", "BENCH_TLS"
PUBLISH = "/waterclock.v1.Broker/Publish"
WARM_UP_BATCHES = 8
WARM_UP_CALLS = 500
DAY_MS = 24 * 3_600_000


# Nodes


@contextmanager
def running(
    folder: Path, *, kind: Kind, others: Mapping[str, Quotas] | None = None
) -> Iterator[Server]:
    """Run a node of a kind, on which some besides the admin may do all within their quotas."""
    grpc_port, http_port = free_port(), free_port()
    module = "benchmarks.node.plaintext" if kind == "token" else "waterclock"
    data = folder / "data"
    command: list[str | Path] = [sys.executable, "-m", module, "up", "--data", data]
    command += ["--grpc-port", str(grpc_port), "--http-port", str(http_port)]
    credentials = {} if kind == "plain" else _secured(data, others or {})
    tls = None
    if kind == "tls":
        tls = client_context(Credential.parse(credentials[ADMIN]).ca_pem)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with started(
        command,
        folder=folder,
        port=grpc_port,
        environ=environ,
        is_ready=lambda: is_ready(http_port, tls),
    ) as server:
        server.client_environ = {
            HTTP_PORT: str(http_port),
            CREDENTIALS: json.dumps(credentials),
            HAS_TLS: "1" if tls else "",
        }
        yield server


def _secured(data: Path, others: Mapping[str, Quotas]) -> dict[str, str]:
    """Secure a node that is to be started; give the credentials of all."""
    now_ms = time.time_ns() // 1_000_000
    folder = SecureFolder(data / "secure")
    data.mkdir(parents=True)
    folder.make(grpc_port=1, http_port=2, now_ms=now_ms)
    found = {}
    for name, quotas in {ADMIN: UNBOUNDED, **others}.items():
        rights = parse_rights({"admin": ["*"]})
        grant = Grant(rights=rights, quotas=quotas, expires_ms=now_ms + DAY_MS)
        credential = folder.add(name, grant, now_ms=now_ms, is_replacing=True)
        assert credential is not None
        found[name] = credential.encode()
    return found


# Who connects


def credential_of(name: str) -> Credential | None:
    """Give the credential of somebody, if the node asks for any."""
    text = json.loads(os.environ[CREDENTIALS]).get(name)
    return None if text is None else Credential.parse(text)


@asynccontextmanager
async def opened(port: int, name: str = ADMIN) -> AsyncIterator[grpc.aio.Channel]:
    """Connect to gRPC as somebody."""
    credential, address = credential_of(name), f"localhost:{port}"
    if credential is not None and os.environ[HAS_TLS]:
        trusted = grpc.ssl_channel_credentials(root_certificates=credential.ca_pem)
        channel = grpc.aio.secure_channel(address, trusted, options=OPTIONS)
    else:
        channel = grpc.aio.insecure_channel(address, options=OPTIONS)
    async with channel:
        await asyncio.wait_for(channel.channel_ready(), 30)
        if credential is None:
            yield channel
        else:
            yield cast(grpc.aio.Channel, AuthorizedChannel(channel, credential))


class HttpClient(asyncio.Protocol):
    """A connection that is kept alive, with one request at a time. Make one with `http_client`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._data = bytearray()
        self._answer: asyncio.Future[bytes] = self._loop.create_future()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        size = answer_bytes(self._data)
        if size is not None:
            self._answer.set_result(bytes(self._data[:size]))
            del self._data[:size]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the node closed the connection"))

    async def ask(self, request: bytes) -> bytes:
        """Send a request; give the answer."""
        self._answer = self._loop.create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        self._transport.close()


async def http_client(name: str = ADMIN) -> HttpClient:
    """Connect to HTTP as somebody."""
    credential = credential_of(name)
    tls: ssl.SSLContext | None = None
    if credential is not None and os.environ[HAS_TLS]:
        tls = client_context(credential.ca_pem)
    port = int(os.environ[HTTP_PORT])
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(HttpClient, "localhost", port, ssl=tls)
    return client


def http_publish(topic: str, name: str = ADMIN, *, value_bytes: int = VALUE_BYTES) -> bytes:
    """Encode a publish of one message by somebody."""
    request = post(f"/topics/{topic}/messages", b'{"value":"%b"}' % (b"x" * value_bytes))
    credential = credential_of(name)
    if credential is None:
        return request
    line, rest = request.split(b"\r\n", 1)
    return b"%b\r\nAuthorization: Bearer %b\r\n%b" % (line, credential.token.encode(), rest)


def is_taken(answer: bytes) -> bool:
    """Tell whether a publish by HTTP was."""
    return answer.startswith(b"HTTP/1.1 201")


# What is measured


def batches(
    watch: Stopwatch, port: int, *, batch: int, value_bytes: int, messages: int, window: int
) -> None:
    """Publish batches over a stream, at most a window of them unanswered."""

    async def run() -> None:
        async with opened(port) as channel, fresh_topic(channel) as topic:
            producer = Producer(
                int.from_bytes(os.urandom(7)), batch_messages=batch, value_bytes=value_bytes
            )
            bodies = producer.bodies(messages // batch + WARM_UP_BATCHES)
            requests = [publish_request(topic, body) for body in bodies]
            first, requests = requests[:WARM_UP_BATCHES], requests[WARM_UP_BATCHES:]
            await stream_all(channel, first, window=window)
            with watch.running(len(requests) * batch):
                answers = await stream_all(channel, requests, window=window)
            assert published(answers) == watch.messages

    uvloop.run(run())


def singles(watch: Stopwatch, port: int, *, callers: int, messages: int) -> None:
    """Publish messages one by one over gRPC, from many callers."""

    async def run() -> None:
        async with opened(port) as channel, fresh_topic(channel) as topic:
            message = broker_pb2.Message(value=bytes(VALUE_BYTES))
            request = broker_pb2.PublishRequest(topic=topic, message=message).SerializeToString()
            await call_all(channel, PUBLISH, [request] * WARM_UP_CALLS, window=callers)
            with watch.running(messages):
                await call_all(channel, PUBLISH, [request] * messages, window=callers)

    uvloop.run(run())


def http_singles(watch: Stopwatch, port: int, *, callers: int, messages: int) -> None:
    """Publish messages one by one over HTTP, each caller on a connection that is kept alive."""

    async def run() -> None:
        async with opened(port) as channel, fresh_topic(channel) as topic:
            request = http_publish(topic)
            clients = [await http_client() for _ in range(callers)]

            async def call(client: HttpClient, count: int) -> None:
                for _ in range(count):
                    answer = await client.ask(request)
                    assert is_taken(answer), answer

            await asyncio.gather(*(call(each, WARM_UP_CALLS // callers) for each in clients))
            with watch.running(messages // callers * callers):
                await asyncio.gather(*(call(each, messages // callers) for each in clients))
            for client in clients:
                client.close()

    uvloop.run(run())
