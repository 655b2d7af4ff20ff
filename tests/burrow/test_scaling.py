"""Scaling: grows under lag, shrinks when idle, and does not swing between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.burrow.core.scaling import Scaling
from waterclock.model.errors import BadConfig


def test_busy_workers_with_lag_become_more_up_to_the_most():
    scaling = Scaling(4, 20)

    sizes = [scaling.measured(busy_percent=100, lag=1_000) for _ in range(5)]

    assert sizes == [6, 9, 14, 20, 20]


def test_busy_workers_without_lag_stay():
    assert Scaling(4, 20).measured(busy_percent=100, lag=3) == 4


def test_there_are_no_more_workers_than_messages():
    assert Scaling(4, 20).measured(busy_percent=100, lag=5) == 5


def test_idle_workers_become_fewer_after_a_while():
    scaling = Scaling(2, 20)
    scaling.workers = 16

    sizes = [scaling.measured(busy_percent=20, lag=0) for _ in range(7)]

    assert sizes == [16, 16, 12, 12, 12, 9, 9]


def test_one_busy_moment_begins_the_wait_again():
    scaling = Scaling(2, 20)
    scaling.workers = 16
    for busy in (20, 20, 70, 20, 20):
        scaling.measured(busy_percent=busy, lag=0)

    assert scaling.workers == 16


@given(st.integers(1, 1_000))
def test_a_steady_load_finds_a_size_and_stays(load):
    """`load` workers' worth of work: once there are enough, the number never changes again."""
    scaling = Scaling(1, 2_000)
    sizes = []
    for _ in range(60):
        busy = min(100, 100 * load // scaling.workers)
        sizes.append(scaling.measured(busy_percent=busy, lag=10**6 if busy == 100 else 0))

    assert len(set(sizes[-20:])) == 1
    assert sizes[-1] >= load


@pytest.mark.parametrize("bounds", [(0, 5), (6, 5)])
def test_bounds_that_make_no_sense_are_refused(bounds):
    with pytest.raises(BadConfig, match="scale"):
        Scaling(*bounds)
