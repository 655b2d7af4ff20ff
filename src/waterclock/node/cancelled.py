"""Offsets cancelled of late, so that a cancel sent again is told what the first one was told.

The log remembers every cancel, but not where to look for it; so only as many are kept as somebody
who repeats himself after a lost answer can need.
"""

from collections import deque

import numpy as np
import numpy.typing as npt

from waterclock.log.frame import FrameType
from waterclock.log.schema import decode
from waterclock.model.errors import Damaged
from waterclock.storage.partition_store import PartitionStore

Int64s = npt.NDArray[np.int64]

OFFSETS_MAX = 262_144
TAIL_BYTES = 16 << 20
"""How much of the log's end is searched for cancels at the start."""


def recently_cancelled(store: PartitionStore) -> "Cancelled":
    """Return what the end of a log says was cancelled of late."""
    cancelled = Cancelled()
    try:
        for frame in store.reader.tail(TAIL_BYTES):
            if frame.header.type is FrameType.CANCEL:
                rows = decode(frame.header, frame.body)
                cancelled.add(rows.column("promise_offset").to_numpy().copy())
    except Damaged:
        return cancelled  # the partition is faulty, and says so itself
    return cancelled


class Cancelled:
    """The last offsets that were cancelled."""

    def __init__(self, offsets_max: int = OFFSETS_MAX) -> None:
        self._offsets_max = offsets_max
        self._batches: deque[Int64s] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, offsets: Int64s) -> None:
        """Remember offsets; the oldest are forgotten for them."""
        self._batches.append(offsets)
        self._count += len(offsets)
        while self._count > self._offsets_max:
            self._count -= len(self._batches.popleft())

    def has(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Tell which of these are remembered."""
        if not self._batches:
            return np.zeros(len(offsets), np.bool_)
        return np.isin(offsets, np.concatenate(self._batches))
