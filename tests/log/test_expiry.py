"""Until when a message is of use is read from a whole column, and frames say where to look."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.frames import LogBuilder, sample
from waterclock.log.append import split_by_due
from waterclock.log.batch import Batch, encode_batch, parse_batch
from waterclock.log.compaction import Rewriter, Survivors
from waterclock.log.expiry import HEADER, expires_ms, moved
from waterclock.log.frame import FLAG_EXPIRES, Frame, FrameType
from waterclock.log.scheduled import fired_frame, scheduled_rows
from waterclock.log.schema import decode, encode, from_messages
from waterclock.model.errors import BadBatch
from waterclock.model.ids import Millis
from waterclock.model.limits import Limits
from waterclock.model.message import Message

HEADERS = st.one_of(
    st.none(),
    st.dictionaries(st.sampled_from(["a", HEADER[:-1], "z"]), st.just(b"7"), max_size=3),
)
EXPIRIES = st.one_of(st.none(), st.integers(1, 10**18 - 1))


def message(number: int, headers: dict[str, bytes] | None, expires: int | None) -> Message:
    if expires is not None:
        headers = {**(headers or {}), HEADER: b"%d" % expires}
    return Message(b"v", message_id=b"%d" % number, headers=headers)


def batch_of(*messages: Message) -> Batch:
    return encode_batch(messages, Limits(), now_ms=1_000)


@given(st.lists(st.tuples(HEADERS, EXPIRIES), min_size=1, max_size=12), st.data())
def test_each_row_says_until_when_it_is_of_use(rows, data):
    batch = from_messages([message(i, *row) for i, row in enumerate(rows)])
    expected = [expires or 0 for _, expires in rows]

    assert expires_ms(batch).tolist() == expected
    start = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(start, len(rows)))
    assert expires_ms(batch.slice(start, end - start)).tolist() == expected[start:end]


@given(
    st.lists(st.tuples(HEADERS, EXPIRIES, st.integers(-(10**18), 10**18)), min_size=1, max_size=12),
    st.data(),
)
def test_it_moves_row_by_row_and_nothing_else_changes(rows, data):
    whole = from_messages([message(i, *row[:2]) for i, row in enumerate(rows)])
    start = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(start, len(rows)))
    batch, rows = whole.slice(start, end - start), rows[start:end]

    found = moved(batch, np.array([by for *_, by in rows], np.int64))

    found.validate(full=True)
    expected = batch.to_pylist()
    for row, (_, expires, by) in zip(expected, rows, strict=True):
        if expires is not None:
            end_ms = min(max(expires + by, 1), 10**18 - 1) if by else expires
            row["headers"] = [*row["headers"][:-1], (HEADER, b"%d" % end_ms)]
    assert found.to_pylist() == expected


@given(st.lists(st.tuples(HEADERS, EXPIRIES), min_size=1, max_size=6))
def test_a_batch_says_whether_one_may_expire(rows):
    batch = batch_of(*(message(i, *row) for i, row in enumerate(rows)))

    assert batch.may_expire == any(expires for _, expires in rows)
    assert parse_batch(batch.body, Limits(), now_ms=1_000).may_expire == batch.may_expire


@pytest.mark.parametrize(
    "text", [b"", b"-1", b"+5", b"1.5", b"0x10", b" 7", b"7\n", b"9" * 19, b"\xff", "٣".encode()]
)
def test_nonsense_is_refused_and_the_field_is_named(text):
    bad = Message(b"", message_id=b"1", headers={HEADER: text})

    with pytest.raises(BadBatch, match=HEADER):
        batch_of(Message(b"", message_id=b"0"), bad)


def test_a_null_value_is_refused():
    headers = pa.array([[(HEADER, None)]], pa.map_(pa.string(), pa.binary()))
    rows = from_messages([Message(b"", message_id=b"1")]).set_column(3, "headers", headers)

    with pytest.raises(BadBatch, match=HEADER):
        parse_batch(encode(rows), Limits(), now_ms=1_000)


def test_what_a_null_row_hides_does_not_count():
    shown = from_messages([message(0, None, 5), message(1, None, 6), message(2, {"a": b""}, None)])
    headers = shown.column("headers")
    entries = pa.StructArray.from_arrays([headers.keys, headers.items], ["key", "value"])
    hiding = pa.Array.from_buffers(
        headers.type, 3, [pa.py_buffer(b"\x05"), headers.buffers()[1]], children=[entries]
    )
    rows = shown.set_column(3, "headers", hiding)

    assert expires_ms(rows).tolist() == [5, 0, 0]


def test_the_flag_stays_with_the_messages_on_their_way():
    expiry = {HEADER: b"9000"}
    now = Message(b"", message_id=b"0", headers=expiry)
    later = Message(b"", message_id=b"1", headers=expiry, due_ms=Millis(5_000))
    plain = Message(b"", message_id=b"2", due_ms=Millis(5_000))

    parts = split_by_due(batch_of(now, later, plain), now_ms=1_000)
    assert [part.frame.flags for part in parts] == [FLAG_EXPIRES, FLAG_EXPIRES]
    (part,) = split_by_due(batch_of(plain), now_ms=1_000)
    assert part.frame.flags == 0
    selected = batch_of(now, later).select(np.array([False, True]))
    assert selected.may_expire


def scheduled_of(messages: list[Message]) -> Frame:
    log = LogBuilder(50)
    log.publish(messages)
    (frame,) = log.frames
    return frame


def test_fired_and_rewritten_messages_keep_the_flag():
    expiring = Message(b"v", message_id=b"e", headers={HEADER: b"9000"}, due_ms=Millis(5_000))
    frame = scheduled_of([sample(1, due_ms=5_000), expiring, sample(2, due_ms=5_000)])
    rows = decode(frame.header, frame.body)
    flagged = frame.header._replace(flags=FLAG_EXPIRES)

    fired = fired_frame(
        scheduled_rows([(flagged, rows, np.array([1]), np.array([0]))], np.array([51]))
    )
    assert (fired.kind, fired.flags) == (FrameType.FIRED, FLAG_EXPIRES)
    plain = fired_frame(
        scheduled_rows([(frame.header, rows, np.array([0]), np.array([0]))], np.array([50]))
    )
    assert plain.flags == 0

    survivors = Survivors(99, np.array([51]), np.zeros(0, np.int64), seen_from_ms=None)
    ((header, _),) = Rewriter(survivors, "none").rewrite([frame._replace(header=flagged)])
    assert header.may_expire
    assert header.is_sparse
