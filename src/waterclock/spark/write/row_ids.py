"""Ids for rows that bring none: the same whenever, and however, Spark computes the rows again.

    bytes   0 ..  7   who writes: a hash of (writer, batch, task)
            8 .. 23   what the row says: its content hash
           24 .. 31   which of the rows that say the same: 0, 1, 2, ... (big-endian)

The order and the batching of the rows leave no trace, so a task that is tried again writes the same
ids, and what the broken attempt stored is recognised: by the broker's dedup, or by reading back
(`written.py`) when that has forgotten. No two rows of a task share an id, whatever they say: rows
whose hashes are equal have different numbers.
"""

import hashlib
import json

import numpy as np
import pyarrow as pa

from waterclock.spark.write.occurrences import Occurrences
from waterclock.spark.write.row_hashes import row_hashes

ID_BYTES = 32
PREFIX_BYTES = 8

_FORMAT = "waterclock row ids 1"


class RowIds:
    """The ids of one task's rows."""

    def __init__(self, *, writer: str, batch: int, task: int) -> None:
        told = json.dumps([_FORMAT, writer, batch, task]).encode()
        digest = hashlib.blake2b(told, digest_size=PREFIX_BYTES + 8).digest()
        self.prefix = digest[:PREFIX_BYTES]
        self._seed = int.from_bytes(digest[PREFIX_BYTES:])
        self._occurrences = Occurrences()

    def __repr__(self) -> str:
        return f"<RowIds {self.prefix.hex()}…, {self._occurrences!r}>"

    def of(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """Return an id for each of the task's next rows; give columns in one order always."""
        count = rows.num_rows
        hashes = row_hashes(rows, self._seed)
        ids = np.empty((count, ID_BYTES // 8), ">u8")
        ids[:, 0] = int.from_bytes(self.prefix)
        ids[:, 1] = hashes.first
        ids[:, 2] = hashes.second
        ids[:, 3] = self._occurrences.number(hashes)
        bounds = np.arange(0, (count + 1) * ID_BYTES, ID_BYTES, dtype=np.int32)
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(ids)]
        return pa.Array.from_buffers(pa.binary(), count, buffers)
