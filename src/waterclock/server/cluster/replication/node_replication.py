"""What a node, its calls and its metrics see of the replicator."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from waterclock.cluster.replication.cluster_view import node_of
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.model.cluster_views import ReplicationView, ReplicaView
from waterclock.model.ids import Millis, Offset
from waterclock.node.groups.shards import GROUPS_TOPIC, SHARDS, shard_of
from waterclock.node.partition.host import PartitionHost
from waterclock.node.problems import COORDINATOR_AWAY, HealthProblem, problem_named
from waterclock.server.cluster.calls.remote_calls import RemoteCalls
from waterclock.server.cluster.calls.remote_topics import RemoteTopics
from waterclock.server.cluster.peers import Peers
from waterclock.server.cluster.replication.hosted import Hosted
from waterclock.server.cluster.replication.replicator import Replicator
from waterclock.server.cluster.replication_status import InstallCounts

UNKNOWN = -1
HAND_OVER_S: Final = 4.0
SAVE_S: Final = 1.5

_log = logging.getLogger(__name__)


class ReplicatedPlaces:
    """Who leads what, as the records and the node's own part in them say."""

    def __init__(self, replicator: Replicator) -> None:
        self.me = replicator.name
        self.meta_leader = replicator.meta_leader
        self.leader_of = replicator.leader_of
        self.replicas_of = replicator.replicas_of

    def __repr__(self) -> str:
        return f"<ReplicatedPlaces of {self.me}>"

    def group_home(self, group: str) -> str | None:
        """Return who serves the members of a group, of whatever topic."""
        return self.leader_of(GROUPS_TOPIC, shard_of(group))

    def group_homes(self) -> tuple[str | None, ...]:
        """Return all that are home of some group; None among them: some have no home now."""
        return tuple({self.leader_of(GROUPS_TOPIC, number): None for number in range(SHARDS)})


class NodeReplication:
    """The replicator of a node, running, as the node knows it."""

    def __init__(self, replicator: Replicator, peers: Peers, running: asyncio.Task[None]) -> None:
        self.replicator = replicator
        self.places = ReplicatedPlaces(replicator)
        self._running = running
        remote = RemoteCalls(peers)
        self.call = remote.unary
        topics = RemoteTopics(remote, self.places)
        self.create_topic = topics.create_topic
        self.add_partitions = topics.add_partitions
        self.ensure_own_topic = topics.ensure_own_topic
        self.meta_log_id = replicator.meta_log_id
        self.may_write = replicator.may_write
        self.open_meta = replicator.open_meta
        self.joined = replicator.joined
        self.set_factor = replicator.set_factor
        self.detach = replicator.detach
        self.led = replicator.led

    def __repr__(self) -> str:
        return f"<NodeReplication by {self.replicator!r}>"

    def attach(self, host: PartitionHost, log_id: bytes, *, factor: int | None = None) -> None:
        """Drive a partition from now on, wherever its copies come to be."""
        self.replicator.attach(host, log_id, factor=factor)

    def forget_others(self, knows_all_topics: Callable[[], bool]) -> None:
        """Take away records of partitions that no topic has, while the node knows all topics."""
        self.replicator.placing.knows_all_topics = knows_all_topics

    async def hand_over(self, save_progress: Callable[[], Awaitable[None]]) -> None:
        """Have others lead what this node leads, after the progress of groups is saved.

        It takes at most `HAND_OVER_S`; what is left then others take over when the node is gone.
        """
        try:
            async with asyncio.timeout(HAND_OVER_S):
                with suppress(TimeoutError):  # the next home has what was saved a second ago
                    async with asyncio.timeout(SAVE_S):
                        await save_progress()
                await self.replicator.hand_over()
        except TimeoutError:
            count = sum(each.is_leading for each in self.replicator.hosted)
            _log.warning("partitions_left_behind partitions=%d", count)

    async def stop(self) -> None:
        """Drive nothing any more, and let others take over at once."""
        self._running.cancel()
        await asyncio.wait([self._running])
        await self.replicator.leave()

    # What is shown

    @property
    def commits(self) -> int:
        """How often the commit point of a partition that it leads moved."""
        return self.replicator.commits

    @property
    def elections(self) -> int:
        """How often it came to lead a partition."""
        return self.replicator.elections

    @property
    def installs(self) -> InstallCounts:
        """What it copied whole."""
        return self.replicator.installs.counts

    @property
    def is_coordinator_away(self) -> bool:
        """Whether etcd did not answer when it was last asked."""
        return bool(self.replicator.session.problem)

    def problems(self) -> list[HealthProblem]:
        """Return what people have to know."""
        session = self.replicator.session
        if not session.problem:
            return []
        since_ms = Millis(session.problem_since_ms)
        return [problem_named(COORDINATOR_AWAY, session.problem, since_ms)]

    def views(self) -> list[ReplicationView]:
        """Return how each partition stands that this node has a copy of."""
        found = [self._view(hosted) for hosted in self.replicator.hosted]
        return [view for view in found if view is not None]

    def _view(self, hosted: Hosted) -> ReplicationView | None:
        core = hosted.core
        record = None if core is None else core.record
        if core is None or record is None:
            return None
        voters, end = frozenset(record.replicas), hosted.host.store.end

        def replica(name: str) -> ReplicaView:
            flushed_end = core.flushed_end_of(ReplicaId(name))
            lag = UNKNOWN if flushed_end is None else end - flushed_end
            if flushed_end is None:
                own = hosted.host.store.flushed_end
                flushed_end = own if name == core.me else Offset(UNKNOWN)
            return ReplicaView(
                name=node_of(name),
                disk=name.rpartition(":")[2],
                is_voter=name in voters,
                flushed_end=flushed_end,
                lag=lag,
                is_linked=name == core.me or ReplicaId(name) in self.replicator.channels.up,
            )

        return ReplicationView(
            topic=hosted.host.topic,
            partition=hosted.host.partition,
            leader=hosted.host.leader,
            epoch=record.epoch,
            state=record.state,
            replicas=list(map(replica, (*record.replicas, *record.learners))),
            committed_end=core.committed_end,
            factor=hosted.factor,
        )
