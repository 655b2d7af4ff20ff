"""Columns made of buffers are those Arrow makes itself, whatever is in them."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.log.arrays import as_numpy, filled, from_numpy
from waterclock.log.schema import (
    HEADERS,
    binaries,
    binary_scalar,
    integers,
    maps,
    text_scalar,
    texts,
)

INT64S = st.integers(-(2**63), 2**63 - 1)
PAIRS = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3)


def same(made: pa.Array, expected: pa.Array) -> bool:
    made.validate(full=True)
    return bool(made.equals(expected)) and made.type == expected.type


@given(st.lists(st.none() | st.binary(max_size=9)))
def test_bytes_are_what_arrow_makes_of_them(values):
    assert same(binaries(values), pa.array(values, pa.binary()))


@given(st.lists(st.text(max_size=9)))
def test_text_is_what_arrow_makes_of_it(values):
    assert same(texts(values), pa.array(values, pa.string()))


@given(st.lists(st.none() | INT64S))
def test_whole_numbers_are_what_arrow_makes_of_them(values):
    assert same(integers(values), pa.array(values, pa.int64()))


@given(st.lists(st.none() | PAIRS))
def test_headers_are_what_arrow_makes_of_them(values):
    assert same(maps(values, HEADERS), pa.array(values, HEADERS))


@given(st.lists(st.booleans()), st.integers(0, 20))
def test_truth_values_come_back_also_of_a_slice(values, start):
    column = from_numpy(np.array(values, np.bool_))

    assert same(column, pa.array(values, pa.bool_()))
    assert as_numpy(column[start:]).tolist() == values[start:]


@pytest.mark.parametrize("kind", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_numbers_of_every_width_come_back_also_of_a_slice(kind):
    values = np.arange(10, dtype=kind)
    column = from_numpy(values[::2])

    assert same(column, pa.array(values[::2]))
    assert as_numpy(column[1:]).tolist() == [2, 4, 6, 8]
    assert as_numpy(pa.chunked_array([column, column[:1]])).tolist() == [0, 2, 4, 6, 8, 0]
    assert as_numpy(column[:0]).dtype == values.dtype


def test_nulls_are_filled_or_refused():
    assert as_numpy(filled(integers([1, None]), 7)).tolist() == [1, 7]
    assert as_numpy(filled(pa.array([None, True]), False)).tolist() == [False, True]
    with pytest.raises(ValueError, match="1 of 2 values are null"):
        as_numpy(integers([1, None]))


def test_what_is_of_another_type_is_refused():
    with pytest.raises(TypeError):
        binaries(["text"])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        integers([1.5])  # type: ignore[list-item]
    with pytest.raises(OverflowError):
        integers([2**63])
    with pytest.raises(TypeError, match="double is no whole number"):
        as_numpy(pa.array([1.5]))


def test_scalars_compare_with_columns():
    assert binary_scalar(b"a").equals(pa.scalar(b"a", pa.binary()))
    assert text_scalar("a").equals(pa.scalar("a", pa.string()))
