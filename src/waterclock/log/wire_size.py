"""How large an Arrow record-batch message will be once decoded, told without decoding it.

Arrow inflates compressed buffers as it reads them, with no bound of its own: a megabyte of ZSTD can
become gigabytes. Each compressed buffer starts with its inflated length, so the sum can be had from
the message's FlatBuffers metadata first. No Python package reads that metadata (pyarrow keeps it
opaque), hence these few lines. Layout: Arrow columnar format, `Message.fbs`; FlatBuffers internals.

Only metadata version 5 (Arrow 1.0 and later) is taken: in version 4 Arrow also looks for a codec in
the message's custom metadata, where nobody would look who reads the specification.
"""

import struct
from typing import NamedTuple

from waterclock.model.errors import BadBatch

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
