"""PostgreSQL by TLS: a CA that is named is checked, and another is refused in a sentence."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.cache import Absent
from tests.dispatch.certificates import Files, certificates
from tests.stores.servers import postgres
from tests.stores.servers.registry import reason_to_skip
from waterclock.model.errors import StoreUnavailable
from waterclock.stores.base import Record
from waterclock.stores.postgres import PostgresStore


@pytest.fixture(scope="module")
def files() -> Iterator[Files]:
    """Return what the server shows, as files that it may read alone."""
    folder = Path(tempfile.mkdtemp(prefix="waterclock-tls-"))
    files = certificates(folder)
    files.key.chmod(0o600)
    if os.geteuid() == 0:
        for path in (folder, files.certificate, files.key):
            shutil.chown(path, postgres.NOBODY)
    yield files
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def url(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a server that speaks TLS."""
    config = {"ssl": "on", "ssl_cert_file": files.certificate, "ssl_key_file": files.key}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in config.items():
            patch.setitem(postgres.CONFIG, name, str(value))
        try:
            with postgres.running(tmp_path_factory.mktemp("postgres")) as backend:
                yield backend.fresh_url()
        except Absent as absent:
            pytest.skip(reason_to_skip("debian", absent))


async def test_a_server_of_the_ca_that_is_named_is_spoken_to_by_tls(url: str, files: Files) -> None:
    store = PostgresStore(f"{url}&sslrootcert={files.ca}")
    await store.open()
    try:
        stored = await store.store("s", [Record("id", b"body")], now_ms=1)
        async with store._connection() as connection:
            is_tls = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
            assert await connection.fetchval(is_tls)
    finally:
        await store.close()
    assert stored[0].position == 1


async def test_a_server_of_another_ca_is_refused_in_a_sentence(url: str, tmp_path: Path) -> None:
    other = certificates(tmp_path / "others")
    store = PostgresStore(f"{url}&sslrootcert={other.ca}")
    with pytest.raises(StoreUnavailable) as refused:
        await store.open()
    assert str(refused.value).startswith("postgresql: the server's certificate is not trusted: ")
    assert str(refused.value).endswith("; the URL must name the file of its CA")
