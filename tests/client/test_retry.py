"""Backoff doubles up to its bound, with chance in the upper half of each wait."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.client.retry import Backoff, is_transient, was_refused
from waterclock.model.errors import (
    BadInput,
    Busy,
    Forbidden,
    LimitExceeded,
    NodeFailed,
    NotAuthenticated,
    Overloaded,
    PartitionFaulty,
    QuotaExceeded,
    Stopping,
    StorageFull,
    TimedOut,
    UnknownTopic,
    Unreachable,
)


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
    assert not was_refused(Unreachable("x"))
    assert not was_refused(TimedOut("x"))
