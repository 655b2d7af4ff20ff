"""A Redis for the tests: one server for all of them, each with keys of its own."""

import itertools
from collections.abc import Iterator

import pytest

from benchmarks.peers.cache import Absent
from tests.dispatch.redis_servers import RedisServer, single
from tests.stores.servers.registry import reason_to_skip

_names = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[RedisServer]:
    """Run one Redis for all tests that do not hurt it."""
    try:
        with single(tmp_path_factory.mktemp("redis")) as running:
            yield running
    except Absent as absent:
        pytest.skip(reason_to_skip("debian", absent))


@pytest.fixture
def name() -> str:
    """Give a prefix for keys that no other test has."""
    return f"test-{next(_names)}"


@pytest.fixture
def look(server):
    """Give a plain client to look inside with."""
    with server.client() as client:
        yield client
