"""The index knows what is open, hot or cold, whatever is going on in the middle of it."""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

import waterclock.schedule.cold_timers as cold
import waterclock.schedule.overflow as overflow
import waterclock.schedule.timer_index as timer_index
from tests.kit.examples import examples
from tests.schedule.timer_index_histories import START_MS, TimerIndexHistories
from tests.schedule.timer_index_stories import STORIES
from waterclock.schedule.cold_timers import COLD, OPEN, ColdTimers, Run, SegmentChanges
from waterclock.schedule.overflow import Overflow
from waterclock.schedule.timer_index import TimerIndex

SOUND = settings(
    max_examples=examples(80),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Make few timers many: pauses, pieces and shards come early."""
    monkeypatch.setattr(cold, "STEP_ROWS", 2)
    monkeypatch.setattr(overflow, "PIECE_MAX", 16)
    monkeypatch.setattr(timer_index, "SHARDS_MAX", 3)
    monkeypatch.setattr(timer_index, "JOIN_MAX", 12)


def test_no_history_confuses_the_index():
    run_state_machine_as_test(TimerIndexHistories, settings=SOUND)


def test_nothing_overtakes_what_is_still_being_loaded():
    offsets = np.arange(6)
    late = START_MS + 60_000
    nothing = np.empty(0, np.int64)
    cold_timers = ColdTimers()
    list(cold_timers.fold(0, SegmentChanges(offsets, late + offsets, nothing, nothing, nothing)))
    cold_timers.begin()
    index = TimerIndex(cold_timers, now_ms=START_MS, hot_window_ms=10_000, tick_ms=100)
    list(index.load(START_MS))

    loading = index.load(late)
    next(loading)
    index.open(np.array([7]), np.array([late + 3]))
    assert index.tick(late + 5_000, 10).tolist() == []
    assert not index.is_due(late + 5_000)
    list(loading)

    assert index.tick(late + 5_000, 10).tolist() == [0, 1, 2, 3, 7, 4, 5]


def shards_fired_one_after_the_other(monkeypatch):
    def tick(self, now_ms, limit):
        for shard in self._shards:
            fired = shard.tick(self._bound(now_ms), limit)
            if len(fired):
                return fired
        return np.empty(0, np.int64)

    monkeypatch.setattr(TimerIndex, "tick", tick)


def what_is_not_fired_is_kept(monkeypatch):
    monkeypatch.setattr(timer_index, "_keep", lambda shards, handed, chosen: chosen)


def an_open_row_is_never_closed(monkeypatch):
    clear = Run.clear

    def lax(self, rows, flag):
        if flag != OPEN:
            clear(self, rows, flag)

    monkeypatch.setattr(Run, "clear", lax)


def what_was_moved_since_the_seal_counts_twice(monkeypatch):
    retire = Overflow.retire
    monkeypatch.setattr(Overflow, "retire", lambda self, offsets, due=None: retire(self, offsets))


def loaded_timers_stay_cold(monkeypatch):
    def take_due(self, end_ms):
        for run in self._runs():
            rows = np.flatnonzero((run.flags & COLD != 0) & (run.due < end_ms))
            yield run.offsets[rows], run.due[rows]

    monkeypatch.setattr(ColdTimers, "take_due", take_due)


def rewritten_segments_keep_their_flags_by_row(monkeypatch):
    def lax(self, offsets, due):
        return Run(offsets, due, self.flags[: len(offsets)].copy())

    monkeypatch.setattr(Run, "refit", lax)


def a_checkpoint_has_what_is_cold(monkeypatch):
    def flags(self, base):
        return tuple(run.flags & COLD != 0 for run in self._segments[base])

    monkeypatch.setattr(ColdTimers, "open_flags", flags)


def joined_shards_lose_their_order(monkeypatch):
    def joined(parts):
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))

    monkeypatch.setattr(timer_index, "joined", joined)


BUGS = [
    shards_fired_one_after_the_other,
    what_is_not_fired_is_kept,
    an_open_row_is_never_closed,
    what_was_moved_since_the_seal_counts_twice,
    loaded_timers_stay_cold,
    rewritten_segments_keep_their_flags_by_row,
    a_checkpoint_has_what_is_cold,
    joined_shards_lose_their_order,
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
