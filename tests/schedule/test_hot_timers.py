"""Hot timers do what the plain model does, over random histories; and planted bugs are found."""

import os
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.kit.examples import examples
from tests.schedule.timer_histories import TimerHistories
from tests.schedule.timer_model import TimerState, state_of
from waterclock.schedule import hot_timers as timers
from waterclock.schedule import ready, slot, table, wheel
from waterclock.schedule.hot_timers import HotTimers, Int64s
from waterclock.schedule.table import Table
from waterclock.schedule.wheel import Wheel

HISTORIES = int(os.environ.get("WATERCLOCK_TIMER_HISTORIES") or examples(200))
NOW = 1_700_000_000_000
HOUR = 3_600_000


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make everything that is done in parts or past a size happen with a handful of timers."""
    monkeypatch.setattr(wheel, "SHARE_MIN", 1)
    monkeypatch.setattr(wheel, "WORK_MAX", 2)
    monkeypatch.setattr(wheel, "STAGE_MAX", 3)
    monkeypatch.setattr(table, "ROWS_MIN", 4)
    monkeypatch.setattr(table, "DEAD_SLACK", 0)
    monkeypatch.setattr(timers, "TIDY_ROWS_MIN", 1)
    monkeypatch.setattr(timers, "TIDY_ROWS_EACH", 2)
    monkeypatch.setattr(timers, "STALE_SLACK", 2)
    monkeypatch.setattr(slot, "BLOCK_MIN", 1)
    monkeypatch.setattr(slot, "BLOCK_MAX", 4)


def run_histories(
    examples: int, phases: tuple[Phase, ...] = tuple(Phase), *, first: int | None = None
) -> None:
    machine = type("SeededHistories", (TimerHistories,), {})
    run_state_machine_as_test(
        machine if first is None else seed(first)(machine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=phases,
        ),
    )


def test_timers_agree_with_the_model():
    run_histories(HISTORIES // 2)


def test_timers_agree_with_the_model_when_everything_is_done_in_parts(small):
    run_histories(HISTORIES)


Plant = Callable[[pytest.MonkeyPatch], None]


def round_the_time_up(patch: pytest.MonkeyPatch) -> None:
    real = HotTimers.tick
    patch.setattr(HotTimers, "tick", lambda self, now, limit: real(self, now + 9, limit))


def order_by_offset_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ready, "due_order", lambda due, offsets: offsets.argsort(kind="stable"))


def order_by_due_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ready, "due_order", lambda due, offsets: due.argsort()[::-1])


def never_go_back(patch: pytest.MonkeyPatch) -> None:
    real = Wheel.add

    def add(self: Wheel, rows: slot.Rows, ticks: Int64s) -> None:
        real(self, rows, np.maximum(ticks, self.now + 1))

    patch.setattr(Wheel, "add", add)


def lose_what_is_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HotTimers, "give_back", lambda self, offsets: None)


def move_without_a_new_entry(patch: pytest.MonkeyPatch) -> None:
    real = HotTimers.move

    def move(self: HotTimers, offsets: Int64s, due_ms: Int64s) -> table.Bools:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(HotTimers, "_schedule", lambda self, rows, due: None)
            return real(self, offsets, due_ms)

    patch.setattr(HotTimers, "move", move)


def fire_what_was_retired(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HotTimers, "_ticks_of", lambda self, rows: self._ticks(self._table.due[rows]))


def believe_the_ready_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HotTimers, "_fire", lambda self, due, offsets, rows: (offsets, rows))


def forget_who_was_squeezed(patch: pytest.MonkeyPatch) -> None:
    real = Table.tidy

    def tidy(self: Table, rows: int) -> slice:
        moved = real(self, rows)
        return slice(moved.start, max(moved.start, moved.stop - 1))

    patch.setattr(Table, "tidy", tidy)


def ask_one_wheel_only(patch: pytest.MonkeyPatch) -> None:
    real = HotTimers._pop_due

    def pop(self: HotTimers, target: int, limit: int) -> ready.Entries:
        wheels, self._wheels = self._wheels, self._wheels[:1]
        popped = real(self, target, limit)
        self._wheels = wheels
        return popped

    patch.setattr(HotTimers, "_pop_due", pop)


def sink_and_lose_one(patch: pytest.MonkeyPatch) -> None:
    real = Wheel._place

    def place(self: Wheel, rows: slot.Packed, ticks: Int64s) -> None:
        keep = max(1, len(rows) - (len(rows) > 2))
        real(self, rows[:keep], ticks[:keep])

    patch.setattr(Wheel, "_place", place)


def hand_out_ahead_of_the_wheel(patch: pytest.MonkeyPatch) -> None:
    def pop(self: HotTimers, target: int, limit: int) -> ready.Entries:
        for each in self._wheels:
            self._make_ready(each.advance(target, limit - len(self._ready)))
        return self._ready.pop(target * self._tick_ms, limit)

    patch.setattr(HotTimers, "_pop_due", pop)


def wake_a_tick_late(patch: pytest.MonkeyPatch) -> None:
    real = HotTimers.next_deadline

    def late(self: HotTimers) -> int | None:
        deadline = real(self)
        return None if deadline is None else deadline + self._tick_ms

    patch.setattr(HotTimers, "next_deadline", late)


def save_without_those_firing(patch: pytest.MonkeyPatch) -> None:
    real = HotTimers.snapshot

    def snapshot(self: HotTimers) -> tuple[Int64s, Int64s]:
        offsets, due = real(self)
        chosen = state_of(self, offsets) == TimerState.OPEN
        return offsets[chosen], due[chosen]

    patch.setattr(HotTimers, "snapshot", snapshot)


PLANTS = [
    round_the_time_up, order_by_offset_alone, order_by_due_alone, never_go_back,
    lose_what_is_given_back, move_without_a_new_entry, fire_what_was_retired,
    believe_the_ready_queue, forget_who_was_squeezed, ask_one_wheel_only,
    sink_and_lose_one, hand_out_ahead_of_the_wheel, wake_a_tick_late, save_without_those_firing,
]  # fmt: skip


HUNT_HISTORIES = 50
HUNTS = 60
FOUND_BY: dict[Plant, int] = {
    round_the_time_up: 5,
    lose_what_is_given_back: 4,
    ask_one_wheel_only: 8,
    save_without_those_firing: 7,
}
"""Where a hunt begins that would else be long: with a seed that found the bug once."""


def hunt(first: int) -> None:
    """Hunt shortly and often, beginning with this seed."""
    for each in range(first, HUNTS):
        run_histories(HUNT_HISTORIES, (Phase.generate,), first=each)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, small, monkeypatch):
    plant(monkeypatch)

    with pytest.raises(AssertionError):
        hunt(FOUND_BY.get(plant, 0))


# By hand: what histories with few timers do not show


def array(*values: int) -> Int64s:
    return np.array(values, np.int64)


def opened(count: int, due_ms: Int64s) -> HotTimers:
    all_of_them = HotTimers(NOW)
    for start in range(0, count, 1_000):
        end = min(start + 1_000, count)
        all_of_them.open(np.arange(start, end), due_ms[start:end])
    return all_of_them


def drained(all_of_them: HotTimers, now_ms: int, limit: int) -> list[int]:
    found: list[int] = []
    while len(part := all_of_them.tick(now_ms, limit)):
        assert len(part) <= limit
        assert all_of_them.retire(part).all()
        found += part.tolist()
    return found


def test_years_of_downtime_are_caught_up_in_due_order():
    due = NOW + np.random.default_rng(1).integers(0, 3 * 365 * 24 * HOUR, 30_000)
    all_of_them = opened(30_000, due)

    found = drained(all_of_them, NOW + 4 * 365 * 24 * HOUR, 1_000)

    assert found == np.lexsort((np.arange(30_000), due)).tolist()


def test_repeated_moves_do_not_grow_memory(monkeypatch):
    monkeypatch.setattr(timers, "STALE_SLACK", 100)
    monkeypatch.setattr(timers, "TIDY_ROWS_MIN", 64)
    due = NOW + HOUR + np.arange(1_000) * 1_000
    all_of_them = opened(1_000, due)
    most = 0

    for turn in range(500):
        away = (turn % 2) * 24 * HOUR - turn * 5_000
        assert all_of_them.move(np.arange(1_000), due + away).all()
        most = max(most, sum(map(len, all_of_them._wheels)))

    assert most < 5_000
    all_of_them.check_invariants()


def test_rows_of_retired_timers_are_used_again(monkeypatch):
    monkeypatch.setattr(table, "DEAD_SLACK", 100)
    monkeypatch.setattr(timers, "TIDY_ROWS_MIN", 64)
    all_of_them = HotTimers(NOW)
    kept = 0

    for start in range(0, 200_000, 1_000):
        offsets = np.arange(start, start + 1_000)
        all_of_them.open(offsets, NOW + 30 * 24 * HOUR + offsets)
        all_of_them.retire(offsets[offsets % 100 != 0])
        kept += 10

    assert len(all_of_them) == kept
    assert all_of_them._table.count < 10_000
    assert len(all_of_them._table.offset) < 20_000
    assert sum(map(len, all_of_them._wheels)) < 100_000
    all_of_them.check_invariants()


def test_a_firing_scheduled_message_is_neither_moved_nor_fired_twice():
    all_of_them = opened(1, array(NOW))

    assert all_of_them.tick(NOW, 10).tolist() == [0]

    assert state_of(all_of_them, array(0, 1)).tolist() == [TimerState.FIRING, TimerState.UNKNOWN]
    assert all_of_them.move(array(0), array(NOW + 1)).tolist() == [False]
    assert all_of_them.tick(NOW + HOUR, 10).tolist() == []
    assert all_of_them.retire(array(0)).tolist() == [True]
    assert all_of_them.retire(array(0)).tolist() == [False]
    assert all_of_them.next_deadline() is None


def test_the_farthest_times_do_not_overflow():
    far_off = (1 << 63) - 1
    all_of_them = opened(3, array(far_off, NOW + HOUR, far_off - 1))

    assert drained(all_of_them, NOW + HOUR, 10) == [1]
    assert drained(all_of_them, far_off - 1_000_000, 10) == []
    assert len(all_of_them) == 2


def trust_old_rows(
    self: Table, offsets: Int64s, hints: slot.Rows
) -> tuple[slot.Rows, table.States]:
    rows = np.minimum(hints, len(self.offset) - 1)
    return rows, self._states(rows, offsets)


@pytest.mark.parametrize("is_planted", [False, True])
def test_what_is_ready_is_found_after_its_row_has_moved(small, monkeypatch, is_planted):
    if is_planted:
        monkeypatch.setattr(Table, "locate", trust_old_rows)
    all_of_them = opened(20, np.full(20, NOW))
    while not len(first := all_of_them.tick(NOW, 1)):
        pass

    all_of_them.retire(np.arange(1, 17))
    all_of_them.give_back(first)

    found = drained(all_of_them, NOW, 1)
    assert (found == [0, 17, 18, 19]) is not is_planted


def test_due_times_are_told():
    all_of_them = opened(2, array(NOW + 5, NOW + 6))

    assert all_of_them.due_of(array(1, 2, 0)).tolist() == [NOW + 6, -1, NOW + 5]
    assert repr(all_of_them) == "<HotTimers 2 open, 0 ready, tick 100 ms>"
