"""No history of a partition makes its scheduler forget, double, hurry or misorder anything."""

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.node.scheduler_histories import SchedulerHistories
from waterclock.node.far_segments import FarSegments
from waterclock.schedule.agenda import Agenda
from waterclock.schedule.far import FAR, OPEN, Far, Run
from waterclock.schedule.near import Near
from waterclock.schedule.timers import Timers

EXAMPLES = int(os.environ.get("WATERCLOCK_HISTORIES", "120"))
SOUND = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
PLANTED = settings(SOUND, max_examples=3_000, database=None)


def test_no_history_breaks_a_promise():
    run_state_machine_as_test(SchedulerHistories, settings=SOUND)


def early(monkeypatch):
    tick = Timers.tick
    monkeypatch.setattr(Timers, "tick", lambda self, now, limit: tick(self, now + 101, limit))


def fired_past_what_is_loaded(monkeypatch):
    monkeypatch.setattr(Agenda, "_bound", lambda self, now_ms: now_ms)


def horizon_moved_after_loading(monkeypatch):
    def load(self, now_ms):
        end = now_ms + self._near_ms
        for offsets, due_ms in self.far.nearing(end):
            self._near.open(offsets, due_ms, now_ms)
            yield
        self._loaded_ms = end

    monkeypatch.setattr(Agenda, "load", load)


def wings_fired_one_after_the_other(monkeypatch):
    def tick(self, now_ms, limit):
        for wing in self._wings:
            fired = wing.timers.tick(now_ms, limit)
            if len(fired):
                return fired
        return np.empty(0, np.int64)

    monkeypatch.setattr(Near, "tick", tick)


def moved_promises_keep_their_old_row(monkeypatch):
    clear = Run.clear

    def lax(self, rows, flag):
        if flag != OPEN:
            clear(self, rows, flag)

    monkeypatch.setattr(Run, "clear", lax)


def moves_since_the_seal_are_forgotten(monkeypatch):
    fold = Far.fold

    def lax(self, base, words):
        yield from fold(self, base, words)
        for run in self._segments[base]:
            run.flags |= FAR * (run.flags & OPEN)
            run.far = int(np.count_nonzero(run.flags & FAR))

    monkeypatch.setattr(Far, "fold", lax)


def checkpoint_believed_whatever_it_tells_of(monkeypatch):
    monkeypatch.setattr(FarSegments, "_borne_out", lambda self, checkpoint: checkpoint.segments)


def expired_or_cancelled_is_not_retired(monkeypatch):
    monkeypatch.setattr(Agenda, "retire", lambda self, offsets: np.ones(len(offsets), np.bool_))


def rewritten_segments_keep_their_flags_by_row(monkeypatch):
    def lax(self, offsets, due):
        return Run(offsets, due, self.flags[: len(offsets)].copy())

    monkeypatch.setattr(Run, "refit", lax)


def a_slice_that_failed_is_not_given_back(monkeypatch):
    monkeypatch.setattr(Near, "_keep", lambda self, wings, handed, chosen: chosen)


BUGS = [
    early,
    fired_past_what_is_loaded,
    horizon_moved_after_loading,
    wings_fired_one_after_the_other,
    moved_promises_keep_their_old_row,
    moves_since_the_seal_are_forgotten,
    checkpoint_believed_whatever_it_tells_of,
    expired_or_cancelled_is_not_retired,
    rewritten_segments_keep_their_flags_by_row,
    a_slice_that_failed_is_not_given_back,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug, monkeypatch):
    bug(monkeypatch)

    with pytest.raises((AssertionError, IndexError, ExceptionGroup, KeyError)):
        run_state_machine_as_test(SchedulerHistories, settings=PLANTED)
