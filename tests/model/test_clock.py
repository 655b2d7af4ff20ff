"""Both clocks do what the `Clock` protocol says; the manual one turns as told."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.clock import ManualClock
from waterclock.model.clock import GRACE_MS, PAUSE_MS, SETTLE_MS, Clock, RunningClock, SteadyClock
from waterclock.runtime.clock import SystemClock


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


def test_a_running_clock_does_not_count_the_time_its_process_did_not_run():
    clock = ManualClock(now_ms=0)
    running = RunningClock(clock)
    running.pulse(0)
    clock.advance(40)
    assert running.now_ms() == 40

    clock.advance(3_600_000)
    assert running.now_ms() == 40
    running.pulse(1)
    assert running.now_ms() == 40
    assert running.paused_ms == 3_600_040


@pytest.mark.parametrize("cpu_ms", [0, 1_000])
def test_a_running_clock_stands_still_after_a_stall_until_what_was_sent_is_read(cpu_ms):
    clock = ManualClock(now_ms=0)
    running = RunningClock(clock)
    running.pulse(0)
    clock.advance(1_000)
    assert running.now_ms() == 0
    running.pulse(cpu_ms)

    clock.advance(SETTLE_MS)
    assert running.now_ms() == 0
    clock.advance(7)
    running.pulse(cpu_ms)
    assert running.now_ms() == 7
    assert running.now_ms() + running.set_by_ms() == clock.now_ms()


def test_a_process_that_is_merely_slow_was_not_paused():
    clock = ManualClock(now_ms=0)
    running = RunningClock(clock)
    for _ in range(10):
        running.pulse(0)
        clock.advance(PAUSE_MS - 1)

    assert running.now_ms() == 10 * (PAUSE_MS - 1)
    assert running.paused_ms == 0


def test_a_process_whose_loop_was_busy_was_not_paused():
    clock = ManualClock(now_ms=0)
    running = RunningClock(clock)
    running.pulse(0)
    clock.advance(9_000)
    running.pulse(3_000)

    assert running.paused_ms == 0
    assert running.now_ms() == 9_000 - GRACE_MS


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_loop_that_is_blocked_again_and_again_keeps_no_lease_from_ending(is_busy):
    clock, cpu_ms = ManualClock(now_ms=0), 0
    running = RunningClock(clock)
    for _ in range(100):
        running.pulse(cpu_ms)
        clock.advance(500)  # blocked
        cpu_ms += is_busy * 500
        running.pulse(cpu_ms)
        clock.advance(250)  # and not

    assert running.now_ms() >= 75_000 / 2


@given(
    turns=st.lists(
        st.tuples(st.integers(0, 3_000), st.sampled_from([0, 0.2, 0.25, 1, 2]), st.booleans()),
        max_size=200,
    )
)
def test_at_least_half_of_the_time_is_told_whatever_blocks_the_loop(turns):
    clock, cpu_ms, countable_ms = ManualClock(now_ms=0), 0, 0
    running = RunningClock(clock)
    running.pulse(0)
    for ms, cores, is_read in turns:
        before_ms = running.now_ms()
        if is_read:
            clock.advance(ms // 2)
            assert before_ms <= running.now_ms() <= clock.monotonic_ms()
            ms -= ms // 2
        clock.advance(ms)
        cpu_ms += math.ceil(ms * 2 * cores)
        was_paused_ms = running.paused_ms
        running.pulse(cpu_ms)
        paused_ms = running.paused_ms - was_paused_ms
        countable_ms += ms * (1 + is_read) - max(0, paused_ms - PAUSE_MS) - is_read
        assert before_ms <= running.now_ms() <= clock.monotonic_ms()

    assert running.now_ms() >= countable_ms / 2 - GRACE_MS


def test_a_running_clock_never_goes_back():
    clock, rng, cpu_ms = ManualClock(), Random(7), 0
    running = RunningClock(clock)
    last = running.now_ms()
    for _ in range(2_000):
        clock.advance(rng.choice([0, 1, 30, 200, 600, 5_000]))
        clock.step(rng.choice([0, 0, -50, 50]))
        cpu_ms += rng.choice([0, 30, 200, 5_000])
        if rng.random() < 0.5:
            running.pulse(cpu_ms)
        now = running.now_ms()
        assert last <= now
        last = now


def test_without_a_pulse_a_running_clock_is_a_steady_one():
    clock = ManualClock(now_ms=0)
    running = RunningClock(clock)
    clock.advance(3_600_000)

    assert running.now_ms() == 3_600_000
