"""Rows of a batch, each as a batch of its own: what a batch over very many partitions falls into.

Arrow makes a one-row batch of a large one in 40 us, eight times what its bytes take to put together
by hand; slicing is quick but leaves bytes of the neighbours behind a buffer's end, where they would
outlive their own message. A row with an id, key and value, and neither headers nor a due time, is
always the same message but for three lengths, so those are written into a copy of one that Arrow
has made (and the copy kept for the next row of these lengths), and read from one that differs in
nothing else. All other rows are left to Arrow. Layout:
Arrow columnar format, `Message.fbs`.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from waterclock.log.batch import Batch, places_in
from waterclock.log.id_index.fingerprint import fingerprints_by_seed
from waterclock.log.schema import encode, from_messages
from waterclock.model.message import Message

_BYTE_COLUMNS = 3
"""Id, key and value; each has a validity, which is empty, two offsets, and its bytes."""
_HEADERS, _DUE = 3, 4
_COLUMN_BUFFERS = 3 * _BYTE_COLUMNS
_OFFSETS = struct.Struct("<ii")
_LENGTH = struct.Struct("<q")
_ID_BUFFERS = struct.Struct("<4q")
_ID_BUFFERS_AT = 16
"""Behind the validity of the id, in the list of buffers: its offsets and its bytes."""
_BUFFERS = struct.Struct("<40q")
"""A batch of messages has 20, each with its position and its length."""
_PADDING = [bytes(-size % 8) for size in range(8)]
_SHAPES_MAX = 256
"""Rows of one producer have ids of one length, and keys and values of a few."""


class _Template(NamedTuple):
    """The message of a row whose id, key and value are empty."""

    metadata: bytes
    """All before its body."""
    body_length_at: int
    buffers_at: int
    """Where the metadata has the position and the length of each buffer, end to end."""
    fixed: tuple[bytes, ...]
    """What of it is the same for every row."""
    rest: bytes
    """The body behind the three columns."""
    rest_buffers: tuple[tuple[int, int], ...]
    """Position and length of the buffers in there; positions count from its beginning."""


class LoneRow(Batch):
    """A batch of one message; Arrow is asked for its row only if somebody wants it."""

    __slots__ = ("_number", "_rows", "first_id")

    _number: int
    _rows: pa.RecordBatch
    first_id: bytes
    due_ms = None
    may_expire = False
    count = 1

    def __init__(
        self, body: memoryview, first_id: bytes, rows: pa.RecordBatch, number: int
    ) -> None:
        set_once = object.__setattr__
        set_once(self, "body", body)
        set_once(self, "first_id", first_id)
        set_once(self, "_rows", rows)
        set_once(self, "_number", number)

    @property
    def rows(self) -> pa.RecordBatch:
        """Cut only where somebody looks: few do."""
        return self._rows.slice(self._number, 1)


class LoneRows:
    """Takes a batch apart, row by row, into batches that are each encoded anew."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        rows = batch.rows
        self._columns: list[tuple[list[int], bytes]] | None = None
        is_plain = not any(rows.column(number).null_count for number in range(_BYTE_COLUMNS))
        is_bare = all(rows.column(n).null_count == len(rows) for n in (_HEADERS, _DUE))
        if is_plain and is_bare:
            self._columns = [_column(rows.column(number)) for number in range(_BYTE_COLUMNS)]

    @property
    def are_cheap(self) -> bool:
        """No row is left to Arrow."""
        return self._columns is not None

    def row(self, number: int) -> Batch:
        """Return a batch of this row alone, with the bytes that Arrow would give it."""
        batch = self._batch
        if self._columns is None:
            keep = np.zeros(batch.count, np.bool_)
            keep[number] = True
            return batch.select(keep)
        message_id, body = self.encoded(number)
        return LoneRow(memoryview(body), message_id, batch.rows, number)

    def encoded(self, number: int) -> tuple[bytes, bytes]:
        """Return the id of a row and the body of a frame of it alone; only if they `are_cheap`."""
        assert self._columns is not None, "Arrow must encode these"
        (id_ends, ids), (key_ends, keys), (value_ends, values) = self._columns
        following = number + 1
        message_id = ids[id_ends[number] : id_ends[following]]
        key = keys[key_ends[number] : key_ends[following]]
        value = values[value_ends[number] : value_ends[following]]
        before, then, last, behind = _shape(len(message_id), len(key), len(value))
        return message_id, b"".join((before, message_id, then, key, last, value, behind))

    def fingerprints(self, seeds: Sequence[int]) -> list[int]:
        """Return the fingerprint of each row's id, each under the seed of its own log."""
        found: list[int] = fingerprints_by_seed(self._batch.ids, seeds).tolist()
        return found


def lone_id(body: memoryview) -> bytes | None:
    """Return the id in the body of a frame of one such row; None if Arrow must be asked.

    Many a log is nothing but such frames, and all of them are read after a crash.
    """
    place = _id_place(bytes(body[: _body_at()]))
    if place is None:
        return None
    ends_at, ids_at, size = place
    # A body that ends early has not the bytes of its last buffers.
    if ends_at + _OFFSETS.size > len(body) or ids_at + size > len(body):
        return None
    start, end = _OFFSETS.unpack_from(body, ends_at)
    return bytes(body[ids_at + start : ids_at + end]) if 0 <= start <= end <= size else None


@lru_cache(maxsize=_SHAPES_MAX)
def _id_place(metadata: bytes) -> tuple[int, int, int] | None:
    """Return where a row with this before its body has its two offsets, its id and how long that
    may be, all counted from the first byte; None if Arrow must be asked."""
    template = _template()
    body_at, buffers_at = len(template.metadata), template.buffers_at
    if _fixed(metadata, template.body_length_at, buffers_at) != template.fixed:
        return None
    ends_at, _, ids_at, size = _ID_BUFFERS.unpack_from(metadata, buffers_at + _ID_BUFFERS_AT)
    return None if min(ends_at, ids_at, size) < 0 else (body_at + ends_at, body_at + ids_at, size)


@lru_cache(maxsize=1)
def _body_at() -> int:
    return len(_template().metadata)


def _fixed(metadata: bytes, body_length_at: int, buffers_at: int) -> tuple[bytes, ...]:
    """Return all of it but the lengths and positions that differ from row to row."""
    return (
        metadata[:body_length_at],
        metadata[body_length_at + _LENGTH.size : buffers_at],
        metadata[buffers_at + _BUFFERS.size :],
    )


def _column(column: pa.BinaryArray) -> tuple[list[int], bytes]:
    """Return where the rows of a column begin, the end of the last too, and their bytes: one copy
    of them all costs less than a view of each."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset)
    start = int(ends[0])
    found = b"" if data is None else memoryview(data)[start : int(ends[-1])].tobytes()
    return (ends - start).tolist(), found


@lru_cache(maxsize=_SHAPES_MAX)
def _shape(id_size: int, key_size: int, value_size: int) -> tuple[bytes, bytes, bytes, bytes]:
    """Return what stands before the id, the key and the value of such a row, and behind them."""
    template = _template()
    numbers: list[int] = []
    between: list[bytes] = []
    at, padding = 0, b""
    for size in (id_size, key_size, value_size):
        between.append(padding + _OFFSETS.pack(0, size))
        padding = _PADDING[size % 8]
        numbers += (at, 0, at, _OFFSETS.size, at + _OFFSETS.size, size)
        at += _OFFSETS.size + size + len(padding)
    for position, size in template.rest_buffers:
        numbers += (at + position, size)
    metadata = bytearray(template.metadata)
    _BUFFERS.pack_into(metadata, template.buffers_at, *numbers)
    _LENGTH.pack_into(metadata, template.body_length_at, at + len(template.rest))
    return bytes(metadata) + between[0], between[1], between[2], padding + template.rest


@lru_cache(maxsize=1)
def _template() -> _Template:
    data = bytes(encode(from_messages([Message(b"", key=b"", message_id=b"")])))
    places = places_in(data)
    numbers = _BUFFERS.unpack_from(data, places.buffers_at)
    rest_at = numbers[2 * _COLUMN_BUFFERS]
    behind = zip(
        numbers[2 * _COLUMN_BUFFERS :: 2], numbers[2 * _COLUMN_BUFFERS + 1 :: 2], strict=True
    )
    metadata = data[: places.body_at]
    return _Template(
        metadata,
        places.body_length_at,
        places.buffers_at,
        _fixed(metadata, places.body_length_at, places.buffers_at),
        data[places.body_at + rest_at :],
        tuple((position - rest_at, size) for position, size in behind),
    )
