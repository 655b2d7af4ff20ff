"""Retention and compaction, in the background and in small steps.

Now and then every partition is looked at: what has had its time is rewritten away; on a compacted
topic, all but the latest message of each key, and what some group has yet to read. The rewriting
runs aside; what the store's owner must do is done in slices, the loop let go in between. A pass
that finds the disk full ends, and the next one tries again.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from waterclock.log.compaction import latest_offsets
from waterclock.log.frame import Frame
from waterclock.model.config import Config
from waterclock.model.errors import StorageFull
from waterclock.model.ids import Offset
from waterclock.model.sections import RetentionConfig
from waterclock.model.units import MIB, MINUTE_MS
from waterclock.node.metadata import Metadata
from waterclock.node.partition_host import PartitionHost
from waterclock.node.topics import Topic, Topics
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.rewriting import Wanted, retained_from, rewrites

EVERY_MS = 1 * MINUTE_MS
SLICE_S = 0.005
COMPACT_BYTES_MIN = 16 * MIB
"""A compacted topic is looked at again once its log has grown by this, and by half."""

log = logging.getLogger("waterclock.node")


class Housekeeping:
    """Keeps logs from growing for ever. `run` is its task."""

    def __init__(
        self,
        topics: Topics,
        metadata: Metadata,
        config: Config,
        *,
        consumed_end: Callable[[str, int], int | None],
    ) -> None:
        self._topics = topics
        self._consumed_end = consumed_end
        self._metadata = metadata
        self._config = config
        self._compacted_bytes: dict[PartitionHost, int] = {}

    async def run(self) -> None:
        """Look at every partition, again and again, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_MS / 1_000)
            await self.once()

    async def once(self) -> None:
        """Look at every partition once."""
        await self._metadata.compact()
        for topic in self._topics.all():
            for host in topic.partitions:
                if host.is_open and not host.store.faults and not host.store.jobs:
                    try:
                        await self._tidy(topic, host)
                    except StorageFull as error:
                        log.warning("retention_put_off topic=%s error=%s", topic.name, error)

    async def _tidy(self, topic: Topic, host: PartitionHost) -> None:
        store, now_ms = host.store, host.now_ms()
        consumed = self._consumed_end(topic.name, host.partition)
        if topic.settings.is_compacted:
            if not self._has_grown(host):
                return
            readable = store.acknowledged_end
            keep_from = readable if consumed is None else Offset(min(consumed, readable))
            latest = await asyncio.to_thread(latest_offsets, await _frames(store))
            wanted = Wanted(keep_from=keep_from, by_key=True)
        else:
            retention = self._retention(topic)
            keep_from = retained_from(store, retention, now_ms=now_ms, consumed_end=consumed)
            if keep_from <= store.start:
                return
            latest, wanted = None, Wanted(keep_from=keep_from)
        for job in rewrites(store, wanted, now_ms=now_ms, latest=latest):
            await asyncio.to_thread(job.run)
            job.finish()
            log.info("rewrote topic=%s/%d %r", topic.name, host.partition, job)
        self._compacted_bytes[host] = _size(store)

    def _retention(self, topic: Topic) -> RetentionConfig:
        own, node = topic.settings, self._config.retention
        age_ms = node.age_ms if own.retention_ms is None else own.retention_ms or None
        size = node.bytes if own.retention_bytes is None else own.retention_bytes or None
        return RetentionConfig(age_ms=age_ms, bytes=size)

    def _has_grown(self, host: PartitionHost) -> bool:
        before = self._compacted_bytes.get(host, 0)
        size = _size(host.store)
        return size > before + COMPACT_BYTES_MIN and size > before * 3 // 2


async def _frames(store: PartitionStore) -> list[Frame]:
    """Return all frames there are now, letting the loop go in between."""
    frames: list[Frame] = []
    begun = time.perf_counter()
    for frame in store.frames(store.start):
        frames.append(frame)
        if time.perf_counter() - begun > SLICE_S:
            await asyncio.sleep(0)
            begun = time.perf_counter()
    return frames


def _size(store: PartitionStore) -> int:
    return sum(segment.end_position for segment in store.segments)
