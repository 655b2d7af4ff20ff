"""Retention and compaction, in the background and in small steps.

Now and then every partition is looked at: what has had its time is rewritten away; on a compacted
topic, all but the latest message of each key, and what some group has yet to read. Retention waits
for groups only where the topic says so; else the groups miss what goes (`groups/cleaner.py`). All
that takes long runs in the background. What goes wrong with one partition (the disk is full, or
bytes have rotted, or its topic is deleted) is left for the next pass, and the others have their
turn.

Of several nodes each looks at its own replicas, and takes only what is committed. It knows what
groups have done elsewhere by what they have saved.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakKeyDictionary

from waterclock.model.config import Config
from waterclock.model.errors import StorageFailed, WaterclockError
from waterclock.model.ids import Offset
from waterclock.model.topics.effective_settings import retention_of
from waterclock.model.units import MIB, MINUTE_MS
from waterclock.node.metadata import Metadata
from waterclock.node.partition.host import PartitionHost
from waterclock.node.topics import STREAMS_TOPIC, Topic, Topics
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.rewrite import Pass, Thinned, Wanted, retained_from

EVERY_MS = 1 * MINUTE_MS
COMMITTED_S_MAX = 10.0
"""How long a replica waits to be told that all it has is committed."""
COMPACT_BYTES_MIN = 16 * MIB
"""A compacted topic is looked at again once its log has grown by this, and by half."""

log = logging.getLogger("waterclock.node")


class Readers(Protocol):
    """The groups, as far as this asks and tells them."""

    def consumed_end(self, topic: str, partition: int) -> int | None:
        """Return what every group of a topic has done in a partition; None without groups.

        0 if that is not known: then everything is kept that groups are waited for.
        """
        ...

    async def trim(self, partition: PartitionHost, start: int) -> None:
        """Have the groups of a partition go on at `start`."""
        ...

    async def expire(self) -> None:
        """Forget the groups that nobody has used for too long."""
        ...


class StoredStreams(Protocol):
    """The partitions of stored streams, which know what of them is of use."""

    def begin_rewrite(self, number: int, *, now_ms: int) -> tuple[Pass, Callable[[], None]] | None:
        """Return what rewrites a partition, and what to call after it; None: nothing should."""
        ...


class LogCleaner:
    """Keeps logs from growing for ever. `run` is its task."""

    def __init__(
        self,
        topics: Topics,
        metadata: Metadata,
        config: Config,
        groups: Readers,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self.streams: StoredStreams | None = None
        """Set it where stored streams are replicated."""
        self._metadata = metadata
        self._config = config
        self._compacted_bytes: WeakKeyDictionary[PartitionHost, int] = WeakKeyDictionary()
        self._thinned = Thinned()
        self._rewriting = asyncio.Lock()
        self._topic: Topic | None = None
        """Whose segment is rewritten, or was last."""
        topics.before_closing.append(self._let_go)

    def configure(self, config: Config) -> None:
        """Clean by other settings from now on."""
        self._config = config

    async def run(self) -> None:
        """Look at every partition, again and again, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_MS / 1_000)
            await self.once()

    async def once(self) -> None:
        """Look at every partition once."""
        with _putting_off("records"):
            await self._metadata.compact()
        with _putting_off("groups"):
            await self._groups.expire()
        for topic in self._topics.all():
            for host in tuple(topic.partitions):
                if host.is_open and not host.store.faults and not host.store.jobs:
                    with _putting_off(f"{topic.name}/{host.partition}"):
                        await self._tidy(topic, host)

    async def _tidy(self, topic: Topic, host: PartitionHost) -> None:
        store, now_ms = host.store, host.clock.now_ms()
        if topic.name == STREAMS_TOPIC:
            await self._tidy_streams(topic, host)
            return
        if topic.settings.is_compacted:
            if not self._has_grown(host):
                return
            consumed = self._consumed_end(topic, host)
            readable = store.acknowledged_end
            keep_from = readable if consumed is None else Offset(min(consumed, readable))
            if host.role != "alone" and keep_from <= store.start:
                return  # all is waited for, or nobody knows what is not
            wanted = Wanted(keep_from=keep_from, by_key=True)
        else:
            retention = retention_of(topic.settings, self._config.retention)
            awaited = self._consumed_end(topic, host) if retention.wait_for_groups else None
            keep_from = retained_from(store, retention, now_ms=now_ms, consumed_end=awaited)
            if keep_from <= store.start:
                return
            await self._trim(topic, host, keep_from)
            wanted = Wanted(keep_from=keep_from)
        this_pass = Pass(store, wanted, now_ms=now_ms, thinned=self._thinned)
        if await self._perform(topic, host, this_pass):
            self._compacted_bytes[host] = _size(store)

    def _consumed_end(self, topic: Topic, host: PartitionHost) -> int | None:
        """Ask only where it counts: each partition looks at the records of all groups."""
        return self._groups.consumed_end(topic.name, host.partition)

    async def _tidy_streams(self, topic: Topic, host: PartitionHost) -> None:
        if self.streams is None:
            return
        begun = self.streams.begin_rewrite(host.partition, now_ms=host.clock.now_ms())
        if begun is not None:
            this_pass, finish = begun
            if await self._perform(topic, host, this_pass):
                finish()

    async def _perform(self, topic: Topic, host: PartitionHost, this_pass: Pass) -> bool:
        """Rewrite what is committed by then; tell if that was all of it."""
        host.flush_queue.request_flush()
        try:
            async with asyncio.timeout(None if host.role == "alone" else COMMITTED_S_MAX):
                await host.flush_queue.wait_flushed(this_pass.end)
        except TimeoutError:
            return False  # most replicas are away: what is not committed may yet go
        return await self._rewrite(topic, host, this_pass)

    async def _trim(self, topic: Topic, host: PartitionHost, keep_from: Offset) -> None:
        """Tell the groups before anything goes: after a crash in between, they know."""
        async with self._rewriting:
            if self._topics.find(topic.name) is topic:
                self._topic = topic
                await self._groups.trim(host, keep_from)

    async def _rewrite(self, topic: Topic, host: PartitionHost, this_pass: Pass) -> bool:
        for job in this_pass.jobs():
            async with self._rewriting, host.rewriting:
                is_there = self._topics.find(topic.name) is topic
                if not is_there or not host.is_open or host.store is not this_pass.store:
                    return False
                self._topic = topic
                await asyncio.to_thread(job.run)
                job.finish()
            if job.is_changed:
                log.info("rewrote topic=%s/%d %r", topic.name, host.partition, job)
        return True

    async def _let_go(self, topic: Topic) -> None:
        """Return when no thread works on the files of a topic that was deleted."""
        if self._topic is topic:
            async with self._rewriting:
                self._topic = None

    def _has_grown(self, host: PartitionHost) -> bool:
        before = self._compacted_bytes.get(host, 0)
        size = _size(host.store)
        return size > before + COMPACT_BYTES_MIN and size > before * 3 // 2


@contextmanager
def _putting_off(what: str) -> Iterator[None]:
    """Leave for the next pass what cannot be done in this one, unless the disk has failed."""
    try:
        yield
    except StorageFailed:
        raise
    except WaterclockError as error:
        log.warning("cleaning_put_off of=%s error=%s", what, error)


def _size(store: PartitionStore) -> int:
    return sum(segment.end_position for segment in store.segments)
