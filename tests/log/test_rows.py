"""Each row of a frame has the offset it was given, also after its neighbours are gone."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.frames import TAG, LogBuilder, sample
from waterclock.log.frame import FLAG_SPARSE, Frame, FrameType, encode_header, header_of, read_frame
from waterclock.log.schema import (
    OFFSET_DELTA,
    decode,
    encode,
    from_messages,
    row_numbers,
    row_offsets,
)
from waterclock.model.errors import OffsetOutOfRange

BASE = 1_000
SPAN = 12


def sparse_frame(deltas: list[int]) -> Frame:
    """Return a frame of which only the rows at these places are left."""
    rows = from_messages([sample(delta) for delta in deltas])
    rows = rows.append_column(OFFSET_DELTA, pa.array(deltas, OFFSET_DELTA.type))
    body = bytes(encode(rows))
    header = header_of(
        FrameType.DATA, body, base_offset=BASE, span=SPAN, rows=len(deltas), log_tag=TAG,
        append_ms=1, flags=FLAG_SPARSE,
    )  # fmt: skip
    return read_frame(encode_header(header) + body)


DELTAS = st.sets(st.integers(0, SPAN - 1), min_size=1).map(sorted)


@given(DELTAS, st.data())
def test_rows_left_in_a_frame_are_found_by_their_offsets_in_any_order(deltas, data):
    frame = sparse_frame(deltas)
    batch = decode(frame.header, frame.body)
    present = [BASE + delta for delta in deltas]
    asked = data.draw(st.lists(st.sampled_from(present), max_size=8))

    numbers = row_numbers(frame.header, batch, np.array(asked, np.int64))

    assert row_offsets(frame.header, batch).tolist() == present
    assert [present[number] for number in numbers.tolist()] == asked


@given(DELTAS, st.integers(0, SPAN - 1))
def test_an_offset_whose_row_is_gone_is_named(deltas, delta):
    frame = sparse_frame(deltas)
    batch = decode(frame.header, frame.body)
    asked = np.array([BASE + deltas[0], BASE + delta])

    if delta in deltas:
        assert row_numbers(frame.header, batch, asked).tolist() == [0, deltas.index(delta)]
    else:
        with pytest.raises(OffsetOutOfRange) as raised:
            row_numbers(frame.header, batch, asked)
        error = raised.value
        assert (error.offset, error.start, error.end) == (BASE + delta, BASE, BASE + SPAN)


def test_rows_of_a_frame_as_appended_stand_side_by_side():
    frame = LogBuilder(BASE).publish([sample(n) for n in range(4)])
    batch = decode(frame.header, frame.body)

    assert row_offsets(frame.header, batch).tolist() == [1_000, 1_001, 1_002, 1_003]
    assert row_numbers(frame.header, batch, np.array([1_003, 1_000])).tolist() == [3, 0]


def test_ids_seen_stand_where_their_messages_did():
    log = LogBuilder(BASE)
    log.noop(10)
    frame = log.seen([b"a", b"b"], [BASE + 2, BASE + 7])

    offsets = row_offsets(frame.header, decode(frame.header, frame.body))

    assert offsets.tolist() == [BASE + 2, BASE + 7]


@pytest.mark.parametrize("kind", ["noop", "epoch"])
def test_a_frame_without_rows_has_none_at_any_offset(kind):
    log = LogBuilder(BASE)
    frame = log.noop(3) if kind == "noop" else log.epoch()
    batch = decode(frame.header, frame.body)

    assert row_offsets(frame.header, batch).tolist() == []
    with pytest.raises(OffsetOutOfRange):
        row_numbers(frame.header, batch, np.array([BASE]))
