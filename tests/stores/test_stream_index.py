"""The index of one stream, against a dict."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from waterclock.stores.log.stream_index import NEVER, StreamIndex, ranges_of

# Steps of a life: (gap, offset step, stored, expires) adds a message, a pair removes a range.
ADD = st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 9), st.integers(-1, 9))
REMOVE = st.tuples(st.integers(1, 30), st.integers(1, 30))
STEPS = st.lists(ADD | REMOVE, max_size=40)


def lived(steps):
    """Give the index, and what must be in it: position -> (offset, stored, expires)."""
    index, end = StreamIndex(), 0
    model: dict[int, tuple[int, int, int]] = {}
    for step in steps:
        if len(step) == 2:
            start, stop = sorted(step)
            gone = [position for position in model if start <= position < stop]
            assert index.remove(start, stop) == len(gone)
            for position in gone:
                del model[position]
        else:
            gap, offset_step, stored_ms, expires_ms = step
            end += offset_step
            position = index.last + 1 + gap
            index.add(position, end, stored_ms=stored_ms, expires_ms=expires_ms)
            model[position] = (end, stored_ms, expires_ms)
    return index, model, end


@given(STEPS, st.integers(0, 30), st.integers(1, 9), st.integers(0, 9))
def test_a_page_holds_what_lives_and_is_not_expired(steps, after, limit, now_ms):
    index, model, end = lived(steps)
    wanted = [
        (position, offset)
        for position, (offset, _, expires_ms) in model.items()
        if position > after and (expires_ms == NEVER or expires_ms > now_ms)
    ]

    positions, offsets = index.page(after, limit, now_ms=now_ms, end=end + 1)
    assert list(zip(positions.tolist(), offsets.tolist(), strict=True)) == wanted[:limit]


@given(STEPS, st.integers(0, 9))
def test_every_question_about_what_lives_is_answered_as_a_dict_would(steps, time_ms):
    index, model, end = lived(steps)

    assert index.kept == len(model)
    assert index.kept_offsets().tolist() == [offset for offset, _, _ in model.values()]
    assert index.older_than(None).tolist() == list(model)
    older = [position for position, (_, stored_ms, _) in model.items() if stored_ms < time_ms]
    assert index.older_than(time_ms).tolist() == older
    expired = [p for p, (_, _, expires) in model.items() if NEVER != expires <= time_ms]
    assert index.expired(time_ms, 99).tolist() == expired
    times = [expires for _, _, expires in model.values() if expires != NEVER]
    assert index.next_expiry_ms() == min(times, default=None)
    known = {offset: position for position, (offset, _, _) in model.items()}
    assert [index.position_of(o) for o in range(end + 2)] == [known.get(o) for o in range(end + 2)]


def test_what_is_not_durable_is_neither_on_a_page_nor_the_last():
    index = StreamIndex()
    for position in range(1, 6):
        index.add(position, position * 10, stored_ms=0, expires_ms=NEVER)

    assert index.page(0, 9, now_ms=0, end=31)[0].tolist() == [1, 2, 3]
    assert [index.durable_last(end) for end in (0, 10, 31, 51)] == [0, 0, 3, 5]


def test_positions_go_on_where_a_removal_says_they_ended():
    index = StreamIndex()
    index.note_last(7, offset=3)
    assert (index.first, index.last, index.kept) == (8, 7, 0)

    index.add(8, 4, stored_ms=0, expires_ms=NEVER)
    index.note_last(10, offset=9)
    index.add(11, 10, stored_ms=0, expires_ms=NEVER)
    assert index.older_than(None).tolist() == [8, 11]


def test_a_removed_front_is_cut_off():
    index = StreamIndex()
    for position in range(1, 5_001):
        index.add(position, position, stored_ms=0, expires_ms=NEVER)
    index.remove(1, 4_001)

    assert index.first == 4_001
    assert index.page(0, 2, now_ms=0, end=9_999)[0].tolist() == [4_001, 4_002]


@given(st.sets(st.integers(0, 30)))
def test_ranges_are_the_same_positions(positions):
    ranges = ranges_of(np.array(sorted(positions), np.int64))

    assert [p for start, end in ranges for p in range(start, end)] == sorted(positions)
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
