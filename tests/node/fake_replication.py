"""Nodes whose partitions are replicated within one process, by copying: for tests of the node.

Each log is led by the node that the test names (at first by the node that leads the records), and
what its leader appends is copied to all others in the next turn of the loop, and committed. A test
can hold that up (`is_stuck`), and move the lead.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.kit.clock import ManualClock
from tests.node.hosts import START_MS, config_in
from waterclock.cluster.node_tags import LEVEL
from waterclock.model.errors import Unreachable, WaterclockError
from waterclock.model.ids import Epoch
from waterclock.model.views import TopicSettings
from waterclock.node.groups.shards import GROUPS_TOPIC, SHARDS, shard_of
from waterclock.node.metadata import Metadata
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.opening import replica_host
from waterclock.node.replicated_topics import ReplicatedTopics
from waterclock.node.replication import META
from waterclock.node.task_groups import task_group
from waterclock.storage.flush import BackgroundThreads

META_LOG = b"the records' log"


@dataclass
class FakeLog:
    """A log and its replicas, by node."""

    replicas: dict[str, PartitionHost] = field(default_factory=dict)
    leader: str = ""
    epoch: int = 0


class FakeCluster:
    """All logs of all nodes."""

    def __init__(self, leader: str) -> None:
        self.leader = leader
        """Who leads what nobody else was named for."""
        self.first_leader: Callable[[PartitionHost], str] = lambda host: self.leader
        self.logs: dict[bytes, FakeLog] = {}
        self.topics: dict[str, ReplicatedTopics] = {}
        self.methods: dict[str, Callable[[bytes], Awaitable[bytes]]] = {}
        """By node: what answers the others."""
        self.is_stuck = False
        """Nothing is copied or committed."""
        self.without: set[str] = set()
        """Nodes that get no copies of new logs."""
        self._changed = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once something holds that comes with copies and leaders."""
        while not holds():
            await self._changed.wait()

    async def settled(self) -> None:
        """Return once every node has, and shows, all that there is."""
        await self.until(self._is_settled)

    def _is_settled(self) -> bool:
        hosts = [
            host
            for node, topics in self.topics.items()
            for topic in topics.all()
            for host in topic.partitions
            if node not in self.without
        ]
        logs = [log for log in self.logs.values() if log.replicas]
        return all(host.is_open for host in hosts) and all(map(_is_shared, logs))

    async def add(self, node: str, log_id: bytes, host: PartitionHost) -> None:
        """Open a replica, unless the node gets none."""
        if node in self.without:
            return
        log = self.logs.setdefault(log_id, FakeLog(leader=self.first_leader(host)))
        replica = await host.open_replica()
        assert replica is not None, host.problem
        log.epoch = max(log.epoch, host.store.epoch)
        log.replicas[node] = host
        host.flush_queue.on_moved = partial(self._soon, log_id)
        if node == log.leader:
            self.lead(log_id, node)
        self._soon(log_id)

    def _soon(self, log_id: bytes) -> None:
        asyncio.get_running_loop().call_soon(self.replicate, log_id)

    def lead(self, log_id: bytes, node: str) -> None:
        """Have a node lead a log, under the next epoch."""
        log = self.logs[log_id]
        before = log.replicas.get(log.leader)
        if before is not None and before.role == "leader":
            before.step_down("another leads")
        log.leader, log.epoch = node, log.epoch + 1
        host = log.replicas[node]
        assert host.replica is not None
        host.replica.begin_epoch(Epoch(log.epoch), now_ms=host.clock.now_ms())
        host.admit(Epoch(log.epoch), leader=node)
        self._soon(log_id)

    def move(self, node: str, *, but: Sequence[bytes] = ()) -> None:
        """Have a node lead everything from now on."""
        self.leader = node
        for log_id in self.logs:
            if log_id not in but and node in self.logs[log_id].replicas:
                self.lead(log_id, node)

    def leave(self, node: str) -> None:
        """Have a node lead and copy nothing any more: nobody waits for what it has written."""
        for log in self.logs.values():
            host = log.replicas.pop(node, None)
            if host is not None and host.is_open and host.role == "leader":
                host.step_down("the node stops")

    def replicate(self, log_id: bytes) -> None:
        """Copy and commit what the leader has."""
        log = self.logs.get(log_id)
        if self.is_stuck or log is None or log.leader not in log.replicas:
            return
        leading = log.replicas[log.leader]
        if not leading.is_open:
            return
        leader = leading.store
        for host in [each for each in log.replicas.values() if each.is_open]:
            store, replica = host.store, host.replica
            assert replica is not None
            if replica.is_faulty:
                continue  # it would learn anew
            raw = b"".join(frame.raw for frame in leader.reader.frames(store.end))
            if raw:
                replica.append_frames(raw, leader_epoch=leader.epoch, now_ms=host.clock.now_ms())
            store.sync()
            replica.commit(leader.end)
            host.follow(log.leader)
            host.flush_queue._tell()
        if leading.role == "leader" and not leading.is_led:
            leading.lead()
        self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def go_on(self) -> None:
        """Copy what was held up."""
        self.is_stuck = False
        for log_id in tuple(self.logs):
            self.replicate(log_id)


def _is_shared(log: FakeLog) -> bool:
    leader = log.replicas[log.leader]
    ends = {host.store.acknowledged_end for host in log.replicas.values()}
    return leader.is_led and ends == {leader.store.end}


class FakePlaces:
    """Who leads what, as one node sees it."""

    def __init__(self, cluster: FakeCluster, me: str) -> None:
        self._cluster = cluster
        self.me = me

    def meta_leader(self) -> str | None:
        return self._cluster.logs[META_LOG].leader

    def leader_of(self, topic: str, partition: int) -> str | None:
        log_id = bytes.fromhex(self._cluster.topics[self.me].get(topic).log_id(partition))
        log = self._cluster.logs.get(log_id)
        return None if log is None else log.leader

    def replicas_of(self, topic: str, partition: int) -> tuple[str, ...]:
        log_id = bytes.fromhex(self._cluster.topics[self.me].get(topic).log_id(partition))
        return tuple(self._cluster.logs[log_id].replicas)

    def group_home(self, group: str) -> str | None:
        return self.leader_of(GROUPS_TOPIC, shard_of(group))

    def group_homes(self) -> tuple[str | None, ...]:
        return tuple({self.leader_of(GROUPS_TOPIC, each): None for each in range(SHARDS)})


class FakeReplication:
    """The replicator of one node."""

    def __init__(self, cluster: FakeCluster, node: str, tasks: asyncio.TaskGroup) -> None:
        self.cluster = cluster
        self.node = node
        self._tasks = tasks
        self._timers: dict[PartitionHost, asyncio.Task[None]] = {}
        self._openings: dict[PartitionHost, asyncio.Task[None]] = {}
        self.factors: dict[tuple[str, int], int | None] = {}

    @property
    def places(self) -> "FakePlaces":
        return FakePlaces(self.cluster, self.node)

    async def call(self, node: str, method: str, request: bytes) -> bytes:
        if node not in self.cluster.methods:
            raise Unreachable(f"{node} is gone")
        return await self.cluster.methods[node](request)

    async def meta_log_id(self) -> bytes:
        return META_LOG

    async def open_meta(self, host: PartitionHost) -> None:
        await self.cluster.add(self.node, META_LOG, host)

    async def joined(self) -> None:
        log = self.cluster.logs[META_LOG]
        end = log.replicas[log.leader].store.end
        await self.cluster.until(lambda: log.replicas[self.node].store.acknowledged_end >= end)

    def attach(self, host: PartitionHost, log_id: bytes, *, factor: int | None = None) -> None:
        self.factors[host.topic, host.partition] = factor
        host.on_role.append(self._play_timers)
        self._openings[host] = self._tasks.create_task(self.cluster.add(self.node, log_id, host))

    def set_factor(self, host: PartitionHost, factor: int | None) -> None:
        self.factors[host.topic, host.partition] = factor

    def _play_timers(self, host: PartitionHost) -> None:
        if host.is_led and host not in self._timers:
            self._timers[host] = self._tasks.create_task(self._run_timers(host))
        elif not host.is_led and host in self._timers:
            self._timers.pop(host).cancel()

    async def _run_timers(self, host: PartitionHost) -> None:
        try:
            scheduler = await host.load_timers()
            assert scheduler is not None
            await scheduler.run()
        finally:
            host.unload_timers()

    async def stop(self) -> None:
        for timers in self._timers.values():
            timers.cancel()
        if self._timers:
            await asyncio.wait(self._timers.values())
        self.cluster.leave(self.node)

    async def detach(self, host: PartitionHost) -> None:
        opening = self._openings.pop(host, None)
        if opening is not None:
            await asyncio.wait([opening])  # its files go only then
        for log in self.cluster.logs.values():
            if log.replicas.get(self.node) is host:
                del log.replicas[self.node]
        host.close_replica("the topic is gone")

    def may_write(self, level: int) -> bool:
        return level <= LEVEL

    def forget_others(self, knows_all_topics: Callable[[], bool]) -> None:
        self.knows_all_topics = knows_all_topics

    async def led(self, log_ids: Sequence[bytes]) -> None:
        def is_led(log_id: bytes) -> bool:
            log = self.cluster.logs.get(log_id, FakeLog())
            return log.leader in log.replicas and log.replicas[log.leader].is_led

        await self.cluster.until(lambda: all(map(is_led, log_ids)))

    async def create_topic(self, name: str, settings: TopicSettings) -> None:
        await self._leading_topics().create(name, settings, if_absent=True)

    async def add_partitions(self, name: str, partitions: int) -> None:
        await self._leading_topics().ensure_partitions(name, partitions)

    async def ensure_own_topic(self, name: str, settings: TopicSettings) -> None:
        await self._leading_topics().ensure_own(name, settings)

    def _leading_topics(self) -> ReplicatedTopics:
        return self.cluster.topics[self.cluster.logs[META_LOG].leader]


@dataclass
class ReplicatedHosts:
    """Metadata and topics of one of several nodes."""

    clock: ManualClock
    tasks: asyncio.TaskGroup
    metadata: Metadata
    topics: ReplicatedTopics
    failures: list[WaterclockError]


@asynccontextmanager
async def joined(
    folder: Path, cluster: FakeCluster, name: str, clock: ManualClock | None = None
) -> AsyncIterator[ReplicatedHosts]:
    """Run the metadata and topics of a node; leaving closes them."""
    clock = clock or ManualClock(START_MS)
    config = config_in(folder)
    threads = BackgroundThreads()
    failures: list[WaterclockError] = []
    with ExitStack() as rest:
        rest.callback(threads.stop)
        meta = replica_host(
            META,
            0,
            log_folder=folder / "meta",
            timers_folder=None,
            config=config,
            clock=clock,
            threads=threads,
            loop=asyncio.get_running_loop(),
            on_failed=failures.append,
            on_full=lambda error: None,
            log_id=META_LOG,
        )
        rest.callback(meta.close_replica, "the node stops")
        metadata = Metadata(meta, clock)
        meta.on_role.append(lambda host: metadata.role_changed())
        async with task_group() as tasks:
            topics = ReplicatedTopics(
                folder / "topics",
                metadata,
                config=config,
                clock=clock,
                threads=threads,
                tasks=tasks,
                on_failed=failures.append,
            )
            replication = FakeReplication(cluster, name, tasks)
            cluster.topics[name] = topics
            topics.follow(replication)
            rest.callback(topics.close)

            await replication.open_meta(meta)
            await replication.joined()
            await topics.open()
            try:
                yield ReplicatedHosts(clock, tasks, metadata, topics, failures)
            finally:
                await replication.stop()
