"""Replicated partitions as a node tells of them: a fake, for those who watch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from waterclock.model.cluster_views import ReplicationView, ReplicaView
from waterclock.server.cluster.replication_status import InstallCounts

NODES = ("a", "b", "c")
END = 100


@dataclass
class FakeReplication:
    """A `ReplicationStatus` that says what it was given."""

    partitions: Sequence[ReplicationView]
    commits: int = 0
    elections: int = 0
    is_coordinator_away: bool = False
    installs: InstallCounts = field(default_factory=InstallCounts)

    def views(self) -> list[ReplicationView]:
        return list(self.partitions)


def partition(
    topic: str,
    number: int,
    *,
    leader: str,
    epoch: int = 3,
    lag: int = 0,
    away: str = "",
    factor: int = 3,
    learner: str = "",
) -> ReplicationView:
    """Return a partition on three nodes: the second may be behind, one away, one learn."""
    replicas = [
        ReplicaView(
            name=name,
            disk="d" * 16,
            is_voter=name != learner,
            flushed_end=END - (behind := lag if name == NODES[1] else 0),
            lag=behind,
            is_linked=name != away,
        )
        for name in NODES
    ]
    return ReplicationView(
        topic=topic,
        partition=number,
        leader=leader,
        epoch=epoch,
        state="leading" if leader else "candidate",
        replicas=replicas,
        committed_end=END,
        factor=factor,
    )
