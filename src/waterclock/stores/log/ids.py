"""Which ids are in the log of streams: fingerprints that propose, stored ids that decide.

The index of ids is the partition log's own (`log.id_index`), with other rules: an id counts
as long as its message is kept, and a removed message's id may come again. So candidates are given
to the caller, who knows what is kept. Entries of removed messages stay until the log is rewritten.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.id_index.index import IdIndex
from waterclock.log.id_index.runs import OFFSET_BITS, SEGMENT_OFFSETS_MAX
from waterclock.log.schema import binaries
from waterclock.storage.reader import Reader

Int64s = npt.NDArray[np.int64]

_UNLIMITED = 1 << 62
_RELATIVE = np.uint64((1 << OFFSET_BITS) - 1)


class LogIds:
    """The ids of all messages in the log."""

    def __init__(self) -> None:
        self._index = IdIndex(0, _UNLIMITED)
        self._bases: list[int] = []
        """Where the stretches of offsets begin that the index keeps apart; the last is open."""

    def __repr__(self) -> str:
        return f"<LogIds {self._index!r}>"

    def begin(self, seed: int, start: int) -> None:
        """Begin with a log that starts at an offset."""
        self._index = IdIndex(seed, _UNLIMITED)
        self._bases = [start]
        self._index.open_segment(start)

    def add(self, ids: pa.BinaryArray, offsets: Int64s) -> None:
        """Note ids at ascending offsets."""
        if offsets[-1] - self._bases[-1] >= SEGMENT_OFFSETS_MAX:
            self._next(int(offsets[0]))
        if len(ids) == 1:
            self._index.insert_one(self._index.fingerprint(ids[0].as_py()), int(offsets[0]))
        else:
            self._index.insert(self._index.fingerprints(ids), offsets)

    def find(self, ids: Sequence[bytes], reader: Reader) -> Iterator[tuple[int, int]]:
        """Yield (row, offset) of each message in the log that has one of these ids."""
        if len(ids) == 1:
            found = self._index.lookup_one(self._index.fingerprint(ids[0]))
            rows, offsets = np.zeros(len(found), np.int64), np.array(found, np.int64)
        else:
            fingerprints = self._index.fingerprints(binaries(ids))
            rows, offsets = self._index.lookup(fingerprints)
        if len(rows):
            asked = [ids[row] for row in rows.tolist()]
            is_same = reader.has_ids(offsets, asked)
            yield from zip(rows[is_same].tolist(), offsets[is_same].tolist(), strict=True)

    def keep(self, kept: Int64s, *, below: int, end: int) -> None:
        """Forget the ids of all offsets below `below` but these; the log goes up to `end`."""
        self._next(end)
        for base, run in zip(self._bases[:-1], self._index.sealed_runs(), strict=True):
            offsets = (run & _RELATIVE).view(np.int64) + base
            self._index.replace(base, run[np.isin(offsets, kept) | (offsets >= below)])

    def _next(self, base: int) -> None:
        """Close the open stretch and begin another."""
        self._index.seal()
        self._bases.append(base)
        self._index.open_segment(base)
