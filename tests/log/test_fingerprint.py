"""A fingerprint depends on the id and the seed alone, and spreads evenly over 40 bits."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.log.id_index.fingerprint import (
    FINGERPRINT_BITS,
    fingerprint,
    fingerprints,
    fingerprints_by_seed,
)

SEEDS = st.integers(min_value=0, max_value=2**64 - 1)


def column(ids: list[bytes]) -> pa.BinaryArray:
    return pa.array(ids, pa.binary())


@given(st.lists(st.binary(max_size=300), max_size=20), SEEDS)
def test_ids_of_mixed_lengths_have_the_fingerprints_they_have_alone(ids, seed):
    assert fingerprints(column(ids), seed).tolist() == [fingerprint(id_, seed) for id_ in ids]


@given(st.data(), st.integers(min_value=0, max_value=80), SEEDS)
def test_ids_of_one_length_have_the_fingerprints_they_have_alone(data, size, seed):
    ids = data.draw(st.lists(st.binary(min_size=size, max_size=size), max_size=20))

    assert fingerprints(column(ids), seed).tolist() == [fingerprint(id_, seed) for id_ in ids]


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=20), st.data())
def test_a_slice_of_a_column_has_the_fingerprints_of_its_ids(ids, data):
    start = data.draw(st.integers(0, len(ids)))
    count = data.draw(st.integers(0, len(ids) - start))

    sliced = fingerprints(column(ids).slice(start, count), 7)

    assert sliced.tolist() == fingerprints(column(ids), 7)[start : start + count].tolist()


@given(st.lists(st.tuples(st.binary(max_size=40), SEEDS), min_size=1, max_size=20))
def test_ids_with_a_seed_each_have_the_fingerprints_they_have_under_it(pairs):
    ids, seeds = [each for each, _ in pairs], [seed for _, seed in pairs]
    equal = [each[:16].ljust(16) for each in ids]

    for each in (ids, equal):
        found = fingerprints_by_seed(column([b"first", *each]).slice(1), seeds)
        assert found.tolist() == [fingerprint(*pair) for pair in zip(each, seeds, strict=True)]


def test_an_empty_column_has_no_fingerprints():
    assert fingerprints(column([]), 7).tolist() == []


def test_zero_bytes_at_the_end_make_a_different_id():
    ids = [bytes(size) for size in range(40)]

    assert len(set(fingerprints(column(ids), 7).tolist())) == len(ids)


def test_lanes_cannot_trade_places():
    left, right = b"left8888", b"right888"

    assert fingerprint(left + right, 7) != fingerprint(right + left, 7)


def test_another_seed_gives_other_fingerprints():
    assert fingerprint(b"an id", 1) != fingerprint(b"an id", 2)


def test_side_cars_of_old_can_be_read_because_the_hash_has_not_changed():
    assert fingerprint(b"", 0) == 0
    assert fingerprint(b"waterclock", 0) == 0xE0A4DE9D52
    assert fingerprint(bytes(range(36)), 2**63 + 5) == 0x1AD9ABA743


@pytest.mark.parametrize("size", [8, 16, 36, 61])
def test_any_flipped_bit_changes_half_of_the_fingerprint_on_average(size):
    base = bytes(range(size))
    number = int.from_bytes(base, "little")
    flipped = [(number ^ (1 << bit)).to_bytes(size, "little") for bit in range(size * 8)]

    changes = fingerprints(column(flipped), 3) ^ np.uint64(fingerprint(base, 3))
    bits = (changes[:, None] >> np.arange(FINGERPRINT_BITS, dtype=np.uint64)) & np.uint64(1)

    assert (bits.sum(axis=1) >= 6).all()
    assert abs(bits.mean() - 0.5) < 0.05
    assert (abs(bits.mean(axis=0) - 0.5) < 0.3).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda n: b"%d" % n,
        lambda n: b"order-%012d" % n,
        lambda n: n.to_bytes(16, "big"),
        lambda n: n.to_bytes(16, "little"),
        lambda n: (n << 100).to_bytes(16, "little"),
        lambda n: (n & 255).to_bytes(8, "big") + (n >> 8).to_bytes(8, "big"),
    ],
)
def test_regular_ids_spread_over_the_fingerprints_as_random_ones_do(make):
    count = 200_000
    fps = fingerprints(column([make(n) for n in range(count)]), 11)

    # Of 200 000 random numbers below 2^40 about 0.02 pairs are equal.
    assert len(np.unique(fps)) >= count - 2
    for shift in (0, 12, FINGERPRINT_BITS - 10):
        filled = np.bincount((fps >> np.uint64(shift) & np.uint64(1023)).astype(np.int64))
        # A thousand cells of about 195 ids: chi-squared per cell is 1, give or take 0.05.
        assert abs(((filled - count / 1024) ** 2 / (count / 1024)).mean() - 1) < 0.25
