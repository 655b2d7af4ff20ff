"""A cluster is formed once, by one node, with what that node has."""

import pytest

from tests.cluster.replication.shell.live_coordinator import LiveCoordinator
from tests.cluster.replication.shell.trio import trio
from waterclock.cluster.coordinator.records import ClusterRecord, Keys, NodeRecord, encode_record
from waterclock.cluster.coordinator.requests import Put, Txn
from waterclock.cluster.coordinator.store import Store
from waterclock.cluster.node_tags import LEVEL
from waterclock.cluster.replication.cluster_view import ClusterView
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.model.errors import BadConfig
from waterclock.server.cluster.replication.forming import forming_txns, is_former

KEYS = Keys("c")
META = b"m" * 16
NODES = {name: NodeRecord(peer=f"{name}:1", disk="d", level=1) for name in "abc"}


def test_the_first_by_name_forms_it_once_all_that_are_expected_are_there():
    two = {name: NODES[name] for name in "ab"}

    assert not is_former("a", two, has_topics=False, expect=3)
    assert is_former("a", NODES, has_topics=False, expect=3)
    assert not is_former("b", NODES, has_topics=False, expect=3)
    assert is_former("b", NODES, has_topics=True, expect=3)


def test_it_is_formed_once_and_with_the_partitions_of_its_former():
    store, view = Store(), ClusterView(KEYS)
    logs = [bytes([number]) * 16 for number in range(200)]
    first = forming_txns(KEYS, ReplicaId("a:d"), meta_log=META, own_logs=logs, level=1)
    second = forming_txns(KEYS, ReplicaId("b:d"), meta_log=b"n" * 16, own_logs=(), level=1)

    assert [store.write(txn).succeeded for txn in (*first, *second)] == [True] * 3 + [False]

    view.read(store.read(KEYS.everything))
    assert view.meta_log == META
    assert set(view.partitions) == {META, *logs}
    assert {placed.record.replicas for placed in view.partitions.values()} == {("a:d",)}


@pytest.mark.parametrize("level", [LEVEL, LEVEL + 1])
async def test_a_node_of_an_older_release_than_the_clusters_does_not_join_it(tmp_path, level):
    live = LiveCoordinator()
    record = ClusterRecord(cluster_id="x", level=level, meta_log=META.hex())
    live.fake.store.write(Txn(success=(Put(KEYS.cluster, encode_record(record)),)))
    async with trio(tmp_path, live.client) as it:
        await it.leader()
        joining = it.nodes[0].replicator.meta_log_id()

        if level == LEVEL:
            assert await joining == META
            return
        with pytest.raises(BadConfig, match="of a later release"):
            await joining
