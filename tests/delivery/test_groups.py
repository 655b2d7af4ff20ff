import pytest

from waterclock.delivery.groups import (
    Assign,
    CancelRevoke,
    CloseSession,
    Group,
    HeartbeatReceived,
    MemberJoined,
    MemberLeft,
    MemberLost,
    PartitionDrained,
    PartitionsAdded,
    RefuseMember,
    Release,
    Revoke,
    SaveGeneration,
)
from waterclock.model.ids import Millis
from waterclock.model.sections import GroupConfig

CONFIG = GroupConfig(session_timeout_ms=1_000, revoke_grace_ms=300, members_max=3)


def at(ms: int) -> Millis:
    return Millis(ms)


@pytest.fixture
def group():
    group = Group(CONFIG, partitions=2)
    group.handle(MemberJoined("a"), at(0))
    yield group
    group.check_invariants()


def test_the_first_member_gets_everything():
    group = Group(CONFIG, partitions=2, generation=7)

    assert group.handle(MemberJoined("a"), at(0)) == [
        SaveGeneration(8),
        Assign(0, "a", 8),
        Assign(1, "a", 8),
    ]
    assert repr(group) == "<Group generation 8, 1 members, 2 partitions>"


def test_a_second_member_gets_its_share_when_the_first_has_finished(group):
    assert group.handle(MemberJoined("b"), at(10)) == [SaveGeneration(2), Revoke(1, "a", 1, 310)]
    assert group.owners() == (("a", 1), ("a", 1))

    assert group.handle(PartitionDrained(1, 1), at(20)) == [
        Release(1, "a", 1, is_counted=False),
        Assign(1, "b", 2),
    ]
    assert group.handle(PartitionDrained(1, 1), at(20)) == []


def test_or_when_the_grace_is_over(group):
    group.handle(MemberJoined("b"), at(10))

    assert group.next_deadline() == 310
    assert group.tick(at(309)) == []
    assert group.tick(at(310)) == [Release(1, "a", 1, is_counted=False), Assign(1, "b", 2)]


def test_a_move_is_cancelled_when_its_reason_is_gone(group):
    group.handle(MemberJoined("b"), at(10))

    assert group.handle(MemberLeft("b"), at(20)) == [SaveGeneration(3), CancelRevoke(1, "a", 1)]
    assert group.handle(PartitionDrained(1, 1), at(30)) == []
    assert group.tick(at(500)) == []


def test_a_silent_member_is_expired_and_what_it_held_counts(group):
    group.handle(MemberJoined("b"), at(900))
    group.handle(PartitionDrained(1, 1), at(900))

    assert group.tick(at(1_000)) == [
        CloseSession("a"),
        SaveGeneration(3),
        Release(0, "a", 1, is_counted=True),
        Assign(0, "b", 3),
    ]
    assert group.handle(HeartbeatReceived("a"), at(1_001)) == [RefuseMember("a")]


def test_a_heartbeat_keeps_a_member(group):
    group.handle(HeartbeatReceived("a"), at(900))

    assert group.tick(at(1_000)) == []
    assert group.next_deadline() == 1_900


def test_a_member_that_leaves_frees_its_partitions_at_once(group):
    assert group.handle(MemberLeft("a"), at(5)) == [
        SaveGeneration(2),
        Release(0, "a", 1, is_counted=False),
        Release(1, "a", 1, is_counted=False),
    ]
    assert group.next_deadline() is None
    assert group.handle(MemberLeft("a"), at(5)) == [RefuseMember("a")]


def test_a_member_that_joins_again_begins_anew_with_what_it_had(group):
    assert group.handle(MemberJoined("a"), at(5)) == [
        CloseSession("a"),
        SaveGeneration(2),
        Release(0, "a", 1, is_counted=True),
        Release(1, "a", 1, is_counted=True),
        Assign(0, "a", 2),
        Assign(1, "a", 2),
    ]


def test_a_full_group_says_so(group):
    group.handle(MemberJoined("b"), at(5))
    group.handle(MemberJoined("c"), at(5))

    assert group.handle(MemberJoined("d"), at(5)) == [RefuseMember("d", 3)]
    assert group.members == ("a", "b", "c")


def test_new_partitions_are_assigned_and_old_ones_stay(group):
    group.handle(MemberJoined("b"), at(5))
    group.handle(PartitionDrained(1, 1), at(5))

    assert group.handle(PartitionsAdded(4), at(6)) == [
        SaveGeneration(3),
        Assign(2, "a", 3),
        Assign(3, "b", 3),
    ]
    assert group.handle(PartitionsAdded(4), at(6)) == []


def test_a_report_about_no_partition_is_ignored(group):
    assert group.handle(PartitionDrained(99, 1), at(5)) == []
    assert group.handle(PartitionDrained(-1, 1), at(5)) == []


def test_a_member_whose_connection_broke_is_gone_at_once_and_what_it_held_has_failed(group):
    group.handle(MemberJoined("b"), at(0))

    assert group.handle(MemberLost("a"), at(1)) == [
        SaveGeneration(3),
        Release(0, "a", 1, is_counted=True),
        Release(1, "a", 1, is_counted=True),
        Assign(0, "b", 3),
        Assign(1, "b", 3),
    ]
    assert group.handle(MemberLost("a"), at(2)) == [RefuseMember("a")]
