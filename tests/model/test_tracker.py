"""The tracker knows exactly which offsets are done, in as few runs as there are holes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.model.errors import BadInput, LimitExceeded
from waterclock.model.tracker import OffsetTracker

ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8)), max_size=25)


def tracked(start: int, marks: list[tuple[int, int]]) -> tuple[OffsetTracker, set[int]]:
    tracker, done = OffsetTracker(start), set(range(start))
    for first, length in marks:
        tracker.add(first, first + length)
        done |= set(range(first, first + length))
        tracker.check_invariants()
    return tracker, done


@given(st.integers(0, 20), ranges)
def test_it_holds_what_a_set_would_hold(start: int, marks: list[tuple[int, int]]) -> None:
    tracker, done = tracked(start, marks)

    assert {offset for offset in range(80) if offset in tracker} == done
    assert tracker.committed == next(n for n in range(90) if n not in done)
    assert tracker.end == max(done, default=-1) + 1


@given(st.integers(0, 20), ranges, st.integers(0, 80))
def test_missing_and_done_together_are_everything(
    start: int, marks: list[tuple[int, int]], end: int
) -> None:
    tracker, done = tracked(start, marks)

    missing = [offset for first, last in tracker.missing(end) for offset in range(first, last)]

    assert missing == [offset for offset in range(end) if offset not in done]


@given(st.lists(st.integers(0, 60), max_size=40))
def test_single_offsets_in_any_order_are_the_same_as_ranges(offsets: list[int]) -> None:
    one, other = OffsetTracker(), OffsetTracker()

    one.add_many(np.array(offsets, dtype=np.int64))
    for offset in offsets:
        other.add(offset, offset + 1)

    assert one == other


@given(st.integers(0, 1 << 61), ranges)
def test_it_survives_a_restart(start: int, marks: list[tuple[int, int]]) -> None:
    tracker, _ = OffsetTracker(start), None
    for first, length in marks:
        tracker.add(start + first, start + first + length)

    assert OffsetTracker.decode(tracker.encode()) == tracker


@given(st.binary(max_size=40))
def test_foreign_bytes_are_refused_or_are_a_tracker(data: bytes) -> None:
    try:
        tracker = OffsetTracker.decode(data)
    except BadInput:
        return
    tracker.check_invariants()


def test_one_stuck_message_costs_one_run_however_much_is_done_behind_it() -> None:
    tracker = OffsetTracker()

    tracker.add(1, 1_000_000)

    assert (tracker.committed, tracker.run_count) == (0, 1)
    assert len(tracker.encode()) < 10


def test_too_many_holes_are_refused_and_closing_one_makes_room() -> None:
    tracker = OffsetTracker(runs_max=2)
    tracker.add(1, 2)
    tracker.add(3, 4)

    with pytest.raises(LimitExceeded, match="runs of done offsets"):
        tracker.add(5, 6)
    tracker.add(2, 3)
    tracker.add(5, 6)

    assert list(tracker.runs()) == [(1, 4), (5, 6)]


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(BadInput):
        OffsetTracker().add(5, 3)
