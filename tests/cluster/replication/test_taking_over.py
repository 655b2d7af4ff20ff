"""Who leads: vacant partitions, leaders that are gone, candidates that race or end."""

import pytest

from tests.cluster.replication.model_log import Entry
from tests.cluster.replication.model_world import LEASE_MS, LOG_ID, World
from tests.cluster.replication.one_replica import NOW_MS, A, B, C, led_by, log_of, sent
from waterclock.cluster.coordinator.records import PartitionRecord
from waterclock.cluster.coordinator.requests import Revision
from waterclock.cluster.replication.effects import (
    Opened,
    Paused,
    Problem,
    ReadRecord,
    SavePromise,
    SteppedDown,
    Swap,
)
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.messages import (
    Frames,
    Promise,
    Refused,
    TakeOver,
)
from waterclock.cluster.replication.replica import Replica
from waterclock.cluster.replication.succession import RANK_MS
from waterclock.model.ids import Epoch

X = ReplicaId("x")


def started(names: str = "abc", *, learners: str = "", others: str = "") -> World:
    world = World(names, learners=learners, others=others)
    world.start_all()
    world.run()
    return world


def state_of(world: World) -> str:
    assert world.record is not None
    return world.record.state


def test_the_first_replica_of_a_vacant_partition_leads_and_commits():
    world = started("abc")
    world.publish("x")
    world.run()

    assert world.leaders == {1: "a"}
    assert world.acked == {"x": 1}
    assert world.logs() == {"a": "1* 1x", "b": "1* 1x", "c": "1* 1x"}


@pytest.mark.parametrize("voters", ["a", "ab", "abc", "abcde"])
def test_an_idle_partition_has_no_timer(voters):
    world = started(voters)

    assert [n.replica.next_deadline() for n in world.nodes.values() if n.replica] == [None] * len(
        voters
    )


@pytest.mark.parametrize("voters", ["a", "ab", "abc", "abcde"])
def test_all_that_was_acknowledged_outlives_a_power_failure_of_all(voters):
    world = started(voters)
    world.publish("x")
    world.run()
    for name in voters:
        world.crash(name)
    world.start_all()
    world.wait(5_000)

    assert set(world.logs().values()) == {"1* 1x 2*"}


def test_the_next_in_rank_takes_over_from_a_leader_that_is_gone():
    world = started("abc")
    at_ms = world.now_ms
    world.crash("a")
    world.run()

    assert world.leaders == {1: "a", 2: "b"}
    assert world.now_ms == at_ms  # nobody waited for the lease
    world.publish("y")
    world.run()
    assert world.acked == {"y": 2}


def test_a_node_that_has_no_lease_yet_takes_nothing_that_others_would_take_from_it():
    replica = Replica(A, LOG_ID, log_of(""), promised=Epoch(0))
    replica.alive_changed(frozenset({B, C}), NOW_MS)
    replica.link_up(B, NOW_MS)
    vacant = PartitionRecord(epoch=0, state="vacant", replicas=(A, B, C))

    assert replica.record_changed(vacant, Revision(5), NOW_MS) == []
    assert replica.next_deadline() is None
    taken = Swap(vacant.taken_over(A), Revision(5))
    assert replica.alive_changed(frozenset({A, B, C}), NOW_MS) == [taken]


def test_a_leader_that_is_only_silent_leads_until_its_lease_is_over():
    world = started("abc")
    for other in "bc":
        world.cut("a", other)
    world.run()
    assert set(world.leaders) == {1}

    world.nodes["a"].is_paused = True
    world.nodes["a"].is_up = False  # to the coordinator
    world.nodes["a"].gone_ms = world.now_ms
    world.wait(LEASE_MS + 1)
    assert world.leaders[2] == "b"


def test_the_second_in_rank_takes_over_when_the_first_does_not():
    world = started("abc")
    world.pause("b")
    world.crash("a")
    world.wait(RANK_MS - 1)
    assert set(world.leaders) == {1}
    world.resume("b")
    world.pause("b")
    world.wait(5_000)

    assert 2 not in world.leaders  # c alone is no majority: b does not answer it
    world.resume("b")
    world.wait(5_000)
    assert world.leader() is not None


def test_of_two_candidates_one_leads():
    world = started("abc")
    world.held = lambda step: step.kind == "swap"
    world.crash("a")
    world.wait(2 * RANK_MS)
    assert [step.owner for step in world.steps if step.kind == "swap"] == ["b", "c"]
    world.held = lambda step: False
    world.wait(5_000)

    assert world.leaders == {1: "a", 2: "b"}


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("swap", "leading"),
        ("swapped", "candidate"),
        ("promise", "candidate"),
        ("swap", "candidate"),
        ("swapped", "leading"),
        ("begin", "leading"),
        ("flush", "leading"),
    ],
)
def test_a_candidate_may_end_at_any_step(kind, state):
    world = started("abc")
    world.publish("x")
    world.run()
    world.held = lambda step: (
        (step.owner, step.kind) == ("b", kind)
        and world.record is not None
        and world.record.state == state
    )
    world.crash("a")
    world.run()
    assert any(world.held(step) for step in world.steps)
    world.crash("b")
    world.held = lambda step: False
    world.start_all()
    world.wait(10_000)
    world.publish("y")
    world.run()

    assert set(world.acked) == {"x", "y"}
    assert len(set(world.logs().values())) == 1


@pytest.mark.parametrize("has_happened", [True, False])
def test_a_swap_whose_outcome_is_unknown_is_found_out(has_happened):
    world = started("abc")
    outcomes = iter([True])
    world.unknown = lambda: next(outcomes, False)
    if not has_happened:
        put = world.put
        world.put = lambda record: setattr(world, "put", put) or world.revision  # type: ignore[method-assign,func-returns-value]
    world.crash("a")
    world.wait(5_000)

    assert world.leaders == {1: "a", 2: "b"}


def test_a_candidate_whose_log_is_not_the_greatest_hands_over():
    world = started("abc")
    world.lost = lambda sender, to, message: to == "b" and isinstance(message, Frames)
    world.publish("x")
    world.run()
    world.lost = lambda sender, to, message: False
    assert world.acked == {"x": 1}
    world.crash("a")
    world.wait(1_000)

    assert world.leaders == {1: "a", 3: "c"}
    assert world.logs()["b"] == "1* 1x 3*"


def test_records_that_come_late_or_twice_change_nothing():
    replica = Replica(B, LOG_ID, log_of("1* 2*"), promised=Epoch(2))
    replica.link_up(A, NOW_MS)
    first = replica.record_changed(led_by(A, 2), Revision(7), NOW_MS)
    assert first != []

    assert replica.record_changed(led_by(A, 2), Revision(7), NOW_MS) == []
    assert replica.record_changed(led_by(C, 1), Revision(5), NOW_MS) == []
    assert (replica.leader, replica.record) == (A, led_by(A, 2))


def test_a_leader_that_started_anew_takes_the_next_epoch():
    world = started("abc")
    world.crash("a")
    world.start("a")
    world.wait(5_000)

    assert 1 in world.leaders
    assert max(world.leaders) >= 2
    assert all(entries.startswith("1* ") for entries in world.logs().values())


def test_a_wiped_disk_does_not_vote_as_the_one_that_was_there():
    """b and c have acknowledged x; b's disk is wiped and c does not answer: a must not lead."""
    world = started("abc", others="w")
    world.lost = lambda sender, to, message: to == "b" and isinstance(message, Frames)
    world.publish("x")
    world.run()
    world.crash("a")
    world.crash("c")
    world.nodes["c"].log.entries.clear()
    world.nodes["c"].log.flushed = 0
    # The node of c comes back with another disk: as another replica, w, which nobody asks.
    world.wait(10_000)
    assert world.leader() is None

    world.lost = lambda sender, to, message: False
    world.start("a")
    world.wait(10_000)
    assert world.leader() is not None
    assert "1x" in world.logs()["b"]


def test_a_damaged_replica_neither_votes_nor_leads():
    world = started("abc")
    world.nodes["b"].log.is_faulty = True
    world.tell("b", "faulted", lambda it: it.faulted(world.now_ms))
    world.crash("a")
    world.wait(10_000)
    assert world.leader() is None  # c alone is no majority

    world.start("a")
    world.wait(10_000)
    leader = world.leader()
    assert leader is not None
    assert leader.name in "ac"


def test_a_leader_whose_log_is_damaged_has_another_lead():
    world = started("abc")
    world.publish("x")
    world.run()
    world.nodes["a"].log.is_faulty = True
    world.tell("a", "faulted", lambda it: it.faulted(world.now_ms))
    world.wait(100)

    assert any(isinstance(each, SteppedDown) for each in world.nodes["a"].effects)
    assert world.leaders[2] == "b"


def test_the_power_failure_recipe_loses_nothing():
    """Pause a minority, write, lose unsynced pages of one, pause the others, resume the first."""
    world = started("abcde")
    for name in "de":
        world.pause(name)
    # c gets all and flushes nothing: it must not be counted.
    world.held = lambda step: step.owner == "c" and step.kind == "flush"
    world.publish("x")
    world.run()
    assert world.acked == {}  # a and b are no majority of five
    world.held = lambda step: False
    world.run()
    assert world.acked == {"x": 1}

    world.held = lambda step: step.owner == "c" and step.kind == "flush"
    world.publish("y")
    world.run()
    world.crash("c")
    world.held = lambda step: False
    for name in "ab":
        world.crash(name)
    for name in "de":
        world.resume(name)
    world.start("c")
    world.wait(10_000)
    assert world.leader() is not None
    assert world.acked == {"x": 1}
    [log] = {world.logs()[name] for name in "cde"}
    assert log.startswith("1* 1x ")
    assert "y" not in log


def test_a_leader_hands_over_to_another_when_that_has_everything():
    world = started("abc")
    world.publish("x")
    world.tell("a", "transfer", lambda it: it.transfer(B, world.now_ms))
    assert world.nodes["a"].effects[-1] == Paused("it hands over to b", fails_waiting=False)
    world.run()

    assert world.acked == {"x": 1}  # it was waiting, and was not failed
    assert world.leaders == {1: "a", 2: "b"}


def test_a_leader_whose_successor_does_not_take_over_leads_on():
    world = started("abc")
    world.lost = lambda sender, to, message: isinstance(message, TakeOver)
    world.tell("a", "transfer", lambda it: it.transfer(B, world.now_ms))
    world.run()
    assert world.leader() is None
    world.wait(2_000)

    assert world.nodes["a"].effects[-1] == Opened(Epoch(1))


def test_a_leader_that_removes_itself_hands_over_and_is_removed_by_the_next():
    world = started("abc")
    world.tell("a", "remove", lambda it: it.remove(A, world.now_ms))
    world.run()
    assert world.leaders[2] == "b"
    world.tell("b", "remove", lambda it: it.remove(A, world.now_ms))
    world.run()

    assert world.record is not None
    assert world.record.replicas == ("c", "b")  # the last takes the place of one that goes
    assert world.nodes["a"].replica is not None
    assert world.nodes["a"].replica.role == "idle"


def test_a_set_changes_through_a_change_of_leader():
    world = started("abc", others="x")
    world.tell("a", "learn", lambda it: it.add_learner(X, world.now_ms))
    world.run()
    world.held = lambda step: step.kind == "swapped"
    world.tell("a", "promote", lambda it: it.promote(X, world.now_ms))
    world.run()
    world.crash("a")  # it never hears that the set is another
    world.held = lambda step: False
    world.wait(5_000)
    world.publish("y")
    world.run()

    assert world.record is not None
    assert world.record.replicas == ("a", "b", "c", "x")
    assert "y" in world.acked
    assert world.logs()["x"] == world.logs()["b"]


def test_a_single_replica_grows_to_three():
    world = started("a", others="bc")
    world.publish("x")
    world.run()
    for event in (
        lambda it: it.add_learner(B, world.now_ms),
        lambda it: it.promote(B, world.now_ms),
        lambda it: it.add_learner(C, world.now_ms),
        lambda it: it.promote(C, world.now_ms),
    ):
        world.tell("a", "grow", event)
        world.run()
    world.crash("a")
    world.wait(5_000)

    assert world.leader() is not None
    assert world.logs()["b"] == "1* 1x 2*"


def test_a_leader_without_a_majority_fails_those_who_wait_and_goes_on_when_it_is_back():
    world = started("abc")
    for other in "bc":
        world.cut("a", other)
    world.cut("b", "c")
    world.publish("x", "a")
    world.wait(LEASE_MS)
    assert any(isinstance(e, Paused) and e.fails_waiting for e in world.nodes["a"].effects)
    assert world.leader() is None
    assert state_of(world) == "candidate"  # others may try

    world.heal()
    world.wait(100)
    assert world.leader() is not None
    assert state_of(world) == "leading"
    assert world.acked == {}


@pytest.mark.parametrize("gone", "ab")
def test_of_two_replicas_none_leads_without_the_other(gone):
    world = started("ab")
    world.crash(gone)
    world.wait(10 * LEASE_MS)

    assert world.leader() is None

    world.start(gone)
    world.wait(LEASE_MS)
    assert world.leader() is not None


def test_how_long_a_leader_waits_for_a_majority_is_its_lease():
    replica = Replica(A, LOG_ID, log_of(""), promised=Epoch(0), lease_ms=700)

    replica.record_changed(led_by(A, 1), Revision(5), NOW_MS)

    assert replica.next_deadline() == NOW_MS + 700


def test_silence_of_a_link_that_breaks_is_a_part_of_the_lease():
    replica = Replica(A, LOG_ID, log_of(""), promised=Epoch(0), lease_ms=700)
    for each in (B, C):
        replica.link_up(each, NOW_MS)
    replica.record_changed(led_by(A, 1), Revision(5), NOW_MS)

    replica.link_down(B, NOW_MS, silent_ms=600)
    assert replica.next_deadline() is None  # of three, it has two
    replica.link_down(C, NOW_MS, silent_ms=500)
    assert replica.next_deadline() == NOW_MS + 200


def test_others_take_over_from_a_leader_that_has_a_lease_and_no_majority():
    world = started("abc")
    for other in "bc":
        world.cut("a", other)
    world.wait(LEASE_MS + 3_000)

    assert world.leaders[2] == "b"


def test_a_coordinator_that_was_restored_from_an_old_copy_is_seen():
    replica = Replica(A, LOG_ID, log_of("1* 7*"), promised=Epoch(7))
    for each in (B, C):
        replica.link_up(each, NOW_MS)
    old = led_by(A, 6)

    assert replica.record_changed(old, Revision(5), NOW_MS) == [ReadRecord()]
    [problem] = replica.record_read(old, Revision(5), NOW_MS)
    assert isinstance(problem, Problem)
    assert "restored" in problem.text
    assert replica.tick(NOW_MS + 10_000) == []
    assert sent(replica.received(B, Promise(LOG_ID, Epoch(7)), NOW_MS)) == [
        (B, Refused(LOG_ID, Epoch(7), Epoch(7)))
    ]


def test_an_epoch_has_one_leader_though_an_old_copy_of_the_coordinator_gives_it_out_again():
    world = started("abc")
    assert world.record is not None
    old = world.record
    world.crash("c")
    world.crash("a")
    world.lost = lambda sender, to, message: isinstance(message, Frames)
    world.start("a")
    world.wait(100)
    assert world.leaders[2] == "a"  # and nobody has a frame of it
    for name in "ab":
        world.crash(name)
    world.lost = lambda sender, to, message: False

    world.put(old.taken_over("c"))
    for name in "bc":
        world.start(name)
    world.wait(10_000)

    assert world.leaders == {1: "a", 2: "a", 3: "b"}
    assert "given out twice" in str(world.nodes["c"].effects)


def test_a_record_that_is_only_late_is_no_sign_of_that():
    replica = Replica(A, LOG_ID, log_of("1*"), promised=Epoch(7))
    for each in (B, C):
        replica.link_up(each, NOW_MS)
    replica.record_changed(led_by(B, 6), Revision(5), NOW_MS)

    effects = replica.record_read(led_by(B, 8), Revision(9), NOW_MS)
    assert effects == [SavePromise(Epoch(8), B)]


def test_an_epoch_that_was_heard_of_while_the_record_was_read_is_no_sign_of_that():
    replica = Replica(A, LOG_ID, log_of("1*"), promised=Epoch(7))
    for each in (B, C):
        replica.link_up(each, NOW_MS)
    assert replica.record_changed(led_by(B, 6), Revision(5), NOW_MS) == [ReadRecord()]
    replica.received(C, Promise(LOG_ID, Epoch(8)), NOW_MS)
    replica.received(C, TakeOver(LOG_ID, Epoch(8)), NOW_MS)

    # Read before C had the epoch: it is read again, and nobody is suspected.
    assert replica.record_read(led_by(B, 7), Revision(7), NOW_MS) == [ReadRecord()]


def test_a_candidate_that_is_refused_reads_the_record_before_it_tries_again():
    replica = Replica(A, LOG_ID, log_of("1*"), promised=Epoch(1))
    for each in (B, C):
        replica.link_up(each, NOW_MS)
    replica.record_changed(led_by(A, 2).resigned(), Revision(5), NOW_MS)
    assert replica.role == "candidate"
    refused = Refused(LOG_ID, Epoch(2), Epoch(3))

    assert replica.received(B, refused, NOW_MS) == [ReadRecord()]
    assert replica.tick(NOW_MS + 10_000) == []
    effects = replica.record_read(led_by(B, 3).resigned(), Revision(8), NOW_MS)
    assert effects == [SavePromise(Epoch(3), B)]


def test_a_partition_that_is_deleted_is_led_no_more():
    world = started("abc")
    world.put(None)
    world.run()

    assert [n.replica.role for n in world.nodes.values() if n.replica] == ["idle"] * 3
    assert isinstance(world.nodes["a"].effects[-1], SteppedDown)


def test_a_world_judges():
    world = started("abc")
    world.nodes["a"].log.entries[0] = Entry(1, "other")
    world.publish("x")
    with pytest.raises(AssertionError, match="a committed"):
        world.run()
