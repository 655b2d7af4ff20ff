"""How replicated topics stand: what a node tells of them, what all nodes do, and the metrics.

The leader of a partition knows how far its replicas are; the others know their own copy, and who
leads. So each node says what it leads, and whoever was asked puts that together; of a partition
that nobody leads, or whose leader does not answer, it says what it knows itself.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from waterclock.model.cluster_views import ReplicationView
from waterclock.server.families import Family, Sample, counter, gauge, one_counter, one_gauge

PARTITION = ("topic", "partition")
ROLES = ("leader", "follower", "learner")


@dataclass
class InstallCounts:
    """Copies of whole segments, from leaders that cannot stream any more what a replica lacks."""

    begun: int = 0
    finished: int = 0
    """They took the place of the log."""
    failed: int = 0
    """They ended otherwise; what is still needed is begun again."""
    received_bytes: int = 0


class ReplicationStatus(Protocol):
    """What a node tells of the partitions it has a copy of."""

    @property
    def commits(self) -> int:
        """How often the commit point of a partition that it leads moved."""
        ...

    @property
    def elections(self) -> int:
        """How often it began to take over a partition."""
        ...

    @property
    def installs(self) -> InstallCounts:
        """What it copied whole."""
        ...

    @property
    def is_coordinator_away(self) -> bool:
        """Whether etcd did not answer when it was last asked."""
        ...

    def views(self) -> list[ReplicationView]:
        """Return a view of each, as far as it knows."""
        ...


def led(views: Iterable[ReplicationView], name: str) -> list[ReplicationView]:
    """Return those that a node leads."""
    return [view for view in views if view.leader == name]


def of_topic(views: Iterable[ReplicationView], topic: str | None) -> list[ReplicationView]:
    """Return those of a topic; of all if none is named."""
    return [view for view in views if topic in (None, view.topic)]


def whole(
    own: Iterable[ReplicationView], answers: Iterable[Sequence[ReplicationView]]
) -> list[ReplicationView]:
    """Return one view of each partition: what its leader said, or else what this node knows."""
    found = {(view.topic, view.partition): view for view in own}
    for answer in answers:
        for view in answer:
            known = found.get((view.topic, view.partition))
            # One that led before, and has not heard of it, has an epoch that is over.
            if known is None or view.epoch >= known.epoch:
                found[view.topic, view.partition] = view
    return [found[place] for place in sorted(found)]


def replication_families(status: ReplicationStatus, name: str) -> Iterator[Family]:
    """Yield what there is to count of replicated partitions on the node of this name."""
    views = status.views()
    ours = led(views, name)
    roles = Counter(_role(view, name) for view in views)
    yield gauge(
        "replication_partitions",
        "Partitions that this node has a copy of, by what it does for them.",
        ("role",),
        [((role,), roles[role]) for role in ROLES],
    )
    yield one_gauge(
        "replication_leaderless_partitions",
        "Partitions that this node has a copy of, and of which it knows no leader.",
        sum(not view.leader for view in views),
    )
    yield one_gauge(
        "replication_under_replicated_partitions",
        "Partitions that this node leads with a voter away, or fewer voters than they are to have.",
        sum(view.is_under_replicated for view in ours),
    )
    yield gauge(
        "replication_lag",
        "Offsets that the voter that is furthest behind has not flushed, as the leader knows.",
        PARTITION,
        _each(ours, [view.lag for view in ours]),
    )
    yield gauge(
        "replication_epoch",
        "The leader's epoch; it grows with each change of leader.",
        PARTITION,
        _each(ours, [view.epoch for view in ours]),
    )
    yield one_counter(
        "replication_commits", "Times that a majority had more of a partition.", status.commits
    )
    yield one_counter(
        "replication_elections", "Times that this node began to take over.", status.elections
    )
    installs = status.installs
    yield counter(
        "replication_installs",
        "Copies of whole segments from leaders, for what is not streamed any more, by event.",
        ("event",),
        [
            (("begun",), installs.begun),
            (("finished",), installs.finished),
            (("failed",), installs.failed),
        ],
    )
    yield one_counter(
        "replication_install_bytes", "Received in such copies.", installs.received_bytes
    )
    yield one_gauge(
        "coordinator_away", "1 while etcd does not answer.", int(status.is_coordinator_away)
    )


def _role(view: ReplicationView, name: str) -> str:
    if view.leader == name:
        return "leader"
    is_voter = any(replica.is_voter for replica in view.replicas if replica.name == name)
    return "follower" if is_voter else "learner"


def _each(views: Sequence[ReplicationView], values: Sequence[int]) -> list[Sample]:
    places = [(view.topic, str(view.partition)) for view in views]
    return list(zip(places, values, strict=True))
