"""What may be acknowledged is durable, and one fsync serves all who waited for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from waterclock.model.sections import Fsync
from waterclock.storage.flush import FlushPlan


def plan(policy: Fsync = "group", *, end: int = 0) -> FlushPlan:
    return FlushPlan(policy, interval_ms=100, end=end)


def test_appends_that_wait_during_an_fsync_share_the_next():
    group = plan()
    group.appended_end = 5
    first = group.start(0)
    group.appended_end = 9

    assert (first, group.wants_sync(0)) == (5, False)
    group.finish(first)
    assert (group.acknowledged_end, group.wants_sync(0)) == (5, True)
    group.finish(group.start(0))
    assert (group.acknowledged_end, group.wants_sync(0)) == (9, False)


def test_on_an_interval_appends_are_acknowledged_at_once_and_flushed_in_time():
    lazy = plan("interval")
    lazy.appended_end = 3

    assert (lazy.acknowledged_end, lazy.flushed_end) == (3, 0)
    assert [lazy.wants_sync(now_ms) for now_ms in (0, 99, 100)] == [False, False, True]
    lazy.finish(lazy.start(100))
    lazy.appended_end = 4
    assert [lazy.wants_sync(now_ms) for now_ms in (150, 199, 200)] == [False, False, True]


@pytest.mark.parametrize("policy", ["always", "group", "interval"])
def test_there_is_nothing_to_flush_in_a_log_just_opened(policy):
    opened = plan(policy, end=7)

    assert (opened.acknowledged_end, opened.flushed_end) == (7, 7)
    assert not opened.wants_sync(10_000)
    assert repr(opened) == f"<FlushPlan {policy}, 7 of 7 flushed>"


def test_only_one_fsync_is_in_flight():
    group = plan()
    group.appended_end = 1
    group.start(0)

    with pytest.raises(AssertionError, match="one fsync in flight"):
        group.start(0)


@given(st.integers(0, 10), st.integers(0, 10))
def test_what_is_flushed_never_steps_back(one, other):
    group = plan()
    group.appended_end = 10

    group.advance(one)
    group.advance(other)

    assert group.flushed_end == max(one, other)


def test_a_replicated_log_shows_what_a_majority_has_flushed_and_it_has_itself():
    group = plan()
    group.commit(0)
    group.appended_end = 9
    group.advance(6)

    assert group.acknowledged_end == 0
    group.commit(4)
    assert group.acknowledged_end == 4
    group.commit(8)
    assert (group.acknowledged_end, group.flushed_end) == (6, 6)
    group.commit(3)  # late news
    assert group.committed_end == 8


def test_on_an_interval_a_replicated_log_shows_no_more_than_is_committed():
    lazy = plan("interval")
    lazy.commit(2)
    lazy.appended_end = 3

    assert (lazy.acknowledged_end, lazy.flushed_end) == (2, 0)


class FlushHistory(RuleBasedStateMachine):
    """Appends, fsyncs and sealed segments in any order, against a disk that is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = plan()
        self.on_disk = 0
        self.in_flight: int | None = None
        self.now_ms = 0

    @rule(count=st.integers(1, 5), later_ms=st.integers(0, 100))
    def append(self, count, later_ms):
        self.plan.appended_end += count
        self.now_ms += later_ms

    @precondition(lambda self: self.plan.wants_sync(self.now_ms))
    @rule()
    def begin(self):
        self.in_flight = self.plan.start(self.now_ms)

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def finish(self):
        assert self.in_flight is not None
        self.on_disk = max(self.on_disk, self.in_flight)
        self.plan.finish(self.in_flight)
        self.in_flight = None

    @rule()
    def seal(self):
        """Beginning a segment flushes the one before, also while an fsync is in flight."""
        self.on_disk = self.plan.appended_end
        self.plan.advance(self.plan.appended_end)

    @invariant()
    def the_plan_knows_the_disk(self):
        assert self.plan.flushed_end == self.on_disk == self.plan.acknowledged_end
        assert self.plan.is_syncing == (self.in_flight is not None)
        is_behind = self.on_disk < self.plan.appended_end
        assert self.plan.wants_sync(self.now_ms) == (is_behind and self.in_flight is None)


TestFlushHistory = FlushHistory.TestCase
