"""Messages on their way out, kept as columns: what becomes one Arrow batch.

Each `publish` adds one value to each of five lists; the Arrow arrays are made from whole lists when
the batch is sent. Columns without a value are made of nulls, which costs nothing. Ids are made
then too, all at once, and kept, so that a batch sent again is the same batch.
"""

import os
from typing import Any

import pyarrow as pa

from waterclock.client.producer.checks import HeaderPairs
from waterclock.log.lone_message import BYTES_MAX, encode_lone
from waterclock.log.schema import HEADERS, MESSAGES, binaries, integers, maps
from waterclock.model.ids import UUID7_ENTROPY_BYTES, Millis, uuid7, uuid7_batch

_BINARY = pa.binary()
_INT64 = pa.int64()
_UUID_BYTES = 16


class Columns:
    """Rows of messages, a list for each field."""

    __slots__ = ("dues", "headers", "ids", "is_sticky", "keys", "size_bytes", "values")

    def __init__(self) -> None:
        self.ids: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: list[HeaderPairs | None] = []
        self.dues: list[int | None] = []
        self.size_bytes = 0
        self.is_sticky = True
        """Messages without a key may go together to any partition: all of them have new ids. One
        whose id may have been published before must go where that one went."""

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self.values)} messages, {self.size_bytes} B>"

    def name_all(self, now_ms: Millis) -> list[bytes]:
        """Give an id to each message that has none; return all ids."""
        ids = self.ids
        missing = ids.count(None)
        if missing < len(ids):
            pairs = zip(ids, self.keys, strict=True)
            self.is_sticky = all(id_ is None or key is not None for id_, key in pairs)
        if missing:
            made = iter(_made_ids(now_ms, missing))
            self.ids = [next(made) if id_ is None else id_ for id_ in ids]
        return self.ids  # type: ignore[return-value]

    def encode(self, start: int, end: int) -> bytes:
        """Return the rows in [start, end) as Arrow bytes. They must have been named."""
        count = end - start
        lists: list[list[Any]] = [self.ids, self.keys, self.values, self.headers, self.dues]
        if count < len(self.values):
            lists = [column[start:end] for column in lists]
        if count == 1:
            ((message_id,), (key,), (value,), (headers,), (due,)) = lists
            if value is not None and headers is None and due is None and len(value) <= BYTES_MAX:
                return encode_lone(message_id, key, value)
        arrays = [_array(column, count, kind) for column, kind in zip(lists, _KINDS, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)
        return bytes(batch.serialize().to_pybytes())

    def without(self, rows: set[int]) -> None:
        """Leave out some rows."""
        kept = [row for row in range(len(self.values)) if row not in rows]
        self.ids = [self.ids[row] for row in kept]
        self.keys = [self.keys[row] for row in kept]
        self.values = [self.values[row] for row in kept]
        self.headers = [self.headers[row] for row in kept]
        self.dues = [self.dues[row] for row in kept]


_KINDS = (_BINARY, _BINARY, _BINARY, HEADERS, _INT64)


def _array(column: list[Any], count: int, kind: pa.DataType) -> pa.Array:
    # The first and the count tell most columns apart without looking at each value.
    if column[0] is None and column.count(None) == count:
        return pa.nulls(count, kind)
    if kind is HEADERS:
        return maps(column, HEADERS)
    return integers(column) if kind is _INT64 else binaries(column)


def _made_ids(now_ms: Millis, count: int) -> list[bytes]:
    if count == 1:
        return [uuid7(now_ms, os.urandom(UUID7_ENTROPY_BYTES))]
    raw = uuid7_batch(now_ms, count, os.urandom(UUID7_ENTROPY_BYTES)).tobytes()
    return [raw[at : at + _UUID_BYTES] for at in range(0, len(raw), _UUID_BYTES)]
