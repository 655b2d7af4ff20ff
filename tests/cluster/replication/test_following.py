"""A replica copies its leader's log, and cuts its own where the leader's leaves it."""

import pytest

from tests.cluster.replication.model_log import decoded
from tests.cluster.replication.model_world import LOG_ID, World
from tests.cluster.replication.one_replica import (
    NOW_MS,
    A,
    C,
    end_of,
    fetched,
    follower,
    leader,
    log_of,
    sent,
)
from waterclock.cluster.replication.effects import (
    Append,
    CommitTo,
    Install,
    Problem,
    Replace,
    SteppedDown,
    Truncate,
)
from waterclock.cluster.replication.messages import (
    Committed,
    Diverged,
    Fetch,
    Frames,
    Leading,
    Promise,
    Promised,
    TooOld,
)
from waterclock.cluster.replication.replica import RETRY_MS
from waterclock.model.ids import Epoch, Offset

ONE = Epoch(1)


def frames(base: int, text: str, commit_end: int = 0) -> Frames:
    entries = log_of(text)
    return Frames(LOG_ID, ONE, Offset(base), Offset(commit_end), entries.encoded(0, 99)[0])


def claimed(effects) -> list[Fetch]:
    return [message for _, message in sent(effects) if isinstance(message, Fetch)]


def test_frames_that_follow_on_are_appended_and_others_are_asked_for_once():
    log = log_of("1* 1x")
    replica = follower(log)
    [taken] = replica.received(A, frames(2, "1y"), NOW_MS)
    assert isinstance(taken, Append)
    log.append(decoded(taken.data))
    replica.appended(NOW_MS)

    again = replica.received(A, frames(2, "1y"), NOW_MS)
    assert [each.claim for each in claimed(again)] == [end_of(1, 3)]
    assert replica.received(A, frames(5, "1z"), NOW_MS) == []
    [taken] = replica.received(A, frames(3, "1z"), NOW_MS)
    assert isinstance(taken, Append)


def test_no_more_is_committed_than_the_log_has():
    log = log_of("1* 1x")
    replica = follower(log)
    replica.received(A, frames(2, "1y", commit_end=9), NOW_MS)
    log.append(log_of("1y").entries)

    assert replica.appended(NOW_MS) == [CommitTo(Offset(3))]


def test_nothing_is_committed_before_a_claim_held():
    log = log_of("1* 1x 1y")
    replica = follower(log)

    assert replica.appended(NOW_MS) == []
    assert replica.received(A, Committed(LOG_ID, ONE, Offset(2)), NOW_MS) == [CommitTo(Offset(2))]


def test_a_leader_that_is_linked_again_is_asked_anew():
    replica = follower(log_of("1* 1x"))
    replica.link_down(A, NOW_MS)

    assert [each.claim for each in claimed(replica.link_up(A, NOW_MS))] == [end_of(1, 2)]
    assert claimed(replica.received(A, Leading(LOG_ID, ONE), NOW_MS)) != []


def test_a_late_answer_to_another_claim_cuts_nothing():
    log = log_of("1* 1x 2* 2y 4*")
    replica = follower(log, epoch=4)
    late = Diverged(LOG_ID, Epoch(4), end_of(2, 4), end_of(1, 2))

    assert replica.received(A, late, NOW_MS) == []  # the claim of now is under way
    replica.received(A, Committed(LOG_ID, Epoch(4), Offset(0)), NOW_MS)
    holds = Frames(LOG_ID, Epoch(4), Offset(5), Offset(0), b"")
    replica.received(A, holds, NOW_MS)
    assert not any(isinstance(e, Truncate) for e in replica.received(A, late, NOW_MS))


def test_what_is_committed_is_never_cut():
    replica = follower(log_of("1* 1x 2* 2y"), epoch=2)
    replica.received(A, Committed(LOG_ID, Epoch(2), Offset(4)), NOW_MS)
    claim = end_of(2, 4)

    [effect] = replica.received(A, Diverged(LOG_ID, Epoch(2), claim, end_of(1, 2)), NOW_MS)
    assert isinstance(effect, Problem)


def test_logs_that_parted_several_times_meet_after_several_rounds():
    """KIP-279: after one round the replica would keep frames that the leader never had."""
    theirs, ours = log_of("1* 2* 4* 6*"), log_of("1* 1x 1y 3* 5*")
    leading = leader(theirs, 7)
    replica = follower(ours, epoch=7)
    [(_, message)] = sent(fetched(leading, follower_id := replica.me, ours))
    rounds = 0
    while isinstance(message, Diverged):
        [cut] = replica.received(A, message, NOW_MS)
        assert isinstance(cut, Truncate)
        ours.truncate(cut.end)
        rounds += 1
        [fetch] = claimed(replica.reopened(ours, NOW_MS))
        answers = leading.received(follower_id, fetch, NOW_MS)
        message = sent(answers)[0][1] if sent(answers) else fetch

    assert ours.entries == theirs.entries[: len(ours.entries)]
    assert (rounds, len(ours.entries)) == (2, 1)


def test_nobody_waits_for_an_offset_of_a_log_that_is_cut():
    """The false ack: another leader's message comes to the offset that a publish waits for."""
    log = log_of("")
    replica = leader(log, 1)
    log.append(log_of("1x").entries)
    replica.appended(NOW_MS)
    happened = replica.received(C, Promise(LOG_ID, Epoch(2)), NOW_MS)
    happened += replica.promise_saved(Epoch(2), NOW_MS)
    happened += replica.received(C, Leading(LOG_ID, Epoch(2)), NOW_MS)
    claim = log.lineage.last
    happened += replica.received(C, Diverged(LOG_ID, Epoch(2), claim, end_of(0, 0)), NOW_MS)

    kinds = [type(each) for each in happened]
    assert kinds.index(SteppedDown) < kinds.index(Truncate)


def test_a_replica_that_lags_too_far_copies_the_log_whole_and_goes_on():
    log = log_of("1* 1x")
    replica = follower(log)
    assert replica.received(A, TooOld(LOG_ID, ONE, end_of(1, 1), Offset(5)), NOW_MS) == []

    too_old = TooOld(LOG_ID, ONE, end_of(1, 2), Offset(5))
    assert replica.received(A, too_old, NOW_MS) == [Install(A)]
    assert replica.received(A, frames(2, "1y"), NOW_MS) == []  # of a stream that is no more
    assert replica.copied(A, NOW_MS) == [Replace()]
    assert replica.received(A, frames(2, "1y"), NOW_MS) == []  # the log is being replaced
    copied = log_of("1* 1x 1y 1z 1w")
    assert [each.claim for each in claimed(replica.reopened(copied, NOW_MS))] == [end_of(1, 5)]


def too_far_behind():
    """Return a replica that copies what its leader has rewritten."""
    log = log_of("1* 1x")
    replica = follower(log)
    replica.received(A, TooOld(LOG_ID, ONE, end_of(1, 2), Offset(5)), NOW_MS)
    return replica, log


def test_while_it_copies_a_replica_votes_with_what_it_has():
    replica, _ = too_far_behind()
    replica.received(C, Promise(LOG_ID, Epoch(2)), NOW_MS)

    [(to, answer)] = sent(replica.promise_saved(Epoch(2), NOW_MS))
    assert (to, answer) == (C, Promised(LOG_ID, Epoch(2), end_of(1, 2), is_faulty=False))
    assert replica.copied(A, NOW_MS) == []  # another leads: it may not need the copy


def test_while_its_log_is_replaced_a_replica_says_nothing_of_it():
    replica, _ = too_far_behind()
    assert replica.copied(A, NOW_MS) == [Replace()]
    replica.received(C, Promise(LOG_ID, Epoch(2)), NOW_MS)

    assert replica.promise_saved(Epoch(2), NOW_MS) == []
    [(_, answer)] = sent(replica.reopened(log_of("1* 1x 1y 1z 1w"), NOW_MS))
    assert answer == Promised(LOG_ID, Epoch(2), end_of(1, 5), is_faulty=False)


def test_a_copy_that_failed_is_asked_for_again_later():
    replica, _ = too_far_behind()
    assert replica.copy_failed(A, NOW_MS) == []
    assert replica.next_deadline() == NOW_MS + RETRY_MS

    assert [each.claim for each in claimed(replica.tick(NOW_MS + RETRY_MS))] == [end_of(1, 2)]
    assert replica.copied(A, NOW_MS) == []  # it came too late: the leader is asked what to do


def test_a_copy_is_of_no_use_once_the_link_broke():
    replica, _ = too_far_behind()
    replica.link_down(A, NOW_MS)
    assert claimed(replica.link_up(A, NOW_MS))

    assert replica.copied(A, NOW_MS) == []


def test_a_promise_is_answered_with_the_log_as_it_is_after_the_cut():
    log = log_of("1* 1x 2*")
    replica = follower(log, epoch=3)
    claim = log.lineage.last
    replica.received(A, Diverged(LOG_ID, Epoch(3), claim, end_of(1, 2)), NOW_MS)
    replica.received(C, Promise(LOG_ID, Epoch(4)), NOW_MS)

    assert replica.promise_saved(Epoch(4), NOW_MS) == []
    log.truncate(2)
    [(to, answer)] = sent(replica.reopened(log, NOW_MS))
    assert to == C
    assert answer == Promised(LOG_ID, Epoch(4), end_of(1, 2), is_faulty=False)


def test_frames_that_a_disk_refused_are_asked_for_again():
    replica = follower(log_of("1* 1x"))
    replica.received(A, frames(2, "1y"), NOW_MS)
    assert replica.append_failed("the disk is full", NOW_MS) == [Problem("the disk is full")]

    assert replica.next_deadline() == NOW_MS + RETRY_MS
    assert [each.claim for each in claimed(replica.tick(NOW_MS + RETRY_MS))] == [end_of(1, 2)]


def test_a_damaged_voter_copies_nothing_and_says_so_and_a_damaged_learner_begins_anew():
    log = log_of("1* 1x")
    log.is_faulty = True
    damaged = Promised(LOG_ID, ONE, end_of(1, 2), is_faulty=True)
    assert sent(follower(log).received(A, Leading(LOG_ID, ONE), NOW_MS)) == [(A, damaged)]

    world = World("ab", learners="c")
    world.nodes["c"].log = log_of("1* 1x")
    world.nodes["c"].log.is_faulty = True
    world.start_all()
    world.run()
    assert not world.nodes["c"].log.is_faulty
    assert world.logs()["c"] == world.logs()["a"]


def installs(world: World) -> int:
    """Return how often c was told to copy its leader's log."""
    return sum(isinstance(each, Install) for each in world.nodes["c"].effects)


@pytest.mark.parametrize("is_faulty", [True, False])
def test_what_could_not_be_put_in_the_place_of_a_log_is_copied_again_a_little_later(is_faulty):
    world = World("ab", learners="c")
    learner = world.nodes["c"]
    world.start("a")
    world.start("b")
    world.run()
    world.publish("x")
    world.run()
    world.nodes["a"].log.stream_start = world.nodes["a"].log.end
    learner.log.is_faulty, learner.is_full = is_faulty, True
    world.start("c")
    world.run()
    before = installs(world)
    assert before

    world.wait(RETRY_MS - 1)
    assert installs(world) == before
    learner.is_full = False
    world.wait(1)
    assert installs(world) == before + 1
    world.wait(10 * RETRY_MS)
    assert installs(world) == before + 1
    assert not learner.log.is_faulty
    assert world.logs()["c"] == world.logs()["a"]


def test_what_a_follower_does_not_know_to_be_committed_outlives_its_restart():
    """KIP-101, scenario 1: cut to its own commit point, it would lose what was acknowledged."""
    world = World("ab")
    world.start_all()
    world.run()
    world.lost = lambda sender, to, message: isinstance(message, Committed)
    world.publish("x")
    world.run()
    assert world.acked == {"x": 1}
    assert world.nodes["b"].replica is not None
    assert world.nodes["b"].replica.committed_end == 1  # it does not know yet

    world.crash("b")
    world.start("b")
    world.crash("a")
    world.start("a")
    world.wait(5_000)
    assert world.logs() == {"a": "1* 1x 2*", "b": "1* 1x 2*"}


def test_two_logs_of_the_same_length_and_other_messages_become_one():
    """KIP-101, scenario 2: by lengths alone they would be taken for equal."""
    world = World("abc")
    world.start_all()
    world.run()
    world.lost = lambda sender, to, message: sender == "a" and isinstance(message, Frames)
    world.publish("lost")
    world.run()
    world.crash("a")
    world.lost = lambda sender, to, message: False
    world.wait(1_000)
    assert world.logs()["a"] == "1* 1lost"
    assert world.logs()["b"] == "1* 2*"

    world.start("a")
    world.wait(1_000)
    assert set(world.logs().values()) == {"1* 2*"}
