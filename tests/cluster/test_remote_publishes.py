"""Publishes between nodes in bytes: what is said comes back; any bytes are these or an error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.remote_calls import Failure
from waterclock.cluster.remote_publishes import (
    BadPublish,
    Cutter,
    PublishHead,
    SentBatch,
    StoredBatch,
)

numbers = st.integers(0, 2**64 - 1)
offsets = st.integers(-(2**63), 2**63 - 1)
BYTES_MAX = 1 << 20


def cut(data, size=BYTES_MAX):
    cutter = Cutter(BYTES_MAX)
    return [one for at in range(0, len(data), size) for one in cutter.feed(data[at : at + size])]


def test_a_publish_is_these_bytes():
    assert PublishHead("orders", 3).encode() == b"\x01\x00\x00\x00\x03\x00\x06orders"
    batch = SentBatch(7, allow_duplicate=True, acks="leader", body=b"abc")
    assert batch.encode() == b"\x00\x00\x00\x0c" + b"\0" * 7 + b"\x07\x03abc"
    stored = StoredBatch(7, range(5, 8))
    assert stored.encode() == (
        b"\x00\x00\x00\x15" + b"\0" * 7 + b"\x07\x00" b"\x00\x00\x00\x03" + b"\0" * 7 + b"\x05"
    )  # fmt: skip


@given(st.text(max_size=40), st.integers(0, 2**32 - 1), st.binary())
def test_a_head_is_read_as_it_was_written(topic, partition, rest):
    head = PublishHead(topic, partition)
    data = head.encode()

    assert PublishHead.decode(data + rest) == (head, len(data))
    for size in range(len(data)):
        with pytest.raises(BadPublish):
            PublishHead.decode(data[:size])


@given(
    st.lists(
        st.builds(
            SentBatch,
            numbers,
            st.booleans(),
            st.sampled_from(["quorum", "leader", "all"]),
            st.binary(max_size=40),
        )
    ),
    st.integers(1, 30),
)
def test_batches_are_whole_however_they_are_cut(batches, size):
    data = b"".join(batch.encode() for batch in batches)

    assert [SentBatch.of(*one) for one in cut(data, size)] == batches


@given(numbers, st.lists(st.tuples(offsets, st.booleans()), min_size=1, max_size=50))
def test_where_messages_are_is_read_as_it_was_written(number, rows):
    listed, is_new = np.array([at for at, _ in rows]), np.array([new for _, new in rows])
    (one,) = cut(StoredBatch(number, listed, is_new).encode())

    stored = StoredBatch.of(*one)

    assert stored.number == number
    assert stored.offsets is not None
    assert np.array_equal(stored.offsets, listed)
    if stored.is_new is None:
        assert is_new.all()
    else:
        assert np.array_equal(stored.is_new, is_new)


def test_a_range_and_a_failure_are_read_as_they_were_written():
    for stored in (
        StoredBatch(1, range(10, 1_010)),
        StoredBatch(2, failure=Failure("full", "StorageFull")),
    ):
        (one,) = cut(stored.encode())
        assert StoredBatch.of(*one) == stored


@given(st.binary(max_size=120))
def test_any_bytes_are_batches_and_answers_or_an_error(data):
    for read in (SentBatch.of, StoredBatch.of):
        try:
            for one in cut(data):
                read(*one)
        except BadPublish:
            continue
    try:
        PublishHead.decode(data)
    except BadPublish:
        return


def test_a_batch_that_is_too_long_is_refused_before_it_has_come():
    with pytest.raises(BadPublish, match="too many"):
        cut((BYTES_MAX + 10).to_bytes(4, "big") + bytes(20))
