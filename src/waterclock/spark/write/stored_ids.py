"""What a broken attempt has stored: the ids behind the write registry's positions, read back.

The broker's dedup refuses ids for as long as it remembers them; Spark may try a batch again after a
week. So a task that was begun before first reads what was written since, of every
partition, and leaves those rows out. Only ids are decoded, and of derived ids only those that begin
as this task's do. Two 64-bit hashes stand for an id: 16 bytes each, however long it is.

What another attempt writes while this one reads back is not seen; that is seconds old, and dedup's.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waterclock.client.consumer.fetch import Fetched
from waterclock.log.frame import FrameType
from waterclock.log.schema import decode_ids
from waterclock.model.errors import OffsetOutOfRange
from waterclock.spark.write.row_hashes import Uint64s, binary_hashes

Bools = npt.NDArray[np.bool_]
Fetch = Callable[[int, int], Fetched]
"""Read frames of every kind of a partition, from an offset on."""

_SEED = 0x57726974
_BEAR_IDS = {FrameType.DATA, FrameType.SCHEDULED, FrameType.FIRED, FrameType.SEEN}


class StoredIds:
    """A set of ids that can be asked for a whole column."""

    def __init__(self, columns: "list[pa.BinaryArray]") -> None:
        hashes = [binary_hashes(column, _SEED) for column in columns if len(column)]
        both: Uint64s = np.concatenate(hashes) if hashes else np.zeros((0, 2), np.uint64)
        order = np.lexsort((both[:, 1], both[:, 0]))
        self._first, self._second = both[order, 0], both[order, 1]
        self._run = _longest_run(self._first)

    def __repr__(self) -> str:
        return f"<StoredIds {len(self)}>"

    def __len__(self) -> int:
        return len(self._first)

    def contain(self, ids: pa.BinaryArray) -> Bools:
        """Tell for each id whether it is among them."""
        found = np.zeros(len(ids), np.bool_)
        if not len(self):
            return found
        asked = binary_hashes(ids, _SEED)
        at = np.searchsorted(self._first, asked[:, 0])
        for step in range(self._run):
            place = np.minimum(at + step, len(self) - 1)
            found |= (self._first[place] == asked[:, 0]) & (self._second[place] == asked[:, 1])
        return found


def read_back(fetch: Fetch, positions: Mapping[int, int], prefix: bytes | None) -> StoredIds:
    """Return the ids stored at or behind these positions; with a prefix, those that begin so."""
    columns: list[pa.BinaryArray] = []
    for partition, offset in positions.items():
        for ids in _ids_from(fetch, partition, offset):
            kept = ids if prefix is None else ids.filter(pc.starts_with(ids, prefix))
            if len(kept):
                columns.append(kept)
    return StoredIds(columns)


def _ids_from(fetch: Fetch, partition: int, offset: int) -> Iterator[pa.BinaryArray]:
    """Yield the ids of a partition up to where it ends now."""
    end: int | None = None
    while end is None or offset < end:
        try:
            fetched = fetch(partition, offset)
        except OffsetOutOfRange as error:
            if error.start <= offset:
                return  # the partition is shorter than it was: nothing is behind
            offset = error.start  # retention went by
            continue
        end = fetched.end_offset if end is None else end
        for frame in fetched.frames():
            if frame.header.type in _BEAR_IDS:
                yield decode_ids(frame.header, frame.body).column(0)
        if fetched.next_offset <= offset:
            return
        offset = fetched.next_offset


def _longest_run(values: Uint64s) -> int:
    """Return how often the commonest of sorted values is there."""
    if not len(values):
        return 0
    starts = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
    return int(np.diff(starts, append=len(values)).max())
