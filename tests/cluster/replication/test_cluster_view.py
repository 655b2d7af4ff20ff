"""A view holds what the coordinator does, and says what each change was about."""

from waterclock.cluster.coordinator.records import (
    ClusterRecord,
    DrainRecord,
    Keys,
    MoveRecord,
    NodeRecord,
    PartitionRecord,
    Record,
    encode_record,
)
from waterclock.cluster.coordinator.requests import (
    Delete,
    KeyRange,
    Put,
    Revision,
    Txn,
    WatchBatch,
    one_key,
)
from waterclock.cluster.coordinator.store import Store
from waterclock.cluster.replication.cluster_view import Changed, ClusterView
from waterclock.cluster.replication.placement import Remaining, remaining

KEYS = Keys("c")
LOG = b"l" * 16
N1, N2 = (NodeRecord(peer=f"{name}:1", disk=name * 2, level=1) for name in "ab")
VACANT = PartitionRecord(epoch=0, state="vacant", replicas=("a:aa", "b:bb"))


class Watched:
    """A store, and a view that follows it."""

    def __init__(self) -> None:
        self.store = Store()
        self.view = ClusterView(KEYS)
        self.read()

    def put(self, key: bytes, record: Record) -> Changed:
        return self.put_bytes(key, encode_record(record))

    def put_bytes(self, key: bytes, value: bytes) -> Changed:
        self.store.write(Txn(success=(Put(key, value),)))
        return self.follow()

    def delete(self, keys: KeyRange) -> Changed:
        self.store.write(Txn(success=(Delete(keys),)))
        return self.follow()

    def follow(self) -> Changed:
        start = Revision(self.view.revision + 1)
        events = self.store.changes(KEYS.everything, from_revision=start)
        changed = self.view.watched(WatchBatch(events))
        other = ClusterView(KEYS)
        other.read(self.store.read(KEYS.everything))
        assert vars(other) == vars(self.view)
        return changed

    def read(self) -> Changed:
        return self.view.read(self.store.read(KEYS.everything))


def test_each_change_says_what_it_is_about():
    it = Watched()

    assert it.put(KEYS.node("a"), N1) == Changed(nodes={"a"})
    assert it.put(KEYS.partition(LOG), VACANT) == Changed(logs={LOG})
    cluster = ClusterRecord(cluster_id="x", level=1, meta_log=LOG.hex())
    assert it.put(KEYS.cluster, cluster) == Changed(cluster=True)
    assert it.view.meta_log == LOG
    assert it.put(KEYS.partition(LOG), VACANT.taken_over("a:aa").led()) == Changed(logs={LOG})
    assert it.view.leader_of(LOG) == "a:aa"
    assert it.delete(KEYS.nodes) == Changed(nodes={"a"})
    assert it.delete(one_key(KEYS.partition(LOG))) == Changed(logs={LOG})
    assert it.view.leader_of(LOG) is None


def test_what_is_read_again_names_what_changed_meanwhile_and_what_is_gone():
    it = Watched()
    it.put(KEYS.node("a"), N1)
    it.put(KEYS.partition(LOG), VACANT)
    other = b"m" * 16
    it.store.write(Txn(success=(Put(KEYS.partition(other), encode_record(VACANT)),)))
    it.store.write(Txn(success=(Delete(KEYS.nodes),)))

    assert it.read() == Changed(nodes={"a"}, logs={other})
    assert it.read() == Changed()


def test_a_record_that_cannot_be_read_decides_nothing():
    it = Watched()
    it.put(KEYS.partition(LOG), VACANT)
    it.store.write(Txn(success=(Put(KEYS.partition(LOG), b"{}"),)))
    start = Revision(it.view.revision + 1)
    batch = WatchBatch(it.store.changes(KEYS.everything, from_revision=start))

    changed = it.view.watched(batch)

    assert (changed.logs, len(changed.problems)) == (set(), 1)
    assert it.view.partitions[LOG].record == VACANT


def test_replicas_are_alive_while_their_node_has_a_lease_and_the_same_disk():
    it = Watched()
    it.put(KEYS.node("a"), N1)
    it.put(KEYS.node("b"), N2)
    it.put(KEYS.partition(LOG), VACANT)
    assert it.view.alive == {"a:aa", "b:bb"}
    assert (it.view.load(), it.view.leads()) == ({"a": 1, "b": 1}, {"a": 1, "b": 0})

    it.put(KEYS.node("b"), NodeRecord(peer="b:1", disk="new", level=1))

    assert it.view.alive == {"a:aa", "b:new"}
    assert it.view.load() == {"a": 1, "b": 0}


def test_what_people_want_is_known_until_it_is_taken_away():
    it = Watched()
    it.put(KEYS.drain("a"), DrainRecord(since_ms=7))
    it.put(KEYS.move(LOG), MoveRecord(target="b"))
    assert it.view.drains["a"].record == DrainRecord(since_ms=7)
    assert it.view.moves[LOG] == (MoveRecord(target="b"), it.view.revision)

    it.delete(one_key(KEYS.drain("a")))
    it.store.write(Txn(success=(Delete(KEYS.moves),)))
    it.read()

    assert (it.view.drains, it.view.moves) == ({}, {})


def test_what_is_left_of_a_node_is_counted_with_what_no_other_node_could_have():
    it = Watched()
    for name, node in (("a", N1), ("b", N2)):
        it.put(KEYS.node(name), node)
    it.put(KEYS.partition(LOG), VACANT.taken_over("a:aa").led())
    it.put(KEYS.partition(b"m" * 16), PartitionRecord(epoch=0, state="vacant", replicas=("a:aa",)))
    it.put(KEYS.drain("a"), DrainRecord(since_ms=7))

    assert remaining(it.view, "a") == Remaining(leaders=1, replicas=2, stuck=1)
    assert remaining(it.view, "b") == Remaining(leaders=0, replicas=1, stuck=1)
    it.put(KEYS.node("c"), N2)
    assert remaining(it.view, "a") == Remaining(leaders=1, replicas=2, stuck=0)
