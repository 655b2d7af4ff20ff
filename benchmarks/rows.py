"""Rows with keys, the same for every server: 16 B of id, 8 B of key, 100 B of value.

Each batch has its number and is made from it alone, so a process that loads one server and a
process that loads another agree without talking. Values are random: no codec makes them smaller,
and no dictionary either, which is what costs a reader of Parquet least.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.schema import HEADERS, MESSAGES, encode

ID_BYTES = 16
KEY_BYTES = 8
VALUE_BYTES = 100
BATCH = 1_000
"""Rows published at a time, to every server."""


@dataclass(frozen=True, slots=True)
class Rows:
    """So many different keys, each in one partition: a batch goes to that of its number."""

    keys: int
    partitions: int

    def partition_of(self, number: int) -> int:
        """Give where a batch goes."""
        return number % self.partitions

    def keys_of(self, number: int) -> npt.NDArray[np.uint64]:
        """Give the keys of a batch."""
        most = max(1, self.keys // self.partitions)
        found = np.random.default_rng((number, 1)).integers(0, most, BATCH, dtype=np.uint64)
        return found * np.uint64(self.partitions) + np.uint64(self.partition_of(number))

    def values_of(self, number: int) -> bytes:
        """Give the values of a batch, end to end."""
        return np.random.default_rng(number).bytes(BATCH * VALUE_BYTES)

    def columns_of(self, number: int) -> list[pa.Array]:
        """Give keys and values of a batch as Arrow has them."""
        keys = _fixed(self.keys_of(number).tobytes(), KEY_BYTES)
        return [keys, _fixed(self.values_of(number), VALUE_BYTES)]


class Template:
    """One encoded batch that is written over: a million rows take a fraction of a second."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        rng = np.random.default_rng()
        sizes = (ID_BYTES, KEY_BYTES, VALUE_BYTES)
        marks = [rng.bytes(BATCH * size) for size in sizes]
        columns = [
            *map(_fixed, marks, sizes),
            pa.nulls(BATCH, HEADERS),
            pa.nulls(BATCH, pa.int64()),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=MESSAGES)
        self._body = bytearray(encode(batch))
        self._ids, self._keys, self._values = map(self._found, marks)

    def _found(self, data: bytes) -> memoryview:
        """Find a column by what was put there; give it for writing."""
        at = self._body.find(data)
        assert at >= 0, "a column is not found in the encoded batch"
        return memoryview(self._body)[at : at + len(data)]

    def body(self, number: int) -> bytes:
        """Give a batch, encoded. Its ids are 16 B that come once: eight of the row, eight of us."""
        ids = np.zeros(2 * BATCH, np.uint64)
        ids[::2] = np.arange(number * BATCH, (number + 1) * BATCH)
        self._ids[:] = ids.tobytes()
        self._keys[:] = self._rows.keys_of(number).tobytes()
        self._values[:] = self._rows.values_of(number)
        return bytes(self._body)


def _fixed(data: bytes, size: int) -> pa.Array:
    ends = pa.py_buffer((np.arange(len(data) // size + 1) * size).astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(data) // size, [None, ends, pa.py_buffer(data)])
