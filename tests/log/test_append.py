"""Every message of a batch lands once, in a frame of its kind, and its producer is told where."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.frames import messages, sample
from waterclock.log.append import Appended, Repeats, appended_of, assigned_offsets, split_by_due
from waterclock.log.batch import Batch, decode_untrusted, encode_batch
from waterclock.log.frame import CONTROL, FLAG_UNTRACKED, FrameType
from waterclock.log.schema import MESSAGES
from waterclock.model.ids import Millis, Offset
from waterclock.model.limits import Limits
from waterclock.model.message import Message

NOW_MS = 1_000
DUE = st.none() | st.sampled_from([0, 1, 999, 1_000, 1_001, 5_000]).map(Millis)
BATCHES = st.lists(messages(due=DUE), min_size=1, max_size=6)


def batch_of(*sent: Message) -> Batch:
    return encode_batch(sent, Limits(), now_ms=NOW_MS)


def is_later(message: Message) -> bool:
    return (message.due_ms or 0) > NOW_MS


@given(BATCHES, st.sampled_from([0, FLAG_UNTRACKED]), st.sampled_from(["none", "lz4", "zstd"]))
def test_a_batch_becomes_a_frame_of_what_is_due_then_one_of_scheduled_messages(
    sent, flags, compression
):
    parts = split_by_due(batch_of(*sent), now_ms=NOW_MS, flags=flags, compression=compression)

    due = [message for message in sent if not is_later(message)]
    later = [message for message in sent if is_later(message)]
    expected = [(FrameType.DATA, due), (FrameType.SCHEDULED, later)]
    assert [(part.frame.kind, part.frame.span, part.frame.rows) for part in parts] == [
        (kind, len(chosen), len(chosen)) for kind, chosen in expected if chosen
    ]
    assert [decode_untrusted(part.frame.body) for part in parts] == [
        batch_of(*chosen).rows for _, chosen in expected if chosen
    ]
    assert all(part.batch.rows.schema.equals(MESSAGES) for part in parts)
    assert all(part.frame.flags == flags and part.frame.kind not in CONTROL for part in parts)


@given(BATCHES, st.integers(0, 5_000))
def test_a_frame_knows_its_earliest_and_latest_due_time(sent, clock_was_ahead_ms):
    append_ms = NOW_MS + clock_was_ahead_ms

    for part in split_by_due(batch_of(*sent), now_ms=NOW_MS):
        times = [
            message.due_ms or append_ms
            for message in sent
            if is_later(message) == (part.frame.kind is FrameType.SCHEDULED)
        ]
        known = part.frame.min_due_ms or append_ms, part.frame.max_due_ms or append_ms
        assert known == (min(times), max(times))


@pytest.mark.parametrize("due_ms", [None, 5, NOW_MS + 1], ids=["none", "past", "later"])
def test_a_batch_of_one_kind_keeps_the_bytes_it_came_in(due_ms):
    batch = batch_of(sample(1, due_ms=due_ms), sample(2, due_ms=due_ms))

    (part,) = split_by_due(batch, now_ms=NOW_MS)

    assert part.batch is batch
    assert part.frame.body is batch.body
    assert part.row is None


@given(BATCHES, st.integers(0, 1_000))
def test_messages_land_in_the_order_of_the_frames_they_go_into(sent, base):
    parts = split_by_due(batch_of(*sent), now_ms=NOW_MS)

    offsets = assigned_offsets(parts, len(sent), base)

    order = sorted(range(len(sent)), key=lambda row: (is_later(sent[row]), row))
    expected = {row: base + place for place, row in enumerate(order)}
    assert list(offsets) == [expected[row] for row in range(len(sent))]


@given(BATCHES, st.dictionaries(st.sampled_from([b"a", b"b"]), st.integers(0, 99)))
def test_a_producer_is_told_where_each_message_is_be_it_new_or_a_repeat(sent, stored):
    first = {message.message_id: row for row, message in reversed(list(enumerate(sent)))}
    known = [stored.get(message.message_id or b"", -1) for message in sent]
    same = [first[m.message_id] if first[m.message_id] < row else -1 for row, m in enumerate(sent)]
    repeats = Repeats(np.array(known), np.array(same))
    batch = batch_of(*sent).select(repeats.is_new)

    written: range | np.ndarray = range(0)
    if batch.count:
        written = assigned_offsets(split_by_due(batch, now_ms=NOW_MS), batch.count, 100)
    answered = appended_of(repeats, written, 100 + batch.count)

    fresh = [row for row in range(len(sent)) if known[row] < 0 and same[row] < 0]
    places = dict(zip(fresh, list(written), strict=True))
    expected = [
        stored.get(message.message_id or b"", places.get(first[message.message_id], -1))
        for message in sent
    ]
    assert list(answered.offsets) == expected
    assert answered.is_new is not None
    assert np.flatnonzero(answered.is_new).tolist() == fresh
    assert (answered.new_count, answered.durable_at) == (len(fresh), max(expected) + 1)


def test_a_batch_without_repeats_is_durable_when_its_end_is():
    answered = appended_of(None, range(7, 10), 10)

    assert answered == Appended(range(7, 10), None, Offset(10))
    assert answered.new_count == 3


def test_a_repeat_is_no_safer_than_its_original():
    answered = appended_of(Repeats(np.array([40, 7]), np.array([-1, -1])), range(0), 100)

    assert (list(answered.offsets), answered.new_count, answered.durable_at) == ([40, 7], 0, 41)
