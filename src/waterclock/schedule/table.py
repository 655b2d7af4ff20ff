"""The open timers of a partition as columns: offset (ascending), due time, state.

A row takes nine bytes (`column.py`) and is found by binary search. Retired rows are squeezed out in
parts, a few for every row that is touched: rows [0, head) are squeezed, [head, tail) are free,
[tail, count) wait. Columns grow by an eighth, in place where the system can remap pages, so that
growing neither doubles the memory nor stalls.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from waterclock.schedule.column import Column
from waterclock.schedule.slot import Rows

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
States = npt.NDArray[np.uint8]

ROWS_MIN = 1_024
DEAD_SLACK = 65_536
"""Retired rows that are not worth squeezing out, beyond half as many as are open."""


class State(IntEnum):
    """Where a timer stands. Whatever is not in the table is DEAD."""

    DEAD = 0
    WAITING = 1
    """In the wheel."""
    READY = 2
    """Out of the wheel, due, not handed out yet."""
    FIRING = 3
    """Handed out; the scheduler retires it or gives it back."""


class Table:
    """Timers by offset."""

    def __init__(self) -> None:
        self.offset = Column(ROWS_MIN)
        self.due = Column(ROWS_MIN)
        self.state: States = np.zeros(ROWS_MIN, np.uint8)
        self.count = 0
        """Rows in use, dead and free ones included."""
        self.is_tidying = False
        self.head = 0
        self._tail = 0
        self._dead = 0

    def __len__(self) -> int:
        """How many timers there are."""
        return self.count - (self._tail - self.head) - self._dead

    def append(self, offsets: Int64s, due: Int64s) -> Rows:
        """Add timers and return their rows; their offsets ascend and are above all others, ever."""
        assert not self.count or not len(offsets) or offsets[0] > self.offset[self.count - 1]
        end = self.count + len(offsets)
        if end > len(self.offset):
            self._resize(max(end, len(self.offset) + len(self.offset) // 8))
        if not self.offset.fits(offsets):
            # The dead ones as well: rows are searched by offset.
            used = np.concatenate([np.arange(self.head), np.arange(self._tail, self.count)])
            self.offset.make_room(offsets, used)
        self.offset[self.count : end] = offsets
        self._set_due(slice(self.count, end), due)
        self.state[self.count : end] = State.WAITING
        self.count = end
        return np.arange(end - len(offsets), end)

    def move(self, rows: Rows, due: Int64s) -> None:
        """Give timers, which then wait, other due times."""
        self._set_due(rows, due)
        self.state[rows] = State.WAITING

    def _set_due(self, rows: Rows | slice, due: Int64s) -> None:
        if not self.due.fits(due):
            self.due.make_room(due, np.flatnonzero(self.state[: self.count]))
        self.due[rows] = due

    def _resize(self, rows: int) -> None:
        self.offset.resize(rows)
        self.due.resize(rows)
        self.state.resize(rows, refcheck=False)

    def find(self, offsets: Int64s) -> tuple[Rows, States]:
        """Return the row and the state of each; the row of one that is DEAD means nothing."""
        if len(offsets) < 2 or (offsets[1:] >= offsets[:-1]).all():
            rows = self._search(offsets)
        else:
            # Neighbours are found in the same cache lines: sorting is the lesser cost.
            order = offsets.argsort()
            rows = np.empty(len(offsets), np.intp)
            rows[order] = self._search(offsets[order])
        return rows, self._states(rows, offsets)

    def locate(self, offsets: Int64s, hints: Rows) -> tuple[Rows, States]:
        """Find offsets that were in the rows `hints` and most likely still are."""
        rows = np.minimum(hints, len(self.offset) - 1)
        is_elsewhere = self.offset[rows] != offsets
        if is_elsewhere.any():
            rows[is_elsewhere] = self.find(offsets[is_elsewhere])[0]
        return rows, self._states(rows, offsets)

    def _states(self, rows: Rows, offsets: Int64s) -> States:
        states = self.state[rows]
        states[self.offset[rows] != offsets] = State.DEAD
        return states

    def _search(self, offsets: Int64s) -> Rows:
        """Return the row of each, or any other row if there is none."""
        rows = self.offset.search(self._tail, self.count, offsets)
        if self.head:
            is_head = offsets <= self.offset[self.head - 1]
            rows[is_head] = self.offset.search(0, self.head, offsets[is_head])
        np.minimum(rows, len(self.offset) - 1, out=rows)
        return rows

    def open_from(self, offset: int, count: int) -> Rows:
        """Return the rows of the first `count` timers at or above an offset."""
        parts = []
        for start, end in ((0, self.head), (self._tail, self.count)):
            at = int(self.offset.search(start, end, np.array([offset]))[0])
            while at < end and count > 0:
                # A part at a time: most rows are alive, and the caller wants few.
                rows = np.flatnonzero(self.state[at : min(at + 2 * count, end)])[:count] + at
                at += 2 * count
                count -= len(rows)
                parts.append(rows)
        return np.concatenate(parts) if parts else np.empty(0, np.intp)

    def retire(self, rows: Rows) -> None:
        """Mark rows of living timers, all different, as dead."""
        self.state[rows] = State.DEAD
        self._dead += len(rows)

    @property
    def needs_tidying(self) -> bool:
        """Whether enough rows are dead to squeeze them out."""
        return self._dead > len(self) // 2 + DEAD_SLACK

    def tidy(self, rows: int) -> slice:
        """Squeeze the dead out of the next `rows` rows; return the rows the living are in now.

        The pass begins with the first call and ends when `is_tidying` is false again.
        """
        self.is_tidying = True
        start, end = self._tail, min(self._tail + rows, self.count)
        keep = np.flatnonzero(self.state[start:end]) + start
        moved = slice(self.head, self.head + len(keep))
        self.offset.copy(keep, moved)
        self.due.copy(keep, moved)
        self.state[moved] = self.state[keep]
        vacated = slice(max(moved.stop, start), end)
        self.offset.clear(vacated)
        self.state[vacated] = State.DEAD
        self._dead -= end - start - len(keep)
        self.head, self._tail = moved.stop, end
        if end == self.count:
            self.count, self.head, self._tail = self.head, 0, 0
            self.is_tidying = False
            if self.count < len(self.offset) // 2:
                self._resize(max(ROWS_MIN, self.count + self.count // 8))
        return moved

    def check_invariants(self) -> None:
        """Raise AssertionError if the table contradicts itself."""
        assert 0 <= self.head <= self._tail <= self.count <= len(self.offset)
        assert not self.state[self.head : self._tail].any()
        alive = np.flatnonzero(self.state[: self.count])
        assert len(alive) == len(self)
        assert (np.diff(self.offset[alive]) > 0).all()
        for run in (self.offset[: self.head], self.offset[self._tail : self.count]):
            assert (np.diff(run) > 0).all()
