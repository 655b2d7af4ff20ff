"""Ids for rows that bring none: the same whenever, and however, Spark computes the rows again.

    bytes   0 ..  7   who writes: a hash of (writer, batch, task)
            8 .. 23   what the row says: its content hash
           24 .. 31   which of the rows that say the same: 0, 1, 2, ... (big-endian)

The order and the batching of the rows leave no trace, so a task that is tried again writes the same
ids, and what the broken attempt stored is recognised: by the broker's dedup, or by reading back
(`stored_ids.py`) when that has forgotten. No two rows of a task share an id, whatever they say:
rows whose hashes are equal have different numbers.

`Occurrences` numbers them: a counting table of hashes, in NumPy. Who counts over the whole task
gives the same numbers however the rows are ordered or cut into batches, so all hashes of a task are
remembered: 16 bytes a slot, open addressing, at most three quarters full. Everything works on a
batch at once: a pass looks at one slot for each content that has not found its own yet, and few
need a second. A content is known by 96 of its 128 bits; two that share those are counted as one,
which matters only if a retry brings them in another order (one chance in 10^15 for ten million
rows).
"""

import hashlib
import json

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.model.errors import LimitExceeded
from waterclock.spark.write.row_hashes import Hashes, Uint64s, row_hashes

ID_BYTES = 32
PREFIX_BYTES = 8

_FORMAT = "waterclock row ids 1"


class RowIds:
    """The ids of one task's rows."""

    def __init__(self, *, writer: str, batch: int, task: int) -> None:
        writer_key = json.dumps([_FORMAT, writer, batch, task]).encode()
        digest = hashlib.blake2b(writer_key, digest_size=PREFIX_BYTES + 8).digest()
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


Int64s = npt.NDArray[np.int64]
Uint32s = npt.NDArray[np.uint32]

ROWS_MAX = 200_000_000
"""Rows of a task without ids of their own: their table takes 4 GiB then."""

_SLOTS_MIN = 1 << 16
_SLOTS_SMALL = 1 << 22
"""Below it the table grows fourfold: 64 MiB are soon found, and growing is most of the work."""
_LOW_BITS = np.uint64(0xFFFF_FFFF)


class Occurrences:
    """The contents a task has seen, and how often."""

    def __init__(self) -> None:
        self._contents = 0
        self._rows = 0
        self._allocate(_SLOTS_MIN)

    def __repr__(self) -> str:
        return f"<Occurrences of {self._contents} contents in {self._rows} rows>"

    def number(self, hashes: Hashes) -> Uint64s:
        """Return for each row how many rows of the same content came before it; count them."""
        count = len(hashes.first)
        if not count:
            return np.zeros(0, np.uint64)
        self._rows += count
        if self._rows > ROWS_MAX:
            raise LimitExceeded(
                "rows of one Spark task without message_id (use more partitions, or give ids)",
                ROWS_MAX,
            )
        first, second = hashes.first, (hashes.second & _LOW_BITS).astype(np.uint32)
        order = np.argsort(first)
        if _are_mixed(first[order], second[order]):
            order = np.lexsort((second, first))
        first, second = first[order], second[order]
        is_start = np.ones(count, np.bool_)
        is_start[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        starts = np.flatnonzero(is_start)
        times = np.diff(starts, append=count)
        before = self._add(first[starts], second[starts], times.astype(np.uint32))
        numbers = np.empty(count, np.uint64)
        numbers[order] = np.arange(count) - np.repeat(starts - before.astype(np.int64), times)
        return numbers

    def _add(self, first: Uint64s, second: Uint32s, times: Uint32s) -> Uint32s:
        """Count contents, all different, so many times; return how often each was there before."""
        while (self._contents + len(first)) * 4 > len(self._times) * 3:
            self._grow()
        before = np.zeros(len(first), np.uint32)
        left: Int64s = np.arange(len(first))
        slots = (first & self._mask).astype(np.int64)
        while len(left):
            mine_first, mine_second = first[left], second[left]
            free = np.flatnonzero(self._times[slots] == 0)
            # Where several want one slot the last one written has it.
            self._first[slots[free]] = mine_first[free]
            self._second[slots[free]] = mine_second[free]
            is_mine = (self._first[slots] == mine_first) & (self._second[slots] == mine_second)
            at = slots[is_mine]
            before[left[is_mine]] = self._times[at]
            self._times[at] += times[left[is_mine]]
            left = left[~is_mine]
            slots = (slots[~is_mine] + 1) & int(self._mask)
        self._contents += int(np.count_nonzero(before == 0))
        return before

    def _allocate(self, slots: int) -> None:
        self._mask = np.uint64(slots - 1)
        self._first = np.zeros(slots, np.uint64)
        self._second = np.zeros(slots, np.uint32)
        self._times = np.zeros(slots, np.uint32)

    def _grow(self) -> None:
        used = self._times > 0
        first, second, times = self._first[used], self._second[used], self._times[used]
        slots = len(self._times)
        self._allocate(slots * 4 if slots < _SLOTS_SMALL else slots * 2)
        self._contents = 0
        self._add(first, second, times)


def _are_mixed(first: Uint64s, second: Uint32s) -> bool:
    """Tell whether contents differ behind equal first halves, so that they may lie mixed."""
    return bool(((first[1:] == first[:-1]) & (second[1:] != second[:-1])).any())
