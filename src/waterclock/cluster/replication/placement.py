"""Where replicas go. Pure: the same view gives the same answer on every node.

New partitions are spread: nodes in other zones first, of these the ones with the fewest replicas,
and the leaders are shared out evenly. What stands is moved only for a reason: a replica whose disk
or node is gone for good is replaced, a partition with too few copies grows, one moves to a node
that has much less than another, one at a time, and a leader that is not the preferred one hands
over once that is back. And what people want moved is: everything off a node that they drain or
replace, its leaders first, and single replicas and leaders.

The leader of a partition decides on its replicas; nobody else may change them. The leader of
`__meta` decides where new partitions begin.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast

from waterclock.cluster.coordinator.records import (
    LEARNERS_MAX,
    REPLICAS_MAX,
    MoveRecord,
    NodeRecord,
    PartitionRecord,
)
from waterclock.cluster.replication.cluster_view import ClusterView, node_of, replica_of
from waterclock.cluster.replication.log_view import ReplicaId

Nodes = Mapping[str, NodeRecord]
Do = Literal["learn", "vote", "demote", "drop", "prefer", "hand_over"]


class Step(NamedTuple):
    """One change that the leader of a partition should make now."""

    do: Do
    replica: ReplicaId


class Spread:
    """Chooses replicas for new partitions, one after the other, knowing those it chose before."""

    def __init__(
        self,
        nodes: Nodes,
        *,
        load: Mapping[str, int],
        leads: Mapping[str, int],
        drained: Collection[str] = (),
    ) -> None:
        self._nodes = staying(nodes, drained) or staying(nodes) or nodes
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


def staying(nodes: Nodes, drained: Collection[str] = ()) -> Nodes:
    """Return the nodes that can be given something."""
    return {
        name: node for name, node in nodes.items() if not node.is_leaving and name not in drained
    }


def added(nodes: Nodes, having: Sequence[str], load: Mapping[str, int]) -> str | None:
    """Return the node that should have a replica beside these; None if all have."""
    zones = Counter(nodes[name].zone for name in having if name in nodes)
    free = [name for name in nodes if name not in having]
    return min(
        free, key=lambda name: (zones[nodes[name].zone], load.get(name, 0), name), default=None
    )


class Remaining(NamedTuple):
    """What there still is on a node that is to have nothing."""

    leaders: int
    replicas: int
    stuck: int
    """Replicas that no other node could have instead."""


def remaining(view: ClusterView, name: str) -> Remaining:
    """Return what there still is on a node, by the records of all partitions."""
    able = staying(view.nodes, view.drains).keys() - {name}
    leaders = replicas = stuck = 0
    for log_id, placed in view.partitions.items():
        record = placed.record
        voters = {*map(node_of, record.replicas)}
        leaders += node_of(record.leader) == name
        if name in voters:
            replicas += 1
            stuck += not able - voters
        elif log_id != view.meta_log:  # of which every node has a copy
            replicas += name in map(node_of, record.learners)
    return Remaining(leaders, replicas, stuck)


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
    leaders: Mapping[str, int] = field(default_factory=dict)
    """How many partitions each node leads."""
    lost: frozenset[ReplicaId] = frozenset()
    """Those that are not waited for any more."""
    damaged: frozenset[ReplicaId] = frozenset()
    """Those whose logs are damaged, or gone: they do not count, and have to learn anew."""
    is_everywhere: bool = False
    """All nodes have a copy, those that do not vote learn."""
    may_move: bool = False
    """It may go where there is less."""
    drains: Mapping[str, str] = field(default_factory=dict)
    """The nodes that are to have nothing, with those that replace them; empty: any may."""
    move: MoveRecord | None = None
    """What people want of this partition."""

    def next_step(self) -> Step | None:
        """Return what the leader should do next; None: nothing. One step at a time, each when the
        one before has been done."""
        for do, replica in (
            ("hand_over", self._successor()),
            ("drop", self._replaced()),
            ("demote", self._damaged()),
            ("vote", self._voting()),
            ("drop", self._surplus()),
            ("learn", self._learning()),
            ("prefer", self._chosen_leader()),
            ("hand_over", self._preferred()),
        ):
            if replica is not None:
                is_copied_on = do == "drop" and self._stays_as_learner(replica)
                return Step("demote" if is_copied_on else cast(Do, do), replica)
        return None

    @property
    def is_under_way(self) -> bool:
        """Something is about to change, or waits for a replica that is behind: look again soon."""
        is_wanted = len(self._kept) < self._wanted or not self.is_everywhere
        is_behind = self._steady_leader not in (None, self.record.leader)
        return (bool(self._learners) and is_wanted) or is_behind or self._is_led_by_drained

    @property
    def is_move_over(self) -> bool:
        """What people wanted moved is where they wanted it, or cannot go there any more."""
        move = self.move
        assert move is not None, "there is nothing to move"
        target = self._replica_on(move.target)
        if move.target in self.drains:
            return True
        is_settled = len(self._voters) <= self._wanted  # else it may be the one that goes
        if move.is_leader_only:
            is_led = target == self.record.leader == self._voters[0]
            return target is None or (is_led and is_settled)
        return target is not None and is_settled

    # Who there is

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
        return [each for each in self._voters if each not in self.lost and self._may_stay(each)]

    @property
    def _ready(self) -> list[ReplicaId]:
        """Learners that can vote: one that is away need not have what it had, when it is back."""
        there = [each for each in self._learners if each in self._alive and self._may_stay(each)]
        return [each for each in there if each in self.caught_up]

    @property
    def _wanted(self) -> int:
        return min(self.factor, REPLICAS_MAX)

    @property
    def _is_led_by_drained(self) -> bool:
        return not self._may_stay(ReplicaId(self.record.leader))

    def _may_stay(self, replica: ReplicaId) -> bool:
        return node_of(replica) not in self.drains

    def _replica_on(self, name: str) -> ReplicaId | None:
        """Return the voter that is on a node."""
        return next((each for each in self._voters if node_of(each) == name), None)

    def _stays_as_learner(self, replica: ReplicaId) -> bool:
        """Say if one that is to vote no more copies on: all nodes that are there do."""
        is_voter = replica in self._voters and replica in self._alive
        return self.is_everywhere and is_voter and len(self._learners) < LEARNERS_MAX

    # Who goes

    def _replaced(self) -> ReplicaId | None:
        """Return a replica that can never come back: its node has another disk by now; or a learner
        that is lost, or on a node that is to have nothing."""
        gone = [each for each in self._learners if each in self.lost or self._is_drained(each)]
        others = [each for each in (*self._learners, *self._voters) if each != self.record.leader]
        gone += [each for each in others if each not in self._alive and node_of(each) in self.nodes]
        return gone[0] if gone else None

    def _damaged(self) -> ReplicaId | None:
        """Return a voter that has to learn anew, and vote when it has."""
        others = (each for each in self._voters if each != self.record.leader)
        return next((each for each in others if each in self.damaged), None)

    def _is_drained(self, learner: ReplicaId) -> bool:
        """Say if a learner is to go. What all nodes have, one that is drained needs while it is
        there."""
        is_needed = self.is_everywhere and learner in self._alive
        return not self._may_stay(learner) and not is_needed

    def _voting(self) -> ReplicaId | None:
        """Return a learner that should vote: it takes the place of another, or a free one."""
        ready = self._ready
        if self.move is not None and not self.move.is_leader_only:
            moved = [each for each in ready if node_of(each) == self.move.target]
            if moved and len(self._voters) < REPLICAS_MAX:
                return moved[0]
        is_needed = len(self._kept) < self._wanted or not self.is_everywhere
        return ready[0] if ready and is_needed and len(self._voters) < REPLICAS_MAX else None

    def _surplus(self) -> ReplicaId | None:
        """Return a voter that is not needed: one that is lost or to go, whose place another has
        taken, or of those too many the one that can best be spared, as long as enough are there."""
        alive = [each for each in self._kept if each in self._alive]
        is_full = len(self._voters) == REPLICAS_MAX and bool(self._ready)
        for each in self._voters:
            if each in self._kept or each == self.record.leader:
                continue
            # One that is there is good for something until enough others are.
            others = [other for other in self._voters if other in self._alive and other != each]
            is_spared = len(others if each in self._alive else self._kept) >= self._wanted
            if is_spared or is_full:
                return each
        if is_full and self._ready[0] == self._moved():
            return self._spared(alive)
        if len(self._kept) <= self._wanted or len(alive) < self._wanted:
            return None
        away = [each for each in self._kept if each not in alive]
        return away[0] if away else self._spared(alive)

    def _moved(self) -> ReplicaId | None:
        """Return the replica that people want, voter or learner."""
        if self.move is None or self.move.is_leader_only:
            return None
        everybody = (*self._voters, *self._learners)
        return next((each for each in everybody if node_of(each) == self.move.target), None)

    def _spared(self, among: Sequence[ReplicaId]) -> ReplicaId:
        """Return the one of them that goes: as people want it, else the one that can best be."""
        if self.move is not None:
            wanted = self._moved() or self._replica_on(self.move.target)
            named = [each for each in among if node_of(each) == self.move.source]
            if wanted is not None and named:
                return named[0]
            among = [each for each in among if each != wanted] or among
        return self._fullest(among)

    def _fullest(self, among: Sequence[ReplicaId]) -> ReplicaId:
        """Return the one that can best be spared: in a zone with others, on the fullest node."""
        zones = Counter(self.nodes[node_of(each)].zone for each in among)

        def spared(replica: ReplicaId) -> tuple[bool, int, int, str]:
            node = self.nodes[node_of(replica)]
            load = self.load.get(node_of(replica), 0)
            return node.is_leaving, zones[node.zone], load, replica

        return max(among, key=spared)

    # Who comes

    def _learning(self) -> ReplicaId | None:
        """Return one more that should have a copy."""
        having = [node_of(each) for each in (*self._voters, *self._learners)]
        # A node that is drained has what all have, as long as it is there.
        drained = () if self.is_everywhere else self.drains
        nodes = staying(self.nodes, drained)
        if len(self._learners) >= LEARNERS_MAX:
            return None
        name = self._named_by_people(having) or added(nodes, having, self.load)
        if name is None:
            return None
        replica = replica_of(name, self.nodes[name])
        is_learning = any(each in self._alive and self._may_stay(each) for each in self._learners)
        is_short = len(self._kept) < self._wanted and not is_learning
        is_named = self.move is not None and name == self.move.target and not is_learning
        if is_short or is_named or self.is_everywhere:
            return replica
        return replica if self._is_better(replica) else None

    def _named_by_people(self, having: Sequence[str]) -> str | None:
        """Return the node that people want a replica on, if it can have one."""
        names = [self.drains.get(node_of(each), "") for each in self._voters]
        if self.move is not None and not self.move.is_leader_only:
            names.insert(0, self.move.target)
        free = staying(self.nodes, self.drains)
        return next((name for name in names if name in free and name not in having), None)

    def _is_better(self, replica: ReplicaId) -> bool:
        """Say if a replica should take the place of another: only if that is worth it, even if each
        node moves one at the same moment. So they come to rest."""
        is_whole = len(self._kept) == self._wanted and self._alive.issuperset(self._voters)
        is_quiet = is_whole and not self._learners and self.move is None
        if not self.may_move or not is_quiet or len(self._voters) != self._wanted:
            return False
        spared = self._fullest([*self._voters, replica])
        distance = self.load.get(node_of(spared), 0) - self.load.get(node_of(replica), 0)
        return spared != replica and distance > len(self.nodes)

    # Who leads

    def _successor(self) -> ReplicaId | None:
        """Return who should lead instead of one on a node that is to have nothing."""
        if not self._is_led_by_drained:
            return None
        able = [each for each in self._kept if self._can_lead(each) and each in self.caught_up]
        return min(able, key=lambda each: (self.leaders.get(node_of(each), 0), each), default=None)

    def _can_lead(self, replica: ReplicaId) -> bool:
        is_there = replica in self._alive and self._may_stay(replica)
        return is_there and not self.nodes[node_of(replica)].is_leaving

    def _chosen_leader(self) -> ReplicaId | None:
        """Return who is to be preferred from now on."""
        if self.move is None or not self.move.is_leader_only:
            return None
        chosen = self._replica_on(self.move.target)
        is_able = chosen is not None and self._can_lead(chosen) and chosen != self._voters[0]
        return chosen if is_able else None

    @property
    def _steady_leader(self) -> ReplicaId | None:
        """The preferred leader, if it is there and stays."""
        preferred = self._voters[0]
        return preferred if self._can_lead(preferred) else None

    def _preferred(self) -> ReplicaId | None:
        """Return the one that should lead, if another does."""
        preferred = self._steady_leader
        is_other = preferred != self.record.leader
        return preferred if is_other and preferred in self.caught_up else None
