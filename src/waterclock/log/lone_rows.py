"""Rows of a batch, each as a batch of its own: what a batch over very many partitions falls into.

Arrow makes a one-row batch of a large one in 40 us, eight times what its bytes take to put together
by hand; slicing is quick but leaves bytes of the neighbours behind a buffer's end, where they would
outlive their own message. So rows with an id, key and value, and neither headers nor a due time,
are encoded as lone messages are. All other rows are left to Arrow.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from waterclock.log.batch import Batch
from waterclock.log.id_index.fingerprint import fingerprints_by_seed
from waterclock.log.lone_message import LoneMessage, encode_lone

_BYTE_COLUMNS = 3
"""Id, key and value."""
_HEADERS, _DUE = 3, 4


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
        message_id, key, value = self._fields(number)
        body = memoryview(encode_lone(message_id, key, value))
        return LoneMessage(body, message_id, key, batch.rows.slice(number, 1))

    def encoded(self, number: int) -> tuple[bytes, bytes]:
        """Return the id of a row and the body of a frame of it alone; only if they `are_cheap`."""
        message_id, key, value = self._fields(number)
        return message_id, encode_lone(message_id, key, value)

    def _fields(self, number: int) -> tuple[bytes, bytes, bytes]:
        assert self._columns is not None, "Arrow must encode these"
        (id_ends, ids), (key_ends, keys), (value_ends, values) = self._columns
        following = number + 1
        return (
            ids[id_ends[number] : id_ends[following]],
            keys[key_ends[number] : key_ends[following]],
            values[value_ends[number] : value_ends[following]],
        )

    def fingerprints(self, seeds: Sequence[int]) -> list[int]:
        """Return the fingerprint of each row's id, each under the seed of its own log."""
        found: list[int] = fingerprints_by_seed(self._batch.ids, seeds).tolist()
        return found


def _column(column: pa.BinaryArray) -> tuple[list[int], bytes]:
    """Return where the rows of a column begin, the end of the last too, and their bytes: one copy
    of them all costs less than a view of each."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset)
    start = int(ends[0])
    found = b"" if data is None else memoryview(data)[start : int(ends[-1])].tobytes()
    return (ends - start).tolist(), found
