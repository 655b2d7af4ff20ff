"""Topics on several nodes: each has those that the committed records of `__meta` name.

The leader of `__meta` makes, changes and deletes topics: it writes a record, with the identity of
each partition's log, and that is all. Every node, the leader too, acts on the record once it is
committed: it hands new partitions to the replicator, which knows who is to have a copy, and lets go
of those that are gone. So no node ever has a topic that another could not come to have.

A topic that was deleted leaves a record (`trash/<folder>`, with the time) for nodes that were away:
they remove its folder when they come back. The leader drops it after `TRASH_MS`. A folder that no
record names was never deleted by anybody, and stays.
"""

import asyncio
import logging
import os
import shutil
from collections import ChainMap
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import msgspec

from waterclock.model.errors import BadInput, Fenced, NotLeader, Unavailable, WaterclockError
from waterclock.model.names import check_not_own, is_own
from waterclock.model.sections import DedupConfig
from waterclock.model.units import DAY_MS
from waterclock.model.views import TopicSettings
from waterclock.node.detached import run_detached
from waterclock.node.metadata import Records, Ticket
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.opening import replica_host
from waterclock.node.replication import Replication
from waterclock.node.topics import (
    RECORD,
    STREAMS_TOPIC,
    TRASH,
    Ensured,
    Topic,
    TopicRecord,
    Topics,
)

COMMITTED_S_MAX = 10.0
"""How long a change waits for a majority of nodes."""
LED_S_MAX = 10.0
"""How long a new topic waits until each partition has a leader."""
TRASH_MS = 30 * DAY_MS

log = logging.getLogger(__name__)


class ReplicatedTopics(Topics):
    """All topics of a cluster, as this node has them. Give it the replicator before `open`."""

    replication: Replication

    def follow(self, replication: Replication) -> None:
        """Have topics come and go with the records, from now on."""
        self.replication = replication
        self._changed = asyncio.Event()
        """Set, and replaced, whenever a record was applied."""
        self._not_understood: set[str] = set()
        self._metadata.on_committed(RECORD, self._apply)
        replication.forget_others(self._knows_all)

    def _knows_all(self) -> bool:
        """Tell whether there is no topic but those that are here."""
        return self._metadata.is_leading and not self._not_understood

    async def open(self) -> None:
        """Remove what was deleted while this node was away."""
        await self._empty_trash()

    # Records

    def _apply(self, key: str, value: bytes | None) -> None:
        """Do what a committed record says. Nothing may wait here: the next one follows."""
        name = key.removeprefix(RECORD)
        try:
            record = None if value is None else msgspec.json.decode(value, type=TopicRecord)
        except msgspec.DecodeError as error:
            # Of a later release, perhaps: the other topics go on.
            log.error("topic_not_understood topic=%s error=%s", name, error)
            self._not_understood.add(name)
            return
        self._not_understood.discard(name)
        topic = self._topics.get(name)
        if topic is not None and (record is None or record.folder != topic.folder):
            self._forget(topic)
            topic = None
        if record is not None:
            self._open_as(name, record, topic)
        self._changed.set()
        self._changed = asyncio.Event()

    def _open_as(self, name: str, record: TopicRecord, topic: Topic | None) -> None:
        is_new = topic is None
        if topic is None:
            topic = self._topics[name] = Topic(name, record.folder, record.settings)
        factor, before = record.settings.replication_factor, topic.settings.replication_factor
        topic.settings, topic.log_ids = record.settings, record.log_ids
        first = len(topic.partitions)
        if factor != before:
            for host in topic.partitions:
                self.replication.set_factor(host, factor)
        for number in range(first, record.settings.partitions):
            topic.partitions.append(self._attached(topic, number))
        self._tell_opened(topic, first)
        if not is_new:
            for callback in self.on_updated:
                callback(topic)
        log.info("topic_opened topic=%s partitions=%d", name, record.settings.partitions)

    def _attached(self, topic: Topic, number: int) -> PartitionHost:
        log_id = bytes.fromhex(topic.log_id(number))
        folder = self._path / topic.folder / str(number)
        config = self._config
        if topic.name == STREAMS_TOPIC:  # whose rows are known by another index
            config = replace(config, dedup=DedupConfig(enabled=False))
        host = replica_host(
            topic.name,
            number,
            log_folder=folder / "log",
            timers_folder=folder / "timers",
            config=config,
            clock=self._clock,
            threads=self._threads,
            loop=asyncio.get_running_loop(),
            on_failed=self._on_failed,
            on_full=self._on_full,
            log_id=log_id,
        )
        if log_id:
            factor = topic.settings.replication_factor
            self.replication.attach(host, log_id, factor=factor)
        else:
            host.problem = "its record does not name its log"
            log.error("partition_closed topic=%s/%d reason=%s", topic.name, number, host.problem)
        return host

    def _forget(self, topic: Topic) -> None:
        del self._topics[topic.name]
        for callback in self.on_deleted:
            callback(topic)
        removing = self._remove(topic)
        try:
            self._tasks.create_task(removing)
        except RuntimeError:
            removing.close()  # the node is stopping: the folder goes when it next starts

    async def _remove(self, topic: Topic) -> None:
        """Close its partitions and remove its files; what stays goes when the node next starts."""
        for ended in self.before_closing:
            await ended(topic)
        try:
            for host in topic.partitions:
                await self.replication.detach(host)
            topic.partitions.clear()
            await asyncio.to_thread(shutil.rmtree, self._path / topic.folder)
        except FileNotFoundError:
            pass  # this node had no copy
        except (OSError, WaterclockError) as error:
            log.warning("trash_not_removed folder=%s reason=%s", topic.folder, error)
        log.info("topic_closed topic=%s", topic.name)

    # Changes, on the leader of the records

    async def ensure(self, name: str, *, partition: int | None = None) -> Ensured:
        ensured = await super().ensure(name, partition=partition)
        if ensured.made_partitions:
            await self._led(ensured.topic)
        return ensured

    async def create(self, name: str, settings: TopicSettings, *, if_absent: bool = False) -> Topic:
        self._check_leading()
        topic = await super().create(name, settings, if_absent=if_absent)
        await self._led(topic)
        return topic

    async def _make(self, name: str, settings: TopicSettings) -> Topic:
        """Write the record of a topic; on another node than the leader, have it written."""
        if not self._metadata.is_leading:
            make = self.replication.ensure_own_topic if is_own(name) else None
            await (make or self.replication.create_topic)(name, settings)
            return await self._applied(name, settings.partitions)
        if not is_own(name):
            self._check_room(settings.partitions, is_new=True)
        await self._save_as(name, f"{name}-{os.urandom(6).hex()}", settings, ())
        return self.get(name)

    async def ensure_own(self, name: str, settings: TopicSettings) -> Topic:
        topic = self._topics.get(name)
        if topic is not None and topic.settings == settings:
            return topic
        if self._metadata.is_leading:
            topic = await super().ensure_own(name, settings)
            await self._led(topic)
            return topic
        await self.replication.ensure_own_topic(name, settings)
        return await self._applied(name, settings.partitions)

    async def ensure_partitions(self, name: str, partitions: int) -> Topic:
        if self._metadata.is_leading:
            return await super().ensure_partitions(name, partitions)
        topic = self._topics.get(name)
        if topic is None:
            await self.replication.create_topic(name, TopicSettings(partitions=partitions))
        elif len(topic.partitions) < partitions:
            await self.replication.add_partitions(name, partitions)
        return await self._applied(name, partitions)

    async def _update(self, name: str, settings: TopicSettings) -> Topic:
        self._check_leading()
        self._check(settings)
        async with self._changing:
            topic = self.get(name)
            before = topic.settings.partitions
            if settings.partitions < before:
                raise BadInput(
                    f"partitions: {name} has {before}, and they cannot be taken away "
                    f"(got {settings.partitions})"
                )
            self._check_room(settings.partitions - before, is_new=False)
            await self._save_as(name, topic.folder, settings, topic.log_ids)
        topic = self.get(name)
        await self._led(topic)
        return topic

    async def delete(self, name: str) -> None:
        check_not_own(name)
        self._check_leading()
        await run_detached(self._tasks, self._delete(name))

    async def _delete(self, name: str) -> None:
        async with AsyncExitStack() as deleting:
            others = [
                await deleting.enter_async_context(hold(name)) for hold in self.while_deleting
            ]
            # Held last: who makes a topic may hold what is held here.
            await deleting.enter_async_context(self._changing)
            topic = self.get(name)
            others += [records_of(topic) for records_of in self.records_of]
            since = b"%d" % self._clock.now_ms()
            records: Records = {RECORD + name: None, TRASH + topic.folder: since}
            await self._committed(self._metadata.write(ChainMap(records, *others)))
        log.info("topic_deleted topic=%s", name)

    async def _save_as(
        self, name: str, folder: str, settings: TopicSettings, log_ids: Sequence[str]
    ) -> None:
        """Write a record, and return when it is applied; partitions without a log get one."""
        missing = settings.partitions - len(log_ids)
        drawn = (*log_ids, *(os.urandom(16).hex() for _ in range(missing)))
        record = TopicRecord(folder=folder, settings=settings, log_ids=drawn)
        await self._committed(self._metadata.write({RECORD + name: msgspec.json.encode(record)}))

    def _check_leading(self) -> None:
        if not self._metadata.is_leading:
            raise NotLeader(self._metadata.name)

    async def _committed(self, written: Ticket) -> None:
        try:
            async with asyncio.timeout(COMMITTED_S_MAX):
                await self._metadata.wait_flushed(written)
        except TimeoutError as error:
            raise Fenced(
                "most nodes do not answer: the change may be made when they do, or not"
            ) from error

    async def _led(self, topic: Topic) -> None:
        log_ids = [bytes.fromhex(log_id) for log_id in topic.log_ids if log_id]
        try:
            async with asyncio.timeout(LED_S_MAX):
                await self.replication.led(log_ids)
        except TimeoutError as error:
            raise Unavailable(
                f"topic {topic.name!r} is made, but some of its partitions have no leader yet"
            ) from error

    async def _applied(self, name: str, partitions: int) -> Topic:
        """Return a topic that the leader has made, once this node knows it."""
        try:
            async with asyncio.timeout(COMMITTED_S_MAX):
                while True:
                    topic = self._topics.get(name)
                    if topic is not None and len(topic.partitions) >= partitions:
                        return topic
                    await self._changed.wait()
        except TimeoutError as error:
            raise Unavailable(f"topic {name!r} is made, but not known to this node yet") from error

    # Trash

    async def _empty_trash(self) -> None:
        used = {topic.folder for topic in self._topics.values()}
        for key, _ in self._metadata.items(TRASH):
            folder = self._path / key.removeprefix(TRASH)
            if folder.name not in used and folder.exists():
                try:
                    await asyncio.to_thread(shutil.rmtree, folder)
                except OSError as error:
                    log.warning("trash_not_removed folder=%s reason=%s", folder, error)

    async def drop_old_trash(self) -> None:
        """Forget what was deleted so long ago that no node can have it any more."""
        before_ms = self._clock.now_ms() - TRASH_MS
        old = [key for key, since in self._metadata.items(TRASH) if int(since or 0) < before_ms]
        await self._metadata.put_many(dict.fromkeys(old))
