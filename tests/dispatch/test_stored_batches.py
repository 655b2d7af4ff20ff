"""A stored batch comes out as it went in, or not at all."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.dispatch.core.identity import uuids_from
from waterclock.dispatch.core.stored_batches import (
    Backlog,
    BadStoredBatch,
    StoredBatch,
    parse_stored_batch,
)

stored_batches = st.builds(
    StoredBatch,
    st.binary(min_size=10, max_size=10),
    st.integers(0, 1 << 47),
    st.integers(0, 1 << 50),
    st.lists(st.binary(max_size=20), min_size=1, max_size=20),
)
ONE = StoredBatch(b"0123456789", 3, 5, [b"{}", b""])
ONE_BYTES = (
    "7770 01 30313233343536373839 0000000000000003 0000000000000005 00000002"
    "00000002 00000000 7b7d 8da73301"
)


def test_a_stored_batch_has_these_bytes():
    assert ONE.to_bytes() == bytes.fromhex(ONE_BYTES)


def test_a_stored_batch_is_named_after_its_first_message():
    assert ONE.uuids() == uuids_from(ONE.prefix, 3, 2)
    assert ONE.stored_id == ONE.uuids()[0]


@given(stored_batches)
def test_stored_batches_come_out_as_they_went_in(stored_batch):
    assert parse_stored_batch(stored_batch.to_bytes()) == stored_batch


@given(st.binary(max_size=100))
def test_noise_is_no_stored_batch(raw):
    with pytest.raises(BadStoredBatch):
        parse_stored_batch(raw)


def test_a_damaged_batch_is_refused():
    rng, raw = Random(17), ONE.to_bytes()
    for _ in range(2_000):
        damaged = bytearray(raw)
        damaged[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        with pytest.raises(BadStoredBatch):
            parse_stored_batch(bytes(damaged[: rng.randrange(1, len(raw) + 1)]))


def test_the_backlog_gives_back_oldest_first_what_there_is_room_for():
    backlog = Backlog(100)
    backlog.hold(b"a", 40)
    backlog.hold(b"b", 40)
    assert backlog.room == 20
    backlog.hold(b"d", 40)

    assert (backlog.messages, backlog.room) == (120, 0)
    assert backlog.take(0) == []
    assert backlog.take(41) == [b"a", b"b"]
    assert backlog.take(1) == [b"d"]
    assert not backlog
    assert backlog.messages == 0
