"""Offsets cancelled of late, so that a cancel sent again is told what the first one was told.

The log remembers every cancel, but not where to look for it; so only as many are kept as somebody
who repeats himself after a lost answer can need.
"""

from collections import deque

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

OFFSETS_MAX = 262_144


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
