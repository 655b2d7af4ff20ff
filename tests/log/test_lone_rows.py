import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from waterclock.log.batch import encode_batch, parse_batch
from waterclock.log.lone_message import lone_id
from waterclock.log.lone_rows import LoneRows
from waterclock.log.schema import MESSAGES, encode, from_messages
from waterclock.model.limits import Limits
from waterclock.model.message import Message

NOW_MS = 1_000
LIMITS = Limits()
plain = st.builds(
    Message,
    st.binary(max_size=40),
    key=st.binary(max_size=20),
    message_id=st.binary(min_size=1, max_size=20),
)
others = st.builds(
    Message,
    st.none() | st.binary(max_size=9),
    key=st.none() | st.binary(max_size=9),
    message_id=st.binary(min_size=1, max_size=9),
    headers=st.none() | st.dictionaries(st.text(max_size=3), st.binary(max_size=9), max_size=2),
    due_ms=st.none() | st.integers(1, 5_000),
)


def batch_of(messages: list[Message]):
    return encode_batch(messages, LIMITS, now_ms=NOW_MS)


@given(st.lists(plain, min_size=1, max_size=12) | st.lists(others, min_size=1, max_size=12))
def test_a_lone_row_is_what_the_batch_has_there_and_a_batch_that_a_producer_could_have_sent(
    messages,
):
    batch = batch_of(messages)
    lone = LoneRows(batch)

    for number in range(batch.count):
        row = lone.row(number)
        expected = batch.rows.slice(number, 1)
        assert row.rows.equals(expected)
        assert (row.count, row.first_id) == (1, messages[number].message_id)
        assert parse_batch(bytes(row.body), LIMITS, now_ms=NOW_MS).rows.equals(expected)
        assert (row.due_ms is None) == (batch.due_ms is None)
        assert row.due_ms is None or row.due_ms.tolist() == [batch.due_ms[number]]
        assert row.may_expire == batch.may_expire


@given(st.lists(plain | others, min_size=1, max_size=4), st.sampled_from(["none", "zstd"]))
def test_the_id_of_a_lone_row_is_read_from_its_bytes_or_left_to_arrow(messages, compression):
    body = memoryview(bytes(encode(from_messages(messages), compression)))
    is_plain = all(
        m.key is not None and m.value is not None and m.headers is None and m.due_ms is None
        for m in messages
    )

    found = lone_id(body)

    if len(messages) == 1 and is_plain and compression == "none":
        assert found == messages[0].message_id
    else:
        assert found is None


@given(plain, st.data())
def test_bytes_that_are_no_lone_row_are_left_to_arrow_or_have_an_id_within_them(message, data):
    body = bytearray(encode(from_messages([message])))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))

    found = lone_id(memoryview(bytes(body[: data.draw(st.integers(0, len(body)))])))

    assert found is None or found in bytes(body)


@given(plain)
def test_a_lone_row_has_the_bytes_that_arrow_would_write(message):
    batch = batch_of([Message(b"before", key=b"b", message_id=b"b"), message])

    assert bytes(LoneRows(batch).row(1).body) == bytes(encode(from_messages([message])))


def test_nothing_of_its_neighbours_is_left_in_a_lone_row():
    neighbour = Message(b"secret", key=b"secret", message_id=b"secret")
    batch = batch_of([neighbour, Message(b"v", key=b"k", message_id=b"i"), neighbour])

    assert b"secret" not in bytes(LoneRows(batch).row(1).body)


def test_rows_of_a_batch_whose_first_byte_is_not_its_buffers_first_are_found():
    rows = from_messages([Message(b"value", key=b"key", message_id=b"id")] * 3).slice(1)
    columns = [
        pa.Array.from_buffers(
            pa.binary(), 2, [None, pa.py_buffer(np.array([3, 5, 9], np.int32)), pa.py_buffer(text)]
        )
        for text in (b"...idtwo!", b"...k1key2", b"...v1val2")
    ]
    rows = pa.record_batch([*columns, *rows.columns[3:]], schema=MESSAGES)
    batch = parse_batch(bytes(encode(rows)), LIMITS, now_ms=NOW_MS)

    found = [LoneRows(batch).row(number).rows.to_pylist()[0] for number in (0, 1)]

    assert [(row["message_id"], row["key"]) for row in found] == [
        (b"id", b"k1"),
        (b"two!", b"key2"),
    ]
