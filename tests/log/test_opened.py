"""What a segment opened comes back as it came, and takes few bytes until then."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from waterclock.log.sidecars.opened import Int64s, Opened

BATCHES = st.lists(
    st.tuples(
        st.lists(st.integers(1, 3) | st.integers(1, 1 << 40), min_size=1, max_size=6),
        st.integers(0, 1 << 48),
        st.lists(st.integers(0, 9) | st.integers(0, 1 << 48), min_size=6, max_size=6),
    ),
    max_size=12,
)
"""Steps from one offset to the next, the least due time, and how much later each is due."""


def array(values: list[int]) -> Int64s:
    return np.array(values, dtype=np.int64)


@given(BATCHES)
def test_what_is_added_comes_back_in_its_order(batches):
    opened = Opened()
    offsets: list[int] = []
    due: list[int] = []
    for steps, least, later in batches:
        start = offsets[-1] if offsets else 0
        offsets += (start + np.cumsum(steps)).tolist()
        due += [least + each for each in later[: len(steps)]]
        opened.add(array(offsets[-len(steps) :]), array(due[-len(steps) :]))

    assert len(opened) == len(offsets)
    assert [column.tolist() for column in opened.columns()] == [offsets, due]


def test_messages_that_follow_each_other_take_four_bytes_each():
    opened, now = Opened(), 1_800_000_000_000

    for start in range(0, 200_000, 1_000):
        opened.add(np.arange(start, start + 1_000), now + np.arange(1_000) * 14_400)

    assert opened.size_bytes == 4 * 200_000


def test_those_with_gaps_take_eight_and_those_far_apart_sixteen():
    opened = Opened()

    opened.add(array([1, 3, 9]), array([7, 8, 9]))
    assert opened.size_bytes == 3 * 8
    opened.add(array([10, 1 << 40]), array([0, 1 << 40]))

    assert opened.size_bytes == 5 * 16


def test_a_copy_stays_as_it_was():
    opened = Opened()
    opened.add(array([1, 2]), array([5, 6]))

    twin = opened.copy()
    opened.add(array([3]), array([4]))

    assert twin.columns()[0].tolist() == [1, 2]
    assert opened.columns()[0].tolist() == [1, 2, 3]


def test_what_is_mapped_is_not_copied():
    offsets, due = array([1, 2]), array([5, 6])

    opened = Opened.mapped(offsets, due)
    opened.add(array([3]), array([7]))

    assert [column.tolist() for column in opened.columns()] == [[1, 2, 3], [5, 6, 7]]
    assert len(Opened.mapped(array([]), array([]))) == 0
