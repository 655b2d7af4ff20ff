"""The release level of a cluster: what all its members understand, so what is written.

A node says in its record what it can do, and the record of the cluster what all can. Whoever writes
a frame, a record or a message of a kind that came with a later level asks `may_write` first: a node
that does not know it could neither copy nor apply it. The leader of `__meta` raises the level once
every member can do more. Members are the nodes that are registered and those that have a replica,
which every node has of `__meta`, until another takes its place. One that is away does not say what
it will be when it comes back: it holds the level where it is. The level never falls.

A node that registers just while the level is raised may not have been seen. So nodes compare the
level with their own when they start, and whenever it changes: one that is too old ends.
"""

import msgspec

from waterclock.cluster.coordinator.records import (
    ClusterRecord,
    Keys,
    NodeRecord,
    encode_record,
)
from waterclock.cluster.coordinator.requests import Put, Txn, Unchanged
from waterclock.cluster.replication.cluster_view import ClusterView, node_of
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.model.errors import BadConfig


def may_write(view: ClusterView, level: int) -> bool:
    """Whether all members understand what came with a level; of what nobody knows, no."""
    return view.cluster is not None and level <= view.cluster.level


def raising_txn(view: ClusterView, keys: Keys, me: ReplicaId) -> Txn | None:
    """Return the transaction that raises the level to what all members can do, if that is more and
    this node leads `__meta`. It does nothing if the cluster changed, or another leads by now."""
    cluster = view.cluster
    if cluster is None or view.meta_log is None or view.leader_of(view.meta_log) != me:
        return None
    level = min((node.level for node in view.nodes.values()), default=0)
    if level <= cluster.level or not view.nodes.keys() >= set(map(node_of, view.replicas())):
        return None
    record = msgspec.structs.replace(cluster, level=level)
    conditions = (
        Unchanged(keys.cluster, view.cluster_revision),
        Unchanged(keys.partition(view.meta_log), view.partitions[view.meta_log].revision),
    )
    return Txn(conditions, (Put(keys.cluster, encode_record(record)),))


def check_level(cluster: ClusterRecord | None, node: NodeRecord) -> None:
    """Raise BadConfig if a node is of a release that cannot read what the cluster may write."""
    if cluster is not None and cluster.level > node.level:
        raise BadConfig(
            "cluster.etcd",
            f"the cluster is of a later release (level {cluster.level}, this one has "
            f"{node.level}): its logs may have what this one cannot read",
        )
