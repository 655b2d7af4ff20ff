import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.delivery import progress
from waterclock.delivery.cursor import Cursor
from waterclock.delivery.events import Reason
from waterclock.delivery.progress import (
    ROW,
    Past,
    Rows,
    decode_progress,
    empty_tracker,
    encode_progress,
    merged,
)
from waterclock.model.errors import BadInput
from waterclock.model.sections import DeliveryConfig

TRACKER = empty_tracker(5)
TRACKER.add(7, 9)
PAST = [(5, 6, Past(1, 77, None)), (9, 12, Past(4, 0, Reason.TIMED_OUT))]


def rows(past: list[tuple[int, int, Past]]) -> Rows:
    return np.array([(s, e, p.until_ms, p.failed, p.reason or 0) for s, e, p in past], ROW)


SAMPLE = encode_progress(TRACKER, rows(PAST))


GOLDEN = (
    "f357436701739c94f20400000001050202050000000000000006000000000000"
    "004d00000000000000010009000000000000000c000000000000000000000000"
    "0000000402"
)


def test_progress_survives():
    assert decode_progress(SAMPLE) == (TRACKER, PAST)


def test_times_are_moved_by_a_shift_but_where_there_is_none():
    shifted = encode_progress(TRACKER, rows(PAST), shift_ms=1_000)

    assert [past.until_ms for _, _, past in decode_progress(shifted)[1]] == [1_077, 0]


def test_the_bytes_are_those_of_version_1():
    assert SAMPLE.hex() == GOLDEN


@given(st.integers(0, len(SAMPLE) * 8 - 1))
def test_a_flipped_bit_is_seen(bit):
    damaged = bytearray(SAMPLE)
    damaged[bit // 8] ^= 1 << bit % 8

    with pytest.raises(BadInput):
        Cursor.decode(bytes(damaged), DeliveryConfig())


@given(st.integers(0, len(SAMPLE) - 1))
def test_a_missing_end_is_seen(length):
    with pytest.raises(BadInput):
        decode_progress(SAMPLE[:length])


@given(st.binary())
def test_other_bytes_are_refused(data):
    with pytest.raises(BadInput):
        decode_progress(data)


@pytest.mark.parametrize(
    "past",
    [
        [(5, 5, Past(1, 0, None))],
        [(9, 12, Past(1, 0, None)), (11, 13, Past(1, 0, None))],
    ],
)
def test_contradictions_are_refused(monkeypatch, past):
    monkeypatch.setattr(progress, "merged", lambda rows: rows)
    with pytest.raises(BadInput, match="contradicts"):
        decode_progress(encode_progress(TRACKER, rows(past)))


def test_nothing_is_known_of_offsets_behind_the_end_of_the_log():
    tracker = empty_tracker(5)
    tracker.add(7, 9)

    assert decode_progress(SAMPLE, log_end=20) == (TRACKER, PAST)
    assert decode_progress(SAMPLE, log_end=10) == (tracker, [PAST[0], (9, 10, PAST[1][2])])
    assert decode_progress(SAMPLE, log_end=8)[0].end == 8
    assert decode_progress(SAMPLE, log_end=3) == (empty_tracker(3), [])


def test_ranges_that_touch_and_say_the_same_are_one():
    same, other = Past(1, 77, None), Past(2, 77, None)
    found = merged(rows([(9, 12, same), (5, 6, same), (6, 9, same), (12, 13, other)]))

    assert found.tolist() == rows([(5, 12, same), (12, 13, other)]).tolist()
    assert merged(rows([])).tolist() == []
