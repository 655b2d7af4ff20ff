"""What a leader commits: what a majority of the voters has flushed, and its epoch's frame first."""

import pytest

from tests.cluster.replication.model_world import LOG_ID
from tests.cluster.replication.one_replica import (
    NOW_MS,
    B,
    C,
    end_of,
    fetched,
    leader,
    log_of,
    reported,
    sent,
)
from waterclock.cluster.coordinator.requests import Revision
from waterclock.cluster.replication.effects import (
    CommitTo,
    Led,
    Lost,
    ReadRecord,
    Stream,
    Succeeded,
    Swap,
    Unknown,
)
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.messages import Diverged, Fetch, Leading, TooOld
from waterclock.model.ids import Epoch, Offset

D = ReplicaId("d")


def committed(effects):
    return [each.end for each in effects if isinstance(each, CommitTo)]


def test_what_is_older_than_the_epoch_is_not_committed_by_counting():
    """Raft, figure 8: entry 2 is on a majority in (c), and is overwritten in (d)."""
    log = log_of("1* 2x")
    replica = leader(log, 4)
    log.flushed = 2
    fetched(replica, B, log_of("1*"))

    assert committed(reported(replica, B, 2)) == []
    log.flush()
    replica.flushed(NOW_MS)
    assert committed(reported(replica, B, 3)) == [3]


def test_the_epoch_is_led_when_its_own_frame_is_committed():
    log = log_of("")
    replica = leader(log, 1, "a")
    log.flush()

    assert replica.flushed(NOW_MS) == [CommitTo(Offset(1)), Led(Epoch(1))]


@pytest.mark.parametrize(("voters", "others"), [("a", 0), ("ab", 1), ("abc", 1), ("abcde", 2)])
def test_a_majority_is_enough_and_less_is_not(voters, others):
    log = log_of("")
    replica = leader(log, 1, voters)
    for each in voters[1:]:
        fetched(replica, ReplicaId(each), log_of(""))
    log.flush()
    found = committed(replica.flushed(NOW_MS))
    for each in voters[1 : 1 + others]:
        assert found == []
        found += committed(reported(replica, ReplicaId(each), 1))

    assert found == [1]


def test_a_majority_without_the_leader_is_enough():
    log = log_of("")
    replica = leader(log, 1)
    fetched(replica, B, log_of(""))
    fetched(replica, C, log_of(""))
    reported(replica, B, 1)

    assert committed(reported(replica, C, 1)) == [1]


def test_a_learner_is_never_counted():
    log = log_of("")
    replica = leader(log, 1, "abc", learners="d")
    fetched(replica, D, log_of(""))
    log.flush()
    replica.flushed(NOW_MS)

    assert committed(reported(replica, D, 1)) == []


def test_what_a_diverged_replica_has_flushed_counts_for_nothing():
    log = log_of("1* 1x")
    replica = leader(log, 3)
    log.flush()
    replica.flushed(NOW_MS)
    other = log_of("1* 1x 2* 2y")

    assert sent(fetched(replica, B, other)) == [
        (B, Diverged(LOG_ID, Epoch(3), end_of(2, 4), end_of(1, 2)))
    ]
    assert replica.flushed_end_of(B) == 0
    assert replica.committed_end == 0


def test_reports_of_an_earlier_epoch_or_of_before_are_no_news():
    log = log_of("1* 1x")
    replica = leader(log, 2)
    fetched(replica, B, log_of("1*"))
    log.flush()
    replica.flushed(NOW_MS)

    assert reported(replica, B, 3, epoch=1) == []
    assert committed(reported(replica, B, 3)) == [3]
    reported(replica, B, 2)  # it comes late
    assert replica.flushed_end_of(B) == 3


def test_a_replica_that_lags_behind_what_was_rewritten_is_told_so():
    log = log_of("1* 1x 1y 1z")
    replica = leader(log, 2)
    log.stream_start = Offset(3)

    [(_, answer)] = sent(fetched(replica, B, log_of("1* 1x")))
    assert answer == TooOld(LOG_ID, Epoch(2), end_of(1, 2), Offset(3))


def test_a_replica_that_is_overtaken_by_a_rewrite_has_to_ask_anew():
    log = log_of("1* 1x 1y 1z")
    replica = leader(log, 2)
    [stream] = [each for each in fetched(replica, B, log_of("1*")) if isinstance(each, Stream)]
    log.stream_start = Offset(3)

    assert sent(replica.overtaken(stream, NOW_MS)) == [(B, Leading(LOG_ID, Epoch(2)))]
    assert replica.overtaken(stream, NOW_MS) == []
    assert replica.streamed(stream, Offset(4), 100, NOW_MS) == []  # nothing more is sent
    [(_, answer)] = sent(fetched(replica, B, log_of("1*")))
    assert isinstance(answer, TooOld)


def test_a_learner_that_began_anew_is_not_taken_for_what_it_was():
    replica, _ = led_with_learner()
    assert replica.flushed_end_of(D) == 1
    fetched(replica, D, log_of(""))

    assert replica.flushed_end_of(D) == 0
    assert replica.promote(D, NOW_MS) == []
    fetched(replica, B, log_of(""))  # a voter keeps what it told: this one comes late
    assert replica.flushed_end_of(B) == 1


def led_with_learner():
    """Return a leader of three whose epoch is committed by all, and its log; `d` has it, too."""
    log = log_of("")
    replica = leader(log, 1, "abc", learners="d")
    for each in (B, C, D):
        fetched(replica, each, log_of(""))
    log.flush()
    replica.flushed(NOW_MS)
    for each in (B, C, D):
        reported(replica, each, 1)
    return replica, log


def publish(replica, log):
    log.append(log_of("1x").entries)
    log.flush()
    replica.appended(NOW_MS)
    return committed(replica.flushed(NOW_MS))


def test_while_a_swap_of_the_set_is_in_doubt_both_sets_must_agree():
    replica, log = led_with_learner()
    [swap] = replica.promote(D, NOW_MS)
    assert isinstance(swap, Swap)
    assert replica.swapped(Unknown(), NOW_MS) == [ReadRecord()]
    publish(replica, log)

    assert committed(reported(replica, B, 2)) == []  # two of three, and two of four
    assert committed(reported(replica, D, 2)) == [2]  # three of four


def test_a_swap_that_is_seen_to_have_happened_ends_the_doubt():
    replica, log = led_with_learner()
    [swap] = replica.promote(D, NOW_MS)
    assert isinstance(swap, Swap)
    replica.swapped(Unknown(), NOW_MS)
    replica.record_changed(swap.record, Revision(9), NOW_MS)
    publish(replica, log)

    assert committed(reported(replica, B, 2)) == []
    assert committed(reported(replica, C, 2)) == [2]


def test_a_swap_that_has_not_happened_is_asked_for_again_and_stays_in_doubt():
    replica, _ = led_with_learner()
    before, [swap] = replica.record, replica.promote(D, NOW_MS)
    assert isinstance(swap, Swap)
    replica.swapped(Unknown(), NOW_MS)

    assert replica.record_read(before, swap.revision, NOW_MS) == [swap]
    assert replica.remove(B, NOW_MS) == []  # one at a time
    # The first attempt happened after it was read: the second finds its record.
    replica.swapped(Lost(swap.record, Revision(9)), NOW_MS)
    assert replica.record == swap.record


def test_sets_change_only_after_the_epoch_is_led():
    log = log_of("")
    replica = leader(log, 1, "abc")
    assert replica.add_learner(D, NOW_MS) == []

    for each in (B, C):
        fetched(replica, each, log_of(""))
        reported(replica, each, 1)
    assert [type(each) for each in replica.add_learner(D, NOW_MS)] == [Swap]


def test_a_learner_votes_once_it_has_all_that_is_committed():
    replica, log = led_with_learner()
    publish(replica, log)
    reported(replica, B, 2)
    assert replica.promote(D, NOW_MS) == []

    reported(replica, D, 2)
    [swap] = replica.promote(D, NOW_MS)
    assert isinstance(swap, Swap)
    assert swap.record.replicas == ("a", "b", "c", "d")


def test_a_learner_that_is_away_does_not_vote_for_what_it_had():
    replica, _ = led_with_learner()
    replica.link_down(D, NOW_MS)
    assert replica.flushed_end_of(D) == 1
    assert replica.promote(D, NOW_MS) == []

    replica.link_up(D, NOW_MS)
    assert replica.promote(D, NOW_MS) == []
    fetched(replica, D, log_of("1*"))
    assert [type(each) for each in replica.promote(D, NOW_MS)] == [Swap]


def test_a_replica_is_removed_once_a_majority_of_the_others_has_all_that_is_committed():
    replica, log = led_with_learner()
    publish(replica, log)
    reported(replica, B, 2)  # committed by a and b

    assert replica.remove(B, NOW_MS) == []  # of a and c, only a has it
    reported(replica, C, 2)
    [swap] = replica.remove(B, NOW_MS)
    assert isinstance(swap, Swap)
    assert swap.record.replicas == ("a", "c")
    assert replica.swapped(Succeeded(Revision(9)), NOW_MS) == []
    assert committed(reported(replica, B, 2)) == []


def test_a_replica_that_is_in_no_set_is_not_answered():
    log = log_of("")
    replica = leader(log, 1)
    fetch = Fetch(LOG_ID, Epoch(1), end_of(0, 0), Offset(0))

    assert replica.received(D, fetch, NOW_MS) == []
