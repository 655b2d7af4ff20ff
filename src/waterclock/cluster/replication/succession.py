"""When a replica should take over: whose turn it is, and how long it waits for others.

Leases and links decide nothing here but when somebody tries: that no two lead under one epoch, and
that nothing committed is lost, rests on epochs and promises alone.
"""

from typing import Final

from waterclock.cluster.coordinator.records import PartitionRecord
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.voters import majority_of

RANK_MS: Final = 150
"""Each waits so much longer than the one before it: longer than a candidate needs to be seen."""
VACANT_RANK_MS: Final = 2_000
"""The same for a partition that is new: nobody waits for it that could not wait for its preferred
leader, which opens a thousand logs by then; else it is led twice."""
CANDIDATE_MS: Final = 2_000
"""A candidate that leads by then is not disturbed; more keeps all waiting for one that is stuck."""


class Peers:
    """What a replica knows of the others' processes."""

    def __init__(self, me: ReplicaId) -> None:
        self.linked: set[ReplicaId] = set()
        self.gone: set[ReplicaId] = set()
        """Their processes are no more, whatever their leases say."""
        self.alive: frozenset[ReplicaId] | None = None
        """None: not known yet, and nobody is taken for dead."""
        self._me = me

    def __repr__(self) -> str:
        return f"<Peers of {self._me}: {sorted(self.linked)} linked, {sorted(self.gone)} gone>"

    def reaches_majority(self, voters: tuple[str, ...]) -> bool:
        """Say if a majority of the voters could answer now."""
        reached = sum(each == self._me or each in self.linked for each in voters)
        return reached >= majority_of(voters)

    def is_dead(self, replica: ReplicaId) -> bool:
        """Say if a replica cannot be leading."""
        return replica in self.gone or (self.alive is not None and replica not in self.alive)


def take_over_ms(
    record: PartitionRecord, me: ReplicaId, peers: Peers, *, since_ms: int, now_ms: int
) -> int | None:
    """Return when this replica should take over as things stand; None: it should not.

    `since_ms` is when the record was learned of.
    """
    leader = ReplicaId(record.leader)
    if me not in record.replicas or not peers.reaches_majority(record.replicas):
        return None  # it would only disturb: nobody could answer it
    if peers.is_dead(me):
        return None  # not registered yet, or not any more: others would take over from it at once
    if leader == me:
        return now_ms  # it led, or was about to, and started anew
    rank = _rank(record, me, peers)
    if record.state == "vacant":
        return now_ms + VACANT_RANK_MS * rank
    rank_ms = RANK_MS * rank
    if peers.is_dead(leader):
        return now_ms + rank_ms
    if record.state == "candidate":
        return max(since_ms + CANDIDATE_MS, now_ms) + rank_ms
    return None


def _rank(record: PartitionRecord, me: ReplicaId, peers: Peers) -> int:
    """Return how many replicas come before this one, the preferred leader first."""
    others = [ReplicaId(each) for each in record.replicas if each not in (me, record.leader)]
    ahead = record.replicas.index(me)
    return sum(not peers.is_dead(each) and record.replicas.index(each) < ahead for each in others)
