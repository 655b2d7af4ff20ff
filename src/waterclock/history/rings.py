"""Rings of samples: as many slots of one length as there are, the newest over the oldest.

A slot is a stretch of the wall clock, numbered from the epoch on. The slot that was put last is the
newest there is: if the clock was set back, what was written ahead of it is dropped, and if it went
on without us (a restart, a sleep), the slots between are unknown, not zero.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Ring:
    """So many slots of `step_ms`, each a row of numbers; NaN is unknown."""

    def __init__(self, step_ms: int, slots: int, width: int) -> None:
        self.step_ms = step_ms
        self.values: Floats = np.full((slots, width), np.nan, np.float32)
        """The row of a slot stands at its number modulo the count."""
        self.newest = 0
        """The slot that was put last; 0: none yet."""

    def __repr__(self) -> str:
        return f"<Ring of {len(self.values)} x {self.step_ms} ms>"

    def slot_of(self, time_ms: int) -> int:
        return time_ms // self.step_ms

    def put(self, slot: int, row: Floats) -> None:
        """Put the row of a slot, which becomes the newest."""
        self.values[slot % len(self.values)] = np.nan
        self._open(slot)
        self.values[slot % len(self.values)] = row

    def _open(self, slot: int) -> None:
        count = len(self.values)
        ahead = range(self.newest + 1, slot)  # nobody sampled these
        behind = range(slot + 1, self.newest + 1)  # the clock was ahead
        for stale in (ahead, behind):
            if len(stale) >= count:
                self.values[:] = np.nan
            elif stale:
                self.values[np.arange(stale.start, stale.stop) % count] = np.nan
        self.newest = slot

    def rows(self, first: int, end: int) -> Floats:
        """Return the rows of the slots [first, end), NaN where there are none."""
        slots = np.arange(first, end)
        found = self.values[slots % len(self.values)]
        found[(slots > self.newest) | (slots <= self.newest - len(self.values))] = np.nan
        return found

    def whole(self) -> Floats:
        """Return all rows, the oldest first."""
        return self.rows(self.newest + 1 - len(self.values), self.newest + 1)
