"""MariaDB by TLS: the CA that is named is trusted, and another is refused in a sentence."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.peers.cache import Absent
from tests.dispatch.certificates import Files, certificates
from tests.stores.servers import mysql
from tests.stores.servers.registry import reason_to_skip
from waterclock.model.errors import StoreUnavailable
from waterclock.stores.base import Record
from waterclock.stores.mysql.store import MysqlStore


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def url(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a server that speaks TLS and nothing else."""
    shown = [f"--ssl-cert={files.certificate}", f"--ssl-key={files.key}"]
    options = [*mysql.OPTIONS, *shown, "--require-secure-transport=on"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mysql, "OPTIONS", options)
        try:
            with mysql.running(tmp_path_factory.mktemp("mysql")) as backend:
                yield backend.fresh_url()
        except Absent as absent:
            pytest.skip(reason_to_skip("debian", absent))


async def test_a_server_of_the_ca_that_is_named_is_spoken_to_by_tls(url: str, files: Files) -> None:
    store = MysqlStore(f"{url}?ssl_ca={files.ca}")
    await store.open()
    try:
        stored = await store.store("s", [Record("id", b"body")], now_ms=1)
    finally:
        await store.close()
    assert stored[0].position == 1


async def test_a_store_that_was_closed_leaves_no_connection_behind(url: str, files: Files) -> None:
    before = sockets()
    store = MysqlStore(f"{url}?ssl_ca={files.ca}")
    await store.open()
    opened = sockets() - before
    await store.close()
    await asyncio.sleep(0)  # the loop lets go of what is closed in its next turn
    assert opened
    assert not opened & sockets()


def sockets() -> set[str]:
    """Return the sockets this process has open."""
    found: set[str] = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {each for each in found if each.startswith("socket:")}


async def test_a_server_of_another_ca_is_refused_in_a_sentence(url: str, tmp_path: Path) -> None:
    other = certificates(tmp_path / "others")
    with pytest.raises(StoreUnavailable) as refused:
        await MysqlStore(f"{url}?ssl_ca={other.ca}").open()
    assert str(refused.value).startswith("mysql: the server's certificate is not trusted: ")
