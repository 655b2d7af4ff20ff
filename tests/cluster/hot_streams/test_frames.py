"""The bytes that nodes send each other about split streams."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.hot_streams.frames import (
    PULL,
    Asked,
    BadPartition,
    Moved,
    decode_messages,
    decode_number,
    decode_report,
    decode_request,
    encode_asked,
    encode_keep,
    encode_messages,
    encode_number,
    encode_report,
)
from waterclock.cluster.hot_streams.split import Keep, Report

KEPT = Keep("höt", 7, 1_700_000_000_000, 1, 2, 100, ("root", "one", "two"), (5, 0, 7), (0, 9, 9))
MOVED = [Moved(b'{"a":1}', "id", 1_700_000_000_000, 0, 0), Moved(b"2", "", 5, 1_000, 9)]


def test_a_keep_is_read_as_it_was_written():
    assert decode_request(encode_keep(KEPT)) == KEPT


def test_a_keep_has_these_bytes():
    keep = KEPT._replace(stream="s", nodes=("a", "b"), loads=(1, 2), backlogs=(3, 4))

    assert encode_keep(keep).hex() == (
        "01" "0000000000000007" "0000018bcfe56800" "0001" "0002" "00000064" "0001" "73"
        "00000001" "00000003" "0001" "61" "00000002" "00000004" "0001" "62"
    )  # fmt: skip


def test_what_is_asked_is_read_as_it_was_written():
    asked = Asked(PULL, "hot", 500)

    assert encode_asked(asked) == b"\x04\x00\x00\x01\xf4hot"
    assert decode_request(encode_asked(asked)) == asked


def test_answers_are_read_as_they_were_written():
    report = Report(9, 1_000, 3, is_released=True)

    assert decode_report(encode_report(report)) == report
    assert decode_report(b"") is None
    assert decode_number(encode_number(70_000)) == 70_000
    assert decode_messages(encode_messages(MOVED, 12)) == (MOVED, 12)


def test_counts_that_contradict_each_other_are_refused():
    for write, read in ((0, 1), (2, 1), (1, 4)):
        with pytest.raises(BadPartition):
            decode_request(encode_keep(KEPT._replace(write=write, read=read)))


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (decode_request, encode_keep(KEPT)),
        (decode_messages, encode_messages(MOVED, 1)),
        (decode_report, encode_report(Report(1, 2, 3))),
    ],
)
@given(cut=st.integers(0, 200), noise=st.binary(max_size=40))
def test_any_bytes_are_something_or_one_error(decode, data, cut, noise):
    with suppress(BadPartition):
        decode(data[:cut] + noise)
