"""Bodies come back row for row, whatever their compression; foreign bytes are safe or refused."""

import struct
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.damage import flipped, mangled
from tests.log.frames import TAG, messages, rows_of, sample
from waterclock.log.batch import decode_untrusted
from waterclock.log.frame import CONTROL, FLAG_SPARSE, FrameHeader, FrameType, header_of
from waterclock.log.schema import (
    MESSAGES,
    OFFSET_DELTA,
    SCHEDULED_OFFSET,
    decode,
    due_times,
    encode,
    from_messages,
    schema_of,
)
from waterclock.model.errors import BadBatch, FrameDamaged
from waterclock.model.ids import Millis
from waterclock.model.message import Message

COMPRESSIONS = pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
BATCHES = st.lists(messages(due=st.none() | st.integers(0, 9).map(Millis)), max_size=6)

OFFSETS, TIMES = [3, 4, 9], [10, 20, 30]
MESSAGE_ROWS = from_messages([sample(1), sample(2, due_ms=5), Message(None, message_id=b"gone")])
ROWS = {
    FrameType.DATA: MESSAGE_ROWS,
    FrameType.SCHEDULED: MESSAGE_ROWS,
    FrameType.FIRED: MESSAGE_ROWS.append_column(SCHEDULED_OFFSET, pa.array(OFFSETS, pa.int64())),
    FrameType.CANCEL: rows_of(FrameType.CANCEL, OFFSETS),
    FrameType.RESCHEDULE: rows_of(FrameType.RESCHEDULE, OFFSETS, TIMES),
    FrameType.SEEN: rows_of(FrameType.SEEN, [b"a", b"b", b"c"], OFFSETS, TIMES, [0, 1, 2]),
}  # fmt: skip


def header_for(kind: FrameType, body: memoryview, *, rows: int, flags: int = 0) -> FrameHeader:
    span = rows if kind not in CONTROL else 1
    return header_of(
        kind, body, base_offset=0, span=span, rows=rows, log_tag=TAG, append_ms=1, flags=flags
    )


@COMPRESSIONS
@pytest.mark.parametrize("kind", ROWS)
def test_rows_of_every_type_come_back_and_the_body_alone_tells_its_compression(kind, compression):
    rows = ROWS[kind]

    body = encode(rows, compression)

    assert len(body) % 8 == 0
    assert decode(header_for(kind, body, rows=len(rows)), body).equals(rows)


@COMPRESSIONS
@pytest.mark.parametrize("kind", [FrameType.DATA, FrameType.SCHEDULED, FrameType.FIRED])
def test_rows_of_a_sparse_frame_say_where_they_stand(kind, compression):
    rows = ROWS[kind].append_column(OFFSET_DELTA, pa.array([0, 7, 16_777_215], OFFSET_DELTA.type))

    body = encode(rows, compression)

    header = header_of(
        kind, body, base_offset=0, span=1 << 24, rows=3, log_tag=TAG, append_ms=1, flags=FLAG_SPARSE
    )
    assert decode(header, body).equals(rows)
    assert schema_of(kind, FLAG_SPARSE).names == [*schema_of(kind).names, "offset_delta"]


@pytest.mark.parametrize("kind", [FrameType.EPOCH, FrameType.NOOP])
def test_a_frame_without_a_body_has_no_rows(kind):
    header = header_of(kind, b"", base_offset=0, span=1, rows=0, log_tag=TAG, append_ms=1)

    assert len(decode(header, memoryview(b""))) == 0


@COMPRESSIONS
@given(batch=BATCHES)
def test_any_messages_come_back_as_they_were_sent(batch, compression):
    rows = decode_untrusted(encode(from_messages(batch), compression))

    assert rows.schema.equals(MESSAGES)
    back = [
        Message(
            row["value"],
            key=row["key"],
            message_id=row["message_id"],
            headers=None if row["headers"] is None else dict(row["headers"]),
            due_ms=row["due_ms"],
        )
        for row in rows.to_pylist()
    ]
    assert back == batch


@COMPRESSIONS
@given(batch=BATCHES, data=st.data())
def test_a_slice_comes_back_as_it_was(batch, data, compression):
    rows = from_messages(batch)
    part = rows.slice(data.draw(st.integers(0, len(batch))), data.draw(st.integers(0, 6)))

    body = encode(part, compression)

    assert decode_untrusted(body).equals(part)


@COMPRESSIONS
def test_neighbours_of_a_slice_are_not_stored(compression):
    secret = Random(1).randbytes(10_000)
    rows = from_messages([Message(secret, message_id=secret), sample(1), Message(secret)])

    assert len(encode(rows.slice(1, 1), compression)) < 2_000


def test_rows_that_are_not_as_many_as_the_header_says_are_damage():
    body = encode(ROWS[FrameType.CANCEL])

    with pytest.raises(FrameDamaged, match="has 3 rows, not 2"):
        decode(header_for(FrameType.CANCEL, body, rows=2), body)


@pytest.mark.parametrize("body", [b"", b"not arrow", bytes(64), bytes(encode(MESSAGE_ROWS))[:40]])
def test_a_checked_body_that_is_no_record_batch_is_damage(body):
    data = memoryview(body)

    with pytest.raises(FrameDamaged):
        decode(header_for(FrameType.DATA, data, rows=3), data)


def test_a_message_without_an_id_is_refused_by_name():
    body = encode(from_messages([sample(1), Message(b"anonymous")]))

    with pytest.raises(BadBatch, match="message_id"):
        decode_untrusted(body)


def test_other_columns_are_refused():
    body = encode(ROWS[FrameType.SEEN])

    with pytest.raises(BadBatch):
        decode_untrusted(body)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data):
    for body in (data, struct.pack("<Ii", 0xFFFFFFFF, len(data)) + data):
        with pytest.raises(BadBatch):
            decode_untrusted(body)


def test_every_flipped_bit_leaves_a_valid_batch_or_is_refused():
    body = bytes(encode(from_messages([sample(1), sample(2, due_ms=5)])))

    for bit in range(len(body) * 8):
        check_safe(flipped(body, bit))


@pytest.mark.parametrize(
    ("compression", "count"), [("none", 10_000), ("lz4", 2_000), ("zstd", 2_000)]
)
def test_thousands_of_mangled_bodies_are_valid_batches_or_refused(compression, count):
    body = bytes(
        encode(from_messages([sample(n, due_ms=n or None) for n in range(5)]), compression)
    )
    random = Random(f"schema {compression}")

    survived = sum(check_safe(mangled(body, random)) for _ in range(count))

    assert survived > count // 20


def check_safe(body: bytes) -> bool:
    """Read every row that is let through; say if some were."""
    try:
        rows = decode_untrusted(body)
    except BadBatch:
        return False
    rows.validate(full=True)
    assert rows.column("message_id").null_count == 0
    # Reads each offset and each byte it points to: an out-of-bounds one would crash right here.
    assert len(rows.to_pylist()) == len(rows)
    return True


@given(st.lists(st.none() | st.integers(0, 2**63 - 1), max_size=5), st.integers(0, 5))
def test_due_times_are_zero_where_none_was_given(due, start):
    rows = from_messages([Message(b"", message_id=b"a", due_ms=time) for time in due])

    assert due_times(rows).tolist() == [time or 0 for time in due]
    assert due_times(rows.slice(start)).tolist() == [time or 0 for time in due[start:]]
