"""Limits: what a client may send, and the error when it sends more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.model.errors import BadConfig, BadInput, LimitExceeded
from waterclock.model.ids import Millis
from waterclock.model.limits import Limits, check

NOW = Millis(1_700_000_000_000)


@given(st.integers(), st.integers())
def test_a_value_passes_exactly_up_to_its_limit(got, limit):
    if got <= limit:
        check("key_bytes", got, limit)
    else:
        with pytest.raises(LimitExceeded) as caught:
            check("key_bytes", got, limit)
        assert (caught.value.field, caught.value.limit, caught.value.got) == (
            "key_bytes",
            limit,
            got,
        )


@pytest.mark.parametrize("due_ms", [0, 1, NOW - 1, NOW, NOW + 1, NOW + 1_000])
def test_a_due_time_from_1970_to_the_horizon_is_accepted(due_ms):
    Limits(due_horizon_ms_max=1_000).check_due(Millis(due_ms), now_ms=NOW)


def test_a_due_time_past_the_horizon_is_refused_by_name():
    with pytest.raises(LimitExceeded, match=r"^due_ms exceeds its limit of 1700000001000 "):
        Limits(due_horizon_ms_max=1_000).check_due(Millis(NOW + 1_001), now_ms=NOW)


@given(st.integers(max_value=-1))
def test_a_negative_due_time_is_refused(due_ms):
    with pytest.raises(BadInput, match="due_ms must not be negative"):
        Limits().check_due(Millis(due_ms), now_ms=NOW)


@given(st.integers(min_value=2**62))
def test_an_absurd_due_time_is_refused_whatever_its_size(due_ms):
    with pytest.raises(LimitExceeded):
        Limits().check_due(Millis(due_ms), now_ms=NOW)


def test_the_default_horizon_is_a_hundred_years():
    assert Limits().due_horizon_ms_max == 100 * 365.25 * 24 * 3_600 * 1_000


def test_limits_check_themselves():
    with pytest.raises(BadConfig, match=r"limits\.batch_messages_max: expected a number from 1 "):
        Limits(batch_messages_max=0)
