"""The topics of a node: their settings, their partitions, their folders.

A topic is a record in the metadata (`topic/<name>`) and a folder of its own, whose name nobody else
ever had: a topic deleted and made again finds nothing of the old one. A folder is marked as trash
before it is made, and the record takes the mark off; deleting, the record goes and the mark comes
in one write, then the files go. A crash between leaves work for the next start, never half a topic.
"""

import asyncio
import logging
import os
import shutil
from collections import ChainMap
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from waterclock.model.clock import Clock
from waterclock.model.config import Config
from waterclock.model.errors import (
    AlreadyExists,
    BadInput,
    CapacityReached,
    NotFound,
    StorageError,
    StorageFailed,
    StorageFull,
    UnknownTopic,
    WaterclockError,
)
from waterclock.model.names import check_not_own, check_topic_name, is_own
from waterclock.model.sections import DeliveryConfig
from waterclock.model.topics.effective_settings import EffectiveSettings, delivery_of
from waterclock.model.units import DAY_MS
from waterclock.model.views import Position, TopicInfo, TopicSettings
from waterclock.node.detached import run_detached
from waterclock.node.metadata import Metadata, Records, Ticket
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.opening import Unsettled, open_all, open_host, settle
from waterclock.storage.flush import BackgroundThreads

RECORD = "topic/"
TRASH = "trash/"
STREAMS_TOPIC = "__streams"
"""Of several nodes: where stored streams are."""
PARTITIONS_MAX = 1_024
REPLICAS_MAX = 5
RETENTION_MS_MAX = 36_500 * DAY_MS
RETENTION_BYTES_MAX = 1 << 53

log = logging.getLogger(__name__)


class TopicRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata says of a topic, as JSON."""

    folder: str
    settings: TopicSettings
    log_ids: tuple[str, ...] = ()
    """The identity of each partition's log, in hex: the same in all replicas. Records of earlier
    releases have none, and it is empty where it is not known: there the log alone says it."""


class Topic:
    def __init__(
        self, name: str, folder: str, settings: TopicSettings, log_ids: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.folder = folder
        self.settings = settings
        self.log_ids = log_ids
        """As its record says them; see `TopicRecord`."""
        self.partitions: list[PartitionHost] = []
        self.turn = 0
        """Counts publishes without a key, to send them to each partition in turn."""

    def __repr__(self) -> str:
        return f"<Topic {self.name} {len(self.partitions)} partitions>"

    def view(self, effective: EffectiveSettings | None = None) -> TopicInfo:
        """Return the topic as it is now."""
        partitions = tuple(host.view() for host in self.partitions)
        return TopicInfo(self.name, self.settings, partitions, effective)

    def log_id(self, number: int) -> str:
        """Return the identity of a partition's log, in hex; empty if it is not known."""
        if number < len(self.partitions) and self.partitions[number].is_open:
            return self.partitions[number].store.log_id.hex()
        return self.log_ids[number] if number < len(self.log_ids) else ""

    @property
    def led(self) -> list[PartitionHost]:
        """The partitions that this node answers for: all, if it has no others beside it."""
        return [host for host in self.partitions if host.role in ("alone", "leader")]

    def positions_at(self, time_ms: int) -> list[Position]:
        """Return where each partition that is led here stood at a time."""
        return [Position(host.partition, host.store.offset_at(time_ms)) for host in self.led]

    def partition(self, number: int) -> PartitionHost:
        if not 0 <= number < len(self.partitions):
            count = len(self.partitions)
            raise NotFound("partition", f"{self.name}/{number} (the topic has {count})")
        return self.partitions[number]

    def next_turn(self) -> int:
        """Return the partition whose turn it is."""
        self.turn += 1
        return self.turn % len(self.partitions)

    def delivery(self, config: DeliveryConfig) -> DeliveryConfig:
        """Return how its groups are served."""
        return delivery_of(self.settings, config)


class Ensured(NamedTuple):
    """A topic that a caller uses."""

    topic: Topic
    made_partitions: int = 0
    """Not 0: this use has made it, with so many. Only the caller that used it is told: a mistyped
    name should not go unnoticed."""


class Topics:
    """All topics. Made by the node, which calls `open` once."""

    def __init__(
        self,
        path: Path,
        metadata: Metadata,
        *,
        config: Config,
        clock: Clock,
        threads: BackgroundThreads,
        tasks: asyncio.TaskGroup,
        on_failed: Callable[[WaterclockError], None],
        on_full: Callable[[StorageError], None] = lambda error: None,
    ) -> None:
        self._path = path
        self._metadata = metadata
        self._config = config
        self._clock = clock
        self._threads = threads
        self._tasks = tasks
        self._on_failed = on_failed
        self._on_full = on_full
        self._topics: dict[str, Topic] = {}
        self._changing = asyncio.Lock()
        self.on_opened: list[Callable[[Topic, PartitionHost], None]] = []
        """Called for each partition that opens: at the start, and when one is made."""
        self.on_updated: list[Callable[[Topic], None]] = []
        self.on_deleted: list[Callable[[Topic], None]] = []
        """Called when its records are gone. None may fail: the topic cannot be brought back."""
        self.while_deleting: list[Callable[[str], AbstractAsyncContextManager[Records]]] = []
        """Entered before the record of a topic goes, by its name, and left when it has gone: each
        tells records that change with it. No occurrence may be scheduled in between."""
        self.records_of: list[Callable[[Topic], Records]] = []
        """Each tells more records that go with a topic. All are one write with its own: after a
        crash, or on a full disk, all of it was done or nothing."""
        self.before_closing: list[Callable[[Topic], Awaitable[None]]] = []
        """Awaited before the partitions of a deleted topic close: none may be at work then."""

    def __repr__(self) -> str:
        return f"<Topics {len(self._topics)}>"

    def configure(self, config: Config) -> None:
        """Make topics by other settings from now on."""
        self._config = config

    def all(self) -> list[Topic]:
        """Return every topic, by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def get(self, name: str) -> Topic:
        """Return a topic; raises UnknownTopic."""
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopic(name)
        return topic

    def find(self, name: str) -> Topic | None:
        """Return a topic, if there is one of that name."""
        return self._topics.get(name)

    def was_deleted(self, folder: str) -> bool:
        """Say if a topic with this folder is known to be gone for good."""
        return self._metadata.get(TRASH + folder) is not None

    async def ensure(self, name: str, *, partition: int | None = None) -> Ensured:
        """Return a topic, making it if the node is configured to; not for the sake of a partition
        that it would not have. Call it when nothing else is wrong: bad input makes no topic."""
        topic = self._topics.get(name)
        if topic is not None:
            return Ensured(topic)
        check_topic_name(name)
        if not self._config.topics.auto_create:
            raise UnknownTopic(name)
        settings = self.default_settings()
        if partition is not None and not 0 <= partition < settings.partitions:
            count = settings.partitions
            raise NotFound("partition", f"{name}/{partition} (a new topic has {count})")
        async with self._changing:
            topic = self._topics.get(name)
            if topic is not None:
                return Ensured(topic)
            topic = await self._make(name, settings)
        return Ensured(topic, settings.partitions)

    def default_settings(self) -> TopicSettings:
        """Return the settings of a topic that has none of its own."""
        return TopicSettings(partitions=self._config.topics.partitions)

    async def create(self, name: str, settings: TopicSettings, *, if_absent: bool = False) -> Topic:
        """Make a topic; one that exists is returned as it is if `if_absent`."""
        check_topic_name(name)
        self._check(settings)
        async with self._changing:
            if name in self._topics:
                if if_absent:
                    return self._topics[name]
                raise AlreadyExists("topic", name)
            return await self._make(name, settings)

    async def ensure_own(self, name: str, settings: TopicSettings) -> Topic:
        """Return a topic of the node's own with these settings, making it if need be: people read
        it, and only the node writes or changes it."""
        assert is_own(name), name
        async with self._changing:
            topic = self._topics.get(name)
            if topic is None:
                return await self._make(name, settings)
        return topic if topic.settings == settings else await self._update(name, settings)

    async def ensure_partitions(self, name: str, partitions: int) -> Topic:
        """Return a topic with at least so many partitions, making it or adding to it if need be."""
        settings = TopicSettings(partitions=partitions)
        if is_own(name):
            return await self.ensure_own(name, settings)
        topic = await self.create(name, settings, if_absent=True)
        if len(topic.partitions) < partitions:
            grown = msgspec.structs.replace(topic.settings, partitions=partitions)
            topic = await self.update(name, grown)
        return topic

    async def _make(self, name: str, settings: TopicSettings) -> Topic:
        if not is_own(name):
            self._check_room(settings.partitions, is_new=True)
        topic = Topic(name, f"{name}-{os.urandom(6).hex()}", settings)
        await self._metadata.put(TRASH + topic.folder, b"")  # until it is whole
        try:
            topic.partitions = await self._first_partitions(topic, settings)
            saved = self._save(topic)
        except BaseException:
            self._close_partitions(topic, 0)
            await self._empty_trash()
            raise
        self._topics[name] = topic
        self._tell_opened(topic, 0)
        await self._metadata.wait_flushed(saved)
        log.info("topic_made topic=%s partitions=%d", name, settings.partitions)
        return topic

    async def update(self, name: str, settings: TopicSettings) -> Topic:
        """Give a topic other settings; partitions can only be added."""
        check_not_own(name)
        return await self._update(name, settings)

    async def _update(self, name: str, settings: TopicSettings) -> Topic:
        self._check(settings)
        async with self._changing:
            topic = self.get(name)
            before = len(topic.partitions)
            if settings.partitions < before:
                raise BadInput(
                    f"partitions: {name} has {before}, and they cannot be taken away "
                    f"(got {settings.partitions})"
                )
            self._check_room(settings.partitions - before, is_new=False)
            opened = await self._add_partitions(topic, settings)
            old, topic.settings = topic.settings, settings
            topic.partitions += opened
            try:
                saved = self._save(topic)
            except BaseException:
                self._close_partitions(topic, before)
                topic.settings = old
                raise
            self._tell_opened(topic, before)
            for callback in self.on_updated:
                callback(topic)
            await self._metadata.wait_flushed(saved)
            log.info("topic_updated topic=%s partitions=%d", name, settings.partitions)
            return topic

    async def delete(self, name: str) -> None:
        """Delete a topic and its messages, for good."""
        check_not_own(name)
        # A caller that leaves half-way would leave partitions open that nobody knows any more.
        await run_detached(self._tasks, self._delete(name))

    async def _delete(self, name: str) -> None:
        async with AsyncExitStack() as changing:
            async with AsyncExitStack() as deleting:
                others = [
                    await deleting.enter_async_context(hold(name)) for hold in self.while_deleting
                ]
                # Held last: who makes a topic may hold what is held here.
                await changing.enter_async_context(self._changing)
                topic = self.get(name)
                others += [records_of(topic) for records_of in self.records_of]
                records: Records = {RECORD + name: None, TRASH + topic.folder: b""}
                written = self._metadata.write(ChainMap(records, *others))
                del self._topics[name]
            # The rest takes as long as there are files; what else recurs must not wait for it.
            for callback in self.on_deleted:
                callback(topic)
            for ended in self.before_closing:
                await ended(topic)
            await self._close_deleted(topic)
            await self._metadata.wait_flushed(written)
            log.info("topic_deleted topic=%s", name)
            await self._empty_trash()

    async def _close_deleted(self, topic: Topic) -> None:
        """Close its partitions. What they cannot save goes anyway, so it stops no other."""
        for host in topic.partitions:
            try:
                host.close()
            except StorageError as error:
                log.warning("deleted_not_flushed topic=%s reason=%s", topic.name, error)
            await asyncio.sleep(0)  # each takes a few fsyncs, here in the loop
        topic.partitions.clear()

    async def open(self) -> None:
        """Open all topics there are. Those that cannot be read stay closed, with their problem."""
        await self._empty_trash()
        topics = []
        for key, value in self._metadata.items(RECORD):
            record = msgspec.json.decode(value, type=TopicRecord)
            name = key.removeprefix(RECORD)
            topics.append(Topic(name, record.folder, record.settings, record.log_ids))
        counts = [topic.settings.partitions for topic in topics]
        unsettled: list[Unsettled] = []
        hosts = iter(
            await open_all(
                [
                    self._opening(topic, number, is_new=False, unsettled=unsettled)
                    for topic, count in zip(topics, counts, strict=True)
                    for number in range(count)
                ],
                waits_for_disk=False,
            )
        )
        await settle(unsettled, self._threads)
        for topic, count in zip(topics, counts, strict=True):
            topic.partitions = list(islice(hosts, count))
            self._topics[topic.name] = topic
            self._tell_opened(topic, 0)

    def close(self) -> None:
        """Flush and close every partition."""
        problems: list[Exception] = []
        for topic in self.all():
            for host in topic.partitions:
                try:
                    host.close()
                # Also what nobody foresaw: the others are to be saved all the same.
                except Exception as error:
                    problems.append(error)
        if problems:
            raise problems[0]

    async def _first_partitions(self, topic: Topic, settings: TopicSettings) -> list[PartitionHost]:
        """Make the partitions of a topic that has none, and make them durable together.

        What a crash leaves of them goes with the trash: no record speaks of the topic yet.
        """
        unsettled: list[Unsettled] = []
        openings = [
            self._opening(topic, number, is_new=True, unsettled=unsettled)
            for number in range(settings.partitions)
        ]
        hosts = await self._opened(openings, waits_for_disk=False)
        await settle(unsettled, self._threads)
        problem = next((host.problem for host in hosts if host.problem is not None), None)
        if problem is not None:
            for host in hosts:
                host.close()
            raise StorageFailed(problem)
        return hosts

    async def _add_partitions(self, topic: Topic, settings: TopicSettings) -> list[PartitionHost]:
        """Make the partitions the topic does not have yet, all or none, each durable by itself.

        Nobody sees them before all are open: a key must not move twice.
        """
        added = range(len(topic.partitions), settings.partitions)
        openings = [self._opening(topic, number, is_new=True) for number in added]
        return await self._opened(openings, waits_for_disk=True)

    async def _opened(
        self, openings: Sequence[Callable[[], PartitionHost]], *, waits_for_disk: bool
    ) -> list[PartitionHost]:
        try:
            return await open_all(openings, waits_for_disk=waits_for_disk)
        except StorageFull as error:
            self._on_full(error)
            raise

    def _opening(
        self,
        topic: Topic,
        number: int,
        *,
        is_new: bool,
        unsettled: list[Unsettled] | None = None,
    ) -> Callable[[], PartitionHost]:
        return partial(
            open_host,
            topic.name,
            number,
            folder=self._path / topic.folder / str(number),
            config=self._config,
            clock=self._clock,
            threads=self._threads,
            loop=asyncio.get_running_loop(),
            on_failed=self._on_failed,
            on_full=self._on_full,
            is_new=is_new,
            new_log_id=bytes.fromhex(topic.log_id(number)) or os.urandom(16),
            unsettled=unsettled,
        )

    def _tell_opened(self, topic: Topic, first: int) -> None:
        for host in topic.partitions[first:]:
            for callback in self.on_opened:
                callback(topic, host)

    def _close_partitions(self, topic: Topic, first: int) -> None:
        for host in topic.partitions[first:]:
            host.close()
        del topic.partitions[first:]

    def _save(self, topic: Topic) -> Ticket:
        log_ids = tuple(topic.log_id(number) for number in range(len(topic.partitions)))
        record = TopicRecord(folder=topic.folder, settings=topic.settings, log_ids=log_ids)
        saved = {RECORD + topic.name: msgspec.json.encode(record), TRASH + topic.folder: None}
        return self._metadata.write(saved)

    async def _empty_trash(self) -> None:
        for key, _ in self._metadata.items(TRASH):
            folder = self._path / key.removeprefix(TRASH)
            try:
                if folder.exists():
                    await asyncio.to_thread(shutil.rmtree, folder)
                await self._metadata.delete(key)
            except (OSError, StorageFull) as error:
                # It stays marked as trash, and is tried again.
                log.warning("trash_not_removed folder=%s reason=%s", folder, error)

    def _check_room(self, partitions: int, *, is_new: bool) -> None:
        limits = self._config.topics
        # Nobody can keep a node from making its own, nor is kept from making theirs by those.
        counted = [topic for topic in self._topics.values() if not is_own(topic.name)]
        if is_new and len(counted) >= limits.topics_max:
            raise CapacityReached("topics", limits.topics_max, meaning="see topics.topics_max")
        have = sum(len(topic.partitions) for topic in counted)
        if have + partitions > limits.partitions_max:
            raise CapacityReached(
                "partitions of the node",
                limits.partitions_max,
                got=have + partitions,
                meaning="see topics.partitions_max",
            )

    def _check(self, settings: TopicSettings) -> None:
        _check_range("partitions", settings.partitions, 1, PARTITIONS_MAX)
        _check_range("retention_ms", settings.retention_ms, 0, RETENTION_MS_MAX)
        _check_range("replication_factor", settings.replication_factor, 1, REPLICAS_MAX)
        _check_range("retention_bytes", settings.retention_bytes, 0, RETENTION_BYTES_MAX)
        # The sections know the ranges of these.
        Topic("", "", settings).delivery(self._config.delivery)


def _check_range(field: str, value: int | None, least: int, greatest: int) -> None:
    if value is not None and not least <= value <= greatest:
        raise BadInput(f"{field} must be within {least} and {greatest} (got {value})")
