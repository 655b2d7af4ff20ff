"""Split streams as one node sees them: whom it believes, and when it lets go."""

import pytest

from waterclock.cluster.hash_ring import HashRing
from waterclock.cluster.hot_streams.partitions import (
    Local,
    Partitions,
    Released,
    Return,
    SendKeep,
)
from waterclock.cluster.hot_streams.scaler import ScalerConfig
from waterclock.cluster.hot_streams.split import PARTITION_LEASE_MS, Keep, Report
from waterclock.log.id_index.fingerprint import fingerprint

STREAM = "hot"
CONFIG = ScalerConfig(rate=10, up_window_ms=2_000, down_window_ms=5_000, cool_down_ms=1_000)


def ring_of(*nodes):
    return HashRing(nodes, lambda name: fingerprint(name, 1))


RING = ring_of("a", "b", "c")
ROOT, CHILD, FRONT = RING.successors(STREAM)


class Node:
    """The core of a node, and what it has of the stream."""

    def __init__(self, name, ring=RING):
        self.here = Local(size=100)
        self.core = Partitions(name, CONFIG, lambda _: self.here, ring, 0)
        self.now_ms = 0

    def run(self, seconds, rate):
        effects = []
        for _ in range(seconds):
            for _ in range(rate):
                self.core.used(STREAM)
            self.now_ms += 1_000
            effects += self.core.tick(self.now_ms)
        return effects

    def hear(self, keep, sender=ROOT):
        return self.core.keep_heard(sender, keep, self.now_ms)


def keep(write=2, read=2, version=1, ring=RING, nodes=(ROOT, CHILD)):
    counts = (0,) * len(nodes)
    return Keep(STREAM, ring.version, version, write, read, 100, nodes, counts, counts)


@pytest.fixture
def root():
    return Node(ROOT)


@pytest.fixture
def child():
    it = Node(CHILD)
    it.hear(keep())
    return it


def test_a_busy_stream_is_split_by_its_owner_and_all_are_told(root):
    sent = [each for each in root.run(4, 15) if isinstance(each, SendKeep)]

    assert {each.node for each in sent} == {CHILD, FRONT}
    assert sent[-1].keep.nodes == (ROOT, CHILD)


def test_a_busy_stream_of_another_node_is_not_split_here():
    assert Node(CHILD).run(4, 1_000) == []


def test_requests_at_partitions_count_for_the_stream(root):
    root.run(4, 15)
    for _ in range(5):
        version = root.core.split_of(STREAM).version
        root.core.reported(STREAM, CHILD, Report(version, 20, 0), root.now_ms + 5)
        root.run(1, 5)

    assert root.core.split_of(STREAM).write == 3


def test_a_node_takes_the_word_of_the_owner_only():
    child = Node(CHILD)

    assert child.hear(keep(), sender=FRONT) == (None, [])
    assert child.hear(keep(ring=ring_of("a", "b"))) == (None, [])
    assert not child.core.exchanges


def test_an_older_word_is_not_heard(child):
    child.hear(keep(version=5))

    assert child.hear(keep(version=4)) == (None, [])
    assert child.core.routes[STREAM].keep.version == 5


def test_a_partition_lets_go_when_it_is_to_and_nothing_is_left(child):
    child.here = Local(backlog=1, size=100)
    report, _ = child.hear(keep(write=1, read=1, version=2))
    assert (report.backlog, report.is_released) == (1, False)

    child.here = Local(size=100)
    report, effects = child.hear(keep(write=1, read=1, version=2))
    assert report.is_released
    assert effects == [Released(STREAM)]
    assert not child.core.exchanges


def test_a_partition_where_polls_wait_does_not_let_go(child):
    child.here = Local(polls=1, size=100)

    report, _ = child.hear(keep(write=1, read=1, version=2))

    assert not report.is_released


def test_a_partition_whose_root_is_silent_returns_what_it_has(child):
    child.here = Local(backlog=3, size=100)

    effects = child.run(PARTITION_LEASE_MS // 1_000, 0)

    assert effects == [Released(STREAM), Return(STREAM)]
    assert child.run(1, 0) == [Return(STREAM)]  # until it is done
    child.here = Local(size=100)
    assert child.run(1, 0) == []


def test_a_partition_returns_what_it_has_when_the_ring_changes(child):
    child.here = Local(backlog=3, size=100)

    ring = ring_of(ROOT, CHILD)

    assert child.core.ring_changed(ring, 1_000) == [Released(STREAM), Return(STREAM)]
    assert not child.core.routes


def test_a_node_that_leaves_the_last_ring_goes_on(root):
    root.run(4, 15)

    root.core.ring_changed(ring_of(), root.now_ms)

    assert root.run(5, 50) == []


def test_a_pinned_stream_is_made_whole(root):
    root.run(4, 15)
    root.core.ordered(STREAM, root.now_ms)

    root.run(1, 15)

    assert root.core.split_of(STREAM).write == 1
