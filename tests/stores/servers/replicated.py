"""The replicated partitions of three nodes, each of which leads one; calls go to each in turn.

All of them are in this process, and what a leader appends is copied to the others at once
(`tests/node/fake_replication.py`).
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from itertools import cycle
from pathlib import Path

from tests.kit.clock import ManualClock
from tests.node.fake_replication import FakeCluster, FakeReplication, joined
from tests.node.hosts import START_MS
from tests.stores.backend import Backend, numbered
from waterclock.model.views import TopicSettings
from waterclock.node.streams.origin import StreamsOrigin
from waterclock.node.streams.partitions import StreamPartitions
from waterclock.node.streams.replicated_store import ReplicatedStore
from waterclock.node.topics import STREAMS_TOPIC
from waterclock.stores.base import READ_BYTES_MAX, Page, Record, Stored

NODES = ("a", "b", "c")


@contextmanager
def running(folder: Path) -> Iterator[Backend]:
    """Give folders in a folder."""
    urls = numbered(f"replicated://{folder}/cluster-{{}}")
    yield Backend(name="replicated", fresh_url=lambda: next(urls), is_shared=False, paged=5_000)


class ThreeNodes:
    """The store of three nodes."""

    is_shared = True

    def __init__(self, path: Path) -> None:
        self.cluster = FakeCluster("a")
        # The same each time the folder is opened: a leader has all that its followers have.
        self.cluster.first_leader = lambda host: (
            NODES[host.partition] if host.topic == STREAMS_TOPIC else "a"
        )
        self.stores: dict[str, ReplicatedStore] = {}
        self._path = path
        self._end = asyncio.Event()
        self._turns = cycle(NODES)

    async def open(self) -> None:
        opened = asyncio.Event()
        self._running = asyncio.ensure_future(self._run(opened))
        waiting = asyncio.ensure_future(opened.wait())
        await asyncio.wait([self._running, waiting], return_when=asyncio.FIRST_COMPLETED)
        if not opened.is_set():
            waiting.cancel()
            await self._running

    async def _run(self, opened: asyncio.Event) -> None:
        async with AsyncExitStack() as stack:
            clock = ManualClock(START_MS)
            for name in NODES:
                hosts = await stack.enter_async_context(
                    joined(self._path / name, self.cluster, name, clock)
                )
                origin = StreamsOrigin(hosts.metadata, name, self._path / "no such folder")
                store = ReplicatedStore(
                    StreamPartitions(hosts.topics, clock, settings=TopicSettings(partitions=3)),
                    origin,
                    FakeReplication(self.cluster, name, hosts.tasks),
                )
                self.stores[name] = store
                self.cluster.methods[name] = store.answer
            await asyncio.gather(*(store.open() for store in self.stores.values()))
            await self.cluster.settled()
            opened.set()
            await self._end.wait()
            for store in self.stores.values():
                await store.close()

    def _next(self) -> ReplicatedStore:
        return self.stores[next(self._turns)]

    async def store(self, stream: str, records: Sequence[Record], *, now_ms: int) -> list[Stored]:
        return await self._next().store(stream, records, now_ms=now_ms)

    async def read(
        self, stream: str, *, after: int, limit: int, now_ms: int, bytes_max: int = READ_BYTES_MAX
    ) -> Page:
        return await self._next().read(
            stream, after=after, limit=limit, now_ms=now_ms, bytes_max=bytes_max
        )

    async def delete(self, stream: str, *, older_than_ms: int | None = None) -> int:
        return await self._next().delete(stream, older_than_ms=older_than_ms)

    async def purge(self, *, now_ms: int, limit: int = 1_000) -> int:
        count = 0
        for store in self.stores.values():
            count += await store.purge(now_ms=now_ms, limit=limit - count)
        return count

    async def close(self) -> None:
        self._end.set()
        await self._running
