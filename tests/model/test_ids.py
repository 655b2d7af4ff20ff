"""UUIDv7 ids: the bits RFC 9562 prescribes, and the order and uniqueness we promise."""

from itertools import pairwise
from uuid import RFC_4122, UUID

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from waterclock.model.ids import UUID7_ENTROPY_BYTES, Millis, uuid7, uuid7_batch

times = st.integers(0, 2**48 - 1).map(Millis)
entropies = st.binary(min_size=UUID7_ENTROPY_BYTES, max_size=16)
LEAST, MOST = b"\x00" * UUID7_ENTROPY_BYTES, b"\xff" * UUID7_ENTROPY_BYTES


def rows(ids) -> list[bytes]:
    return [row.tobytes() for row in ids]


@given(times, entropies)
def test_an_id_has_the_version_and_variant_of_the_rfc(now_ms, entropy):
    parsed = UUID(bytes=uuid7(now_ms, entropy))

    assert (parsed.version, parsed.variant) == (7, RFC_4122)


@given(times, entropies)
def test_an_id_begins_with_its_time(now_ms, entropy):
    assert int.from_bytes(uuid7(now_ms, entropy)[:6]) == now_ms


@given(times, times, entropies, entropies)
def test_ids_of_a_later_millisecond_sort_later(one_ms, other_ms, entropy, other_entropy):
    earlier, later = sorted([one_ms, other_ms])

    if earlier < later:
        assert uuid7(earlier, entropy) < uuid7(later, other_entropy)


@given(times, st.integers(0, 500), entropies)
def test_a_batch_is_rows_of_ids_in_strictly_rising_order(now_ms, count, entropy):
    ids = uuid7_batch(now_ms, count, entropy)
    texts = rows(ids)

    assert (ids.shape, ids.dtype) == ((count, 16), np.dtype(np.uint8))
    assert all(before < after for before, after in pairwise(texts))
    assert all(UUID(bytes=text).version == 7 for text in texts)
    assert all(UUID(bytes=text).variant == RFC_4122 for text in texts)
    assert all(int.from_bytes(text[:6]) == now_ms for text in texts)


@given(times, entropies)
def test_a_batch_of_one_is_the_single_id(now_ms, entropy):
    assert rows(uuid7_batch(now_ms, 1, entropy)) == [uuid7(now_ms, entropy)]


def test_a_huge_batch_from_the_greatest_start_still_rises_without_repeats():
    ids = rows(uuid7_batch(Millis(2**48 - 1), 300_000, MOST))

    assert len(set(ids)) == 300_000
    assert ids == sorted(ids)
    assert UUID(bytes=ids[-1]).variant == RFC_4122


def test_chance_fills_exactly_the_bits_that_are_free():
    zeros, ones = uuid7(Millis(0), LEAST), uuid7(Millis(0), MOST)

    differing = int.from_bytes(zeros) ^ int.from_bytes(ones)
    assert differing == 0xFFF << 64 | (1 << 61) - 1


def test_ids_are_a_function_of_their_arguments():
    # Bytes worked out by hand from RFC 9562, section 5.7.
    expected = bytes.fromhex("0190a1b2c3d47abc9234567890abcdef")

    assert uuid7(Millis(0x0190A1B2C3D4), bytes.fromhex("fabcf234567890abcdef")) == expected
