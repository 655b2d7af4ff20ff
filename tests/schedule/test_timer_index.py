"""The agenda knows what is open, near or far, whatever is going on in the middle of it."""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

import waterclock.schedule.cold_timers as far
import waterclock.schedule.near as near
import waterclock.schedule.overflow as pile
from tests.schedule.timer_index_histories import START_MS, AgendaHistories
from tests.schedule.timer_index_stories import STORIES
from waterclock.schedule.cold_timers import FAR, OPEN, Far, Run, Words
from waterclock.schedule.near import Near
from waterclock.schedule.overflow import Pile
from waterclock.schedule.timer_index import TimerIndex

SOUND = settings(
    max_examples=80,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Make few promises many: pauses, pieces and wings come early."""
    monkeypatch.setattr(far, "STEP_ROWS", 2)
    monkeypatch.setattr(pile, "PIECE_MAX", 16)
    monkeypatch.setattr(near, "WINGS_MAX", 3)
    monkeypatch.setattr(near, "JOIN_MAX", 12)


def test_no_history_confuses_the_agenda():
    run_state_machine_as_test(AgendaHistories, settings=SOUND)


def test_nothing_overtakes_what_is_still_being_loaded():
    offsets = np.arange(6)
    late = START_MS + 60_000
    nothing = np.empty(0, np.int64)
    promises = Far()
    list(promises.fold(0, Words(offsets, late + offsets, nothing, nothing, nothing)))
    promises.begin()
    agenda = TimerIndex(promises, now_ms=START_MS, near_ms=10_000, tick_ms=100)
    list(agenda.load(START_MS))

    loading = agenda.load(late)
    next(loading)
    agenda.open(np.array([7]), np.array([late + 3]))
    assert agenda.tick(late + 5_000, 10).tolist() == []
    assert not agenda.is_due(late + 5_000)
    list(loading)

    assert agenda.tick(late + 5_000, 10).tolist() == [0, 1, 2, 3, 7, 4, 5]


def wings_fired_one_after_the_other(monkeypatch):
    def tick(self, now_ms, limit):
        for wing in self._wings:
            fired = wing.timers.tick(now_ms, limit)
            if len(fired):
                return fired
        return np.empty(0, np.int64)

    monkeypatch.setattr(Near, "tick", tick)


def what_is_not_fired_is_kept(monkeypatch):
    monkeypatch.setattr(Near, "_keep", lambda self, wings, handed, chosen: chosen)


def an_open_row_is_never_closed(monkeypatch):
    clear = Run.clear

    def lax(self, rows, flag):
        if flag != OPEN:
            clear(self, rows, flag)

    monkeypatch.setattr(Run, "clear", lax)


def what_was_moved_since_the_seal_counts_twice(monkeypatch):
    retire = Pile.retire
    monkeypatch.setattr(Pile, "retire", lambda self, offsets, due=None: retire(self, offsets))


def loaded_promises_stay_far(monkeypatch):
    def nearing(self, end_ms):
        for run in self._runs():
            rows = np.flatnonzero((run.flags & FAR != 0) & (run.due < end_ms))
            yield run.offsets[rows], run.due[rows]

    monkeypatch.setattr(Far, "nearing", nearing)


def rewritten_segments_keep_their_flags_by_row(monkeypatch):
    def lax(self, offsets, due):
        return Run(offsets, due, self.flags[: len(offsets)].copy())

    monkeypatch.setattr(Run, "refit", lax)


def a_checkpoint_has_what_is_far(monkeypatch):
    def flags(self, base):
        return tuple(run.flags & FAR != 0 for run in self._segments[base])

    monkeypatch.setattr(Far, "open_flags", flags)


def joined_wings_lose_their_order(monkeypatch):
    def joined(parts):
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))

    monkeypatch.setattr(near, "joined", joined)


BUGS = [
    wings_fired_one_after_the_other,
    what_is_not_fired_is_kept,
    an_open_row_is_never_closed,
    what_was_moved_since_the_seal_counts_twice,
    loaded_promises_stay_far,
    rewritten_segments_keep_their_flags_by_row,
    a_checkpoint_has_what_is_far,
    joined_wings_lose_their_order,
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_each_story_ends_well(story):
    story()


def tell_all() -> None:
    for story in STORIES:
        story()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_spoils_some_story(bug, monkeypatch):
    bug(monkeypatch)

    with pytest.raises((AssertionError, IndexError)):
        tell_all()
