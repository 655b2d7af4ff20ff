from dataclasses import replace

import pytest

from waterclock.delivery.credits import Credit
from waterclock.delivery.cursor import Cursor
from waterclock.delivery.events import (
    Acked,
    DeadLettered,
    Deliver,
    Extended,
    LogRead,
    Nacked,
    PartitionAssigned,
    PartitionReleased,
    PartitionRevoked,
    RangeReadable,
    RangeSkipped,
    Reason,
    Refuse,
    Rejected,
    ReportDrained,
    RevocationCancelled,
    StaleGeneration,
    UnknownLease,
    WriteDeadLetters,
)
from waterclock.model.ids import Millis
from waterclock.model.sections import DeliveryConfig

CONFIG = DeliveryConfig(ack_timeout_ms=30_000, retry_jitter_percent=0)
COUNTING = replace(CONFIG, count_lost_owners=True)
NOW = Millis(1_000_000)
TIMEOUT = NOW + 30_000


def at(passed_ms: int) -> Millis:
    return Millis(NOW + passed_ms)


def readable(start: int, end: int, *, each: int = 1) -> LogRead:
    return LogRead((RangeReadable(start, end, (end - start) * each),))


def deliver(*ranges: tuple[int, int], attempt: int = 1, generation: int = 1, passed_ms: int = 0):
    return Deliver(generation, ranges, attempt, TIMEOUT + passed_ms)


@pytest.fixture
def credit():
    return Credit(messages=10, bytes=1_000)


@pytest.fixture
def cursor(credit):
    cursor = Cursor(CONFIG)
    cursor.handle(PartitionAssigned(1, credit), NOW)
    yield cursor
    cursor.check_invariants()


def test_messages_are_handed_out_as_far_as_credit_reaches(cursor):
    assert cursor.handle(readable(0, 8), NOW) == [deliver((0, 8))]
    assert cursor.handle(readable(8, 16), NOW) == [deliver((8, 10))]

    assert cursor.handle(Acked(1, [(0, 4)]), NOW) == [deliver((10, 14))]
    assert cursor.committed == 4


def test_neighbouring_frames_are_one_delivery_and_gaps_are_done(cursor):
    read = LogRead(
        (RangeReadable(0, 2), RangeReadable(2, 4), RangeSkipped(4, 9), RangeReadable(9, 10))
    )

    assert cursor.handle(read, NOW) == [deliver((0, 4), (9, 10))]
    cursor.handle(Acked(1, [(0, 4)]), NOW)
    assert cursor.committed == 9


def test_what_is_not_deliverable_needs_no_member():
    cursor = Cursor(CONFIG)

    cursor.handle(LogRead((RangeSkipped(0, 1_000),)), NOW)

    assert cursor.committed == 1_000


def test_room_says_how_much_to_read(cursor, credit):
    assert cursor.room == 10
    cursor.handle(readable(0, 8), NOW)
    assert cursor.room == 2
    cursor.handle(readable(8, 16), NOW)
    assert cursor.room == 0
    cursor.handle(PartitionReleased(1, is_counted=False), NOW)
    assert cursor.room == 0
    assert credit.held_messages == 0


def test_a_nack_comes_again_after_its_backoff_and_before_anything_new(cursor):
    cursor.handle(readable(0, 30), NOW)
    assert cursor.handle(Nacked(1, [(3, 5)]), NOW) == [deliver((10, 12))]

    assert cursor.next_deadline() == NOW + 1_000
    assert cursor.tick(at(999)) == []
    assert cursor.tick(at(1_000)) == []  # no credit
    assert cursor.handle(Acked(1, [(0, 3)]), at(1_000)) == [
        deliver((3, 5), attempt=2, passed_ms=1_000),
        deliver((12, 13), passed_ms=1_000),
    ]


def test_the_consumer_may_name_the_time(cursor):
    cursor.handle(readable(0, 2), NOW)
    cursor.handle(Nacked(1, [(0, 1)], retry_at_ms=NOW + 7_000), NOW)
    cursor.handle(Nacked(1, [(1, 2)], retry_at_ms=NOW - 7_000), NOW)

    assert cursor.unacked == 1  # a time that has passed is now
    assert cursor.tick(at(6_999)) == []
    assert cursor.tick(at(7_000)) == [deliver((0, 1), attempt=2, passed_ms=7_000)]


def test_an_absurd_time_is_cut_to_the_limit(cursor):
    cursor.handle(readable(0, 2), NOW)
    cursor.handle(Nacked(1, [(0, 1)], retry_at_ms=1 << 80), NOW)
    cursor.handle(Extended(1, [(1, 2)], deadline_ms=1 << 80), NOW)

    assert cursor.next_deadline() == NOW + CONFIG.lease_ms_max
    assert Cursor.decode(cursor.encode(), CONFIG).committed == 0


def test_what_is_given_back_is_no_failure(cursor):
    cursor.handle(readable(0, 1), NOW)

    for turn in range(1, 20):
        cursor.handle(Nacked(1, [(0, 1)], is_counted=False), at(1_000 * (turn - 1)))
        assert cursor.tick(at(1_000 * turn)) == [deliver((0, 1), passed_ms=1_000 * turn)]


def test_a_lease_that_is_not_acked_in_time_counts_as_failed(cursor, credit):
    cursor.handle(readable(0, 4), NOW)
    cursor.handle(Acked(1, [(1, 2)]), NOW)

    assert cursor.next_deadline() == TIMEOUT
    cursor.tick(at(30_000))

    assert credit.held_messages == credit.held_bytes == 0
    refused = Refuse(UnknownLease(((0, 4),)))
    assert cursor.handle(Acked(1, [(0, 4)]), at(30_000)) == [refused]
    again = deliver((0, 1), (2, 4), attempt=2, passed_ms=31_000)
    assert cursor.tick(at(31_000)) == [again]


def test_an_extended_lease_ends_later(cursor):
    cursor.handle(readable(0, 4), NOW)
    extended = Extended(1, [(0, 2), (1, 2), (3, 9)], deadline_ms=NOW + 50_000)

    assert cursor.handle(extended, NOW) == [Refuse(UnknownLease(((4, 9),)))]
    cursor.tick(at(49_999))

    assert cursor.handle(Acked(1, [(0, 2), (3, 4)]), at(49_999)) == []
    assert cursor.committed == 2


def test_after_the_last_retry_a_message_is_dead_and_done_once_that_is_written(cursor, credit):
    cursor.handle(readable(0, 3), NOW)
    cursor.handle(Acked(1, [(1, 3)]), NOW)
    for turn in range(3):
        assert cursor.handle(Nacked(1, [(0, 1)], retry_at_ms=NOW), NOW) == [
            deliver((0, 1), attempt=turn + 2)
        ]

    letter = WriteDeadLetters(((0, 1),), Reason.NACKED, attempts=4)
    assert cursor.handle(Nacked(1, [(0, 1)]), NOW) == [letter]
    assert (credit.held_messages, cursor.committed, cursor.waiting) == (0, 0, 1)
    assert cursor.tick(at(100_000_000)) == []
    cursor.handle(DeadLettered(((0, 1),)), NOW)
    assert (cursor.committed, cursor.unacked, cursor.waiting) == (3, 0, 0)


def test_an_unwritten_dead_letter_is_written_after_a_restart(cursor):
    cursor.handle(readable(0, 3), NOW)
    letter = WriteDeadLetters(((1, 2),), Reason.REJECTED, attempts=1)
    assert cursor.handle(Rejected(1, [(1, 2)]), NOW) == [letter]

    restarted = Cursor.decode(cursor.encode(), CONFIG)

    assert restarted.read_from == 0
    assert restarted.handle(readable(0, 3), NOW) == [letter]


def test_attempts_and_retry_times_survive_a_restart(cursor):
    cursor.handle(readable(0, 6), NOW)
    cursor.handle(Acked(1, [(0, 1), (4, 5)]), NOW)
    cursor.handle(Nacked(1, [(2, 3)], retry_at_ms=NOW + 5_000), NOW)

    restarted = Cursor.decode(cursor.encode(), CONFIG)
    restarted.handle(PartitionAssigned(2, Credit(messages=10, bytes=100)), NOW)

    assert restarted.read_from == 1
    assert restarted.handle(readable(1, 6), NOW) == [deliver((1, 2), (3, 4), (5, 6), generation=2)]
    assert restarted.tick(at(5_000)) == [deliver((2, 3), attempt=2, generation=2, passed_ms=5_000)]


def test_fewer_retries_after_a_restart_bury_what_has_had_them(cursor):
    cursor.handle(readable(0, 1), NOW)
    cursor.handle(Nacked(1, [(0, 1)], retry_at_ms=NOW), NOW)
    cursor.handle(Nacked(1, [(0, 1)]), NOW)

    stricter = Cursor.decode(cursor.encode(), DeliveryConfig(max_retries=1))

    letter = WriteDeadLetters(((0, 1),), Reason.NACKED, attempts=2)
    assert stricter.handle(readable(0, 1), NOW) == [letter]


def test_other_generations_are_refused_in_words(cursor):
    cursor.handle(readable(0, 1), NOW)
    cursor.handle(PartitionAssigned(2, Credit(messages=1, bytes=1)), NOW)

    stale = [Refuse(StaleGeneration(1, 2))]
    assert cursor.handle(Acked(1, [(0, 1)]), NOW) == stale
    assert cursor.handle(Nacked(1, [(0, 1)]), NOW) == stale
    assert cursor.handle(Extended(1, [(0, 1)], NOW), NOW) == stale
    assert cursor.handle(Rejected(1, [(0, 1)]), NOW) == stale
    cursor.handle(PartitionReleased(2, is_counted=False), NOW)
    assert cursor.handle(Acked(2, [(0, 1)]), NOW) == [Refuse(StaleGeneration(2, None))]


@pytest.mark.parametrize("span", [(5, 5), (5, 3), (-3, -1), (-5, 0), (1 << 80, 1 << 81)])
def test_nonsense_is_an_unknown_lease(cursor, span):
    cursor.handle(readable(0, 4), NOW)

    assert cursor.handle(Acked(1, [span]), NOW) == [Refuse(UnknownLease((span,)))]


def test_an_ack_of_everything_takes_what_is_held(cursor):
    cursor.handle(readable(0, 4), NOW)

    assert cursor.handle(Acked(1, [(-5, 1 << 80)]), NOW) == [
        Refuse(UnknownLease(((-5, 0), (4, 1 << 80))))
    ]
    assert cursor.committed == 4


def test_a_revoked_partition_hands_out_nothing_and_says_when_it_is_drained(cursor):
    cursor.handle(readable(0, 12), NOW)
    assert cursor.handle(PartitionRevoked(1), NOW) == []

    assert cursor.handle(Acked(1, [(0, 9)]), NOW) == []
    assert cursor.handle(Acked(1, [(9, 10)]), NOW) == [ReportDrained(1)]
    assert cursor.tick(at(1)) == []
    assert cursor.handle(RevocationCancelled(1), NOW) == [deliver((10, 12))]


def test_no_number_of_lost_owners_makes_a_dead_letter(cursor):
    first = cursor.handle(readable(0, 2), NOW)
    assert first == [deliver((0, 2))]
    for generation in range(2, 4 * CONFIG.max_retries):
        assert cursor.handle(PartitionReleased(generation - 1, is_counted=True), NOW) == []
        credit = Credit(messages=9, bytes=99)
        again = cursor.handle(PartitionAssigned(generation, credit), NOW)
        assert again == [deliver((0, 2), generation=generation)]


def test_the_first_a_lost_owner_held_may_count_and_what_a_leaving_one_held_does_not(cursor):
    cursor.configure(COUNTING)
    cursor.handle(readable(0, 2), NOW)
    cursor.handle(PartitionReleased(1, is_counted=False), NOW)
    again = cursor.handle(PartitionAssigned(2, Credit(messages=9, bytes=99)), NOW)
    assert again == [deliver((0, 2), generation=2)]

    cursor.handle(PartitionReleased(2, is_counted=True), NOW)
    again = cursor.handle(PartitionAssigned(3, Credit(messages=9, bytes=99)), NOW)
    assert again == [deliver((1, 2), generation=3)]
    again = cursor.tick(at(1_000))
    assert again == [deliver((0, 1), attempt=2, generation=3, passed_ms=1_000)]


def test_bad_connections_make_no_dead_letters_of_what_was_merely_sent():
    cursor = Cursor(COUNTING)
    cursor.handle(readable(0, 9), NOW)
    effects = []
    for generation in range(1, CONFIG.max_retries + 2):
        later = at(10_000 * generation)
        cursor.handle(PartitionAssigned(generation, Credit(messages=9, bytes=999)), later)
        assert cursor.unacked == 9
        effects += cursor.handle(PartitionReleased(generation, is_counted=True), later)

    assert [effect.ranges for effect in effects if isinstance(effect, WriteDeadLetters)] == [
        ((0, 1),)
    ]


def test_cursors_of_a_member_share_its_credit(cursor, credit):
    other = Cursor(CONFIG)
    other.handle(PartitionAssigned(1, credit), NOW)
    cursor.handle(readable(0, 10), NOW)

    assert other.handle(readable(0, 10), NOW) == []
    cursor.handle(Acked(1, [(0, 3)]), NOW)
    assert other.tick(NOW) == [deliver((0, 3))]


def test_the_server_has_a_brake_of_its_own():
    cursor = Cursor(DeliveryConfig(unacked_max=3))
    cursor.handle(PartitionAssigned(1, Credit(messages=99, bytes=99)), NOW)

    assert cursor.handle(readable(0, 10), NOW) == [deliver((0, 3))]


def test_too_many_open_messages_hold_back_and_lose_nothing():
    cursor = Cursor(DeliveryConfig(runs_max=4))
    cursor.handle(PartitionAssigned(1, Credit(messages=99, bytes=999)), NOW)
    assert cursor.handle(readable(0, 10), NOW) == [deliver((0, 4))]

    assert cursor.handle(Acked(1, [(1, 2), (3, 4)]), NOW) == [deliver((4, 6))]
    cursor.handle(Nacked(1, [(0, 1), (2, 3)]), NOW)
    assert cursor.handle(Acked(1, [(5, 6)]), NOW) == [deliver((6, 7))]
    assert cursor.room == 0
    cursor.check_invariants()


def test_messages_that_are_gone_from_the_log_are_done(cursor, credit):
    cursor.handle(readable(0, 20), NOW)
    cursor.handle(Nacked(1, [(0, 2)]), NOW)

    cursor.handle(LogRead((RangeSkipped(0, 15),)), NOW)

    assert cursor.committed == 15
    assert (cursor.unacked, credit.held_messages) == (5, 5)


def test_a_retry_that_is_gone_from_the_log_is_done_though_others_stand_before_it():
    cursor = Cursor(CONFIG)
    cursor.handle(PartitionAssigned(1, Credit(messages=9, bytes=99)), NOW)
    cursor.handle(readable(0, 2), NOW)
    cursor.handle(Nacked(1, [(1, 2)]), NOW)
    restarted = Cursor.decode(cursor.encode(), CONFIG)
    restarted.handle(readable(0, 2), at(5_000))

    restarted.handle(LogRead((RangeSkipped(1, 2),)), at(5_000))

    restarted.check_invariants()
    restarted.handle(LogRead((RangeSkipped(0, 1),)), at(5_000))
    assert restarted.committed == 2


def test_the_log_may_be_announced_twice_but_not_with_a_gap(cursor):
    cursor.handle(readable(0, 3), NOW)

    assert cursor.handle(readable(1, 4), NOW) == [deliver((3, 4))]
    with pytest.raises(AssertionError, match="not read from 4 on"):
        cursor.handle(readable(5, 6), NOW)


def test_a_cursor_shows_where_it_is(cursor):
    cursor.handle(readable(0, 3), NOW)

    assert repr(cursor) == ("<Cursor at 0, read to 3, <Leases 3 leased, 0 waiting, 0 due, 0 dead>>")


def test_without_dead_letters_nothing_dies_and_the_longest_wait_is_waited(credit):
    config = DeliveryConfig(max_retries=1, retry_delay_ms_max=60_000, retry_jitter_percent=0)
    cursor = Cursor(config, has_dead_letters=False)
    cursor.handle(PartitionAssigned(1, credit), NOW)
    cursor.handle(readable(0, 3), NOW)

    assert cursor.handle(Rejected(1, [(0, 1)]), NOW) == []
    assert cursor.handle(Nacked(1, [(1, 2)]), NOW) == []
    assert cursor.tick(at(1_000)) == [deliver((1, 2), attempt=2, passed_ms=1_000)]
    assert cursor.handle(Nacked(1, [(1, 2)]), at(1_000)) == []
    cursor.handle(Extended(1, [(2, 3)], at(100_000)), NOW)
    assert cursor.tick(at(59_999)) == []
    assert cursor.tick(at(60_000)) == [deliver((0, 1), attempt=2, passed_ms=60_000)]
    assert cursor.tick(at(61_000)) == [deliver((1, 2), attempt=2, passed_ms=61_000)]
    cursor.check_invariants()


def test_what_was_dead_comes_again_where_there_are_no_dead_letters_any_more(cursor, credit):
    cursor.handle(readable(0, 2), NOW)
    cursor.handle(Rejected(1, [(0, 1)]), NOW)
    again = Cursor.decode(cursor.encode(), CONFIG, has_dead_letters=False)
    again.handle(PartitionAssigned(2, Credit(messages=10, bytes=1_000)), NOW)

    effects = again.handle(readable(0, 2), NOW)

    assert [type(effect) for effect in effects] == [Deliver, Deliver]
    again.check_invariants()


def test_a_cursor_says_what_stands_ready_what_waits_and_how_far_it_is_behind(cursor):
    cursor.handle(readable(0, 15), NOW)
    assert (cursor.unacked, cursor.backlog, cursor.waiting) == (10, 5, 0)

    cursor.handle(Nacked(1, [(0, 2)]), NOW)
    cursor.handle(Rejected(1, [(2, 3)]), NOW)
    cursor.handle(Acked(1, [(5, 7)]), NOW)

    assert (cursor.unacked, cursor.backlog, cursor.waiting) == (10, 0, 3)
    assert cursor.lag(20) == 18


def test_leases_that_end_without_a_word_are_counted(cursor):
    cursor.handle(readable(0, 3), NOW)
    cursor.handle(Acked(1, [(1, 2)]), NOW)
    cursor.tick(at(30_000))

    assert cursor.timed_out == 2


def test_other_settings_hold_for_what_is_handed_out_next(cursor):
    cursor.handle(readable(0, 1), NOW)
    cursor.configure(DeliveryConfig(ack_timeout_ms=5_000, max_retries=1, retry_jitter_percent=0))

    assert cursor.handle(readable(1, 2), NOW) == [Deliver(1, ((1, 2),), 1, NOW + 5_000)]
    assert cursor.next_deadline() == NOW + 5_000
    cursor.tick(at(5_000))
    cursor.tick(at(6_000))
    (letter,) = cursor.tick(at(11_000))
    assert letter == WriteDeadLetters(((1, 2),), Reason.TIMED_OUT, 2)
