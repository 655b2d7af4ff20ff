"""The groups of a node: found at the start, made by their first member, remembered in the metadata.

A group is `group/<topic>/<group>` (its generation, and more) and, for each partition,
`progress/<topic>/<group>/<partition>` (its cursor, as drawn in docs/formats/progress.md). Progress
is saved every second if it has changed, all groups in one write, and when a partition moves: so a
crash delivers about a second's acks again, and loses none. Generations are durable before any
member hears of them.
"""

import asyncio
import logging
import os
from collections.abc import Coroutine, Iterable
from typing import Any

import msgspec

from waterclock.delivery.cursor import Cursor
from waterclock.model.clock import Clock, RunningClock
from waterclock.model.config import Config
from waterclock.model.errors import (
    Busy,
    CapacityReached,
    NotFound,
    Stopping,
    StorageFull,
)
from waterclock.model.names import DEAD_LETTERS, check_name, is_own
from waterclock.model.views import GroupInfo
from waterclock.node.dead_letters.dead_letters import DeadLetters
from waterclock.node.groups.host import GroupHost
from waterclock.node.groups.partition import GroupPartition, cursor_from
from waterclock.node.groups.positions import Start, position_of, targets_of
from waterclock.node.groups.records import (
    GROUP,
    PROGRESS,
    GroupRecord,
    group_record,
    new_run_id,
    progress_key,
    progress_of,
)
from waterclock.node.groups.session import Ending, Session
from waterclock.node.metadata import Metadata, Records
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.log_reader import LogReader
from waterclock.node.topics import Ensured, Topic, Topics

SAVE_EVERY_S = 1.0

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
    ) -> None:
        self._topics = topics
        self._metadata = metadata
        self._dead_letters = dead_letters
        self._config = config
        self._wall = clock
        self.clock = RunningClock(clock)
        """Measures leases, waits and sessions."""
        self._hosts: dict[tuple[str, str], GroupHost] = {}
        self._logs: dict[PartitionHost, LogReader] = {}
        self._changing = asyncio.Lock()
        self._tasks: asyncio.TaskGroup | None = None
        self._started = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Groups {len(self._hosts)}>"

    def configure(self, config: Config) -> None:
        """Make groups by other settings from now on."""
        self._config = config

    # Start and end

    async def open(self) -> None:
        """Take up every group where it was."""
        orphans: dict[str, bytes | None] = {}
        for key, value in self._metadata.items(GROUP):
            topic_name, group = key.removeprefix(GROUP).split("/")
            topic = self._topics.find(topic_name)
            if topic is None:
                orphans |= self._forgotten(topic_name, group)
                continue
            record = msgspec.json.decode(value, type=GroupRecord)
            saved = [self._saved_partition(record, topic, group, each) for each in topic.partitions]
            host = self._add(topic, group, saved, record.generation)
            host.active_ms = record.active_ms or self.now_ms()
            host.is_used = record.is_used
        await self._metadata.put_many(orphans)
        await self.save_all()
        self._topics.on_opened.append(self._partition_opened)
        self._topics.on_updated.append(self._topic_updated)
        self._topics.records_of.append(self._records_of)
        self._topics.on_deleted.append(self._topic_deleted)

    async def run(self) -> None:
        """Own all that groups wait for, and save progress, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._started.set()
                while True:
                    await asyncio.sleep(SAVE_EVERY_S)
                    await self.save_progress(self._hosts.values())
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
        await self.save_all()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._tasks is None:
            work.close()
            raise Stopping("the node is stopping")
        self._tasks.create_task(work)

    # Records

    async def save_generation(self, host: GroupHost, generation: int) -> None:
        """Make a generation of a group durable."""
        if self._is_current(host):
            host.active_ms = max(host.active_ms, self.now_ms())
            await self._metadata.put_many(group_record(host, generation))

    async def save_records(self, hosts: Iterable[GroupHost]) -> None:
        """Save all there is to know of some groups, as far as the disk has room."""
        current = [host for host in hosts if self._is_current(host)]
        records: dict[str, bytes | None] = {}
        for host in current:
            records |= group_record(host, host.generation)
        try:
            await self._metadata.put_many(records)
        except StorageFull as error:
            log.warning("groups_not_saved error=%s", error)
        await self.save_progress(current)

    async def note_in_use(self, hosts: Iterable[GroupHost]) -> None:
        """Remember that groups are in use now."""
        noted = list(hosts)
        for host in noted:
            host.active_ms = max(host.active_ms, self.now_ms())
        await self.save_records(noted)

    def now_ms(self) -> int:
        """Return the time by which groups expire: the wall clock's, but never ahead of the time
        that has passed since the start, so that no clock set forward ends them all."""
        return min(self._wall.now_ms(), self.clock.now_ms())

    async def save_progress(self, hosts: Iterable[GroupHost]) -> None:
        """Save what has changed of the progress of some groups, in one write."""
        try:
            await self._write_progress(hosts)
        except StorageFull as error:
            log.warning("progress_not_saved error=%s", error)

    async def _write_progress(self, hosts: Iterable[GroupHost]) -> None:
        current = [host for host in hosts if self._is_current(host)]
        shift_ms = self.clock.set_by_ms()
        partitions = [(host, partition) for host in current for partition in host.partitions]
        changed = [each for each in partitions if each[1].must_save(shift_ms=shift_ms)]
        for _, partition in changed:
            partition.is_changed = False
        records: dict[str, bytes | None] = {
            progress_key(host.topic, host.name, each.number): each.encode(shift_ms=shift_ms)
            for host, each in changed
        }
        # In one write with the first answers: no crash makes an unused group of one that gave some.
        found_used = {host for host, _ in changed if host.has_answered and not host.is_used}
        for host in found_used:
            host.is_used = True
            records |= group_record(host, host.generation)
        try:
            await self._metadata.put_many(records)
        except StorageFull:
            for _, partition in changed:
                partition.is_changed = True
            for host in found_used:
                host.is_used = False
            raise

    def _records(self, host: GroupHost, generation: int) -> Records:
        shift_ms = self.clock.set_by_ms()
        return progress_of(host, shift_ms=shift_ms) | group_record(host, generation)

    def _is_current(self, host: GroupHost) -> bool:
        """Tell whether a group was not removed while something of it waited to be saved."""
        return self._hosts.get((host.topic, host.name)) is host

    def _forgotten(self, topic: str, group: str) -> dict[str, bytes | None]:
        keys = [f"{GROUP}{topic}/{group}"]
        keys += [key for key, _ in self._metadata.items(f"{PROGRESS}{topic}/{group}/")]
        return dict.fromkeys(keys)

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
        found, made_partitions = await self._ensure_topic(topic)
        host = self._hosts.get((topic, group)) or await self._make(found, group, start, start_ms)
        session = await host.join(name, credit=credit)
        session.made_partitions = made_partitions
        return session

    async def _ensure_topic(self, topic: str) -> Ensured:
        # The node's own are read like others, and made by the node alone.
        if is_own(topic):
            return Ensured(self._topics.get(topic))
        return await self._topics.ensure(topic)

    async def _make(self, topic: Topic, group: str, start: Start, start_ms: int) -> GroupHost:
        async with self._changing:
            host = self._hosts.get((topic.name, group))
            if host is not None:
                return host
            limit = self._config.groups.groups_max
            if len(self._hosts) >= limit:
                raise CapacityReached("groups", limit, meaning="see groups.groups_max")
            partitions = [self._partition(topic, p, None, new_run_id()) for p in topic.partitions]
            for partition in partitions:
                self._begin(topic, partition, position_of(partition, start, start_ms))
            host = self._add(topic, group, partitions, 0)
            host.active_ms = self.now_ms()
            try:
                await self._metadata.put_many(self._records(host, 0))
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
        self, topic: Topic, group: str, partitions: list[GroupPartition], generation: int
    ) -> GroupHost:
        host = GroupHost(
            topic.name,
            group,
            partitions,
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
        self._hosts.pop((host.topic, host.name), None)

    # Partitions

    def _saved_partition(
        self, record: GroupRecord, topic: Topic, group: str, host: PartitionHost
    ) -> GroupPartition:
        number = host.partition
        saved = self._metadata.get(progress_key(topic.name, group, number))
        run_id = record.run_ids[number] if number < len(record.run_ids) else new_run_id()
        partition = self._partition(topic, host, saved, run_id)
        partition.missed = record.missed[number] if number < len(record.missed) else 0
        return partition

    def _partition(
        self, topic: Topic, host: PartitionHost, saved: bytes | None, run_id: str
    ) -> GroupPartition:
        reader = self._reader(host)
        cursor, problem = cursor_from(
            saved,
            topic.delivery(self._config.delivery),
            log=reader,
            has_dead_letters=not topic.name.endswith(DEAD_LETTERS),
        )
        if problem is not None:
            log.error("progress_lost partition=%r error=%s", host, problem)
        partition = GroupPartition(host, reader, cursor, run_id=run_id)
        # A log that lost its tail gives those offsets to others, of which the record is not true.
        partition.is_changed = saved is not None and problem is None and cursor.encode() != saved
        return partition

    def _reader(self, partition: PartitionHost) -> LogReader | None:
        if not partition.is_open:
            return None
        reader = self._logs.get(partition)
        if reader is None:
            reader = self._logs[partition] = LogReader(partition.store)
        return reader

    def _partition_opened(self, topic: Topic, partition: PartitionHost) -> None:
        for host in self._of_topic(topic.name):
            host.add_partition(self._partition(topic, partition, None, new_run_id()))

    def _topic_updated(self, topic: Topic) -> None:
        for host in self._of_topic(topic.name):
            host.configure(topic.delivery(self._config.delivery))

    def _topic_deleted(self, topic: Topic) -> None:
        for host in self._of_topic(topic.name):
            self._remove(host, Ending.TOPIC_GONE)
        for partition in topic.partitions:
            self._logs.pop(partition, None)

    def _records_of(self, topic: Topic) -> Records:
        prefixes = f"{GROUP}{topic.name}/", f"{PROGRESS}{topic.name}/"
        return {key: None for prefix in prefixes for key, _ in self._metadata.items(prefix)}

    def _of_topic(self, topic: str) -> list[GroupHost]:
        return [host for host in self._hosts.values() if host.topic == topic]

    # For administrators

    def list(self, topic: str = "") -> list[GroupInfo]:
        """Return all groups, or those of a topic."""
        hosts = [host for key, host in sorted(self._hosts.items()) if topic in ("", key[0])]
        return [host.info() for host in hosts]

    def hosts(self) -> Iterable[GroupHost]:
        """Return every group's host, for what they count."""
        return tuple(self._hosts.values())

    def get(self, topic: str, group: str) -> GroupInfo:
        """Return a group; raises NotFound."""
        return self._host(topic, group).info()

    async def delete(self, topic: str, group: str) -> None:
        """Forget a group; raises Busy while it has members."""
        async with self._changing:
            host = self._idle_host(topic, group, "delete")
            end = self._metadata.write(self._forgotten(topic, group))
            self._remove(host, Ending.STOPPING)
            await self._metadata.wait_flushed(end)
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
        async with self._changing:
            host = self._idle_host(topic, group, "move")
            if host.dead_letters:
                raise Busy(f"group {group!r} has dead letters that are not written: try again")
            targets = targets_of(host.partitions, start, start_ms, positions)
            before = [(each, each.cursor, each.run_id) for each in host.partitions]
            for partition, offset in targets:
                self._begin(found, partition, offset)
                partition.run_id = new_run_id()
            host.active_ms, host.is_used = max(host.active_ms, self.now_ms()), True
            try:
                end = self._metadata.write(self._records(host, host.generation))
            except StorageFull:
                for partition, cursor, run_id in before:
                    partition.cursor, partition.run_id = cursor, run_id
                raise
            await self._metadata.wait_flushed(end)
        log.info("group_moved topic=%s group=%s", topic, group)
        return host.info()

    def _host(self, topic: str, group: str) -> GroupHost:
        self._topics.get(topic)
        host = self._hosts.get((topic, group))
        if host is None:
            raise NotFound("group", f"{topic}/{group}")
        return host

    def _idle_host(self, topic: str, group: str, what: str) -> GroupHost:
        host = self._host(topic, group)
        if host.members:
            raise Busy(f"group {group!r} has {len(host.members)} members: end them to {what} it")
        return host
