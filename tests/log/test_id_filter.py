"""The filter never calls a known id new, and seldom a new one known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.log.id_index.fingerprint import STEP_IDS, IdFilter, Succession

FPS = st.integers(min_value=0, max_value=2**40 - 1)


def array(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint64)


def drawn(count: int, *, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**40, count, dtype=np.uint64)


@given(st.lists(FPS, max_size=200), st.integers(min_value=0, max_value=100))
def test_what_was_added_in_a_batch_is_contained(values, capacity):
    ids = IdFilter(capacity)

    ids.add(array(values))

    assert ids.might_contain(array(values)).all()
    assert all(map(ids.might_contain_one, values))
    assert ids.count == len(values)


@given(st.lists(FPS, max_size=100), st.lists(FPS, max_size=100))
def test_three_ways_to_add_set_the_same_bits(values, probes):
    batch, single, ordered = IdFilter(100), IdFilter(100), IdFilter(100)

    batch.add(array(values))
    for value in values:
        single.add_one(value)
    ordered.add_sorted(array(sorted(values)))

    expected = [batch.might_contain_one(probe) for probe in probes]
    assert batch.might_contain(array(probes)).tolist() == expected
    assert single.might_contain(array(probes)).tolist() == expected
    assert ordered.might_contain(array(probes)).tolist() == expected
    assert batch.count == single.count == ordered.count


def test_ids_of_one_batch_that_meet_in_one_word_are_all_kept():
    ids = IdFilter(capacity=1)
    fps = drawn(64, seed=1)

    ids.add(fps[:1])
    ids.add(fps)

    assert ids.might_contain(fps).all()


@pytest.mark.parametrize(("load", "alarms_max"), [(1.0, 0.01), (0.5, 0.001)])
def test_false_alarms_are_as_rare_as_stated(load, alarms_max):
    capacity = 1_000_000
    ids = IdFilter(capacity)
    ids.add(drawn(int(capacity * load), seed=2))

    alarms = ids.might_contain(drawn(1_000_000, seed=3)).mean()

    assert 0 < alarms < alarms_max


def test_a_large_filter_is_addressed_alike_one_by_one_and_in_batch():
    ids = IdFilter(capacity=12_345_678)
    fps = np.concatenate((array([0, 1, 2**39, 2**40 - 1]), drawn(60_000, seed=8)))

    ids.add(fps[::2])
    for fp in fps[1::2].tolist():
        ids.add_one(fp)

    assert ids.might_contain(fps).all()
    assert all(map(ids.might_contain_one, fps.tolist()))


def test_a_successor_is_given_once_new_ids_have_paid_for_the_old_ones():
    old = np.sort(drawn(3 * STEP_IDS, seed=4))
    succession = Succession(10 * STEP_IDS, iter(np.split(old, 3)))
    new = drawn(STEP_IDS, seed=5)

    successor = None
    paid = 0
    while successor is None:
        succession.add(new[paid : paid + 100])
        paid += 100
        succession.add_one(paid)
        successor = succession.advance()

    assert 3 * STEP_IDS / 16 < paid < 5 * STEP_IDS / 16
    assert successor.might_contain(old).all()
    assert successor.might_contain(new[:paid]).all()
    assert all(map(successor.might_contain_one, range(100, paid + 1, 100)))


def test_ids_that_come_faster_than_a_step_are_all_in_the_successor():
    succession = Succession(100, iter(()))
    new = drawn(2 * STEP_IDS + 1, seed=6)

    succession.add(new)

    assert succession.finish().might_contain(new).all()


def test_a_successor_can_be_had_at_once():
    old = np.sort(drawn(1000, seed=7))

    successor = Succession(1000, iter([old])).finish()

    assert successor.might_contain(old).all()
    assert successor.count == 1000


def test_a_filter_shows_how_full_it_is():
    ids = IdFilter(65_536)
    ids.add_one(5)

    assert repr(ids) == "<IdFilter 1 of 65536 ids, 128 KiB>"
