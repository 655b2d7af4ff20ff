"""What a node knows of its cluster from the coordinator: all keys, as a watch tells of them. Pure.

Read once, then followed. Each change says which nodes and which logs it was about, so that whoever
acts on it need not look at the others. A record that cannot be read decides nothing: the key is as
if it had not changed, and the problem is told.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from waterclock.cluster.coordinator.errors import BadRecord
from waterclock.cluster.coordinator.records import (
    ClusterRecord,
    DrainRecord,
    Keys,
    MoveRecord,
    NodeRecord,
    PartitionRecord,
    decode_record,
)
from waterclock.cluster.coordinator.requests import (
    ABSENT,
    KeyValue,
    RangeResult,
    Revision,
    WatchBatch,
)
from waterclock.cluster.replication.log_view import ReplicaId


class Placed(NamedTuple):
    """The record of a partition, and the revision at which it was put."""

    record: PartitionRecord
    revision: Revision


class Drain(NamedTuple):
    """What people want of a node, and the revision at which they said so."""

    record: DrainRecord
    revision: Revision


class Move(NamedTuple):
    """What people want of a partition, and the revision at which they said so."""

    record: MoveRecord
    revision: Revision


@dataclass
class Changed:
    """What is another now."""

    cluster: bool = False
    nodes: set[str] = field(default_factory=set)
    logs: set[bytes] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


def replica_of(name: str, node: NodeRecord) -> ReplicaId:
    """Return what a node is as a replica of its partitions."""
    return ReplicaId(f"{name}:{node.disk}")


def node_of(replica: str) -> str:
    """Return the name of a replica's node."""
    return replica.rpartition(":")[0]


class ClusterView:
    """The cluster, its nodes that have a lease, and who leads which log."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.revision = Revision(0)
        """Of the last change that was taken in."""
        self.cluster: ClusterRecord | None = None
        self.cluster_revision = ABSENT
        """At which the record of the cluster was put."""
        self.nodes: dict[str, NodeRecord] = {}
        self.partitions: dict[bytes, Placed] = {}
        self.drains: dict[str, Drain] = {}
        self.moves: dict[bytes, Move] = {}

    def __repr__(self) -> str:
        count = len(self.partitions)
        return f"<ClusterView {len(self.nodes)} nodes, {count} partitions, at {self.revision}>"

    @property
    def alive(self) -> frozenset[ReplicaId]:
        """The replicas whose node has a lease."""
        return frozenset(replica_of(name, node) for name, node in self.nodes.items())

    @property
    def meta_log(self) -> bytes | None:
        """The log with the records of topics, once there is a cluster."""
        return bytes.fromhex(self.cluster.meta_log) if self.cluster is not None else None

    def leader_of(self, log_id: bytes) -> ReplicaId | None:
        """Return who leads a log, if anyone does."""
        placed = self.partitions.get(log_id)
        if placed is None or placed.record.state != "leading":
            return None
        return ReplicaId(placed.record.leader)

    def read(self, result: RangeResult) -> Changed:
        """Take up all keys, as they were read."""
        known: set[bytes] = {self._keys.node(name) for name in self.nodes}
        known |= {self._keys.partition(log_id) for log_id in self.partitions}
        known |= {self._keys.drain(name) for name in self.drains}
        known |= {self._keys.move(log_id) for log_id in self.moves}
        if self.cluster is not None:
            known.add(self._keys.cluster)
        changed = Changed()
        for item in result.items:
            known.discard(item.key)
            self._put(item, changed)
        for key in known:
            self._delete(key, changed)
        self.revision = result.revision
        return changed

    def watched(self, batch: WatchBatch) -> Changed:
        """Take up changes, in their order; those that are known already change nothing."""
        changed = Changed()
        for event in batch.events:
            if event.revision <= self.revision:
                continue
            if event.item is None:
                self._delete(event.key, changed)
            else:
                self._put(event.item, changed)
        self.revision = max(self.revision, batch.revision)
        return changed

    def _put(self, item: KeyValue, changed: Changed) -> None:
        keys = self._keys
        try:
            if item.key == keys.cluster:
                cluster = decode_record(ClusterRecord, item.value, key=item.key)
                changed.cluster |= cluster != self.cluster
                self.cluster, self.cluster_revision = cluster, item.mod_revision
            elif item.key in keys.nodes:
                name = keys.node_of(item.key)
                node = decode_record(NodeRecord, item.value, key=item.key)
                if self.nodes.get(name) != node:
                    changed.nodes.add(name)
                self.nodes[name] = node
            elif item.key in keys.partitions:
                log_id = keys.log_of(item.key)
                record = decode_record(PartitionRecord, item.value, key=item.key)
                placed = Placed(record, item.mod_revision)
                if self.partitions.get(log_id) != placed:
                    changed.logs.add(log_id)
                self.partitions[log_id] = placed
            elif item.key in keys.drains:
                drain = decode_record(DrainRecord, item.value, key=item.key)
                self.drains[keys.node_of(item.key)] = Drain(drain, item.mod_revision)
            elif item.key in keys.moves:
                move = decode_record(MoveRecord, item.value, key=item.key)
                self.moves[keys.log_of(item.key)] = Move(move, item.mod_revision)
        except BadRecord as error:
            changed.problems.append(str(error))

    def _delete(self, key: bytes, changed: Changed) -> None:
        keys = self._keys
        try:
            if key == keys.cluster:
                changed.cluster |= self.cluster is not None
                self.cluster, self.cluster_revision = None, ABSENT
            elif key in keys.nodes:
                name = keys.node_of(key)
                if self.nodes.pop(name, None) is not None:
                    changed.nodes.add(name)
            elif key in keys.partitions:
                log_id = keys.log_of(key)
                if self.partitions.pop(log_id, None) is not None:
                    changed.logs.add(log_id)
            elif key in keys.drains:
                self.drains.pop(keys.node_of(key), None)
            elif key in keys.moves:
                self.moves.pop(keys.log_of(key), None)
        except BadRecord as error:
            changed.problems.append(str(error))

    def replicas(self) -> Iterator[ReplicaId]:
        """Yield all replicas of all partitions, those that learn as well."""
        for placed in self.partitions.values():
            yield from map(ReplicaId, placed.record.replicas)
            yield from map(ReplicaId, placed.record.learners)

    def load(self) -> dict[str, int]:
        """Return how many replicas each node that is alive has."""
        return self._counted(self.replicas())

    def leads(self) -> dict[str, int]:
        """Return how many partitions each node that is alive is preferred to lead."""
        return self._counted(placed.record.replicas[0] for placed in self.partitions.values())

    def leaders(self) -> dict[str, int]:
        """Return how many partitions each node that is alive leads, or is about to."""
        return self._counted(placed.record.leader for placed in self.partitions.values())

    def _counted(self, replicas: Iterable[str]) -> dict[str, int]:
        counts = dict.fromkeys(self.nodes, 0)
        alive = self.alive
        for replica in replicas:
            if replica in alive:
                counts[node_of(replica)] += 1
        return counts
