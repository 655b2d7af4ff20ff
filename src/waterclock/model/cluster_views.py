"""What is shown of a cluster: its members, what became of them, its ring, its replicas.

Views as those of `model/views.py`; only HTTP carries them, and only a node with others has them.
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

    @property
    def lag(self) -> int:
        """Of the voter that is furthest behind."""
        return max((each.lag for each in self.replicas if each.is_voter), default=0)

    @property
    def is_under_replicated(self) -> bool:
        """Nobody leads it, or the leader does not reach all voters."""
        return not self.leader or not all(r.is_linked for r in self.replicas if r.is_voter)


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
