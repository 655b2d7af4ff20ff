"""Batches as other Arrow writers may lay them out: valid, though ours never look like that."""

import numpy as np
import pyarrow as pa
import pytest

from tests.log.arrow_message import ArrowMessage
from tests.log.frames import NOW_MS, sample
from waterclock.log.batch import parse_batch
from waterclock.log.schema import MESSAGES, encode, from_messages
from waterclock.model.errors import BadBatch, LimitExceeded
from waterclock.model.limits import Limits
from waterclock.model.message import Message

LIMITS = Limits()

# First buffer of each column of a batch; behind it are its offsets, then its bytes.
ID, KEY, VALUE, HEADERS, NAMES, HEADER_VALUES = 0, 3, 6, 9, 12, 15
PAIRS_NODE, HEADER_VALUES_NODE = 4, 6


def forged(*messages: Message) -> ArrowMessage:
    """Return an uncompressed batch, open for changes."""
    return ArrowMessage(encode(from_messages(messages)))


def parsed(message: ArrowMessage, limits: Limits = LIMITS) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = parse_batch(
        bytes(message.data), limits, now_ms=NOW_MS
    ).rows.to_pylist()
    return rows


def offsets_at(message: ArrowMessage, buffer: int) -> int:
    """Return where the offsets of a column lie."""
    return message.body + message.number("<q", message.buffers()[buffer + 1])


def test_values_need_not_start_at_the_beginning_of_their_bytes():
    message = forged(Message(b"0123456", message_id=b"a"), Message(b"89", message_id=b"b"))
    message.put("<i", offsets_at(message, VALUE), 5)

    assert [row["value"] for row in parsed(message)] == [b"56", b"89"]
    assert len(parsed(message, Limits(message_bytes_max=3))) == 2
    with pytest.raises(LimitExceeded, match="message bytes"):
        parsed(message, Limits(message_bytes_max=2))


def test_headers_need_not_start_at_the_first_pair():
    message = forged(
        Message(b"", message_id=b"a", headers={"long": b"12345", "b": b"1", "c": b"2"})
    )
    message.put("<i", offsets_at(message, HEADERS), 1)

    assert parsed(message)[0]["headers"] == [("b", b"1"), ("c", b"2")]
    assert len(parsed(message, Limits(header_bytes_max=4, headers_max=2))) == 1
    with pytest.raises(LimitExceeded, match="header bytes"):
        parsed(message, Limits(header_bytes_max=3))


def test_one_side_of_the_pairs_may_be_longer_than_any_message_refers_to():
    headers = {"a": b"1", "bb": b"22", "ccc": b"333", "dddd": b"4444"}
    message = forged(Message(b"", message_id=b"a", headers=headers))
    message.put("<i", offsets_at(message, HEADERS) + 4, 2)
    message.put("<q", message.nodes()[PAIRS_NODE], 2)
    message.put("<q", message.nodes()[HEADER_VALUES_NODE], 2)

    assert parsed(message)[0]["headers"] == [("a", b"1"), ("bb", b"22")]
    assert len(parsed(message, Limits(header_bytes_max=6))) == 1
    with pytest.raises(LimitExceeded, match="header bytes"):
        parsed(message, Limits(header_bytes_max=5))


@pytest.mark.parametrize("column", [ID, KEY, VALUE, HEADERS, NAMES, HEADER_VALUES])
def test_a_buffer_of_offsets_may_be_longer_by_any_number_of_bytes(column):
    message = forged(sample(1), sample(2))
    length = message.buffers()[column + 1] + 8
    message.put("<q", length, message.number("<q", length) + 1)

    assert len(parsed(message)) == 2


def test_a_null_key_may_have_bytes():
    values = pa.array([b"111", b"222"], pa.binary())
    validity = pa.py_buffer(b"\x02")
    keys = pa.Array.from_buffers(pa.binary(), 2, [validity, *values.buffers()[1:]], null_count=1)
    rows = from_messages([sample(1), sample(2)])
    columns = [rows.column(0), keys, *rows.columns[2:]]
    body = encode(pa.record_batch(columns, schema=MESSAGES))

    assert parse_batch(body, LIMITS, now_ms=NOW_MS).rows.column("key").to_pylist() == [None, b"222"]


def test_null_due_times_may_hold_anything():
    times = pa.array([-1, 2**63 - 1, 77], pa.int64())
    validity = pa.py_buffer(b"\x04")
    due = pa.Array.from_buffers(pa.int64(), 3, [validity, times.buffers()[1]], null_count=2)
    rows = from_messages([sample(1), sample(2), sample(3)])
    body = encode(pa.record_batch([*rows.columns[:4], due], schema=MESSAGES))

    batch = parse_batch(body, LIMITS, now_ms=NOW_MS)

    assert batch.due_ms is not None
    assert batch.due_ms.tolist() == [0, 0, 77]


def test_columns_that_share_their_bytes_count_for_each():
    message = forged(Message(b"v" * 900, message_id=b"a", key=b"k" * 10))
    key, value = message.buffers()[KEY : KEY + 3], message.buffers()[VALUE : VALUE + 3]
    for mine, other in zip(key, value, strict=True):
        message.data[mine : mine + 16] = message.data[other : other + 16]

    assert parsed(message)[0]["key"] == b"v" * 900
    assert len(parsed(message, Limits(message_bytes_max=1_801))) == 1
    with pytest.raises(LimitExceeded, match="message bytes"):
        parsed(message, Limits(message_bytes_max=1_800))


def test_a_batch_whose_length_is_not_aligned_is_refused():
    message = forged(sample(1))
    length = message.field(message.message, 3)
    message.put("<q", length, message.number("<q", length) + 1)
    message.data.append(0)

    with pytest.raises(BadBatch, match="multiple of 8"):
        parsed(message)


@pytest.mark.parametrize("start", [0, 1, 7, 64])
def test_a_batch_may_lie_anywhere_in_the_bytes_received(start):
    body = bytes(encode(from_messages([sample(n, due_ms=5) for n in range(9)])))
    received = memoryview(bytes(start) + body + b"behind")[start : start + len(body)]

    batch = parse_batch(received, LIMITS, now_ms=NOW_MS)

    assert batch.rows.column("message_id").to_pylist() == [b"id-%d" % n for n in range(9)]
    assert batch.due_ms is not None
    assert np.array_equal(batch.due_ms, np.full(9, 5))
