"""Numbers that lie close together take four bytes each; those that do not are kept all the same."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from waterclock.schedule.column import SPAN, Column

ROWS = 8
NUMBERS = st.integers(0, (1 << 63) - 1) | st.integers(0, 2 * SPAN)


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

    is_here = np.isin(array(*asked), numbers)
    assert (found[is_here] == numbers.searchsorted(array(*asked)[is_here])).all()
    assert ((found >= 0) & (found <= len(numbers))).all()


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
