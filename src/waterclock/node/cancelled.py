"""Offsets cancelled of late, so that a cancel sent again is told what the first one was told.

The log remembers every cancel, but not where to look for it; so only as many are kept as somebody
who repeats himself after a lost answer can need.
"""

from collections import deque

import numpy as np
import numpy.typing as npt

from waterclock.log.arrays import as_numpy
from waterclock.log.due import is_among
from waterclock.log.frame import FrameType
from waterclock.log.schema import decode
from waterclock.model.errors import Damaged
from waterclock.storage.partition_store import PartitionStore

Int64s = npt.NDArray[np.int64]

OFFSETS_MAX = 262_144
PIECES = 16
"""About how many pieces they are kept in: one is forgotten at once."""
TAIL_BYTES = 16 << 20
"""How much of the log's end is searched for cancels at the start."""


def recently_cancelled(store: PartitionStore) -> "Cancelled":
    """Return what the end of a log says was cancelled of late."""
    cancelled = Cancelled()
    try:
        for frame in store.reader.tail(TAIL_BYTES):
            if frame.header.type is FrameType.CANCEL:
                rows = decode(frame.header, frame.body)
                cancelled.add(as_numpy(rows.column("promise_offset")))
    except Damaged:
        return cancelled  # the partition is faulty, and says so itself
    return cancelled


class Cancelled:
    """The last offsets that were cancelled."""

    def __init__(self, offsets_max: int = OFFSETS_MAX) -> None:
        self._offsets_max = offsets_max
        self._pieces: deque[Int64s] = deque()
        """Each in order; the oldest first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, offsets: Int64s) -> None:
        """Remember offsets; the oldest are forgotten for them, a piece at a time."""
        pieces, piece = self._pieces, offsets
        # Joined as they become alike in size: few pieces, however small the cancels.
        while pieces and len(pieces[-1]) <= min(2 * len(piece), self._offsets_max // PIECES):
            piece = np.concatenate([pieces.pop(), piece])
        pieces.append(np.sort(piece))
        self._count += len(offsets)
        while self._count > self._offsets_max and len(pieces) > 1:
            self._count -= len(pieces.popleft())

    def has(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Tell which of these are remembered."""
        found = np.zeros(len(offsets), np.bool_)
        for piece in self._pieces:
            found |= is_among(offsets, piece)
        return found
