"""The counts of a split stream, and where a node sends what it is asked."""

import pytest

from waterclock.cluster.hot_streams.split import LEASE_MS, PARTITION_LEASE_MS, Report, Route, Split

RING = ("root", "one", "two", "three")


@pytest.fixture
def split():
    it = Split("hot", "root", ring_version=7, version=100)
    it.resize(3, RING, 0)
    return it


def counts(split):
    return split.write, split.read, len(split.nodes)


def report(split, node, *, backlog=0, is_released=False):
    return split.reported(node, Report(split.version, 5, backlog, is_released), 0)


def test_a_stream_grows_in_one_step(split):
    assert counts(split) == (3, 3, 3)
    assert split.nodes == RING[:3]


def test_a_partition_takes_no_sends_then_no_polls_then_lets_go(split):
    split.resize(2, RING, 0)
    assert counts(split) == (2, 3, 3)
    assert split.closing == ("two",)

    assert not report(split, "two", backlog=4)
    assert report(split, "two")
    assert counts(split) == (2, 2, 3)

    assert report(split, "two", is_released=True)
    assert counts(split) == (2, 2, 2)


def test_a_report_from_before_the_change_ends_nothing(split):
    old = Report(split.version, 5, 0)
    split.resize(2, RING, 0)

    assert not split.reported("two", old, 0)
    assert counts(split) == (2, 3, 3)


def test_the_last_partition_closes_first(split):
    split.resize(1, RING, 0)

    assert not report(split, "one")
    assert report(split, "two")
    assert report(split, "one") or counts(split) == (1, 2, 3)


def test_a_stream_that_shrinks_can_grow_again(split):
    split.resize(1, RING, 0)
    split.resize(4, RING, 0)

    assert counts(split) == (4, 4, 4)


def test_a_closing_partition_that_says_nothing_is_given_up(split):
    split.resize(2, RING, 0)

    assert not split.expire(LEASE_MS)
    assert split.expire(2 * LEASE_MS)
    assert counts(split) == (2, 2, 2)


def test_a_node_asks_its_own_partition():
    split = Split("hot", "root", ring_version=7, version=100)
    split.resize(2, RING, 0)
    route = Route(split.keep(100, 0, 0), "one", 0)

    assert (route.send(), route.poll()) == (None, None)


def test_a_node_whose_partition_closes_sends_elsewhere(split):
    split.resize(1, RING, 0)
    route = Route(split.keep(100, 0, 0), "one", 0)

    assert (route.send(), route.poll()) == ("root", None)


def test_a_node_without_a_partition_spreads_by_what_each_has_had(split):
    report(split, "one")
    route = Route(split.keep(100, 1_000, 0), "three", 0)

    chosen = [route.send() for _ in range(300)]

    assert chosen.count("root") == 0
    assert 100 < chosen.count("one") < 200


def keep_of(split, *backlogs, here=50):
    """Return the last of some Keeps, with what waits at the root and at another partition."""
    keeps = []
    for backlog in backlogs:
        report(split, "one", backlog=backlog)
        keeps.append(split.keep(100, 0, here))
    return keeps[-1]


def test_half_of_the_polls_go_where_far_more_messages_wait(split):
    keep = keep_of(split, 500, 500, 500)
    route = Route(keep, "root", 0)

    assert [route.poll() for _ in range(4)] == ["one", None, "one", None]
    assert [Route(keep, "one", 0).poll() for _ in range(2)] == [None, None]


def test_polls_stay_where_they_are_if_messages_elsewhere_do_not_wait_for_long(split):
    assert Route(keep_of(split, 500, 0, 500), "root", 0).poll() is None
    assert Route(keep_of(split, 100, 100, 100), "root", 0).poll() is None  # not far more


def test_polls_that_wait_stay_where_they_are(split):
    assert Route(keep_of(split, 500, 500, 500, here=0), "root", 0).poll() is None


def test_a_route_is_good_for_as_long_as_its_root_is_heard(split):
    for node, lease_ms in (("one", PARTITION_LEASE_MS), ("three", LEASE_MS)):
        route = Route(split.keep(100, 0, 0), node, 1_000)

        assert not route.is_over(1_000 + lease_ms - 1)
        assert route.is_over(1_000 + lease_ms)
