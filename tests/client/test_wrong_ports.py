"""The port of the wrong protocol is told at once with what to type, however patient a client is."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.server.served import running_server
from waterclock.client._sync.client import connect_blocking
from waterclock.client.client import connect
from waterclock.client.settings import ClientSettings
from waterclock.model.errors import BadInput

PATIENT = ClientSettings(connect_timeout_ms=3_600_000, call_timeout_ms=3_600_000)


@contextlib.asynccontextmanager
async def talker(greeting: bytes) -> AsyncIterator[int]:
    """Run a server that says something to everyone; give its port."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_the_http_port_given_for_grpc_says_which_port_to_type(tmp_path):
    async with running_server(tmp_path) as it:
        address = f"127.0.0.1:{it.server.http_port}"
        with pytest.raises(BadInput, match=f"^{address} speaks HTTP.* Type 127.0.0.1:9000"):
            await connect(address, PATIENT).__aenter__()


async def test_a_blocking_client_says_the_same(tmp_path):
    def connected(address: str) -> None:
        with connect_blocking(address, PATIENT):
            raise AssertionError("there is no gRPC")

    async with running_server(tmp_path) as it:
        with pytest.raises(BadInput, match="speaks HTTP"):
            await asyncio.to_thread(connected, f"127.0.0.1:{it.server.http_port}")


async def test_something_else_that_listens_is_told_not_to_be_a_node():
    async with talker(b"SSH-2.0-OpenSSH_9.9\r\n") as port:
        with pytest.raises(BadInput, match="does not speak gRPC: something else"):
            await connect(f"127.0.0.1:{port}", PATIENT).__aenter__()


async def test_the_grpc_port_given_for_http_says_which_port_to_type(tmp_path):
    async with running_server(tmp_path) as it:
        address = it.server.addresses.grpc
        async with connect(address, PATIENT, http_address=address) as client:
            with pytest.raises(BadInput, match=r"speaks gRPC, not HTTP\..* 8080"):
                await client.streams.list()
