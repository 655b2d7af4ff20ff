"""Which offsets a read covers, and how they are cut: pure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.model.errors import OffsetOutOfRange
from waterclock.spark.options import BadOption, OffsetBounds
from waterclock.spark.read.ranges import (
    TASK_ROWS_MIN,
    Extent,
    Range,
    chosen,
    grouped,
    planned,
    resolved,
)

BOUNDS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=6).map(
    lambda pairs: [Range(n, start, start + size) for n, (start, size) in enumerate(pairs)]
)

PIECES = st.lists(st.integers(1, TASK_ROWS_MIN), max_size=9).map(
    lambda sizes: [Range(number, 0, size) for number, size in enumerate(sizes)]
)


@given(BOUNDS, st.integers(1, 40), st.integers(1, 400))
def test_pieces_are_exactly_what_was_asked_for(bounds, partitions_min, rows_max):
    pieces = planned(bounds, partitions_min=partitions_min, rows_max=rows_max)

    offsets = [(each.partition, n) for each in pieces for n in range(each.start, each.end)]
    assert offsets == [(each.partition, n) for each in bounds for n in range(each.start, each.end)]
    assert all(0 < each.size <= rows_max for each in pieces)
    assert len(pieces) >= min(partitions_min, len(offsets))


def test_a_range_is_cut_no_more_than_is_needed():
    bounds = [Range(0, 0, 100), Range(1, 50, 150)]

    assert planned(bounds) == bounds
    assert planned(bounds, partitions_min=4) == [
        Range(0, 0, 50),
        Range(0, 50, 100),
        Range(1, 50, 100),
        Range(1, 100, 150),
    ]
    assert planned([Range(0, 7, 7)], partitions_min=4) == []


def test_places_become_offsets():
    extents = {0: Extent(5, 10), 1: Extent(0, 4)}

    assert resolved(OffsetBounds("earliest"), extents, "o", is_strict=True) == {0: 5, 1: 0}
    assert resolved(OffsetBounds("latest"), extents, "o", is_strict=True) == {0: 10, 1: 4}
    named = OffsetBounds("latest", {0: 7, 1: "earliest"})
    assert resolved(named, extents, "o", is_strict=True) == {0: 7, 1: 0}


@pytest.mark.parametrize(("offset", "nearest", "says"), [(4, 5, "is gone"), (11, 10, "beyond")])
def test_an_offset_outside_the_log_is_an_error_or_the_nearest(offset, nearest, says):
    extents = {0: Extent(5, 10)}
    places = OffsetBounds("earliest", {0: offset})

    with pytest.raises(OffsetOutOfRange, match=says):
        resolved(places, extents, "o", is_strict=True)
    assert resolved(places, extents, "o", is_strict=False) == {0: nearest}


def test_a_partition_that_is_not_there_is_named():
    extents = {0: Extent(0, 1), 1: Extent(0, 1)}

    assert chosen(extents, None) == extents
    assert list(chosen(extents, frozenset({1}))) == [1]
    with pytest.raises(BadOption, match=r"option partitions: there is no partition 7: .* has 2"):
        chosen(extents, frozenset({7}))
    with pytest.raises(BadOption, match="names partition 1, which is not read"):
        resolved(
            OffsetBounds("latest", {1: 0}), {0: Extent(0, 1)}, "startingOffsets", is_strict=True
        )


@given(PIECES, st.integers(1, 8))
def test_tasks_are_the_pieces_in_order_and_small_ones_share_one(pieces, tasks_min):
    tasks = grouped(pieces, tasks_min=tasks_min)

    assert [piece for task in tasks for piece in task] == pieces
    assert len(tasks) >= min(tasks_min, len(pieces))
    for task in tasks:
        assert len(task) == 1 or sum(piece.size for piece in task) <= TASK_ROWS_MIN


def test_four_small_partitions_are_one_task_and_a_large_one_is_its_own():
    small = [Range(number, 0, 100) for number in range(4)]
    large = Range(4, 0, TASK_ROWS_MIN)

    assert grouped([*small, large]) == [tuple(small), (large,)]
