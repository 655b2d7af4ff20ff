"""Who is on the ring: who comes waits a moment, who goes is gone at once."""

import pytest

from waterclock.cluster.ring_members import CONFIRM_MS, CONFIRM_MS_MAX, RingMembers


@pytest.fixture
def members():
    found = RingMembers("a")
    yield found
    found.check_invariants()


def joined(members: RingMembers, *names: str) -> None:
    members.present(set(names), 0)
    members.tick(CONFIRM_MS)


def test_a_node_alone_is_on_its_ring(members):
    assert members.nodes == {"a"}
    assert members.next_deadline() is None


def test_who_comes_is_on_the_ring_once_it_has_been_there_for_a_moment(members):
    members.present({"b"}, 1_000)
    members.tick(1_000 + CONFIRM_MS - 1)
    assert members.nodes == {"a"}
    assert members.next_deadline() == 1_000 + CONFIRM_MS

    members.tick(1_000 + CONFIRM_MS)
    assert members.nodes == {"a", "b"}
    assert members.next_deadline() is None


def test_who_comes_and_goes_at_once_was_never_on_the_ring(members):
    members.present({"b"}, 0)
    members.present(set(), 100)
    members.present({"b"}, 200)
    members.tick(CONFIRM_MS)

    assert members.nodes == {"a"}
    assert members.next_deadline() == 200 + CONFIRM_MS


def test_who_goes_is_off_the_ring_at_once(members):
    joined(members, "b", "c")

    members.present({"c"}, 1_000)

    assert members.nodes == {"a", "c"}


def test_those_who_come_one_after_the_other_join_together(members):
    for number, name in enumerate("bcd"):
        members.present(set("bcd"[: number + 1]), number * 100)
        assert members.nodes == {"a"}, name

    assert members.next_deadline() == 200 + CONFIRM_MS
    members.tick(200 + CONFIRM_MS)
    assert members.nodes == {"a", "b", "c", "d"}


def test_nobody_waits_for_ever_for_others_to_come(members):
    others: set[str] = set()
    for now_ms in range(0, CONFIRM_MS_MAX + 1, 100):
        others.add(f"node-{now_ms}")
        members.present(others, now_ms)
        members.tick(now_ms)

    assert "node-0" in members.nodes
    assert f"node-{CONFIRM_MS_MAX}" not in members.nodes


def test_who_leaves_is_off_its_own_ring_unless_it_is_the_last(members):
    joined(members, "b")

    members.leave()
    assert members.nodes == {"b"}

    members.present(set(), 2_000)
    assert members.nodes == {"a"}
