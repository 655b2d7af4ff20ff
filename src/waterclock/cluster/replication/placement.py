"""Where replicas go. Pure: the same view gives the same answer on every node.

New partitions are spread: nodes in other zones first, of these the ones with the fewest replicas,
and the leaders are shared out evenly. What stands is moved only for a reason: a replica whose disk
or node is gone for good is replaced, a partition with too few copies grows, one moves to a node
that has much less than another, one at a time, and a leader that is not the preferred one hands
over once that is back.

The leader of a partition decides on its replicas; nobody else may change them. The leader of
`__meta` decides where new partitions begin.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from waterclock.cluster.coordinator.records import REPLICAS_MAX, NodeRecord, PartitionRecord
from waterclock.cluster.replication.cluster_view import node_of, replica_of
from waterclock.cluster.replication.log_view import ReplicaId

Nodes = Mapping[str, NodeRecord]
Do = Literal["learn", "vote", "drop", "hand_over"]


class Step(NamedTuple):
    """One change that the leader of a partition should make now."""

    do: Do
    replica: ReplicaId


class Spread:
    """Chooses replicas for new partitions, one after the other, knowing those it chose before."""

    def __init__(self, nodes: Nodes, *, load: Mapping[str, int], leads: Mapping[str, int]) -> None:
        self._nodes = staying(nodes) or nodes
        self._load = Counter(dict(load))
        self._leads = Counter(dict(leads))

    def __repr__(self) -> str:
        return f"<Spread over {sorted(self._nodes)}>"

    def chosen(self, factor: int) -> tuple[ReplicaId, ...]:
        """Return replicas for one more partition, the preferred leader first."""
        assert self._nodes, "a cluster has a node"
        names: list[str] = []
        while len(names) < min(factor, len(self._nodes), REPLICAS_MAX):
            name = added(self._nodes, names, self._load)
            assert name is not None
            names.append(name)
        leader = min(names, key=lambda name: (self._leads[name], self._load[name], name))
        names.remove(leader)
        self._leads[leader] += 1
        for name in (leader, *names):
            self._load[name] += 1
        return tuple(replica_of(name, self._nodes[name]) for name in (leader, *names))


def staying(nodes: Nodes) -> Nodes:
    """Return the nodes that can be given something."""
    return {name: node for name, node in nodes.items() if not node.is_leaving}


def added(nodes: Nodes, having: Sequence[str], load: Mapping[str, int]) -> str | None:
    """Return the node that should have a replica beside these; None if all have."""
    zones = Counter(nodes[name].zone for name in having if name in nodes)
    free = [name for name in nodes if name not in having]
    return min(
        free, key=lambda name: (zones[nodes[name].zone], load.get(name, 0), name), default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the replicas of a partition are, as its leader sees it."""

    record: PartitionRecord
    factor: int
    """How many are to vote."""
    nodes: Nodes
    load: Mapping[str, int]
    caught_up: frozenset[ReplicaId]
    """Those that have about all."""
    lost: frozenset[ReplicaId] = frozenset()
    """Those that are not waited for any more."""
    is_everywhere: bool = False
    """All nodes have a copy, those that do not vote learn."""
    may_move: bool = False
    """It may go where there is less."""

    def next_step(self) -> Step | None:
        """Return what the leader should do next; None: nothing. One step at a time, each when the
        one before has been done."""
        for do, replica in (
            ("drop", self._replaced()),
            ("vote", self._voting()),
            ("drop", self._surplus()),
            ("learn", self._learning()),
            ("hand_over", self._preferred()),
        ):
            if replica is not None:
                return Step(cast(Do, do), replica)
        return None

    @property
    def _alive(self) -> frozenset[ReplicaId]:
        return frozenset(replica_of(name, node) for name, node in self.nodes.items())

    @property
    def _voters(self) -> list[ReplicaId]:
        return list(map(ReplicaId, self.record.replicas))

    @property
    def _learners(self) -> list[ReplicaId]:
        return list(map(ReplicaId, self.record.learners))

    @property
    def _kept(self) -> list[ReplicaId]:
        return [each for each in self._voters if each not in self.lost]

    @property
    def _wanted(self) -> int:
        return min(self.factor, REPLICAS_MAX)

    def _replaced(self) -> ReplicaId | None:
        """Return a replica that can never come back: its node has another disk by now; or a learner
        that is lost."""
        gone = [each for each in self._learners if each in self.lost]
        others = [each for each in (*self._learners, *self._voters) if each != self.record.leader]
        gone += [each for each in others if each not in self._alive and node_of(each) in self.nodes]
        return gone[0] if gone else None

    def _voting(self) -> ReplicaId | None:
        """Return a learner that should vote: it takes the place of another, or a free one."""
        ready = [each for each in self._learners if each in self.caught_up]
        is_needed = len(self._kept) < self._wanted or not self.is_everywhere
        return ready[0] if ready and is_needed and len(self._voters) < REPLICAS_MAX else None

    def _surplus(self) -> ReplicaId | None:
        """Return a voter that is not needed: a lost one whose place another has taken, or of one
        too many the one on the node that has most. Many too many are somebody's mistake."""
        lost = [each for each in self._voters if each in self.lost and each != self.record.leader]
        is_ready = any(each in self.caught_up for each in self._learners)
        if lost and (len(self._kept) >= self._wanted or is_ready):
            return lost[0]
        alive = [each for each in self._kept if each in self._alive]
        if len(self._kept) != self._wanted + 1 or len(alive) < self._wanted:
            return None
        away = [each for each in self._kept if each not in alive]
        return away[0] if away else self._fullest(alive)

    def _fullest(self, among: Sequence[ReplicaId]) -> ReplicaId:
        """Return the one that can best be spared: in a zone with others, on the fullest node."""
        zones = Counter(self.nodes[node_of(each)].zone for each in among)

        def spared(replica: ReplicaId) -> tuple[bool, int, int, str]:
            node = self.nodes[node_of(replica)]
            load = self.load.get(node_of(replica), 0)
            return node.is_leaving, zones[node.zone], load, replica

        return max(among, key=spared)

    def _learning(self) -> ReplicaId | None:
        """Return one more that should have a copy."""
        having = [node_of(each) for each in (*self._voters, *self._learners)]
        name = added(staying(self.nodes), having, self.load)
        if name is None or len(self._learners) >= REPLICAS_MAX:
            return None
        replica = replica_of(name, self.nodes[name])
        is_learning = any(each in self._alive for each in self._learners)
        is_short = len(self._kept) < self._wanted and not is_learning
        return replica if is_short or self.is_everywhere or self._is_better(replica) else None

    def _is_better(self, replica: ReplicaId) -> bool:
        """Say if a replica should take the place of another: only if that is worth it, even if each
        node moves one at the same moment. So they come to rest."""
        is_whole = len(self._voters) == self._wanted and self._alive.issuperset(self._voters)
        if not self.may_move or self._learners or not is_whole:
            return False
        spared = self._fullest([*self._voters, replica])
        distance = self.load.get(node_of(spared), 0) - self.load.get(node_of(replica), 0)
        return spared != replica and distance > len(self.nodes)

    def _preferred(self) -> ReplicaId | None:
        """Return the one that should lead, if another does."""
        preferred = self._voters[0]
        stays = preferred in self._alive and not self.nodes[node_of(preferred)].is_leaving
        is_other = preferred != self.record.leader
        return preferred if is_other and stays and preferred in self.caught_up else None
