"""Every entry added is found, in whatever run it has come to lie."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.log.id_index import runs as id_runs
from waterclock.log.id_index.runs import (
    OFFSET_BITS,
    SEGMENT_OFFSETS_MAX,
    IdRun,
    IdRuns,
    find_in_run,
    ranges_in_run,
    worth_a_look,
)

FPS = st.sampled_from([0, 1, 2, 2**20, 2**39, 2**39 + 1, 2**40 - 2, 2**40 - 1])
OFFSETS = st.integers(min_value=0, max_value=SEGMENT_OFFSETS_MAX - 1)
PAIRS = st.lists(st.tuples(FPS, OFFSETS), max_size=60)


@pytest.fixture(autouse=True, scope="module")
def small_limits() -> Iterator[None]:
    """Make runs, merges and directories of a few entries, so that small cases meet them all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_runs, "_DIRECTORY_IDS_MIN", 16)
        patch.setattr(id_runs, "_WINDOW_MAX", 12)
        patch.setattr(id_runs, "_SINGLES_MAX", 5)
        patch.setattr(id_runs, "_YOUNG_IDS_MAX", 8)
        patch.setattr(id_runs, "_MERGE_STEP_IDS", 12)
        patch.setattr(id_runs, "_MERGE_PACE", 1)
        yield


def array(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint64)


def entries_of(pairs: list[tuple[int, int]]) -> list[int]:
    return sorted(fp << OFFSET_BITS | offset for fp, offset in pairs)


def expected(pairs: list[tuple[int, int]], probes: list[int]) -> list[tuple[int, int]]:
    return sorted(
        (row, fp << OFFSET_BITS | offset)
        for row, probe in enumerate(probes)
        for fp, offset in pairs
        if fp == probe
    )


def answer(matches: id_runs.Matches) -> list[tuple[int, int]]:
    return sorted(zip(matches.rows.tolist(), matches.entries.tolist(), strict=True))


@given(PAIRS, st.lists(FPS, max_size=8))
def test_binary_search_finds_every_entry_of_each_fingerprint(pairs, probes):
    run = array(entries_of(pairs))

    assert answer(find_in_run(run, array(probes))) == expected(pairs, probes)


@given(PAIRS, st.lists(FPS, max_size=8), st.integers(min_value=1, max_value=9))
def test_parts_of_what_was_found_are_small_and_together_all_of_it(pairs, probes, entries_max):
    run = array(entries_of(pairs))
    ranges = ranges_in_run(run, array(probes))

    parts = [part.matches(run) for part in ranges.parts(entries_max)]

    assert [row for part in parts for row in part.rows] == ranges.matches(run).rows.tolist()
    assert [one for part in parts for one in answer(part)] == expected(pairs, probes)
    assert all(len(part.rows) == entries_max for part in parts[:-1])
    assert all(1 <= len(part.rows) <= entries_max for part in parts[-1:])


@given(st.integers(min_value=0, max_value=2**32), st.integers(min_value=0, max_value=400))
def test_a_directory_finds_what_binary_search_finds(seed, count):
    rng = np.random.default_rng(seed)
    fps = rng.choice(rng.integers(0, 2**40, 300, dtype=np.uint64), count)
    run = np.sort(fps << np.uint64(OFFSET_BITS) | np.arange(count, dtype=np.uint64))
    strangers = rng.integers(0, 2**40, 10, dtype=np.uint64)
    probes = np.concatenate((fps[::7], strangers, run[-1:] >> np.uint64(OFFSET_BITS)))

    assert answer(IdRun(run).find(probes)) == answer(find_in_run(run, probes))


def test_one_id_stored_over_and_over_is_found_each_time():
    run = IdRun(array([7 << OFFSET_BITS | offset for offset in range(1000)]))

    assert repr(run) == "<IdRun 1000 ids>"
    assert len(run.find(array([6, 7, 8])).entries) == 1000


def test_entries_of_a_run_come_oldest_first():
    spread = [fp << OFFSET_BITS for fp in range(0, 2**40, 2**30)]
    run = IdRun(array(sorted([*spread, 9 << OFFSET_BITS | 5, 9 << OFFSET_BITS | 3])))

    assert repr(run) == "<IdRun 1026 ids with directory>"
    assert (run.find(array([9])).entries & np.uint64(0xFF)).tolist() == [3, 5]


@given(st.lists(PAIRS.filter(bool), max_size=5), st.lists(FPS, min_size=1, max_size=8))
def test_a_run_left_out_holds_none_of_the_fingerprints(runs, probes):
    indices = worth_a_look([IdRun(array(entries_of(pairs))) for pairs in runs], array(probes))

    left_out = [pairs for index, pairs in enumerate(runs) if index not in indices]
    assert not any(expected(pairs, probes) for pairs in left_out)


@given(st.lists(st.tuples(st.booleans(), PAIRS), max_size=12), st.lists(FPS, max_size=8))
def test_entries_added_in_batches_and_one_by_one_are_all_found(steps, probes):
    runs = IdRuns()
    pairs = []
    for in_batch, added in steps:
        if in_batch:
            runs.add(array([fp for fp, _ in added]), array([offset for _, offset in added]))
        else:
            for fp, offset in added:
                runs.add_one(fp, offset)
        pairs += added
        runs.check_invariants()
        assert answer(runs.find(array(probes))) == expected(pairs, probes)

    assert len(runs) == len(pairs)
    assert runs.sealed().tolist() == entries_of(pairs)
    assert answer(runs.find(array(probes))) == expected(pairs, probes)


def test_many_entries_lie_in_few_runs(monkeypatch):
    monkeypatch.setattr(id_runs, "_MERGE_PACE", 16)
    rng = np.random.default_rng(8)
    runs = IdRuns()
    for start in range(0, 8 * 4**3 * 2, 4):
        runs.add(
            rng.integers(0, 2**40, 4, dtype=np.uint64),
            np.arange(start, start + 4, dtype=np.uint64),
        )

    assert len(runs) == 1024
    assert len(runs.runs()) <= 2 + 4 * 3 + 1


def test_large_batches_are_not_merged_as_often_as_small_ones():
    runs = IdRuns()
    for start in (0, 600):
        runs.add_sorted(array([fp << OFFSET_BITS | start for fp in range(600)]))
    runs.add_one(5, 7)

    assert [len(run) for run in runs.runs()] == [600, 600, 1]
    runs.check_invariants()


def test_a_frozen_segment_still_answers_while_it_is_sealed():
    runs = IdRuns()
    for offset in range(100):
        runs.add_one(offset % 7, offset)

    runs.freeze()
    sealed = runs.sealed()

    assert answer(runs.find(array([3]))) == answer(find_in_run(sealed, array([3])))
    assert repr(runs) == f"<IdRuns 100 ids in {len(runs.runs())} runs>"


def test_an_empty_segment_seals_to_an_empty_array():
    assert IdRuns().sealed().tolist() == []
    assert answer(IdRuns().find(array([1, 2]))) == []
