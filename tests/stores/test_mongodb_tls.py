"""MongoDB by TLS: the CA that is named is trusted, and another is refused in a sentence."""

import gc
import warnings
from pathlib import Path

import pytest

from tests.dispatch.certificates import certificates
from tests.stores.backend import Backend
from waterclock.model.errors import StoreUnavailable
from waterclock.stores.base import Record
from waterclock.stores.mongodb import MongodbStore

pytestmark = [
    pytest.mark.parametrize("backend", ["mongodb"], indirect=True),
]


async def test_a_server_of_the_ca_that_is_named_is_spoken_to_by_tls(
    url: str, backend: Backend
) -> None:
    assert backend.tls is not None
    store = MongodbStore(f"{url}&tls=true&tlsCAFile={backend.tls.ca}")
    await store.open()
    try:
        stored = await store.store("s", [Record("id", b"body")], now_ms=1)
    finally:
        await store.close()
    assert stored[0].position == 1


async def test_a_server_of_another_ca_is_refused_in_a_sentence(url: str, tmp_path: Path) -> None:
    other = certificates(tmp_path)
    store = MongodbStore(f"{url}&tls=true&tlsCAFile={other.ca}")
    with warnings.catch_warnings():
        # The driver leaves the socket of a handshake that failed to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        with pytest.raises(StoreUnavailable, match="mongodb: the server's certificate is not"):
            await store.open()
        gc.collect()
