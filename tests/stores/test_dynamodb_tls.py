"""DynamoDB by TLS: a CA of one's own is trusted, and another is refused in a sentence.

Amazon's stand-in speaks no TLS, so what it says goes through one that does.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.dispatch.certificates import Files, certificates
from waterclock.model.errors import StoreUnavailable
from waterclock.stores.base import Record
from waterclock.stores.dynamodb.store import DynamodbStore

pytestmark = [
    pytest.mark.parametrize("backend", ["dynamodb"], indirect=True),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return certificates(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def by_tls(url: str, files: Files) -> AsyncIterator[str]:
    """Give the URL of the same server behind TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    plain = int(url.rpartition(":")[2])

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", plain)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(copied(reader, inner_writer))
            tasks.create_task(copied(inner_reader, writer))

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield url.replace(f"http://127.0.0.1:{plain}", f"https://127.0.0.1:{port}")


async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes, to the end."""
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def test_a_server_of_the_ca_that_is_named_is_spoken_to_by_tls(
    url: str, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(files.ca))
    async with by_tls(url, files) as secured:
        store = DynamodbStore(secured)
        await store.open()
        try:
            stored = await store.store("s", [Record("id", b"body")], now_ms=1)
        finally:
            await store.close()
    assert stored[0].position == 1


async def test_a_server_of_another_ca_is_refused_in_a_sentence(
    url: str, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = certificates(tmp_path / "others")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(other.ca))
    async with by_tls(url, files) as secured:
        store = DynamodbStore(secured)
        with pytest.raises(StoreUnavailable, match="dynamodb: the server's certificate is not"):
            await store.open()
