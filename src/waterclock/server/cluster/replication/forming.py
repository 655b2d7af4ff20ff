"""How a cluster comes to be: one node makes its record, and everything grows from there.

When as many nodes have registered as are expected, one of them makes the record of the cluster and
that of `__meta`, with itself as the only replica: the node that has records of topics already, else
the first by name. What it has of its own comes with it: its partitions get records that name it,
before there is a cluster. Two nodes with topics of their own cannot become one cluster.
"""

import os
from collections.abc import Mapping, Sequence

from waterclock.cluster.coordinator.records import (
    ClusterRecord,
    Keys,
    NodeRecord,
    PartitionRecord,
    encode_record,
)
from waterclock.cluster.coordinator.requests import ABSENT, OPERATIONS_MAX, Put, Txn, Unchanged
from waterclock.cluster.replication.log_view import ReplicaId

BATCH = OPERATIONS_MAX - 2
"""Records in one transaction, beside that of the cluster and of `__meta`."""


def is_former(me: str, nodes: Mapping[str, NodeRecord], *, has_topics: bool, expect: int) -> bool:
    """Whether this node is the one to form a cluster now; one that has topics does so at once."""
    if len(nodes) < expect or me not in nodes:
        return False
    return has_topics or me == min(nodes)


def forming_txns(
    keys: Keys, me: ReplicaId, *, meta_log: bytes, own_logs: Sequence[bytes], level: int
) -> list[Txn]:
    """Return the transactions that form a cluster, in order: the last one makes it.

    `level` is what all can do that are there. Each does nothing once there is a cluster.
    """
    mine = encode_record(PartitionRecord(epoch=0, state="vacant", replicas=(me,)))
    no_cluster = Unchanged(keys.cluster, ABSENT)
    txns = []
    for start in range(0, len(own_logs), BATCH):
        logs = own_logs[start : start + BATCH]
        txns.append(Txn((no_cluster,), tuple(Put(keys.partition(each), mine) for each in logs)))
    cluster = ClusterRecord(cluster_id=os.urandom(8).hex(), level=level, meta_log=meta_log.hex())
    made = Put(keys.cluster, encode_record(cluster)), Put(keys.partition(meta_log), mine)
    return [*txns, Txn((no_cluster,), made)]
