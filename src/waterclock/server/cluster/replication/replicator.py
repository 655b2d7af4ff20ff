"""All partitions of a node and their replicas elsewhere, under a loop.

    coordinator ── session ── view ─┐
    peers ── channels ── messages ──┼── cores, one for each log that this node has a copy of
    hosts ── logs, flushes ─────────┘        │
        promises · swaps · streams · roles of hosts, as the cores want

The node attaches the partitions that it found in its records. Where the coordinator says that this
node has a replica, its log is opened; where it does not any more, closed.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from waterclock.cluster.coordinator.coordinator import Coordinator
from waterclock.cluster.coordinator.errors import (
    CoordinatorRefused,
    CoordinatorUnavailable,
    LeaseNotFound,
    RevisionWentBack,
)
from waterclock.cluster.coordinator.records import Keys, NodeRecord, PartitionRecord
from waterclock.cluster.coordinator.requests import Revision
from waterclock.cluster.peer_link.channels import Channel
from waterclock.cluster.replication.cluster_view import Changed, node_of, replica_of
from waterclock.cluster.replication.effects import Effect, Swapped
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.messages import Message
from waterclock.cluster.replication.replica import Replica
from waterclock.model.clock import Clock
from waterclock.model.errors import BadConfig
from waterclock.model.ids import Epoch
from waterclock.model.units import MINUTE_MS, SECOND_MS
from waterclock.node.partition.host import PartitionHost
from waterclock.server.cluster.peers import Peers
from waterclock.server.cluster.replication.catch_up import CatchUp
from waterclock.server.cluster.replication.channels import ReplicaChannels
from waterclock.server.cluster.replication.deadlines import Deadlines
from waterclock.server.cluster.replication.forming import forming_txns, is_former
from waterclock.server.cluster.replication.hosted import Hosted
from waterclock.server.cluster.replication.installs import Installs
from waterclock.server.cluster.replication.placing import Placing
from waterclock.server.cluster.replication.promise_writer import PromiseWriter
from waterclock.server.cluster.replication.release_level import check_level, may_write
from waterclock.server.cluster.replication.session import Session
from waterclock.server.cluster.replication.streams import Streams
from waterclock.server.cluster.replication.swaps import Swaps
from waterclock.storage.promises import Promises

META: Final = "__meta"
OPENINGS_AT_ONCE: Final = 8
HAND_OVER_PAUSE_S: Final = 0.1
"""A replica that had something to copy yet may have it by then."""
BY: Final = "coordinator"
"""Who knows of the nodes that are met here."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatorSettings:
    """What a replicator needs to know of the configuration."""

    lease_ms: int = 3_000
    catch_up_bytes: int = 64 << 20
    replace_after_ms: int = 10 * MINUTE_MS
    """How long a replica may be away before another takes its place; 0: for ever."""
    acks_all_ms: int = 10 * SECOND_MS
    """How long a publish with `acks=all` waits for a replica that is away. Less than clients wait
    for an answer (15 s): they are to hear which one it was."""
    factor: int = 3
    """Replicas of what the nodes have for themselves: records and groups."""
    expect: int = 1
    """Nodes that must have registered before a cluster forms."""
    own_meta_log: bytes | None = None
    """The log of records with topics that this node has already."""
    own_logs: tuple[bytes, ...] = ()
    """The logs of these topics' partitions."""


class Replicator:
    """The replicas of one node. `run` it in a task."""

    def __init__(
        self,
        name: str,
        record: NodeRecord,
        *,
        coordinator: Coordinator,
        keys: Keys,
        peers: Peers,
        promises: Promises,
        settings: ReplicatorSettings,
        clock: Clock,
    ) -> None:
        self.name = name
        self.me = replica_of(name, record)
        self.settings = settings
        self.promises = promises
        self.commits = self.elections = self.truncations = self.replacements = 0
        """How often what this node leads was committed further, it came to lead, cut a log, and
        put one in the place of another."""
        self.is_leaving = False
        """It hands over what it leads, and takes nothing back."""
        self._clock = clock
        self._peers = peers
        self._hosted: dict[bytes, Hosted] = {}
        self._by_name: dict[tuple[str, int], Hosted] = {}
        self._changed = asyncio.Event()
        self._room = asyncio.Semaphore(OPENINGS_AT_ONCE)
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[None]] = set()
        self.session = Session(
            coordinator,
            keys,
            name,
            record,
            lease_ms=settings.lease_ms,
            on_changed=self._cluster_changed,
            now_ms=clock.now_ms,
        )
        self.channels = ReplicaChannels(
            peers,
            self.me,
            on_up=self._linked,
            on_down=self._unlinked,
            on_gone=self._gone,
            on_message=self._received,
            on_drained=lambda peer: self.streams.drained(peer),
        )
        self.promise_writer = PromiseWriter(promises, self._promised)
        self.swaps = Swaps(coordinator, keys, on_swapped=self._swapped, on_read=self._record_read)
        catch_up = CatchUp(settings.catch_up_bytes, asyncio.get_running_loop().time())
        self.streams = Streams(self.channels, catch_up)
        self.installs = Installs(peers, catch_up, self._spawn)
        self.deadlines = Deadlines(self.now_ms, self._tick)
        self.placing = Placing(self)

    def __repr__(self) -> str:
        return f"<Replicator {self.me}, {len(self._hosted)} partitions, {self.session!r}>"

    def now_ms(self) -> int:
        """Return the time that the cores go by: it never steps."""
        return self._clock.monotonic_ms()

    def wall_ms(self) -> int:
        """Return the time of day, for people."""
        return self._clock.now_ms()

    @property
    def hosted(self) -> list[Hosted]:
        """All partitions that the node knows of."""
        return list(self._hosted.values())

    # Running

    async def run(self) -> None:
        """Replicate until cancelled; the logs are closed then by whoever owns the hosts."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for work in (
                    self.session.run(),
                    self.promise_writer.run(),
                    self.swaps.run(),
                    self.placing.run(),
                ):
                    self._tasks.create_task(work)
                self.channels.begin()
                for hosted in self.hosted:
                    self._look(hosted)
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    # Nothing is decided any more, before anything ends; the logs stay open. A group
                    # that is cancelled takes no more tasks.
                    self._tasks = None
                    for hosted in self.hosted:
                        hosted.core = None
        finally:
            self.channels.close()
            self.streams.close()
            self.deadlines.close()

    async def hand_over(self) -> None:
        """Have others lead what this node leads; returns when nobody else can take more of it."""
        self.is_leaving = True
        # Else those that prefer this node would give back what they are given.
        with suppress(CoordinatorUnavailable, CoordinatorRefused, LeaseNotFound, RevisionWentBack):
            await self.session.say_leaving()
        while sum(each.hand_over() for each in self.hosted):  # all of them, each time
            changed = self._changed
            with suppress(TimeoutError):
                async with asyncio.timeout(HAND_OVER_PAUSE_S):
                    await changed.wait()

    async def leave(self) -> None:
        """Say that this node goes: others need not wait for the end of its lease."""
        await self.session.leave()

    # The cluster

    async def meta_log_id(self) -> bytes:
        """Return the identity of the log of the records, once the cluster has one; form it if this
        node is the one to do so. Raises BadConfig if this node has records of another cluster, or
        is of a release that cannot read those of this one."""
        session, own_log = self.session, self.settings.own_meta_log
        await session.was_read.wait()
        await session.is_registered.wait()
        while session.view.meta_log is None:
            await self._form()
            if session.view.meta_log is None:
                await self._changes()
        check_level(session.view.cluster, session.record)
        if own_log is not None and own_log != session.view.meta_log:
            raise BadConfig(
                "node.data_folder",
                "has topics of another cluster, or of a node alone: start with an empty one",
            )
        return session.view.meta_log

    async def _form(self) -> None:
        session, settings = self.session, self.settings
        has_topics = settings.own_meta_log is not None
        nodes = session.view.nodes
        if is_former(self.name, nodes, has_topics=has_topics, expect=settings.expect):
            meta_log = settings.own_meta_log or os.urandom(16)
            for txn in forming_txns(
                session.keys,
                self.me,
                meta_log=meta_log,
                own_logs=settings.own_logs,
                level=min(node.level for node in nodes.values()),
            ):
                with suppress(CoordinatorUnavailable):  # read below, or tried again
                    await session.coordinator.write(txn)

    def may_write(self, level: int) -> bool:
        """Whether all nodes understand what came with a release level: else it is not written."""
        return may_write(self.session.view, level)

    async def open_meta(self, host: PartitionHost) -> None:
        """Have the records of all nodes followed, or led, from now on."""
        self.attach(host, await self.meta_log_id(), is_everywhere=True)

    # The node's partitions

    def attach(
        self,
        host: PartitionHost,
        log_id: bytes,
        *,
        factor: int | None = None,
        is_everywhere: bool = False,
    ) -> None:
        """Replicate a partition from now on, wherever its copies come to be."""
        assert log_id not in self._hosted, log_id
        hosted = Hosted(
            self,
            host,
            log_id,
            factor=self.settings.factor if factor is None else factor,
            is_everywhere=is_everywhere,
        )
        self._hosted[log_id] = self._by_name[host.topic, host.partition] = hosted
        self._look(hosted)
        self.placing.look()

    def set_factor(self, host: PartitionHost, factor: int | None) -> None:
        """Have another number of copies of a partition: its leader sees to it, one at a time."""
        hosted = self._by_name.get((host.topic, host.partition))
        if hosted is not None:
            hosted.factor = self.settings.factor if factor is None else factor
            self.placing.look()

    async def detach(self, host: PartitionHost) -> None:
        """Have nothing to do with a partition any more; its log is closed on return."""
        hosted = self._by_name.pop((host.topic, host.partition), None)
        if hosted is None:
            return
        del self._hosted[hosted.log_id]
        hosted.core = None
        while hosted.is_busy:
            await self._changes()
        await hosted.close("the topic was deleted")
        self.placing.look()

    @property
    def is_joined(self) -> bool:
        """This node shows the records that were committed when it came."""
        meta = self._by_name.get((META, 0))
        return meta is not None and meta.shows_all_it_joined_to()

    async def joined(self) -> None:
        """Return once this node shows the records that were committed when it came."""
        await self.until(lambda: self.is_joined)

    async def led(self, log_ids: Sequence[bytes]) -> None:
        """Return once each of these logs has a leader."""
        view = self.session.view
        while not all(view.leader_of(log_id) is not None for log_id in log_ids):
            await self._changes()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once something holds that comes with records, leaders and roles."""
        while not holds():
            await self._changes()

    def _look(self, hosted: Hosted) -> None:
        """Open or close a log, as the record of its partition says."""
        placed = self.session.view.partitions.get(hosted.log_id)
        hosted.record_changed(None if placed is None else placed.record)
        self.note_change()
        if hosted.is_busy or self._tasks is None or hosted.host.problem is not None:
            return
        is_mine = placed is not None and self.me in (
            *placed.record.replicas,
            *placed.record.learners,
        )
        if hosted.core is not None and placed is not None:
            hosted.tell(hosted.core.record_changed(*placed, self.now_ms()))
        elif hosted.core is not None:
            # Deleted, or restored away: it leads no more, and what it has stays where it is.
            hosted.tell(hosted.core.record_changed(None, self.session.view.revision, self.now_ms()))
        if is_mine and hosted.core is None:
            assert placed is not None
            self._work_on(hosted, hosted.open(placed))
        elif not is_mine and placed is not None and hosted.may_have_files:
            if hosted.core is not None or placed.record.state == "leading":
                self._work_on(hosted, hosted.leave(placed))
        elif not is_mine and hosted.core is not None:
            self._work_on(hosted, hosted.close("it is nobody's any more"))

    def begin_reopening(self, hosted: Hosted) -> None:
        """Open a log anew that was cut or replaced."""
        self._work_on(hosted, hosted.reopen())

    def _work_on(self, hosted: Hosted, work: Coroutine[None, None, None]) -> None:
        if self._tasks is None:  # it ends
            work.close()
            return
        hosted.is_busy = True
        self._spawn(self._worked_on(hosted, work))

    async def _worked_on(self, hosted: Hosted, work: Coroutine[None, None, None]) -> None:
        try:
            async with self._room:
                await work
        finally:
            hosted.is_busy = False
        if self._hosted.get(hosted.log_id) is hosted:
            self._look(hosted)  # what has changed meanwhile
        self.note_change()

    def run_timers(self, hosted: Hosted) -> None:
        """Load the timers of a partition that this node leads, and run them."""
        if self._tasks is not None:
            hosted.timers = self._spawn(hosted.play_timers(hosted.timers))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        assert self._tasks is not None, "it does not run"
        return self._tasks.create_task(work)

    # What happened

    def _cluster_changed(self, changed: Changed) -> None:
        view = self.session.view
        if changed.cluster and self.session.was_read.is_set():  # before, the start tells
            check_level(view.cluster, self.session.record)
        for name in changed.nodes:
            self._meet(name, view.nodes.get(name))
        if changed.nodes:
            alive = view.alive
            self._tell_all(lambda core, now_ms: core.alive_changed(alive, now_ms))
        for log_id in changed.logs:
            if log_id in self._hosted:
                self._look(self._hosted[log_id])
        self.placing.look()
        self.note_change()

    def _meet(self, name: str, node: NodeRecord | None) -> None:
        if node is not None:
            host, _, port = node.peer.rpartition(":")
            self._peers.meet(name, host.strip("[]"), int(port), by=BY)
        elif name not in self._peers.linked:
            self._peers.part(name, by=BY)

    def _linked(self, peer: ReplicaId) -> None:
        self._tell_all(lambda core, now_ms: core.link_up(peer, now_ms))
        self.note_change()

    def _unlinked(self, peer: ReplicaId) -> None:
        self.streams.forget(peer)
        silent_ms = self._peers.silent_ms(node_of(peer))
        self._tell_all(lambda core, now_ms: core.link_down(peer, now_ms, silent_ms=silent_ms))
        if node_of(peer) not in self.session.view.nodes:
            self._peers.part(node_of(peer), by=BY)
        self.note_change()

    def _gone(self, peer: ReplicaId) -> None:
        self._tell_all(lambda core, now_ms: core.gone(peer, now_ms))

    def _tell_all(self, event: Callable[[Replica, int], list[Effect]]) -> None:
        now_ms = self.now_ms()
        for hosted in self.hosted:
            if hosted.core is not None:
                hosted.tell(event(hosted.core, now_ms))

    def _received(self, peer: ReplicaId, message: Message) -> None:
        hosted = self._hosted.get(message.log_id)
        if hosted is not None and hosted.core is not None:
            hosted.received(peer, message)

    def _promised(self, log_id: bytes, epoch: Epoch) -> None:
        hosted = self._hosted.get(log_id)
        if hosted is not None and hosted.core is not None:
            hosted.tell(hosted.core.promise_saved(epoch, self.now_ms()))

    def _swapped(self, log_id: bytes, outcome: Swapped) -> None:
        hosted = self._hosted.get(log_id)
        if hosted is not None and hosted.core is not None:
            hosted.tell(hosted.core.swapped(outcome, self.now_ms()))

    def _record_read(
        self, log_id: bytes, record: PartitionRecord | None, revision: Revision
    ) -> None:
        hosted = self._hosted.get(log_id)
        if hosted is not None and hosted.core is not None:
            hosted.tell(hosted.core.record_read(record, revision, self.now_ms()))

    def _tick(self, hosted: Hosted) -> None:
        if hosted.core is not None:
            hosted.tell(hosted.core.tick(self.now_ms()))

    def note_change(self) -> None:
        """Wake whoever waits for something to hold."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _changes(self) -> None:
        await self._changed.wait()

    # What other nodes say: called by `Cluster`

    def linked(self, node_id: str) -> None:
        """A node can be asked, or is asked over another connection from now on."""
        self.channels.linked(node_id)

    def process_gone(self, node_id: str) -> None:
        """A node's process is gone."""
        self.channels.gone(node_id)

    def requested(self, node_id: str, channel: Channel, body: bytes) -> None:
        """Another node opens its channel."""
        if self._tasks is None:
            channel.cancel("the node is starting")
        else:
            self.channels.requested(node_id, channel, body)

    def asked_for_segments(self, channel: Channel, body: bytes) -> None:
        """Another node lacks what is not streamed any more."""
        if self._tasks is None:
            channel.cancel("the node is starting")
        else:
            self.installs.requested(channel, body, self._hosted.get)

    # Places

    def meta_leader(self) -> str | None:
        """Return who makes topics, recurrences, writers and snapshots."""
        return self.leader_of(META, 0)

    def leader_of(self, topic: str, partition: int) -> str | None:
        """Return who appends to a partition, and fires its timers."""
        hosted = self._by_name.get((topic, partition))
        return hosted.host.leader or None if hosted is not None else None

    def replicas_of(self, topic: str, partition: int) -> tuple[str, ...]:
        """Return who has a copy, the leader among them; empty if nobody is known to have one."""
        hosted = self._by_name.get((topic, partition))
        placed = None if hosted is None else self.session.view.partitions.get(hosted.log_id)
        return () if placed is None else tuple(map(node_of, placed.record.replicas))
