"""Frames that speak of scheduled messages say exactly which, and a fired message is the scheduled
one."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.frames import LogBuilder, messages, sample
from waterclock.log.append import PlannedFrame
from waterclock.log.compaction import Rewriter, Survivors
from waterclock.log.frame import CONTROL, Frame, FrameType, header_of
from waterclock.log.scheduled import (
    FoundRows,
    cancel_frame,
    fired_frame,
    reschedule_frame,
    scheduled_rows,
)
from waterclock.log.schema import decode, row_numbers
from waterclock.model.errors import BadInput
from waterclock.model.ids import Millis

DUE = st.integers(2_000, 3_000).map(Millis)


def found_in(frames: list[Frame], offsets: list[int]) -> list[FoundRows]:
    """Answer as a reader does: per frame, which rows are asked for and which ask each is."""
    found = []
    for frame in frames:
        span = range(frame.header.base_offset, frame.header.end_offset)
        asks = [ask for ask, offset in enumerate(offsets) if offset in span]
        if asks:
            rows = np.array([offsets[ask] - span.start for ask in asks])
            found.append((frame.header, decode(frame.header, frame.body), rows, np.array(asks)))
    return found


def rows_of(planned: PlannedFrame) -> pa.RecordBatch:
    header = header_of(
        planned.kind, planned.body, base_offset=0, span=planned.span, rows=planned.rows,
        log_tag=0, append_ms=0,
    )  # fmt: skip
    return decode(header, planned.body)


@given(
    st.lists(st.lists(messages(due=DUE), min_size=1, max_size=3), min_size=1, max_size=3),
    st.data(),
    st.sampled_from(["none", "lz4", "zstd"]),
)
def test_scheduled_messages_fire_in_the_order_asked_whatever_frames_they_lie_in(
    batches, data, compression
):
    log = LogBuilder(50)
    for batch in batches:
        log.publish(batch)
        log.epoch()
    offsets = data.draw(st.lists(st.sampled_from(sorted(log.scheduled)), min_size=1, unique=True))

    planned = fired_frame(
        scheduled_rows(found_in(log.frames, offsets), np.array(offsets)), compression
    )

    scheduled = [log.scheduled[offset] for offset in offsets]
    rows = rows_of(planned).to_pylist()
    assert [row["scheduled_offset"] for row in rows] == offsets
    assert [(r["message_id"], r["key"], r["value"], r["due_ms"]) for r in rows] == [
        (message.message_id, message.key, message.value, message.due_ms) for message in scheduled
    ]
    assert [None if r["headers"] is None else dict(r["headers"]) for r in rows] == [
        message.headers for message in scheduled
    ]
    due = [message.due_ms or 0 for message in scheduled]
    assert (planned.kind, planned.span, planned.rows) == (FrameType.FIRED, *[len(offsets)] * 2)
    assert (planned.min_due_ms, planned.max_due_ms) == (min(due), max(due))


def test_scheduled_messages_left_in_a_thinned_frame_fire_like_any_other():
    log = LogBuilder(50)
    log.publish([sample(n, due_ms=5_000 + n) for n in range(4)])
    left = np.array([51, 53])
    survivors = Survivors(99, left, np.zeros(0, np.int64), seen_from_ms=None)
    ((header, body),) = Rewriter(survivors, "none").rewrite(log.frames)
    rows = decode(header, body)
    asked = np.array([53, 51])

    planned = fired_frame(
        scheduled_rows([(header, rows, row_numbers(header, rows, asked), np.arange(2))], asked)
    )

    fired = rows_of(planned).to_pylist()
    assert [(row["value"], row["scheduled_offset"]) for row in fired] == [
        (b"value 3", 53),
        (b"value 1", 51),
    ]


def test_what_is_no_scheduled_message_does_not_fire():
    log = LogBuilder()
    log.publish([sample(0, due_ms=5_000)])
    log.publish([sample(1), sample(2)])

    with pytest.raises(BadInput, match="offset 2 is a DATA, not a scheduled message"):
        scheduled_rows(found_in(log.frames, [0, 2]), np.array([0, 2]))


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), max_size=5))
def test_cancelled_and_moved_scheduled_messages_are_listed_as_given(pairs):
    offsets = np.array([offset for offset, _ in pairs], np.int64)
    due_ms = np.array([due for _, due in pairs], np.int64)

    cancelled, moved = cancel_frame(offsets), reschedule_frame(offsets, due_ms)

    assert rows_of(cancelled).to_pydict() == {"scheduled_offset": offsets.tolist()}
    assert rows_of(moved).to_pydict() == {
        "scheduled_offset": offsets.tolist(),
        "due_ms": due_ms.tolist(),
    }
    for planned, kind in [(cancelled, FrameType.CANCEL), (moved, FrameType.RESCHEDULE)]:
        expected = PlannedFrame(kind, planned.body, 1, len(pairs), 0, 0)
        assert planned == expected
        assert planned.kind in CONTROL
