"""The groups of a node: found at the start, made by their first member, remembered in the metadata.

A group is `group/<topic>/<group>` (its generation, and more) and, for each partition,
`progress/<topic>/<group>/<partition>` (its cursor, as drawn in docs/formats/progress.md). Progress
is saved every second if it has changed, all groups in one write, and when a partition moves: so a
crash delivers about a second's acks again, and loses none. Generations are durable before any
member hears of them.

Of several nodes each has the groups whose records it leads (`shards.py`). They open when it begins
to lead them, and when it does no more, sessions end with an error that has members come again.
"""

import asyncio
import logging
import os
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from waterclock.delivery.cursor import Cursor
from waterclock.model.clock import Clock, RunningClock
from waterclock.model.config import Config
from waterclock.model.errors import (
    Busy,
    CapacityReached,
    Damaged,
    NotFound,
    Stopping,
    StorageFull,
    Unavailable,
)
from waterclock.model.names import DEAD_LETTERS, check_name, is_own
from waterclock.model.views import GroupInfo
from waterclock.node.dead_letters.dead_letters import DeadLetters
from waterclock.node.detached import run_detached
from waterclock.node.groups.host import GroupHost
from waterclock.node.groups.logs import GroupLogs
from waterclock.node.groups.partition import GroupPartition, cursor_from
from waterclock.node.groups.positions import Start, position_of, targets_of
from waterclock.node.groups.records import (
    GROUP,
    GroupRecord,
    folder_of,
    group_record,
    new_run_id,
    progress_key,
    progress_of,
    records_of_group,
    records_of_groups,
    records_of_topic,
    saved_ends,
)
from waterclock.node.groups.saver import GroupSaver, by_shard
from waterclock.node.groups.session import Ending, Session
from waterclock.node.groups.shards import GroupShards, OwnShard, Shards, shard_of
from waterclock.node.metadata import Metadata, Records
from waterclock.node.partition.host import PartitionHost
from waterclock.node.topics import Ensured, Topic, Topics

SAVE_EVERY_S = 1.0
CLOSE_S_MAX = 5.0
"""How long a node of several waits for the others to save progress when it stops."""
ADOPTED = "adopted"
"""The record of a shard that has the groups of the node that was alone before."""

log = logging.getLogger("waterclock.delivery")


class Groups:
    """All groups. `open` once the topics are, keep `run` running, then `close`."""

    def __init__(
        self,
        topics: Topics,
        metadata: Metadata,
        dead_letters: DeadLetters,
        config: Config,
        clock: Clock,
        shards: GroupShards | None = None,
    ) -> None:
        """Keep records in the metadata; or, of several nodes, in the shards that this one leads."""
        self._topics = topics
        self._metadata = metadata
        self._replicated = shards
        self._shards: Shards = shards or OwnShard(metadata)
        self._dead_letters = dead_letters
        self._config = config
        self._wall = clock
        self.clock = RunningClock(clock)
        """Measures leases, waits and sessions."""
        self._hosts: dict[tuple[str, str], GroupHost] = {}
        self._logs = GroupLogs(self._spawn)
        self._changing: WeakKeyDictionary[Metadata, asyncio.Lock] = WeakKeyDictionary()
        """Held while groups of a shard are made, moved or deleted."""
        self._tasks: asyncio.TaskGroup | None = None
        self._started = asyncio.Event()
        self._saver = GroupSaver(self._is_current, self.now_ms, self.clock)
        self.save_generation = self._saver.save_generation
        self.save_records = self._saver.save_records
        self.note_in_use = self._saver.note_in_use
        self.save_progress = self._saver.save_progress

    def __repr__(self) -> str:
        return f"<Groups {len(self._hosts)}>"

    def configure(self, config: Config) -> None:
        """Make groups by other settings from now on."""
        self._config = config

    def saved_ends(self, topic: str, partition: int) -> list[int] | None:
        """Return what groups have done in a partition, as far as they have saved it, wherever their
        home is; None if some of them are not known here."""
        if self._replicated is None:
            return []
        shards, known = self._replicated.followed(), self._topics.find(topic)
        if shards is None or known is None:
            return None
        return [
            end
            for shard in shards
            for end in saved_ends(shard, topic, partition, folder=known.folder)
        ]

    # Start and end

    async def open(self) -> None:
        """Take up every group where it was; of several nodes, once `run` is running."""
        self._topics.on_opened.append(self._partition_opened)
        self._topics.on_updated.append(self._topic_updated)
        self._topics.on_deleted.append(self._topic_deleted)
        if self._replicated is None:
            self._topics.records_of.append(lambda each: records_of_topic(self._metadata, each.name))
            orphans = self._take_up(self._metadata)
            await self._metadata.put_many(orphans)
            await self.save_all()
            return
        for topic in self._topics.all():
            for host in topic.partitions:
                host.on_role.append(self._role_changed)
        await self._started.wait()
        self._replicated.follow(self._topics, self._shard_moved)

    def _take_up(self, metadata: Metadata, prefix: str = GROUP) -> Records:
        """Open the groups of a shard; return the records of those whose topic is gone.

        A node of several may not have heard yet of a topic that others have made, or made anew: its
        groups are opened when it has.
        """
        orphans: Records = {}
        for key, value in metadata.items(prefix):
            topic_name, group = key.removeprefix(GROUP).split("/")
            topic = self._topics.find(topic_name)
            record = msgspec.json.decode(value, type=GroupRecord)
            is_of_topic = topic is not None and record.folder in ("", topic.folder)
            # Of several nodes, one that does not know a topic may be behind, or cut off.
            is_known = self._replicated is None or self._topics.was_deleted(record.folder)
            if not is_of_topic and is_known:
                orphans |= records_of_group(metadata, topic_name, group)
                continue
            if topic is None or not is_of_topic or (topic_name, group) in self._hosts:
                continue
            saved = [
                self._saved_partition(metadata, record, topic, group, each)
                for each in topic.partitions
            ]
            host = self._add(topic, group, saved, record.generation, metadata)
            host.active_ms = record.active_ms or self.now_ms()
            host.is_used = record.is_used
        return orphans

    def _shard_moved(self, number: int, metadata: Metadata, is_home: bool) -> None:
        """Open the groups of a shard, or let another node have them."""
        if not is_home:
            for host in self._of_shard(metadata):
                self._remove(host, Ending.MOVED)
            log.info("groups_moved shard=%s", metadata.name)
            return
        if metadata.get(ADOPTED) is None:
            # Those of the node that was alone before it was one of several.
            adopted = records_of_groups(self._metadata, lambda group: shard_of(group) == number)
            metadata.write({**adopted, ADOPTED: b"1"})
        orphans = self._take_up(metadata)
        log.info("groups_taken_up shard=%s groups=%d", metadata.name, len(self._of_shard(metadata)))
        self._forget(metadata, orphans)

    def forget_orphans(self) -> None:
        """Forget the groups of topics that were deleted while their home was another node."""
        for metadata in () if self._replicated is None else self._replicated.led():
            self._forget(metadata, self._take_up(metadata))

    def _forget(self, metadata: Metadata, records: Records) -> None:
        """End records of groups that are gone; if that fails, it is tried again later.

        At once: what was found to be gone may be made anew in the next turn of the loop.
        """
        if not records:
            return
        try:
            metadata.write(records)
        except (StorageFull, Damaged, Unavailable) as error:
            log.warning("groups_not_forgotten shard=%s error=%s", metadata.name, error)

    async def run(self) -> None:
        """Own all that groups wait for, and save progress, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._started.set()
                while True:
                    await asyncio.sleep(SAVE_EVERY_S)
                    for metadata, hosts in by_shard(self._hosts.values()).items():
                        if not self._saver.is_saving(metadata):
                            tasks.create_task(self._saver.save_shard(metadata, hosts))
        finally:
            self._tasks = None
            for host in self._hosts.values():
                host.end(Ending.STOPPING)

    async def save_all(self) -> None:
        """Save the progress of every group."""
        await self.save_progress(self._hosts.values())

    async def close(self) -> None:
        """End every session and save all progress."""
        for host in self._hosts.values():
            host.end(Ending.STOPPING)
        with suppress(TimeoutError):  # the next home has what was saved a second ago
            async with asyncio.timeout(None if self._replicated is None else CLOSE_S_MAX):
                await self.save_all()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        if self._tasks is None:
            work.close()
            raise Stopping("the node is stopping")
        return self._tasks.create_task(work)

    # Records

    def now_ms(self) -> int:
        """Return the time by which groups expire: the wall clock's, but never ahead of the time
        that has passed since the start, so that no clock set forward ends them all."""
        return min(self._wall.now_ms(), self.clock.now_ms())

    def _of_shard(self, metadata: Metadata) -> list[GroupHost]:
        return [host for host in self._hosts.values() if host.metadata is metadata]

    def _lock(self, metadata: Metadata) -> asyncio.Lock:
        return self._changing.setdefault(metadata, asyncio.Lock())

    def _records(self, host: GroupHost, generation: int) -> Records:
        shift_ms = self.clock.set_by_ms()
        return progress_of(host, shift_ms=shift_ms) | group_record(host, generation)

    def _is_current(self, host: GroupHost) -> bool:
        """Tell whether a group was not removed while something of it waited to be saved."""
        return self._hosts.get((host.topic, host.name)) is host

    # Sessions

    async def open_session(
        self,
        topic: str,
        group: str,
        *,
        member: str = "",
        start: Start = Start.EARLIEST,
        start_ms: int = 0,
        credit: tuple[int, int] | None = None,
    ) -> Session:
        """Have a member join a group; the group and, if so configured, its topic are made if need
        be. `start` says where a new group begins. Without a name the member is given one, without
        a credit (messages, bytes) that which is configured."""
        check_name("group", group)
        name = member or f"{group[:150]}-{os.urandom(6).hex()}"
        check_name("member", name)
        await self._started.wait()
        self._shards.metadata_of(group)
        found, made_partitions = await self._ensure_topic(topic)
        host = self._hosts.get((topic, group))
        if host is None:
            if self._tasks is None:
                raise Stopping("the node is stopping")
            # Also if whoever asks goes meanwhile: by then its records may be written.
            host = await run_detached(self._tasks, self._make(found, group, start, start_ms))
        session = await host.join(name, credit=credit)
        session.made_partitions = made_partitions
        return session

    async def _ensure_topic(self, topic: str) -> Ensured:
        if is_own(topic):  # read like others, and made by the node alone
            return Ensured(self._topics.get(topic))
        return await self._topics.ensure(topic)

    async def _make(self, topic: Topic, group: str, start: Start, start_ms: int) -> GroupHost:
        metadata = self._shards.metadata_of(group)
        async with self._lock(metadata):
            if (host := self._hosts.get((topic.name, group))) is not None:
                return host
            folder = folder_of(metadata, topic.name, group)
            if folder not in ("", topic.folder) and not self._topics.was_deleted(folder):
                # What the group has done in a topic that was made anew must not be written over.
                raise Unavailable(f"the topic {topic.name!r} was made anew: ask again")
            if len(self._hosts) >= (limit := self._config.groups.groups_max):
                raise CapacityReached("groups", limit, meaning="see groups.groups_max")
            partitions = [self._partition(topic, p, None, new_run_id()) for p in topic.partitions]
            for partition in partitions:
                self._begin(topic, partition, await position_of(partition, start, start_ms))
            # Logs that were opened anew meanwhile, or added, told only groups that were here.
            for partition in partitions:
                partition.reopen(self._logs.of(partition.host))
            more = topic.partitions[len(partitions) :]
            partitions += [self._partition(topic, each, None, new_run_id()) for each in more]
            if self._topics.get(topic.name).folder != topic.folder:  # or UnknownTopic
                raise Unavailable(f"the topic {topic.name!r} was made anew: ask again")
            host = self._add(topic, group, partitions, 0, metadata)
            host.active_ms = self.now_ms()
            # With all there is of one that had its name in a topic that had this one's.
            before = records_of_group(metadata, topic.name, group) if folder else {}
            try:
                await metadata.put_many(before | self._records(host, 0))
            except BaseException:
                self._remove(host, Ending.STOPPING)
                raise
            log.info("group_made topic=%s group=%s", topic.name, group)
            return host

    def _begin(self, topic: Topic, partition: GroupPartition, committed: int) -> None:
        config = topic.delivery(self._config.delivery)
        has_dead_letters = not topic.name.endswith(DEAD_LETTERS)
        partition.cursor = Cursor(config, committed=committed, has_dead_letters=has_dead_letters)

    def _add(
        self,
        topic: Topic,
        group: str,
        partitions: list[GroupPartition],
        generation: int,
        metadata: Metadata,
    ) -> GroupHost:
        host = GroupHost(
            topic.name,
            group,
            partitions,
            folder=topic.folder,
            metadata=metadata,
            generation=generation,
            delivery=topic.delivery(self._config.delivery),
            config=self._config.groups,
            wall=self._wall,
            clock=self.clock,
            dead_letters=self._dead_letters,
            groups=self,
            spawn=self._spawn,
        )
        self._hosts[topic.name, group] = host
        return host

    def _remove(self, host: GroupHost, ending: Ending) -> None:
        host.end(ending)
        if self._is_current(host):
            del self._hosts[host.topic, host.name]

    # Partitions

    def _saved_partition(
        self,
        metadata: Metadata,
        record: GroupRecord,
        topic: Topic,
        group: str,
        host: PartitionHost,
    ) -> GroupPartition:
        number = host.partition
        saved = metadata.get(progress_key(topic.name, group, number))
        run_id = record.run_ids[number] if number < len(record.run_ids) else new_run_id()
        partition = self._partition(topic, host, saved, run_id)
        partition.missed = record.missed[number] if number < len(record.missed) else 0
        return partition

    def _partition(
        self, topic: Topic, host: PartitionHost, saved: bytes | None, run_id: str
    ) -> GroupPartition:
        reader = self._logs.of(host)
        cursor, problem = cursor_from(
            saved,
            topic.delivery(self._config.delivery),
            log=reader,
            has_dead_letters=not topic.name.endswith(DEAD_LETTERS),
            is_replicated=host.role != "alone",
        )
        if problem is not None:
            log.error("progress_lost partition=%r error=%s", host, problem)
        partition = GroupPartition(host, reader, cursor, run_id=run_id)
        # A log that lost its tail gives those offsets to others, of which the record is not true.
        partition.is_changed = saved is not None and problem is None and cursor.encode() != saved
        return partition

    def _role_changed(self, partition: PartitionHost) -> None:
        """Have groups go on with a log that was opened, closed, or opened anew."""
        if not self._logs.is_current(partition):
            self._logs.drop(partition)
            reader = self._logs.of(partition)
            for host in self._of_topic(partition.topic):
                host.reopen(partition, reader)

    def _partition_opened(self, topic: Topic, partition: PartitionHost) -> None:
        if self._replicated is not None:
            partition.on_role.append(self._role_changed)
        for host in self._of_topic(topic.name):
            host.add_partition(self._partition(topic, partition, None, new_run_id()))
        if self._replicated is not None and partition is topic.partitions[-1]:
            for metadata in self._replicated.led():
                self._forget(metadata, self._take_up(metadata, f"{GROUP}{topic.name}/"))

    def _topic_updated(self, topic: Topic) -> None:
        for host in self._of_topic(topic.name):
            host.configure(topic.delivery(self._config.delivery))

    def _topic_deleted(self, topic: Topic) -> None:
        for host in self._of_topic(topic.name):
            self._remove(host, Ending.TOPIC_GONE)
            if self._replicated is not None:
                self._forget(host.metadata, records_of_group(host.metadata, host.topic, host.name))
        for partition in topic.partitions:
            self._logs.drop(partition)

    def _of_topic(self, topic: str) -> list[GroupHost]:
        return [host for host in self._hosts.values() if host.topic == topic]

    # For administrators

    def list(self, topic: str = "") -> list[GroupInfo]:
        """Return all groups, or those of a topic."""
        return [host.info() for key, host in sorted(self._hosts.items()) if topic in ("", key[0])]

    def hosts(self) -> Iterable[GroupHost]:
        """Return every group's host, for what they count."""
        return tuple(self._hosts.values())

    def get(self, topic: str, group: str) -> GroupInfo:
        """Return a group; raises NotFound."""
        return self._host(topic, group).info()

    async def delete(self, topic: str, group: str) -> None:
        """Forget a group; raises Busy while it has members."""
        async with self._lock(self._host(topic, group).metadata):
            host = self._idle_host(topic, group, "delete")
            written = host.metadata.write(records_of_group(host.metadata, topic, group))
            self._remove(host, Ending.STOPPING)
            await host.metadata.wait_flushed(written)
            log.info("group_deleted topic=%s group=%s", topic, group)

    async def seek(
        self,
        topic: str,
        group: str,
        *,
        start: Start = Start.EARLIEST,
        start_ms: int = 0,
        positions: dict[int, int] | None = None,
    ) -> GroupInfo:
        """Set where a group goes on: everywhere by `start`, or in some partitions by offset. Raises
        Busy while it has members, or dead messages that wait to be written."""
        found = self._topics.get(topic)
        async with self._lock(self._host(topic, group).metadata):
            host = self._idle_host(topic, group, "move")
            if host.dead_letters:
                raise Busy(f"group {group!r} has dead letters that are not written: try again")
            targets = await targets_of(host.partitions, start, start_ms, positions)
            before = [(each, each.cursor, each.run_id) for each in host.partitions]
            for partition, offset in targets:
                self._begin(found, partition, offset)
                partition.run_id = new_run_id()
            host.active_ms, host.is_used = max(host.active_ms, self.now_ms()), True
            try:
                written = host.metadata.write(self._records(host, host.generation))
            except (StorageFull, Unavailable):
                for partition, cursor, run_id in before:
                    partition.cursor, partition.run_id = cursor, run_id
                raise
            await host.metadata.wait_flushed(written)
        log.info("group_moved topic=%s group=%s", topic, group)
        return host.info()

    def _host(self, topic: str, group: str) -> GroupHost:
        self._topics.get(topic)
        self._shards.metadata_of(group)
        host = self._hosts.get((topic, group))
        if host is None:
            raise NotFound("group", f"{topic}/{group}")
        return host

    def _idle_host(self, topic: str, group: str, what: str) -> GroupHost:
        host = self._host(topic, group)
        if host.members:
            raise Busy(f"group {group!r} has {len(host.members)} members: end them to {what} it")
        return host
