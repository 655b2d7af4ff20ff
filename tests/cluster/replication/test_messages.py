"""The bytes that replicas of a partition send each other."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.replication.lineage import EpochEnd
from waterclock.cluster.replication.messages import (
    BadMessage,
    Committed,
    Diverged,
    Fetch,
    Flushed,
    Frames,
    Leading,
    Message,
    Promise,
    Promised,
    Refused,
    TakeOver,
    TooOld,
    decode,
    encode,
)
from waterclock.model.ids import Epoch, Offset

LOG = bytes(range(16))
SEVEN = Epoch(7)
NUMBERS = st.integers(0, (1 << 63) - 1)
HEADS = (st.binary(min_size=16, max_size=16), NUMBERS)
ENDS = st.builds(EpochEnd, NUMBERS, NUMBERS)
MESSAGES = st.one_of(
    st.builds(Promise, *HEADS),
    st.builds(Promised, *HEADS, ENDS, st.booleans()),
    st.builds(Refused, *HEADS, NUMBERS),
    st.builds(TakeOver, *HEADS),
    st.builds(Leading, *HEADS),
    st.builds(Fetch, *HEADS, ENDS, NUMBERS),
    st.builds(Flushed, *HEADS, NUMBERS),
    st.builds(Frames, *HEADS, NUMBERS, NUMBERS, st.binary(max_size=50)),
    st.builds(Committed, *HEADS, NUMBERS),
    st.builds(Diverged, *HEADS, ENDS, ENDS),
    st.builds(TooOld, *HEADS, ENDS, NUMBERS),
)


def whole(message: Message) -> bytes:
    return b"".join(encode(message))


@given(MESSAGES)
def test_a_message_is_read_as_it_was_written(message):
    found = decode(whole(message))

    assert (type(found), found) == (type(message), message)


def test_messages_have_these_bytes():
    head = "000102030405060708090a0b0c0d0e0f0000000000000007"
    claim, answer = EpochEnd(Epoch(6), Offset(256)), EpochEnd(Epoch(5), Offset(255))

    assert whole(Promise(LOG, SEVEN)).hex() == "01" + head
    assert whole(Promised(LOG, SEVEN, claim, is_faulty=True)).hex() == (
        "02" + head + "0000000000000006000000000000010001"
    )
    assert whole(Frames(LOG, SEVEN, Offset(256), Offset(255), b"frames")) == (
        bytes.fromhex("08" + head + "000000000000010000000000000000ff") + b"frames"
    )
    assert whole(Diverged(LOG, SEVEN, claim, answer)).hex() == (
        "0a" + head + "00000000000000060000000000000100000000000000000500000000000000ff"
    )


def test_frames_are_not_copied():
    data = bytearray(b"x" * 100)

    frames = Frames(LOG, SEVEN, Offset(0), Offset(0), data)
    assert encode(frames)[1] is data
    received = whole(frames)
    found = decode(received)
    assert isinstance(found, Frames)
    assert isinstance(found.data, memoryview)
    assert found.data.obj is received


@given(MESSAGES, st.integers(0, 80), st.binary(max_size=20))
def test_any_bytes_are_a_message_or_one_error(message, cut, noise):
    data = whole(message)[:cut] + noise
    with suppress(BadMessage):
        assert whole(decode(data)) == data


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x0c" + LOG + bytes(8), b"\x01" + LOG])
def test_a_message_of_another_kind_or_size_is_refused(data):
    with pytest.raises(BadMessage, match="a message of kind"):
        decode(data)


def test_a_number_that_no_log_has_is_refused():
    with pytest.raises(BadMessage, match="an epoch or offset of 9223372036854775808"):
        decode(b"\x01" + LOG + (1 << 63).to_bytes(8))
