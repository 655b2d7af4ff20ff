"""Ids that dedup does not know are found as a plain dictionary would find them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.log.id_index.index import IdIndex
from waterclock.log.id_index.runs import SEGMENT_OFFSETS_MAX, IdEntries, find_in_run

FPS = st.lists(st.sampled_from([0, 1, 7, 2**40 - 1]), min_size=1, max_size=6)


def array(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def found(index: IdIndex, *fps: int) -> list[tuple[int, int]]:
    known: list[tuple[int, int]] = []
    for base, run in index.untracked.pieces():
        rows, entries = find_in_run(run, array(*fps))
        offsets = base + (entries & np.uint64(SEGMENT_OFFSETS_MAX - 1)).astype(np.int64)
        known += zip(rows.tolist(), offsets.tolist(), strict=True)
    return sorted(known)


@given(st.lists(FPS, min_size=1, max_size=8), st.sampled_from(["live", "sealed", "loaded"]))
def test_every_offset_is_found_and_none_but_those(batches, state):
    index = IdIndex(seed=1, ids_max=100)
    index.open_segment(100)
    known: dict[int, list[int]] = {}
    end = 100
    for fps in batches:
        index.remember(array(*fps), range(end, end + len(fps)), is_tracked=False)
        for fp in fps:
            known.setdefault(fp, []).append(end)
            end += 1
    entries = index.active_runs().merged()
    if state == "sealed":
        index.close_segment()
        index.replace(100, *entries)
    elif state == "loaded":
        decoded = IdEntries.decode(memoryview(b"".join(entries.encode())))
        assert decoded is not None
        index = IdIndex(seed=1, ids_max=100)
        index.load(100, decoded)

    asked = [0, 1, 2, 7, 2**40 - 1]
    expected = [(row, at) for row, fp in enumerate(asked) for at in known.get(fp, [])]

    assert found(index, *asked) == sorted(expected)
    assert index.lookup(array(*asked)).rows.tolist() == []


def test_they_do_not_count_toward_the_limit_of_dedup_and_go_with_their_segment():
    index = IdIndex(seed=1, ids_max=3)
    index.open_segment(0)
    index.remember(array(5, 6, 7), np.array([1, 4, 9]), is_tracked=False)
    index.close_segment()

    assert index.overflow() == []
    assert found(index, 6) == [(0, 4)]
    index.drop(0)
    assert found(index, 6) == []


@pytest.mark.parametrize("body", [b"", bytes(7), bytes(9), b"\x02" + bytes(15), b"\x01" + bytes(7)])
def test_a_body_that_cannot_be_one_is_refused(body):
    assert IdEntries.decode(memoryview(body)) is None


def test_beyond_the_limit_the_oldest_are_forgotten_and_dedup_keeps_its_own():
    index = IdIndex(seed=1, ids_max=3)
    entries: list[IdEntries] = []
    for base in (0, 10, 20):
        index.open_segment(base)
        index.remember(array(5, 6), range(base, base + 2), is_tracked=False)
        if base < 20:
            index.remember(array(7), range(base + 2, base + 3), is_tracked=True)
            entries.append(index.active_runs().merged())
            index.close_segment()
    index.replace(0, *entries[0])

    index.trim()

    assert found(index, 5) == [(0, 20)]
    assert [index.untracked.has_dropped(base) for base in (0, 10, 20)] == [True, True, False]
    assert index.lookup(array(7)).offsets.tolist() == [2, 12]

    # The side-car was saved meanwhile, or the segment rewritten.
    index.replace(10, *entries[1])
    assert found(index, 5) == [(0, 20)]
    index.drop(0)
    assert not index.untracked.has_dropped(0)


def test_the_active_segment_keeps_all_of_its_own():
    index = IdIndex(seed=1, ids_max=1)
    index.open_segment(0)
    index.remember(array(5, 6), range(2), is_tracked=False)

    index.trim()

    assert found(index, 6) == [(0, 1)]
