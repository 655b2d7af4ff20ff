"""A column of 64-bit numbers that lie close together, in four bytes each.

Offsets of one partition and due times of a few weeks differ by less than 2^32, so a number is kept
as its distance from a base. A number too far away moves the base, or, if no base fits all, makes
the column one of eight bytes for good: then it takes more memory, and nothing else is different.
"""

from typing import overload

import numpy as np
import numpy.typing as npt

from waterclock.schedule.slot import Rows

Int64s = npt.NDArray[np.int64]

SPAN = 1 << 32
"""How many numbers a base reaches. The first, the base itself, stands for no number, and the last
for all beyond: who looks for one there finds the end."""
NOWHERE = -1
"""What a row without a number holds; no column has negative numbers."""


class Column:
    """Numbers by row. Make room for them before you set them."""

    __slots__ = ("_base", "_values")

    def __init__(self, rows: int) -> None:
        self._values: npt.NDArray[np.uint32] | Int64s = np.zeros(rows, np.uint32)
        self._base: int | None = NOWHERE
        """None once there are eight bytes for each."""

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<Column of {len(self)} rows, {self._values.itemsize} bytes each>"

    @overload
    def __getitem__(self, rows: int) -> np.int64: ...
    @overload
    def __getitem__(self, rows: Rows | slice) -> Int64s: ...
    def __getitem__(self, rows: int | Rows | slice) -> np.int64 | Int64s:
        """Return the numbers in some rows, as a copy."""
        return np.add(self._values[rows], self._base or 0, dtype=np.int64)

    def __setitem__(self, rows: Rows | slice, numbers: Int64s) -> None:
        self._values[rows] = numbers - (self._base or 0)

    def fits(self, numbers: Int64s) -> bool:
        """Tell whether there is room for numbers, which are from 0 to 2^62."""
        if self._base is None or not len(numbers):
            return True
        return self._base < int(numbers.min()) and int(numbers.max()) < self._base + SPAN - 1

    def make_room(self, numbers: Int64s, kept: Rows) -> None:
        """Make room for numbers. Of those that are here only the ones in rows `kept` stay."""
        staying = self[kept]
        together = np.concatenate([numbers, staying])
        first, last = int(together.min()), int(together.max())
        room = SPAN - 1 - (last - first)
        if room < 2:
            self._values, self._base = np.empty(len(self), np.int64), None
        else:
            # As much below as above: times come from before and after.
            self._base = first - room // 2
        self.clear(slice(None))
        self[kept] = staying

    def clear(self, rows: slice) -> None:
        """Have rows hold no number that anybody asks for."""
        self._values[rows] = NOWHERE if self._base is None else 0

    def copy(self, rows: Rows, to: slice) -> None:
        """Set rows to what others hold."""
        self._values[to] = self._values[rows]

    def search(self, start: int, end: int, numbers: Int64s) -> Rows:
        """Return where in rows [start, end), which ascend, the numbers would be put in."""
        part = self._values[start:end]
        if self._base is None:
            return start + part.searchsorted(numbers)
        # In as few bytes as the column: else all of it would be widened to be searched.
        distances = np.clip(numbers, self._base, self._base + SPAN - 1) - self._base
        return start + part.searchsorted(distances.astype(np.uint32))

    def resize(self, rows: int) -> None:
        """Have so many rows, in place if the system can."""
        self._values.resize(rows, refcheck=False)
