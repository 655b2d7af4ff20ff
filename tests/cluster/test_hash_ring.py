"""Who owns what: everybody agrees, shares are fair, and a change moves no more than it must."""

from collections import Counter
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.hash_ring import HashRing
from waterclock.log.id_index.fingerprint import fingerprint

SEED = 7
NAMES = [f"stream-{number}" for number in range(20_000)]
node_sets = st.sets(st.text("abc0-é", min_size=1, max_size=8), min_size=1, max_size=12)


def hashed(name: bytes) -> int:
    return fingerprint(name, SEED)


def ring_of(nodes, **options):
    return HashRing(nodes, hashed, **options)


def ten(prefix: str) -> list[str]:
    return [f"{prefix}{number}.example:9000" for number in range(10)]


@given(node_sets, st.randoms(), st.lists(st.text(), max_size=30))
def test_whoever_knows_the_same_nodes_names_the_same_owners(nodes, random, names):
    shuffled = list(nodes) * 2
    random.shuffle(shuffled)
    one, other = ring_of(nodes, points=20), ring_of(shuffled, points=20)
    assert one.version == other.version
    assert [one.owner(name) for name in names] == [other.owner(name) for name in names]


@given(node_sets, st.text("abc0-é", min_size=9, max_size=9), st.lists(st.text(), max_size=50))
def test_a_node_that_joins_takes_what_it_owns_from_others_and_moves_nothing_else(
    nodes, joined, names
):
    before, after = ring_of(nodes, points=20), ring_of({*nodes, joined}, points=20)
    assert before.version != after.version
    for name in names:
        assert after.owner(name) in (before.owner(name), joined)


@given(node_sets, st.lists(st.text(), max_size=30))
def test_when_the_owner_leaves_its_successor_owns(nodes, names):
    ring = ring_of(nodes, points=20)
    for name in names:
        successors = list(ring.successors(name))
        assert sorted(successors) == sorted(ring.nodes)
        assert successors[0] == ring.owner(name)
        if len(nodes) > 1:
            left = ring_of(nodes - {successors[0]}, points=20)
            assert left.owner(name) == successors[1]
            assert list(left.successors(name)) == successors[1:]


def test_shares_are_what_names_find():
    ring = ring_of(ten("node-"))
    found = Counter(map(ring.owner, NAMES))
    assert sum(ring.shares().values()) == pytest.approx(1)
    for node, share in ring.shares().items():
        assert found[node] / len(NAMES) == pytest.approx(share, rel=0.1)


def test_the_busiest_of_ten_has_at_most_a_fifth_more_than_its_share():
    peaks = sorted(max(ring_of(ten(f"n{n}-")).shares().values()) * 10 for n in range(100))
    assert mean(peaks) < 1.13
    assert peaks[98] < 1.21


def test_a_leaving_node_moves_its_share_and_the_mean_share_is_a_tenth():
    moved = []
    for number in range(30):
        nodes = ten(f"n{number}-")
        before, after = ring_of(nodes), ring_of(nodes[1:])
        changed = sum(before.owner(name) != after.owner(name) for name in NAMES[:5_000])
        moved.append(changed / 5_000)
        assert changed == sum(before.owner(name) == nodes[0] for name in NAMES[:5_000])
    assert mean(moved) == pytest.approx(0.1, abs=0.005)


def test_ten_nodes_fit_into_fifty_kilobytes():
    ring = ring_of(ten("node-"))
    assert sum(memoryview(column).nbytes for column in (ring._hashes, ring._owners)) < 50_000


def test_a_ring_without_nodes_has_no_owner():
    ring = ring_of([])
    assert list(ring.successors("a")) == []
    with pytest.raises(LookupError):
        ring.owner("a")


def test_remembered_owners_do_not_grow_for_ever(monkeypatch):
    monkeypatch.setattr("waterclock.cluster.hash_ring.CACHE_MAX", 10)
    ring = ring_of(ten("node-"))
    owners = [ring.owner(name) for name in NAMES[:100]]
    assert len(ring._cache) <= 10
    assert owners == [ring.owner(name) for name in NAMES[:100]]
