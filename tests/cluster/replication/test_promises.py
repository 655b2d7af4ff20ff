"""A replica that promised an epoch says nothing under a lower one."""

import pytest

from tests.cluster.replication.model_world import LOG_ID
from tests.cluster.replication.one_replica import (
    NOW_MS,
    A,
    B,
    C,
    end_of,
    fetched,
    follower,
    leader,
    led_by,
    log_of,
    reported,
    sent,
)
from waterclock.cluster.coordinator.requests import Revision
from waterclock.cluster.replication.effects import CommitTo, Problem, SavePromise, Send, SteppedDown
from waterclock.cluster.replication.messages import (
    Committed,
    Flushed,
    Frames,
    Leading,
    Promise,
    Promised,
    Refused,
)
from waterclock.cluster.replication.replica import Replica
from waterclock.model.ids import Epoch, Offset

TWO = Epoch(2)


def test_a_promise_is_durable_before_it_is_answered():
    replica = Replica(B, LOG_ID, log_of("1* 1x"), promised=Epoch(1))

    assert replica.received(C, Promise(LOG_ID, TWO), NOW_MS) == [SavePromise(TWO, C)]
    assert replica.received(C, Promise(LOG_ID, TWO), NOW_MS) == []
    assert replica.link_up(C, NOW_MS) == []
    assert sent(replica.promise_saved(TWO, NOW_MS)) == [
        (C, Promised(LOG_ID, TWO, end_of(1, 2), is_faulty=False))
    ]


def test_an_epoch_that_is_given_to_two_is_promised_to_the_first_also_after_a_restart():
    # The coordinator was restored from an old copy while nobody ran.
    replica = Replica(B, LOG_ID, log_of("1* 1x"), promised=TWO, candidate=A)
    replica.link_up(C, NOW_MS)
    assert replica.record_changed(led_by(C, 2).resigned(), Revision(5), NOW_MS) == []

    asked = replica.received(C, Promise(LOG_ID, TWO), NOW_MS)
    assert sent(asked) == [(C, Refused(LOG_ID, TWO, TWO))]
    [problem] = replica.received(C, Leading(LOG_ID, TWO), NOW_MS)
    assert isinstance(problem, Problem)
    assert replica.leader is None
    assert sent(replica.received(A, Promise(LOG_ID, TWO), NOW_MS)) == [
        (A, Promised(LOG_ID, TWO, end_of(1, 2), is_faulty=False))
    ]


def test_who_has_an_epoch_of_which_nobody_knows_whose_it_is_is_durable_before_the_answer():
    replica = Replica(B, LOG_ID, log_of("1* 1x"), promised=TWO)

    assert replica.received(C, Promise(LOG_ID, TWO), NOW_MS) == [SavePromise(TWO, C)]
    assert sent(replica.received(A, Promise(LOG_ID, TWO), NOW_MS)) == [
        (A, Refused(LOG_ID, TWO, TWO))
    ]
    assert [to for to, _ in sent(replica.promise_saved(TWO, NOW_MS))] == [C]


def test_what_is_written_and_not_flushed_is_no_answer():
    log = log_of("1* 1x 1y")
    log.flushed = 2
    replica = Replica(B, LOG_ID, log, promised=Epoch(1))
    replica.received(C, Promise(LOG_ID, TWO), NOW_MS)

    [(_, answer)] = sent(replica.promise_saved(TWO, NOW_MS))
    assert answer == Promised(LOG_ID, TWO, end_of(1, 2), is_faulty=False)


def test_a_damaged_log_is_no_evidence():
    log = log_of("1* 1x")
    log.is_faulty = True
    replica = Replica(B, LOG_ID, log, promised=Epoch(1))
    replica.received(C, Promise(LOG_ID, TWO), NOW_MS)

    [(_, answer)] = sent(replica.promise_saved(TWO, NOW_MS))
    assert answer == Promised(LOG_ID, TWO, end_of(1, 2), is_faulty=True)


def test_nothing_is_reported_under_a_lower_epoch_once_a_promise_is_made():
    log = log_of("1* 1x")
    replica = follower(log)
    claim_holds = Frames(LOG_ID, Epoch(1), Offset(2), Offset(0), b"")
    replica.received(A, claim_holds, NOW_MS)
    log.append(log_of("1y").entries)
    replica.appended(NOW_MS)

    replica.received(C, Promise(LOG_ID, TWO), NOW_MS)
    log.flush()
    assert replica.flushed(NOW_MS) == []


def test_the_same_flush_is_reported_without_a_promise():
    log = log_of("1* 1x")
    replica = follower(log)
    replica.received(A, Frames(LOG_ID, Epoch(1), Offset(2), Offset(0), b""), NOW_MS)
    log.append(log_of("1y 1z").entries)
    replica.appended(NOW_MS)
    log.flushed = 3  # of four that are written

    assert replica.flushed(NOW_MS) == [Send(A, Flushed(LOG_ID, Epoch(1), Offset(3)))]


def test_a_lower_epoch_is_refused_also_after_a_restart():
    replica = Replica(B, LOG_ID, log_of("1* 1x"), promised=Epoch(3))
    refused = Refused(LOG_ID, TWO, Epoch(3))

    assert sent(replica.received(C, Promise(LOG_ID, TWO), NOW_MS)) == [(C, refused)]
    for message in (
        Frames(LOG_ID, TWO, Offset(2), Offset(2), b"x"),
        Committed(LOG_ID, TWO, Offset(2)),
    ):
        assert replica.received(A, message, NOW_MS) == [Send(A, refused)]


def test_a_leader_that_promised_another_its_epoch_commits_nothing_more():
    log = log_of("")
    replica = leader(log, 1)
    fetched(replica, B, log_of(""))
    log.flush()

    effects = replica.received(C, Promise(LOG_ID, TWO), NOW_MS)

    assert [type(each) for each in effects] == [SavePromise, SteppedDown]
    assert not replica.is_open
    assert reported(replica, B, 1, epoch=1) == []
    assert replica.flushed(NOW_MS) == []


def test_a_leader_without_that_commits():
    log = log_of("")
    replica = leader(log, 1)
    fetched(replica, B, log_of(""))
    log.flush()

    assert CommitTo(Offset(1)) in reported(replica, B, 1)


def test_an_epoch_is_not_promised_to_two_candidates():
    replica = Replica(B, LOG_ID, log_of("1* 1x"), promised=Epoch(1))
    replica.received(C, Promise(LOG_ID, TWO), NOW_MS)
    replica.promise_saved(TWO, NOW_MS)

    assert sent(replica.received(A, Promise(LOG_ID, TWO), NOW_MS)) == [
        (A, Refused(LOG_ID, TWO, TWO))
    ]
    assert sent(replica.received(C, Promise(LOG_ID, TWO), NOW_MS)) == [
        (C, Promised(LOG_ID, TWO, end_of(1, 2), is_faulty=False))
    ]


def test_a_promise_that_was_overtaken_by_another_is_not_answered():
    replica = Replica(B, LOG_ID, log_of("1* 1x"), promised=Epoch(1))
    replica.received(C, Promise(LOG_ID, TWO), NOW_MS)
    replica.received(A, Promise(LOG_ID, Epoch(3)), NOW_MS)

    assert replica.promise_saved(TWO, NOW_MS) == []
    assert [to for to, _ in sent(replica.promise_saved(Epoch(3), NOW_MS))] == [A]


@pytest.mark.parametrize("promised", [0, 1])
def test_a_replica_that_opens_its_log_after_it_was_asked_answers_the_candidate(promised):
    replica = Replica(
        B, LOG_ID, log_of(""), promised=Epoch(promised), candidate=A if promised else ""
    )
    replica.link_up(A, NOW_MS)
    effects = replica.record_changed(led_by(A, 1).resigned(), Revision(5), NOW_MS)
    effects += replica.promise_saved(Epoch(1), NOW_MS)

    answer = Promised(LOG_ID, Epoch(1), end_of(0, 0), is_faulty=False)
    assert (A, answer) in sent(effects)


def test_a_learner_promises_a_candidate_nothing():
    replica = Replica(B, LOG_ID, log_of(""), promised=Epoch(0))
    replica.link_up(A, NOW_MS)
    record = led_by(A, 1, "ac", "b").resigned()

    assert replica.record_changed(record, Revision(5), NOW_MS) == []
