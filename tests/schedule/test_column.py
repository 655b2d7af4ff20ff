"""Numbers that lie close together take four bytes each; those that do not are kept all the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.schedule.column import SPAN, Column

ROWS = 8
NUMBERS = st.integers(0, 1 << 62) | st.integers(0, 2 * SPAN)


def array(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def with_room(column: Column, number: int, kept: list[int]) -> None:
    if not column.fits(array(number)):
        column.make_room(array(number), np.array(kept, np.intp))


@given(st.lists(st.tuples(st.integers(0, ROWS - 1), NUMBERS), max_size=30))
def test_what_was_set_is_there(sets):
    column = Column(ROWS)
    model: dict[int, int] = {}

    for row, number in sets:
        with_room(column, number, list(model))
        column[np.array([row])] = array(number)
        model[row] = number

        rows = np.array(list(model), np.intp)
        assert column[rows].tolist() == list(model.values())


@given(st.sets(NUMBERS, max_size=ROWS), st.lists(NUMBERS))
def test_numbers_are_found_as_numpy_finds_them(there, asked):
    numbers = np.array(sorted(there), np.int64)
    column = Column(ROWS)
    if not column.fits(numbers):
        column.make_room(numbers, np.empty(0, np.intp))
    column[slice(0, len(numbers))] = numbers

    found = column.search(0, len(numbers), array(*asked))

    assert (found == numbers.searchsorted(array(*asked))).all()


@pytest.mark.parametrize("span", [1, SPAN - 4, SPAN - 3, SPAN - 2, SPAN, SPAN + 1])
def test_what_is_sought_beyond_the_last_is_found_at_the_end(span):
    column = Column(2)
    numbers = array(7, 7 + span)
    if not column.fits(numbers):
        column.make_room(numbers, np.empty(0, np.intp))
    column[slice(0, 2)] = numbers

    asked = array(0, 6, 7, 8, 6 + span, 7 + span, 8 + span, 7 + 2 * SPAN)
    assert column.search(0, 2, asked).tolist() == numbers.searchsorted(asked).tolist()


@given(st.lists(NUMBERS, min_size=1, max_size=ROWS))
def test_a_cleared_row_holds_nothing_that_is_asked_for(numbers):
    column = Column(ROWS)
    for number in numbers:
        with_room(column, number, [])

    column.clear(slice(None))

    assert not np.isin(column[slice(None)], array(numbers[-1])).any()


def test_four_bytes_are_enough_for_weeks_and_eight_for_all_of_time():
    column = Column(ROWS)
    now, week = 1_790_000_000_000, 7 * 24 * 3_600_000

    with_room(column, now, [])
    assert column.fits(array(now - 3 * week, now + 3 * week))
    assert "4 bytes" in repr(column)

    column[slice(0, 1)] = array(now)
    with_room(column, 0, [0])
    assert "8 bytes" in repr(column)
    assert column[0] == now
