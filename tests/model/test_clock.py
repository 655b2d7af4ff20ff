"""Both clocks keep the promise of the `Clock` protocol; the manual one turns as told."""

import pytest

from waterclock.model.clock import Clock, SteadyClock
from waterclock.storage.clock import SystemClock
from waterclock.testing.clock import ManualClock


@pytest.fixture(params=[SystemClock, ManualClock])
def clock(request) -> Clock:
    made: Clock = request.param()
    return made


def test_the_wall_clock_counts_milliseconds_since_1970(clock):
    year_2020, year_2200 = 1_577_836_800_000, 7_258_118_400_000

    assert year_2020 < clock.now_ms() < year_2200


def test_the_monotonic_clock_never_goes_back(clock):
    readings = [clock.monotonic_ms() for _ in range(1_000)]

    assert readings == sorted(readings)


def test_both_clocks_give_whole_numbers(clock):
    assert type(clock.now_ms()) is int
    assert type(clock.monotonic_ms()) is int


def test_a_manual_clock_stands_still_until_it_is_turned():
    clock = ManualClock(now_ms=500)

    assert [clock.now_ms(), clock.now_ms(), clock.monotonic_ms()] == [500, 500, 0]


def test_advancing_lets_time_pass_on_both_clocks():
    clock = ManualClock(now_ms=500)

    clock.advance(30)

    assert (clock.now_ms(), clock.monotonic_ms()) == (530, 30)


def test_a_step_back_moves_only_the_wall_clock():
    clock = ManualClock(now_ms=500)

    clock.step(-400)

    assert (clock.now_ms(), clock.monotonic_ms()) == (100, 0)


def test_time_does_not_pass_backwards():
    with pytest.raises(AssertionError):
        ManualClock().advance(-1)


def test_repr_of_a_manual_clock_shows_both_hands():
    assert repr(ManualClock(now_ms=500)) == "<ManualClock wall 500 ms, 0 ms since start>"


def test_a_steady_clock_goes_on_when_the_wall_clock_is_set():
    clock = ManualClock(now_ms=500)
    clock.advance(7)
    steady = SteadyClock(clock)

    clock.advance(30)
    clock.step(-400)

    assert (steady.now_ms(), steady.set_by_ms()) == (537, -400)
    assert steady.now_ms() + steady.set_by_ms() == clock.now_ms()
