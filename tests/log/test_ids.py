"""The index answers as a plain dictionary would, through every change of its insides."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.kit.examples import examples
from waterclock.log.id_index import fingerprint as id_filter
from waterclock.log.id_index import index as ids
from waterclock.log.id_index import runs as id_runs
from waterclock.log.id_index.index import IdIndex, first_occurrence
from waterclock.log.id_index.runs import OFFSET_BITS, SEGMENT_OFFSETS_MAX, IdEntries

EDGES = [0, 1, 2, 255, 2**20, 2**39, 2**39 + 1, 2**40 - 2, 2**40 - 1]
FPS = st.sampled_from(EDGES) | st.integers(min_value=0, max_value=2**40 - 1)
BATCHES = st.lists(FPS, min_size=1, max_size=40)


@pytest.fixture(autouse=True, scope="module")
def small_limits() -> Iterator[None]:
    """Make runs, directories and filters of a few ids, so that small cases meet every change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "_FILTER_IDS_MIN", 8)
        patch.setattr(ids, "STEP_IDS", 16)
        patch.setattr(id_filter, "STEP_IDS", 16)
        patch.setattr(id_filter, "_PACE", 2)
        patch.setattr(id_runs, "_DIRECTORY_IDS_MIN", 16)
        patch.setattr(id_runs, "_SINGLES_MAX", 5)
        patch.setattr(id_runs, "_YOUNG_IDS_MAX", 8)
        patch.setattr(id_runs, "_MERGE_STEP_IDS", 12)
        patch.setattr(id_runs, "_MERGE_PACE", 2)
        yield


@pytest.fixture
def index() -> Iterator[IdIndex]:
    index = IdIndex(seed=7, ids_max=1_000)
    index.open_segment(100)
    yield index
    index.check_invariants()


def array(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint64)


def tracked(entries: np.ndarray) -> IdEntries:
    return IdEntries(entries, array([]))


def answer(candidates: ids.Candidates) -> list[tuple[int, int]]:
    return list(zip(candidates.rows.tolist(), candidates.offsets.tolist(), strict=True))


class IndexAgainstDictionary(RuleBasedStateMachine):
    """Whatever is done, a lookup gives exactly the offsets inserted and not dropped since."""

    @initialize()
    def start(self):
        self.index = IdIndex(seed=1, ids_max=100)
        self.known: dict[int, list[tuple[int, int]]] = {}
        self.closed: dict[int, id_runs.IdRuns] = {}
        self.sealed: dict[int, np.ndarray] = {}
        self.next_offset = 0
        self.active = -1
        self.is_open = False

    @precondition(lambda self: not self.is_open)
    @rule(gap=st.integers(0, 3))
    def open_segment(self, gap):
        self.active = self.next_offset = self.next_offset + gap
        self.is_open = True
        self.index.open_segment(self.active)
        self.known[self.active] = []
        self.next_offset += 1

    @precondition(lambda self: self.is_open)
    @rule(fps=BATCHES)
    def insert_in_a_row(self, fps):
        self.index.insert(array(fps), self.next_offset)
        self.remember(fps, range(self.next_offset, self.next_offset + len(fps)))

    @precondition(lambda self: self.is_open)
    @rule(fps=BATCHES, step=st.integers(1, 3))
    def insert_with_gaps(self, fps, step):
        offsets = range(self.next_offset, self.next_offset + step * len(fps), step)
        self.index.insert(array(fps), np.array(offsets, np.int64))
        self.remember(fps, offsets)

    @precondition(lambda self: self.is_open)
    @rule(fps=BATCHES)
    def insert_one_by_one(self, fps):
        offsets = range(self.next_offset, self.next_offset + len(fps))
        for fp, offset in zip(fps, offsets, strict=True):
            self.index.insert_one(fp, offset)
        self.remember(fps, offsets)

    def remember(self, fps, offsets):
        self.known[self.active] += zip(fps, offsets, strict=True)
        self.next_offset = offsets[-1] + 1

    @precondition(lambda self: self.is_open)
    @rule()
    def seal(self):
        self.sealed[self.active] = self.index.seal()
        self.is_open = False

    @precondition(lambda self: self.is_open)
    @rule()
    def close(self):
        self.closed[self.active] = self.index.close_segment()
        self.is_open = False

    @precondition(lambda self: self.closed)
    @rule(data=st.data())
    def replace_a_closed_segment(self, data):
        base = data.draw(st.sampled_from(sorted(self.closed)))
        self.sealed[base] = self.closed.pop(base).sealed()
        self.index.replace(base, self.sealed[base])

    @precondition(lambda self: self.sealed)
    @rule(data=st.data())
    def replace_by_an_equal_array(self, data):
        base = data.draw(st.sampled_from(sorted(self.sealed)))
        self.index.replace(base, self.sealed[base].copy())

    @precondition(lambda self: self.sealed or self.closed)
    @rule(data=st.data())
    def drop(self, data):
        base = data.draw(st.sampled_from(sorted([*self.sealed, *self.closed])))
        self.index.drop(base)
        self.sealed.pop(base, None)
        self.closed.pop(base, None)
        del self.known[base]

    @rule()
    def drop_what_is_over_the_limit(self):
        for base in self.index.overflow():
            self.index.drop(base)
            self.sealed.pop(base, None)
            self.closed.pop(base, None)
            del self.known[base]
        assert len(self.index) <= 100 or (self.is_open and [*self.known] == [self.active])

    @precondition(lambda self: not self.closed)
    @rule()
    def restart(self):
        saved = self.index.active_runs().merged() if self.is_open else None
        self.index = IdIndex(seed=1, ids_max=100)
        for base in sorted(self.sealed):
            self.index.load(base, tracked(self.sealed[base]))
        if saved is not None:
            self.index.open_segment(self.active)
            self.index.resume(saved)

    @rule(fps=BATCHES, data=st.data())
    def lookup(self, fps, data):
        known = [fp for pairs in self.known.values() for fp, _ in pairs]
        probes = fps + data.draw(
            st.lists(st.sampled_from(known), max_size=9) if known else st.just([])
        )

        assert answer(self.index.lookup(array(probes))) == self.expected(probes)
        assert self.index.lookup_one(probes[-1]) == [
            offset for _, offset in self.expected(probes[-1:])
        ]

    def expected(self, probes):
        return sorted(
            (row, offset)
            for row, probe in enumerate(probes)
            for pairs in self.known.values()
            for fp, offset in pairs
            if fp == probe
        )

    @invariant()
    def it_holds_what_the_dictionary_holds(self):
        assert len(self.index) == sum(map(len, self.known.values()))
        self.index.check_invariants()


IndexAgainstDictionary.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestIndexAgainstDictionary = IndexAgainstDictionary.TestCase


def test_a_new_id_has_no_candidates(index):
    index.insert(array([1, 2, 3]), 100)

    assert answer(index.lookup(array([4, 5]))) == []
    assert index.lookup_one(6) == []


def test_a_known_id_has_the_offset_it_was_stored_at(index):
    index.insert(array([1, 2, 3]), 100)
    index.insert_one(4, 103)

    assert answer(index.lookup(array([9, 3, 4]))) == [(1, 102), (2, 103)]
    assert index.lookup_one(2) == [101]


def test_candidates_of_one_fingerprint_come_oldest_first_across_segments(index):
    index.insert(array([5, 5]), 110)
    index.seal()
    index.open_segment(200)
    index.insert_one(5, 205)
    index.insert(array([5]), 201)

    assert answer(index.lookup(array([5]))) == [(0, 110), (0, 111), (0, 201), (0, 205)]
    assert index.lookup_one(5) == [110, 111, 201, 205]


def test_a_dropped_segment_is_forgotten(index):
    index.insert(array([1, 2]), 100)
    index.seal()
    index.open_segment(200)
    index.insert(array([2]), 200)

    index.drop(100)

    assert answer(index.lookup(array([1, 2]))) == [(1, 200)]


def test_a_closed_segment_answers_before_it_is_replaced(index):
    index.insert(array([1, 2]), 100)

    closed = index.close_segment()
    index.open_segment(200)

    assert index.lookup_one(2) == [101]
    index.replace(100, closed.sealed())
    assert index.lookup_one(2) == [101]


def test_a_segment_dropped_while_its_side_car_was_written_stays_dropped(index):
    index.insert(array([1, 2]), 100)
    closed = index.close_segment()
    index.open_segment(200)

    index.drop(100)
    index.drop(100)
    index.replace(100, closed.sealed())

    assert index.lookup_one(1) == []
    assert len(index) == 0


@pytest.mark.parametrize("count", [3, 500])
def test_the_active_segment_goes_on_where_its_side_car_ends(index, count):
    index.insert(array(list(range(count))), 100)
    saved = index.active_runs().merged()
    restarted = IdIndex(seed=7, ids_max=1_000)
    restarted.open_segment(100)

    restarted.resume(saved)
    restarted.insert_one(2, 100 + count)

    assert restarted.lookup_one(1) == [101]
    assert restarted.lookup_one(2) == [102, 100 + count]
    assert restarted.seal().tolist() == sorted([*saved.tracked.tolist(), 2 << OFFSET_BITS | count])
    restarted.check_invariants()


def test_the_oldest_segments_are_named_when_there_are_too_many_ids():
    index = IdIndex(seed=7, ids_max=5)
    for base in (0, 10, 20):
        index.open_segment(base)
        index.insert(array([base, base + 1, base + 2]), base)
        if base < 20:
            index.seal()

    assert index.overflow() == [0, 10]
    index.drop(0)
    assert index.overflow() == [10]


def test_the_oldest_segment_is_named_first_even_if_its_side_car_is_late():
    index = IdIndex(seed=7, ids_max=1)
    for base, end in ((0, index.close_segment), (10, index.seal)):
        index.open_segment(base)
        index.insert_one(base, base)
        end()

    assert index.overflow() == [0]


def test_the_active_segment_is_never_named_for_dropping(index):
    index.insert(array(list(range(1_200))), 100)

    assert index.overflow() == []


def test_a_full_filter_is_replaced_and_a_far_too_large_one_as_well(index):
    rng = np.random.default_rng(9)
    for start in range(100, 900, 40):
        index.insert(rng.integers(0, 2**40, 40, dtype=np.uint64), start)
    index.seal()
    grown = index._filter.capacity
    index.open_segment(1_000)
    index.drop(100)
    index.insert(rng.integers(0, 2**40, 40, dtype=np.uint64), 1_000)

    assert grown >= 320
    assert index._filter.capacity < 100
    assert index._filter.count < 100


@given(st.lists(st.integers(0, 5) | FPS, max_size=50))
def test_each_row_is_told_the_first_row_with_its_fingerprint(fps):
    first = first_occurrence(array(fps))

    if len(set(fps)) == len(fps):
        assert first is None
    else:
        assert first is not None
        assert first.tolist() == [fps.index(fp) for fp in fps]


@pytest.mark.parametrize("offset", [99, 100 + SEGMENT_OFFSETS_MAX])
def test_an_offset_outside_the_active_segment_is_a_bug_of_the_caller(index, offset):
    with pytest.raises(AssertionError, match="outside the active segment"):
        index.insert_one(1, offset)
    with pytest.raises(AssertionError, match="outside the active segment"):
        index.insert(array([1]), offset)
    with pytest.raises(AssertionError, match="outside the active segment"):
        index.insert(array([1]), np.array([offset], np.int64))


def test_a_segment_older_than_another_cannot_be_added(index):
    index.seal()

    with pytest.raises(AssertionError, match="out of order"):
        index.open_segment(50)
    with pytest.raises(AssertionError, match="out of order"):
        index.load(100, tracked(array([])))


def test_the_seed_of_the_index_makes_its_fingerprints(index):
    fps = index.fingerprints(pa.array([b"one", b"two"], pa.binary()))

    assert fps.tolist() == [index.fingerprint(b"one"), index.fingerprint(b"two")]
    assert fps.tolist() != IdIndex(8, 10).fingerprints(pa.array([b"one", b"two"])).tolist()


def test_an_index_shows_its_size(index):
    index.insert(array([1, 2]), 100)

    assert repr(index) == "<IdIndex 2 of 1000 ids in 1 segments, <IdFilter 2 of 8 ids, 0 KiB>>"
