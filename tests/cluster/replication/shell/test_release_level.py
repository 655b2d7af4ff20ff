"""The release level rises once all members can do more, by the leader of `__meta` alone."""

import pytest

from waterclock.cluster.coordinator.records import (
    ClusterRecord,
    Keys,
    NodeRecord,
    PartitionRecord,
    encode_record,
)
from waterclock.cluster.coordinator.requests import Delete, Put, Txn, one_key
from waterclock.cluster.coordinator.store import Store
from waterclock.cluster.replication.cluster_view import ClusterView
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.model.errors import BadConfig
from waterclock.server.cluster.replication.release_level import check_level, may_write, raising_txn

KEYS = Keys("c")
META, ORDERS = b"m" * 16, b"o" * 16
A, B = ReplicaId("a:d"), ReplicaId("b:d")
LED = PartitionRecord(epoch=1, state="leading", leader=A, replicas=(A, B), learners=("c:d",))


class Level:
    """A cluster at level 1, of nodes that have such levels; a leads `__meta`, c has a copy."""

    def __init__(self, **levels: int) -> None:
        self.store = Store()
        self.put(KEYS.cluster, ClusterRecord(cluster_id="x", level=1, meta_log=META.hex()))
        self.put(KEYS.partition(META), LED)
        for name, level in levels.items():
            self.register(name, level)

    def put(self, key: bytes, record: ClusterRecord | PartitionRecord | NodeRecord) -> None:
        self.store.write(Txn(success=(Put(key, encode_record(record)),)))

    def register(self, name: str, level: int) -> None:
        self.put(KEYS.node(name), NodeRecord(peer=f"{name}:1", disk="d", level=level))

    def lose(self, name: str) -> None:
        self.store.write(Txn(success=(Delete(one_key(KEYS.node(name))),)))

    @property
    def view(self) -> ClusterView:
        view = ClusterView(KEYS)
        view.read(self.store.read(KEYS.everything))
        return view

    def raised(self, me: ReplicaId = A) -> int:
        """Have a node look; return the level then."""
        txn = raising_txn(self.view, KEYS, me)
        if txn is not None:
            assert self.store.write(txn).succeeded
        assert self.view.cluster is not None
        return self.view.cluster.level


def test_it_is_that_of_the_node_that_can_do_least_and_never_falls():
    it = Level(a=2, b=2, c=1)
    assert it.raised() == 1
    it.register("c", 3)
    assert it.raised() == 2
    it.register("c", 1)
    assert it.raised() == 2


def test_a_member_that_is_away_holds_it_until_another_has_its_place():
    it = Level(a=2, b=2)
    assert it.raised() == 1
    it.put(KEYS.partition(META), LED.without("c:d"))
    assert it.raised() == 2


def test_a_member_is_also_who_has_a_replica_of_no_more_than_a_topic():
    it = Level(a=2, b=2, c=2)
    it.put(KEYS.partition(ORDERS), PartitionRecord(epoch=0, state="vacant", replicas=("d:d",)))
    assert it.raised() == 1
    it.register("d", 2)
    assert it.raised() == 2


def test_only_the_leader_of_the_records_raises_it():
    it = Level(a=2, b=2, c=2)
    assert it.raised(B) == 1
    it.put(KEYS.partition(META), LED.resigned())
    assert it.raised() == 1


@pytest.mark.parametrize("key", [KEYS.partition(META), KEYS.cluster])
def test_a_leader_that_does_not_know_what_changed_raises_nothing(key):
    it = Level(a=2, b=2, c=2)
    txn = raising_txn(it.view, KEYS, A)
    assert txn is not None
    cluster = ClusterRecord(cluster_id="x", level=1, meta_log=META.hex())
    it.put(key, LED.taken_over(B) if key == KEYS.partition(META) else cluster)

    assert not it.store.write(txn).succeeded


def test_what_came_with_a_level_is_written_once_the_cluster_has_it():
    it = Level(a=2, b=2, c=2)
    assert [may_write(it.view, level) for level in (1, 2)] == [True, False]
    it.raised()
    assert [may_write(it.view, level) for level in (1, 2, 3)] == [True, True, False]
    assert not may_write(ClusterView(KEYS), 1)


def test_a_node_that_is_too_old_is_told_both_levels_in_one_line():
    cluster, node = Level(a=2).view.cluster, NodeRecord(peer="c:1", level=0)
    check_level(None, node)

    with pytest.raises(BadConfig, match=r"^[^\n]*level 1, this one has 0[^\n]*$"):
        check_level(cluster, node)
