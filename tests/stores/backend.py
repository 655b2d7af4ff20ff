"""What a store is tested on: a real server, or a folder, with a way to begin empty and to crash.

Each module `servers/<name>.py` has a `running(folder)` that gives a Backend until the end of a
block. `NAMES` lists them; the contract suite runs on every one of them.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.dispatch.certificates import Files
from tests.kit.needs import claim
from waterclock.stores.base import StreamStore
from waterclock.stores.opening import open_store

SERVERS = ("postgres", "mysql", "mongodb", "dynamodb", "cassandra")
NAMES = ("log", "replicated", "sqlite", *SERVERS)
DRIVERS_WARNINGS = {
    # Cancelled while it connects, pymongo leaves the socket to the garbage collector.
    "mongodb": [pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")],
}
BACKENDS = [pytest.param(name, marks=DRIVERS_WARNINGS.get(name, [])) for name in NAMES]
WITH_SERVER = [backend for backend in BACKENDS if backend.values[0] in SERVERS]


class Crashing(Protocol):
    """A server that a test may kill and start again on the same port and data."""

    def kill(self) -> None:
        """End it at once, as a crash would."""
        ...

    def start(self) -> None:
        """Start it again; it answers on return."""
        ...


class FreshUrl(Protocol):
    """Gives the URL of a store that holds nothing yet, another one each time."""

    def __call__(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A place for stores."""

    name: str
    fresh_url: FreshUrl
    server: Crashing | None = None
    """None: there is no server, the store is part of the process."""
    tls: Files | None = None
    """What the server shows to those who speak TLS; None: it speaks none."""
    is_shared: bool = True
    """Several processes may use one store."""
    paged: int = 50_000
    """Messages of the test of paging in the usual run: as many as take some seconds."""
    batch: int = 5_000
    """Records a call, where there are many."""


class Running(Protocol):
    """What a module of a server has."""

    def __call__(self, folder: Path) -> AbstractContextManager[Backend]: ...


def running(name: str) -> Running:
    """Give the way to run a backend."""
    if name in SERVERS:
        claim("databases")
    found: Any = import_module(f"tests.stores.servers.{name}").running
    run: Running = found
    return run


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[StreamStore]:
    """Open a store for a block."""
    store = _store_of(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _store_of(url: str) -> StreamStore:
    scheme, _, path = url.partition("://")
    if scheme != "replicated":  # which no URL of a node names
        return open_store(url)
    store: StreamStore = import_module("tests.stores.servers.replicated").ThreeNodes(Path(path))
    return store


def numbered(pattern: str) -> Iterator[str]:
    """Give a pattern filled in with 1, 2, 3 ..."""
    number = 0
    while True:
        number += 1
        yield pattern.format(number)
