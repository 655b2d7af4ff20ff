"""Has this message been published before? Exact, for a whole batch at once.

The index proposes offsets whose id has the same fingerprint; the stored ids, read back from the
log, decide. So a repeat is never missed and a new message is never refused. An id counts as known
for `window_ms` after it was appended, to the millisecond; `ids_max` is the stated cap beyond which
the oldest segments' ids are forgotten early.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.id_index.fingerprint import Fingerprints
from waterclock.log.id_index.index import IdIndex, first_occurrence

Int64s = npt.NDArray[np.int64]
StoredIds = Callable[[Int64s], list[tuple[bytes, int]]]
"""Read back (message id, append time) of the messages at these offsets."""

_NEW = -1


@dataclass(frozen=True, slots=True)
class Repeats:
    """Which rows of a batch repeat something."""

    stored_at: Int64s
    """Offset of the stored message each row repeats, -1 for none."""
    same_as: Int64s
    """Earlier row of the same batch each row repeats, -1 for none."""

    @property
    def is_new(self) -> npt.NDArray[np.bool_]:
        """Rows that repeat nothing."""
        return np.asarray((self.stored_at == _NEW) & (self.same_as == _NEW))


def find_repeats(
    index: IdIndex, ids: pa.BinaryArray, fps: Fingerprints, stored: StoredIds, *, oldest_ms: int
) -> Repeats | None:
    """Return the repeats in a batch, None if every row is new.

    Messages appended before `oldest_ms` have left the window and do not count.
    """
    candidates = index.lookup(fps)
    first = first_occurrence(fps)
    if first is None and not len(candidates.rows):
        return None
    same_as = _repeats_within(ids, first)
    stored_at = np.full(len(fps), _NEW, dtype=np.int64)
    if len(candidates.rows):
        known = stored(candidates.offsets)
        # Oldest first within a row, so the first match is the first publish.
        pairs = zip(candidates.rows.tolist(), candidates.offsets.tolist(), known, strict=True)
        for row, offset, (message_id, append_ms) in pairs:
            is_match = append_ms >= oldest_ms and message_id == ids[row].as_py()
            if is_match and stored_at[row] == _NEW:
                stored_at[row] = offset
    repeats = Repeats(stored_at, same_as)
    return None if bool(repeats.is_new.all()) else repeats


def find_repeat(
    index: IdIndex, message_id: bytes, fp: int, stored: StoredIds, *, oldest_ms: int
) -> int | None:
    """Return the offset of the stored message this one repeats; the scalar twin."""
    offsets = index.lookup_one(fp)
    if not offsets:
        return None
    known = stored(np.array(offsets, dtype=np.int64))
    for offset, (found, append_ms) in zip(offsets, known, strict=True):
        if append_ms >= oldest_ms and found == message_id:
            return offset
    return None


def _repeats_within(ids: pa.BinaryArray, first: Int64s | None) -> Int64s:
    """Return, per row, the first row with the same id, -1 if it is that row itself."""
    rows = np.arange(len(ids), dtype=np.int64)
    same_as = np.full(len(ids), _NEW, dtype=np.int64)
    if first is None:
        return same_as
    shared = np.isin(first, first[first != rows])
    seen: dict[bytes, int] = {}
    for row in np.flatnonzero(shared).tolist():
        earlier = seen.setdefault(ids[row].as_py(), row)
        if earlier != row:
            same_as[row] = earlier
    return same_as
