"""Backoff doubles up to its bound, with chance in the upper half of each wait."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.client.errors import unreachable
from waterclock.client.retry import (
    Backoff,
    is_for_another,
    is_transient,
    may_repeat,
    was_never_sent,
    was_refused,
)
from waterclock.model.errors import (
    BadInput,
    Busy,
    Fenced,
    Forbidden,
    LimitExceeded,
    NodeFailed,
    NotAuthenticated,
    NotEnoughReplicas,
    NotLeader,
    Overloaded,
    PartitionFaulty,
    QuotaExceeded,
    Stopping,
    StorageFull,
    TimedOut,
    UnknownTopic,
    Unreachable,
)
from waterclock.v1 import admin_pb2, broker_pb2, scheduler_pb2


class Dice(Random):
    """Always rolls the same."""

    def __init__(self, rolled: float) -> None:
        super().__init__()
        self.rolled = rolled

    def random(self) -> float:
        return self.rolled


def backoff(rolled: float = 0.0) -> Backoff:
    return Backoff(delay_ms=50, delay_ms_max=2_000, rng=Dice(rolled))


def test_waits_double_until_the_longest():
    waits = backoff()

    assert [waits.next_ms() for _ in range(8)] == [25, 50, 100, 200, 400, 800, 1_000, 1_000]


def test_chance_adds_up_to_as_much_again():
    assert backoff(0.0).next_ms() == 25
    assert backoff(0.5).next_ms() == 37.5


def test_a_quota_says_how_long_to_wait_at_least():
    quota = QuotaExceeded("requests/s", 7, principal="billing", retry_after_ms=700)

    assert backoff(0.0).next_ms(quota) == 725
    assert backoff(0.0).next_ms(Overloaded("calls", 1)) == 25


def test_after_a_success_waits_are_short_again():
    waits = backoff()
    waits.next_ms()
    waits.next_ms()
    waits.reset()

    assert waits.next_ms() == 25


@given(st.integers(0, 2**32), st.integers(1, 10_000))
def test_no_wait_is_over_the_longest_however_many_failures(seed, failures):
    waits = Backoff(delay_ms=50, delay_ms_max=2_000, rng=Random(seed))
    waits.failures = failures

    assert 25 <= waits.next_ms() <= 2_000


@pytest.mark.parametrize(
    "error",
    [Overloaded("calls", 1), Stopping("x"), Unreachable("x"), TimedOut("x"), StorageFull("x")],
)
def test_what_may_pass_is_tried_again(error):
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        BadInput("x"),
        NotAuthenticated("x"),
        Forbidden("publish", "topic 'x'", principal="x"),
        LimitExceeded("key bytes", 1),
        UnknownTopic("x"),
        Busy("x"),
        NodeFailed("x"),
        PartitionFaulty("x"),
    ],
)
def test_what_will_not_pass_is_not_tried_again(error):
    assert not is_transient(error)


def test_only_a_refusal_proves_that_nothing_was_done():
    assert was_refused(Overloaded("calls", 1))
    assert was_refused(Stopping("x"))
    assert was_refused(NotLeader("x"))
    assert not was_refused(Fenced("x"))
    assert not was_refused(Unreachable("x"))
    assert not was_refused(TimedOut("x"))


def test_what_never_left_is_known_by_its_words():
    words = "failed to connect to all addresses; last error: UNKNOWN: Connection refused"
    assert was_never_sent(unreachable("here", words))
    assert was_never_sent(unreachable("here", "DNS resolution failed for here:9000"))
    assert not was_never_sent(unreachable("here", "Socket closed"))


@pytest.mark.parametrize(
    ("request_", "is_repeatable"),
    [
        (admin_pb2.GetTopicRequest(), True),
        (broker_pb2.FetchRequest(), True),
        (scheduler_pb2.CancelRequest(), True),
        (scheduler_pb2.PauseRecurrenceRequest(), True),
        (scheduler_pb2.ResumeRecurrenceRequest(), True),
        (scheduler_pb2.CancelWhereRequest(), False),
        (admin_pb2.RedriveRequest(), False),
        (admin_pb2.PurgeDeadLettersRequest(), False),
        (broker_pb2.PublishRequest(), False),
    ],
)
def test_what_may_have_happened_is_repeated_only_if_that_changes_nothing(request_, is_repeatable):
    assert may_repeat(request_, Unreachable("lost")) is is_repeatable
    assert may_repeat(request_, Fenced("went")) is is_repeatable
    assert not may_repeat(request_, Busy("x"))


@pytest.mark.parametrize(
    ("error", "after"),
    [
        (Unreachable("x"), 1),
        (Stopping("x"), 1),
        (TimedOut("x"), 1),
        (NotLeader("x"), 2),
        (Fenced("x"), 2),
        (Overloaded("calls", 1), None),
        (NotEnoughReplicas("x"), None),
        (StorageFull("x"), None),
        (BadInput("x"), None),
    ],
)
def test_another_node_is_asked_where_it_may_do_better(error, after):
    asked = [failures for failures in range(1, 5) if is_for_another(error, failures)]
    assert asked[:1] == ([] if after is None else [after])
