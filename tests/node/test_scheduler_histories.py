"""No history of a partition makes its scheduler forget, double, hurry or misorder anything."""

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

import waterclock.node.schedule.read_ahead as read_ahead
import waterclock.schedule.cold_timers as cold_timers
import waterclock.schedule.timer_index as timer_index
from tests.kit.examples import examples
from tests.node.scheduler_histories import SchedulerHistories
from waterclock.log.scheduled import ScheduledRows
from waterclock.node.schedule.read_ahead import ReadAhead
from waterclock.schedule.cold_timers import COLD, OPEN, ColdTimers, Run
from waterclock.schedule.hot_timers import HotTimers
from waterclock.schedule.timer_index import TimerIndex

EXAMPLES = int(os.environ.get("WATERCLOCK_HISTORIES") or examples(60))
SOUND = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
HUNTS, HUNT_EXAMPLES = 75, 40
PLANTED = settings(SOUND, max_examples=HUNT_EXAMPLES, database=None, phases=[Phase.generate])
"""It is enough to find them; nobody reads how."""


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Make few messages many: they are read ahead, in steps, and fired in mixed slices."""
    monkeypatch.setattr(read_ahead, "WORTH_ROWS", 1)
    monkeypatch.setattr(read_ahead, "STEP_ROWS", 3)
    monkeypatch.setattr(read_ahead, "CHUNK_BYTES", 400)
    monkeypatch.setattr(cold_timers, "STEP_ROWS", 2)


def test_no_history_breaks_a_guarantee():
    run_state_machine_as_test(SchedulerHistories, settings=SOUND)


def early(monkeypatch):
    tick = HotTimers.tick
    monkeypatch.setattr(HotTimers, "tick", lambda self, now, limit: tick(self, now + 101, limit))


def shards_fired_one_after_the_other(monkeypatch):
    def tick(self, now_ms, limit):
        for shard in self._shards:
            fired = shard.tick(self._bound(now_ms), limit)
            if len(fired):
                return fired
        return np.empty(0, np.int64)

    monkeypatch.setattr(TimerIndex, "tick", tick)


def moved_scheduled_keep_their_old_row(monkeypatch):
    clear = Run.clear

    def lax(self, rows, flag):
        if flag != OPEN:
            clear(self, rows, flag)

    monkeypatch.setattr(Run, "clear", lax)


def moves_since_the_seal_are_forgotten(monkeypatch):
    fold = ColdTimers.fold

    def lax(self, base, changes):
        yield from fold(self, base, changes)
        for run in self._segments[base]:
            run.flags |= COLD * (run.flags & OPEN)
            run.cold_count = int(np.count_nonzero(run.flags & COLD))

    monkeypatch.setattr(ColdTimers, "fold", lax)


def expired_or_cancelled_is_not_retired(monkeypatch):
    monkeypatch.setattr(TimerIndex, "retire", lambda self, offsets: np.ones(len(offsets), np.bool_))


def a_slice_that_failed_is_not_given_back(monkeypatch):
    monkeypatch.setattr(timer_index, "_keep", lambda shards, handed, chosen: chosen)


def a_message_read_ahead_is_that_of_its_neighbour(monkeypatch):
    rows = ReadAhead.rows

    def shifted(self, offsets):
        for header, batch, which, asks in rows(self, offsets):
            is_ahead = header.base_offset == 0 and header.log_tag == 0
            yield header, batch, (which + is_ahead) % len(batch), asks

    monkeypatch.setattr(ReadAhead, "rows", shifted)


def a_rescheduled_message_read_ahead_fires_with_its_old_due_time(monkeypatch):
    monkeypatch.setattr(ScheduledRows, "due_at", lambda self, due_ms: self)


BUGS = [
    (a_message_read_ahead_is_that_of_its_neighbour, 4),
    (a_rescheduled_message_read_ahead_fires_with_its_old_due_time, 2),
    (early, 4),
    (shards_fired_one_after_the_other, 3),
    (moved_scheduled_keep_their_old_row, 2),
    (moves_since_the_seal_are_forgotten, 1),
    (expired_or_cancelled_is_not_retired, 0),
    (a_slice_that_failed_is_not_given_back, 2),
]
"""Each with a seed that found it once."""


@pytest.mark.parametrize(("bug", "first"), BUGS, ids=[bug.__name__ for bug, _ in BUGS])
def test_a_planted_bug_is_found(bug, first, monkeypatch):
    bug(monkeypatch)

    with pytest.raises((AssertionError, IndexError, ExceptionGroup, KeyError)):
        hunt(first)


def hunt(first):
    """Hunt shortly and often: a long hunt goes on where it began, which may be the wrong end."""
    for each in range(first, first + HUNTS):
        histories = seed(each)(type("PlantedHistories", (SchedulerHistories,), {}))
        run_state_machine_as_test(histories, settings=PLANTED)
