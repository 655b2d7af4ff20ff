"""A batch of messages on its way into the log: checked once, then trusted.

`parse_batch` is the border: bytes from outside come in, and either a `Batch` whose every field is
within the named limits comes out, or an error that names the field and its limit. A batch keeps the
bytes it came in (`body`), so that the log can store them untouched, and Arrow views of them.
All checks work on whole columns; most are settled by one buffer's total length.

How large a batch will be once decoded is told without decoding it (`wire_size`): Arrow inflates
compressed buffers as it reads them, with no bound of its own, and a megabyte of ZSTD can become
gigabytes. Each compressed buffer starts with its inflated length, so the sum can be had from the
message's FlatBuffers metadata. No Python package reads that metadata (pyarrow keeps it opaque),
hence the lines at the end. Layout: Arrow columnar format, `Message.fbs`; FlatBuffers internals.
Only metadata version 5 (Arrow 1.0 and later) is taken: in version 4 Arrow also looks for a codec in
the message's custom metadata, where nobody would look who reads the specification.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import sub
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.arrays import from_numpy
from waterclock.log.expiry import HEADER as EXPIRES_HEADER
from waterclock.log.expiry import expires_ms, may_expire
from waterclock.log.schema import ARROW_ERRORS, MESSAGES, due_times, encode, from_messages
from waterclock.model.errors import BadBatch, LimitExceeded
from waterclock.model.ids import UUID7_ENTROPY_BYTES, Millis, uuid7_batch
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.model.sections import Compression

_ID, _KEY, _VALUE, _HEADERS, _DUE = range(5)
_FEW_ROWS = 16
_FEW_OFFSETS = [struct.Struct(f"<{rows + 1}i") for rows in range(_FEW_ROWS + 1)]
_BYTE_COLUMNS = 5
"""Id, key, value, and the names and values of headers."""

# Of Arrow's messages.
_U8 = struct.Struct("<B")
_U16 = struct.Struct("<H")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")
_BUFFER = struct.Struct("<qq")

_CONTINUATION = 0xFFFFFFFF
_PREFIX_BYTES = 8
_BUFFERS_MAX = 64
"""A batch of messages has 20 buffers; many more means the body is not ours."""

# Field numbers of the tables in Message.fbs.
_MESSAGE_VERSION, _MESSAGE_HEADER_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY_LENGTH = range(4)
_BATCH_LENGTH, _BATCH_BUFFERS, _BATCH_COMPRESSION = 0, 2, 3
_RECORD_BATCH = 3
_VERSION_5 = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages, encoded and decoded at once."""

    body: memoryview
    rows: pa.RecordBatch
    due_ms: npt.NDArray[np.int64] | None
    """Due time of each row, 0 where the producer gave none; None if it gave none at all."""
    may_expire: bool = False
    """Some rows say until when they are of use."""

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> pa.BinaryArray:
        """The message ids, never null."""
        return self.rows.column(_ID)

    @property
    def first_id(self) -> bytes:
        """The id of the first message."""
        found: bytes = self.ids[0].as_py()
        return found

    def select(self, keep: npt.NDArray[np.bool_], compression: Compression = "none") -> "Batch":
        """Return the rows where `keep` is true, encoded anew."""
        rows = self.rows.filter(from_numpy(keep))
        due = None if self.due_ms is None else self.due_ms[keep]
        return Batch(encode(rows, compression), rows, due, self.may_expire)

    def __repr__(self) -> str:
        return f"<Batch {self.count} messages, {len(self.body)} B>"


def parse_batch(body: bytes | memoryview, limits: Limits, *, now_ms: int) -> Batch:
    """Check a producer's bytes; raise BadBatch or LimitExceeded naming the field."""
    if len(body) > limits.batch_bytes_max:
        raise LimitExceeded("batch bytes", limits.batch_bytes_max, got=len(body))
    size = wire_size(body)
    _check_total(size, limits)
    rows = decode_untrusted(body)
    # Arrow tolerates bytes after the message; the log stores the body whole, so it may have none.
    if len(body) % 8:
        raise BadBatch("body", "has a length that is not a multiple of 8")
    return _checked(memoryview(body), rows, size, limits, now_ms)


def decode_untrusted(body: bytes | memoryview) -> pa.RecordBatch:
    """Return a producer's messages, proven safe to read, or raise BadBatch."""
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), MESSAGES)
        batch.validate(full=True)
    except ARROW_ERRORS as error:
        raise BadBatch("body", str(error)) from error
    if batch.column(0).null_count:
        raise BadBatch("message_id", "is null in some rows; every message needs an id")
    return batch


def encode_batch(
    messages: Sequence[Message],
    limits: Limits,
    *,
    now_ms: int,
    compression: Compression = "none",
    entropy: bytes = b"",
) -> Batch:
    """Build a batch from message objects, under the same limits as bytes from outside.

    If some have no id yet, bring `UUID7_ENTROPY_BYTES` fresh random bytes to make them from.
    """
    rows = from_messages(_identified(messages, now_ms, entropy))
    body = encode(rows, compression)
    if len(body) > limits.batch_bytes_max:
        raise LimitExceeded("batch bytes", limits.batch_bytes_max, got=len(body))
    # Our own bytes need no proof, and what is not compressed is no larger than they are.
    size = WireSize(len(rows), len(body)) if compression == "none" else wire_size(body)
    _check_total(size, limits)
    return _checked(body, rows, size, limits, now_ms)


def _identified(messages: Sequence[Message], now_ms: int, entropy: bytes) -> Sequence[Message]:
    """Return the messages, each with an id."""
    missing = sum(message.message_id is None for message in messages)
    if not missing:
        return messages
    if len(entropy) < UUID7_ENTROPY_BYTES:
        raise BadBatch("message_id", "is missing, and there is no entropy to make one from")
    made = iter(uuid7_batch(Millis(now_ms), missing, entropy))
    return [
        replace(message, message_id=next(made).tobytes()) if message.message_id is None else message
        for message in messages
    ]


def _check_total(size: "WireSize", limits: Limits) -> None:
    if size.decoded_bytes > limits.batch_bytes_max:
        raise LimitExceeded(
            "batch bytes (inflated)", limits.batch_bytes_max, got=size.decoded_bytes
        )
    if size.rows > limits.batch_messages_max:
        raise LimitExceeded("batch messages", limits.batch_messages_max, got=size.rows)


def _checked(
    body: memoryview, rows: pa.RecordBatch, size: "WireSize", limits: Limits, now_ms: int
) -> Batch:
    """Return a batch of rows that are safe to read, if every message is within the limits."""
    if not rows.num_rows:
        raise BadBatch("body", "has no messages")
    _check_sizes(rows, size.decoded_bytes, limits)
    headers = rows.column(_HEADERS)
    expires = headers.null_count < len(headers) and may_expire(rows)
    return Batch(body, rows, _due_times(rows, limits, now_ms), expires)


def _check_sizes(rows: pa.RecordBatch, decoded_bytes: int, limits: Limits) -> None:
    shortest, longest = _extremes(rows.column(_ID))
    if not shortest:
        raise BadBatch("message_id", "is empty in some rows; every message needs an id")
    if longest > limits.message_id_bytes_max:
        raise LimitExceeded("message_id bytes", limits.message_id_bytes_max, got=longest)
    keys = rows.column(_KEY)
    if keys.null_count < len(keys):
        _check_max("key bytes", _lengths(keys), limits.key_bytes_max)
    headers = rows.column(_HEADERS)
    if headers.null_count < len(headers):
        _check_headers(rows, limits)
    # Columns may share bytes, so that a message is larger than all that was sent.
    if decoded_bytes * _BYTE_COLUMNS > limits.message_bytes_max:
        _check_message_bytes(rows, limits)


def _check_headers(rows: pa.RecordBatch, limits: Limits) -> None:
    headers = rows.column(_HEADERS)
    counts, sizes = _lengths(headers), _header_bytes(headers)
    is_over = counts.max() > limits.headers_max or sizes.max() > limits.header_bytes_max
    if is_over and may_expire(rows):
        # A client has headers_max of its own: what it says of the expiry is not one of them.
        expires = expires_ms(rows)
        counts, sizes = counts.astype(np.int64), sizes.copy()
        for row in np.flatnonzero(expires):
            counts[row] -= 1
            sizes[row] -= len(EXPIRES_HEADER) + len(str(expires[row]))
    _check_max("headers", counts, limits.headers_max)
    _check_max("header bytes", sizes, limits.header_bytes_max)


def _header_bytes(headers: pa.MapArray) -> npt.NDArray[np.int64]:
    """Bytes of names and values per message."""
    names, values = _lengths(headers.keys), _lengths(headers.items)
    # Arrow lets a column of pairs be longer on one side; no message refers to what is beyond.
    count = min(len(names), len(values))
    total = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(names[:count].astype(np.int64) + values[:count], out=total[1:])
    offsets = _offsets(headers)
    return np.asarray(total[offsets[1:]] - total[offsets[:-1]])


def _check_message_bytes(rows: pa.RecordBatch, limits: Limits) -> None:
    total = sum(_lengths(rows.column(i)).astype(np.int64) for i in (_ID, _KEY, _VALUE))
    headers = rows.column(_HEADERS)
    if headers.null_count < len(headers):
        total = total + _header_bytes(headers)
    _check_max("message bytes", np.asarray(total), limits.message_bytes_max)


def _due_times(rows: pa.RecordBatch, limits: Limits, now_ms: int) -> npt.NDArray[np.int64] | None:
    column = rows.column(_DUE)
    if column.null_count == len(column):
        return None
    due = due_times(rows)
    earliest, latest = int(due.min()), int(due.max())
    if earliest < 0:
        raise BadBatch("due_ms", f"is before 1970 (got {earliest})")
    limits.check_due(Millis(latest), now_ms=Millis(now_ms))
    return due


def _offsets(column: pa.Array) -> npt.NDArray[np.int32]:
    # Counted: the buffer may be longer, by any number of bytes.
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)


def _lengths(column: pa.Array) -> npt.NDArray[np.int32]:
    """Byte lengths of a binary column, or pair counts of a map column."""
    if not len(column):
        return np.zeros(0, dtype=np.int32)
    offsets = _offsets(column)
    return np.asarray(offsets[1:] - offsets[:-1])


def _extremes(column: pa.Array) -> tuple[int, int]:
    """Return the least and greatest length in a binary column."""
    if len(column) <= _FEW_ROWS:  # NumPy's fixed costs would be most of the work
        ends = _FEW_OFFSETS[len(column)].unpack_from(column.buffers()[1], column.offset * 4)
        few = list(map(sub, ends[1:], ends))
        return min(few), max(few)
    lengths = _lengths(column)
    return int(lengths.min()), int(lengths.max())


def _check_max(field: str, lengths: npt.NDArray[np.integer], limit: int) -> None:
    longest = int(lengths.max(initial=0))
    if longest > limit:
        raise LimitExceeded(field, limit, got=longest)


class WireSize(NamedTuple):
    """Rows and bytes a message will have once decoded."""

    rows: int
    decoded_bytes: int


def wire_size(message: bytes | memoryview) -> WireSize:
    """Measure an encapsulated record-batch message; raise BadBatch if it is not one."""
    try:
        return _measure(message)
    except struct.error as error:
        raise BadBatch("body", "is cut short or not an Arrow record batch") from error


def _measure(data: bytes | memoryview) -> WireSize:
    (marker,) = _U32.unpack_from(data, 0)
    (metadata_bytes,) = _I32.unpack_from(data, 4)
    if marker != _CONTINUATION or metadata_bytes <= 0:
        raise BadBatch("body", "is not an Arrow record batch")
    body_at = _PREFIX_BYTES + metadata_bytes
    message = _PREFIX_BYTES + _U32.unpack_from(data, _PREFIX_BYTES)[0]
    if _number(data, message, _MESSAGE_HEADER_TYPE, _U8) != _RECORD_BATCH:
        raise BadBatch("body", "is an Arrow message, but not a record batch")
    if _number(data, message, _MESSAGE_VERSION, _U16) != _VERSION_5:
        raise BadBatch("body", "is not of Arrow metadata version 5")
    body_bytes = _number(data, message, _MESSAGE_BODY_LENGTH, _I64)
    # The log stores the bytes as they come, so nothing may hide behind the message.
    if body_bytes < 0 or body_at + body_bytes != len(data):
        raise BadBatch("body", "is cut short or has bytes behind the record batch")
    batch = _table(data, message, _MESSAGE_HEADER)
    rows = _number(data, batch, _BATCH_LENGTH, _I64)
    if rows < 0:
        raise BadBatch("body", f"claims {rows} rows")
    if _field(data, batch, _BATCH_COMPRESSION) is None:
        return WireSize(rows, len(data) - body_at)
    return WireSize(rows, _inflated_bytes(data, batch, body_at))


class Places(NamedTuple):
    """Where a message has what depends on the lengths of its buffers."""

    body_length_at: int
    buffers_at: int
    """Position and length of each buffer, end to end."""
    body_at: int


def places_in(data: bytes | memoryview) -> Places:
    """Find these in a message of our own making."""
    message = _PREFIX_BYTES + _U32.unpack_from(data, _PREFIX_BYTES)[0]
    body_length_at = _field(data, message, _MESSAGE_BODY_LENGTH)
    assert body_length_at is not None, "a batch has a body"
    buffers = _table(data, _table(data, message, _MESSAGE_HEADER), _BATCH_BUFFERS)
    return Places(body_length_at, buffers + 4, _PREFIX_BYTES + _I32.unpack_from(data, 4)[0])


def _inflated_bytes(data: bytes | memoryview, batch: int, body_at: int) -> int:
    vector = _table(data, batch, _BATCH_BUFFERS)
    (count,) = _U32.unpack_from(data, vector)
    if count > _BUFFERS_MAX:
        raise BadBatch("body", f"has {count} buffers; a batch of messages has fewer")
    total = 0
    for i in range(count):
        offset, length = _BUFFER.unpack_from(data, vector + 4 + i * _BUFFER.size)
        if length <= 0:
            continue
        if not 0 <= offset < len(data) - body_at:
            raise BadBatch("body", "has a buffer outside itself")
        (inflated,) = _I64.unpack_from(data, body_at + offset)
        if inflated < -1:
            raise BadBatch("body", "has a compressed buffer of negative length")
        total += length if inflated == -1 else inflated
    return total


def _number(data: bytes | memoryview, table: int, number: int, kind: struct.Struct) -> int:
    """Return an integer field of a FlatBuffers table; 0 if it is absent."""
    at = _field(data, table, number)
    return 0 if at is None else int(kind.unpack_from(data, at)[0])


def _table(data: bytes | memoryview, table: int, number: int) -> int:
    """Return where the table or vector begins that a field refers to."""
    at = _field(data, table, number)
    if at is None:
        raise BadBatch("body", "is not an Arrow record batch")
    return at + int(_U32.unpack_from(data, at)[0])


def _field(data: bytes | memoryview, table: int, number: int) -> int | None:
    """Return where a FlatBuffers table keeps a field, or None if it is absent."""
    vtable = table - int(_I32.unpack_from(data, table)[0])
    if vtable < 0:
        raise BadBatch("body", "has metadata that points outside itself")
    (vtable_bytes,) = _U16.unpack_from(data, vtable)
    entry = 4 + 2 * number
    if entry + 2 > vtable_bytes:
        return None
    (distance,) = _U16.unpack_from(data, vtable + entry)
    return table + distance if distance else None
