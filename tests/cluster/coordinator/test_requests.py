"""Ranges hold what they say, and what no coordinator takes is refused before it is sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.coordinator.requests import (
    OPERATIONS_MAX,
    REQUEST_BYTES_MAX,
    Delete,
    Get,
    KeyRange,
    Put,
    Revision,
    Txn,
    Unchanged,
    all_below,
    one_key,
)
from waterclock.model.errors import BadInput, LimitExceeded

KEYS = st.binary(min_size=1, max_size=4) | st.lists(
    st.sampled_from([b"a", b"\xfe", b"\xff"]), min_size=1, max_size=4
).map(b"".join)


@given(KEYS, KEYS)
def test_a_range_of_one_key_holds_that_key_alone(key, other):
    assert (other in one_key(key)) == (other == key)


@given(KEYS.filter(lambda key: key.strip(b"\xff")), KEYS)
def test_a_range_below_a_prefix_holds_what_begins_so(prefix, other):
    assert (other in all_below(prefix)) == other.startswith(prefix)


def test_a_prefix_that_no_range_can_end_behind_is_refused():
    with pytest.raises(BadInput):
        all_below(b"\xff")


def put_all(count: int) -> tuple[Put, ...]:
    return tuple(Put(b"%d" % number, b"") for number in range(count))


def test_a_transaction_has_at_most_128_operations_in_each_part():
    unchanged = tuple(Unchanged(each.key, Revision(0)) for each in put_all(OPERATIONS_MAX))
    Txn(unchanged, put_all(OPERATIONS_MAX), put_all(OPERATIONS_MAX))

    for part in ("conditions", "success", "failure"):
        operations = unchanged + unchanged if part == "conditions" else put_all(129)
        with pytest.raises(LimitExceeded, match="operations exceeds its limit of 128"):
            Txn(**{part: operations})  # type: ignore[arg-type]


def test_a_transaction_has_at_most_a_mebibyte():
    Txn(success=(Put(b"k", bytes(REQUEST_BYTES_MAX - 1)),))

    with pytest.raises(LimitExceeded, match="bytes exceeds its limit"):
        Txn(success=(Put(b"k", bytes(REQUEST_BYTES_MAX)),))


@pytest.mark.parametrize(
    "operations",
    [
        (Put(b"k", b"1"), Put(b"k", b"2")),
        (Put(b"k", b"1"), Delete(one_key(b"k"))),
        (Delete(all_below(b"k")), Put(b"key", b"1")),
    ],
)
def test_a_key_written_twice_in_a_transaction_is_refused(operations):
    with pytest.raises(BadInput, match="two operations"):
        Txn(success=operations)


@pytest.mark.parametrize(
    "operation", [Put(b"", b""), Get(KeyRange(b"b", b"a")), Delete(KeyRange(b"", b"a"))]
)
def test_an_empty_key_and_a_range_without_keys_are_refused(operation):
    with pytest.raises(BadInput, match="empty"):
        Txn(failure=(operation,))
