"""What a body holds: the Arrow schema of each frame type, and how bodies become batches and back.

A body is one Arrow IPC record-batch message without a schema message, because the schema belongs
to the format version. Compression (LZ4, ZSTD) is Arrow's own and is told by the body itself, so
readers need no option. Bytes that come from outside are proven by `log.batch` first; bytes under
our own checksum are not proven again. Columns of Python's values are made from their buffers, for
the reason that `arrays.py` gives.

The rows of a frame have its offsets: all of them in a frame as appended, some after compaction.
"""

import struct
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.arrays import as_numpy, filled
from waterclock.log.frame import FLAG_SPARSE, FrameHeader, FrameType
from waterclock.model.errors import BadBatch, FrameDamaged, OffsetOutOfRange
from waterclock.model.message import Message
from waterclock.model.sections import Compression

Int64s = npt.NDArray[np.int64]
Pairs = Sequence[tuple[str, bytes]]

MESSAGE_ID = pa.field("message_id", pa.binary(), nullable=False)
OFFSET_DELTA = pa.field("offset_delta", pa.int32(), nullable=False)
SCHEDULED_OFFSET = pa.field("scheduled_offset", pa.int64(), nullable=False)
HEADERS = pa.map_(pa.string(), pa.binary())

MESSAGES = pa.schema(
    [
        MESSAGE_ID,
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("due_ms", pa.int64()),
    ]
)
"""The columns a producer sends. A null value is a tombstone; a null due time means now."""
_IDS = pa.schema([MESSAGE_ID])
"""The first of them: Arrow reads as many columns as it is told of."""
_IDS_AND_KEYS = pa.schema([MESSAGE_ID, MESSAGES.field("key")])

_SCHEMAS = {
    FrameType.DATA: MESSAGES,
    FrameType.SCHEDULED: MESSAGES,
    FrameType.FIRED: MESSAGES.append(SCHEDULED_OFFSET),
    FrameType.CANCEL: pa.schema([SCHEDULED_OFFSET]),
    FrameType.RESCHEDULE: pa.schema(
        [SCHEDULED_OFFSET, pa.field("due_ms", pa.int64(), nullable=False)]
    ),
    FrameType.EPOCH: pa.schema([]),
    FrameType.NOOP: pa.schema([]),
    FrameType.SEEN: pa.schema(
        [
            MESSAGE_ID,
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("append_ms", pa.int64(), nullable=False),
            pa.field("ending", pa.uint8(), nullable=False),
        ]
    ),
}


@lru_cache(maxsize=64)
def schema_of(kind: FrameType, flags: int = 0) -> pa.Schema:
    """Return the columns of a frame of this type; a sparse frame has `offset_delta` besides."""
    schema = _SCHEMAS[kind]
    return schema.append(OFFSET_DELTA) if flags & FLAG_SPARSE else schema


@lru_cache(maxsize=4)
def _write_options(compression: Compression) -> pa.ipc.IpcWriteOptions:
    codec = None if compression == "none" else compression
    # One thread: the pool's hand-over costs more than compressing a small batch (61 vs 156 us).
    return pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)


ARROW_ERRORS = (pa.ArrowException, OSError, EOFError)
"""Nothing at all, or a length of zero, is the end of a stream to Arrow."""

_LENGTH = struct.Struct("<i")
_METADATA_AT = 8
_COLUMN_BYTES_MAX = 2**31 - 1


def encode(batch: pa.RecordBatch, compression: Compression = "none") -> memoryview:
    """Return the body bytes of a batch."""
    if compression == "none":
        return memoryview(batch.serialize())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_write_options(compression)) as writer:
        writer.write_batch(batch)
        batch_end = sink.tell()
    # The stream writer puts the schema message first; bodies carry none.
    stream = memoryview(sink.getvalue())
    return stream[_METADATA_AT + _LENGTH.unpack_from(stream, 4)[0] : batch_end]


def decode(header: FrameHeader, body: memoryview) -> pa.RecordBatch:
    """Return the rows of a checked frame, without copying them."""
    schema = schema_of(header.type, header.flags)
    if not schema.names:
        return pa.record_batch([], schema=schema)
    return _decode(header, body, schema)


def decode_ids(header: FrameHeader, body: memoryview, *, with_keys: bool = False) -> pa.RecordBatch:
    """Return the ids alone of a frame of messages; the other columns are not even inflated."""
    return _decode(header, body, _IDS_AND_KEYS if with_keys else _IDS)


def _decode(header: FrameHeader, body: memoryview, schema: pa.Schema) -> pa.RecordBatch:
    try:
        batch = _read(body, schema)
    except ARROW_ERRORS as error:
        raise FrameDamaged(f"frame at offset {header.base_offset}: {error}") from error
    if batch.num_rows != header.rows:
        raise FrameDamaged(
            f"frame at offset {header.base_offset} has {batch.num_rows} rows, not {header.rows}"
        )
    return batch


def _read(body: bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(body), schema)


def from_messages(messages: Sequence[Message]) -> pa.RecordBatch:
    """Build a batch from message objects: the slow, convenient way in."""
    try:
        columns = [
            _column(messages, "message_id", bytes, binaries),
            _column(messages, "key", bytes, binaries),
            _column(messages, "value", bytes, binaries),
            maps([_header_pairs(message) for message in messages], HEADERS),
            _column(messages, "due_ms", int, integers),
        ]
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise BadBatch("messages", str(error)) from error
    return pa.record_batch(columns, schema=MESSAGES)


def _column(
    messages: Sequence[Message], name: str, kind: type, made: Callable[[list[Any]], pa.Array]
) -> pa.Array:
    values = [getattr(message, name) for message in messages]
    for value in values:
        # Python takes a truth value for a number.
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise BadBatch(name, f"must be {kind.__name__}, not {type(value).__name__}")
    return made(values)


def _header_pairs(message: Message) -> list[tuple[str, bytes]] | None:
    headers = message.headers
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise BadBatch("headers", f"must be a mapping, not {type(headers).__name__}")
    pairs = list(headers.items())
    if not all(isinstance(name, str) and isinstance(value, bytes) for name, value in pairs):
        raise BadBatch("headers", "must map str to bytes")
    return pairs


# Columns of Python's values


def binaries(values: Sequence[bytes | None]) -> pa.Array:
    """Return bytes as a column; raises TypeError for anything else."""
    present: Any = values
    validity = None
    try:
        body = b"".join(present)
    except TypeError:  # most columns have no nulls, and looking for them costs as much as the rest
        validity = _validity(values)
        present = [b"" if value is None else value for value in values]
        body = b"".join(present)
    return _variable(pa.binary(), validity, map(len, present), body, len(values))


def texts(values: Sequence[str]) -> pa.Array:
    joined = "".join(values)
    if joined.isascii():
        return _variable(pa.string(), None, map(len, values), joined.encode(), len(values))
    encoded = [value.encode() for value in values]
    return _variable(pa.string(), None, map(len, encoded), b"".join(encoded), len(values))


def integers(values: Sequence[int | None]) -> pa.Array:
    """Return whole numbers as a column of int64; raises TypeError for others, OverflowError."""
    present: Any = values
    validity = None
    try:
        data = array("q", present)
    except TypeError:
        validity = _validity(values)
        data = array("q", [0 if value is None else value for value in values])
    return pa.Array.from_buffers(pa.int64(), len(values), [validity, pa.py_buffer(data)])


def maps(values: Sequence[Pairs | None], kind: pa.MapType) -> pa.Array:
    """Return pairs of text and bytes as a column of maps."""
    rows = [row or () for row in values]
    pairs = [pair for row in rows for pair in row]
    entries = pa.StructArray.from_arrays(
        [texts([name for name, _ in pairs]), binaries([value for _, value in pairs])],
        fields=[kind.key_field, kind.item_field],
    )
    buffers = [_validity(values), _offsets(map(len, rows), len(rows))]
    return pa.Array.from_buffers(kind, len(rows), buffers, children=[entries])


def binary_scalar(value: bytes) -> pa.Scalar:
    """Return one value, to compare a column of bytes with."""
    return binaries([value])[0]


def text_scalar(value: str) -> pa.Scalar:
    """Return one value, to compare a column of text with."""
    return texts([value])[0]


def _validity(values: Sequence[object]) -> pa.Buffer:
    is_there = np.fromiter((value is not None for value in values), np.bool_, len(values))
    return pa.py_buffer(np.packbits(is_there, bitorder="little"))


def _variable(
    kind: pa.DataType, validity: pa.Buffer | None, lengths: Iterable[int], body: bytes, count: int
) -> pa.Array:
    buffers = [validity, _offsets(lengths, count), pa.py_buffer(body)]
    return pa.Array.from_buffers(kind, count, buffers)


def _offsets(lengths: Iterable[int], count: int) -> pa.Buffer:
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, count), out=ends[1:])
    if ends[-1] > _COLUMN_BYTES_MAX:
        raise pa.ArrowCapacityError(
            f"a column has at most {_COLUMN_BYTES_MAX} bytes (got {ends[-1]})"
        )
    return pa.py_buffer(ends.astype(np.int32))


# Rows of a frame


def due_times(batch: pa.RecordBatch) -> Int64s:
    """Return the due time of each row, 0 where there is none."""
    column = batch.column("due_ms")
    return as_numpy(filled(column, 0))


def row_offsets(header: FrameHeader, batch: pa.RecordBatch) -> Int64s:
    """Return the offset of each row of a frame of messages, or of ids once seen."""
    if header.type is FrameType.SEEN:
        return as_numpy(batch.column("offset"))
    if header.is_sparse:
        deltas = as_numpy(batch.column(OFFSET_DELTA.name))
        return np.asarray(deltas.astype(np.int64) + header.base_offset)
    return np.arange(header.base_offset, header.base_offset + header.rows, dtype=np.int64)


def row_numbers(header: FrameHeader, batch: pa.RecordBatch, offsets: Int64s) -> Int64s:
    """Return which row of a frame each offset is; raise OffsetOutOfRange if one has no row."""
    if not header.is_sparse and header.rows == header.span:
        return offsets - header.base_offset
    present = row_offsets(header, batch)
    at = np.searchsorted(present, offsets)
    hit = at < len(present)
    hit[hit] = present[at[hit]] == offsets[hit]
    if not bool(hit.all()):
        gone = int(offsets[~hit][0])
        raise OffsetOutOfRange(gone, start=header.base_offset, end=header.end_offset)
    return at
