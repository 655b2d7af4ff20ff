"""What is shown of a cluster: its members, what became of them, its ring, its replicas.

Views as those of `model/views.py`, of which a node without others has none. HTTP carries them, and
gRPC what people change: the placement.
"""

from datetime import datetime

from waterclock.model.clock import time_of
from waterclock.model.views import View


class MemberView(View, frozen=True):
    """A node of the cluster, as another one sees it."""

    name: str
    address: str
    """`host:port` of its gossip."""
    state: str
    """`alive`, `suspect`, `leaving`, `left` or `failed`."""
    http: str
    """Where clients reach it, as a URL; empty for a member that is no node of ours."""
    peer: str
    """`host:port` for other nodes."""
    zone: str
    level: int
    """Its release level: what it understands of other nodes; 0 for a member that is none."""
    is_self: bool
    is_linked: bool
    """It can be asked at this moment."""


class EventView(View, frozen=True):
    """Something that happened to a member."""

    time_ms: int
    kind: str
    member: str
    detail: str

    @property
    def time(self) -> datetime:
        """When it was seen."""
        return time_of(self.time_ms)


class ReplicaView(View, frozen=True):
    """A copy of a partition, on a disk of a node. Numbers are -1 if who was asked does not know."""

    name: str
    disk: str
    is_voter: bool
    flushed_end: int
    lag: int
    is_linked: bool


class ReplicationView(View, frozen=True):
    """A replicated partition, as its leader sees it; without a leader, as who was asked does."""

    topic: str
    partition: int
    leader: str
    epoch: int
    state: str
    """`vacant`, `candidate` or `leading`."""
    replicas: list[ReplicaView]
    committed_end: int
    factor: int = 0
    """How many replicas are to vote; 0 if who was asked is of a release that does not say."""

    @property
    def lag(self) -> int:
        """Of the voter that is furthest behind."""
        return max((each.lag for each in self.replicas if each.is_voter), default=0)

    @property
    def voters(self) -> int:
        """How many replicas vote."""
        return sum(each.is_voter for each in self.replicas)

    @property
    def is_under_replicated(self) -> bool:
        """Nobody leads it, the leader does not reach all voters, or fewer vote than are to.

        That counts also where there are fewer nodes than replicas wanted. Kafka counts against what
        was assigned, for it makes no topic with more replicas than brokers; here the set begins
        with what there is, and nobody can tell a node that has not come yet from one that never
        will. Fewer copies than were asked for is what people have to know.
        """
        is_reached = all(each.is_linked for each in self.replicas if each.is_voter)
        return not self.leader or not is_reached or self.voters < self.factor


class DrainView(View, frozen=True):
    """A node that is to have no replicas, and how much of it there still is."""

    node: str
    since_ms: int
    target: str
    """The node that replaces it; empty: it is drained, and its replicas go anywhere."""
    is_alive: bool
    leaders: int
    """Partitions that it leads."""
    replicas: int
    """Replicas on it that vote or learn, beside the copy of records that every node has."""
    stuck: int
    """Of these, those that no other node could have instead: they stay until one comes."""

    @property
    def is_done(self) -> bool:
        """It has nothing any more, and can be taken away."""
        return not self.leaders and not self.replicas


class MoveView(View, frozen=True):
    """A partition of which people want a replica, or the leader, elsewhere, and it is not yet."""

    topic: str
    partition: int
    target: str
    """The node."""
    source: str
    """The node whose replica it takes the place of; empty: whichever can best be spared."""
    is_leader_only: bool


class PlacementView(View, frozen=True):
    """What people want moved, as far as it is not done. A drain is there until it is undone."""

    drains: tuple[DrainView, ...] = ()
    moves: tuple[MoveView, ...] = ()


class RingShare(View, frozen=True):
    """What a node has of the hash ring."""

    name: str
    share: float
    """Of 1."""
    streams: int
    """In its memory; -1 if it does not say."""


class RingView(View, frozen=True):
    """The hash ring, as one node knows it."""

    version: int
    """The same wherever the same nodes are known."""
    nodes: list[RingShare]
