"""Scheduled messages that a segment opened, in four bytes each where it can be.

The active segment of a log may have opened millions, and they stay in memory until it is sealed.
Messages of one frame follow each other, so of their offsets the first says all; due times of a few
weeks differ by less than 2^32 milliseconds, so each is kept as its distance from the least.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
PIECE_ROWS_MAX = 65_536
"""Pieces are joined up to this length, in half a millisecond. Joined on, millions of rows would be
copied in one call."""


class _Piece(NamedTuple):
    """Messages whose offsets ascend. Both columns are distances, from `first` and `least_due`."""

    first: int
    rows: int
    offsets: npt.NDArray[np.uint32] | Int64s | None
    """None: they follow each other."""
    least_due: int
    due: npt.NDArray[np.uint32] | Int64s

    def columns(self) -> tuple[Int64s, Int64s]:
        if self.offsets is None:
            offsets = np.arange(self.first, self.first + self.rows)
        else:
            offsets = np.add(self.offsets, self.first, dtype=np.int64)
        return offsets, np.add(self.due, self.least_due, dtype=np.int64)


class Opened:
    """Offsets and due times, as they came."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []

    def __len__(self) -> int:
        return sum(piece.rows for piece in self._pieces)

    def __repr__(self) -> str:
        return f"<Opened {len(self)} scheduled messages in {self.size_bytes} bytes>"

    @property
    def size_bytes(self) -> int:
        """What they take in memory, small change aside."""
        columns = [column for each in self._pieces for column in (each.offsets, each.due)]
        return sum(column.nbytes for column in columns if column is not None)

    @classmethod
    def mapped(cls, offsets: Int64s, due_ms: Int64s) -> "Opened":
        """Return messages whose columns stay as they lie in the map of a file."""
        found = cls()
        if len(offsets):
            found._pieces.append(_Piece(0, len(offsets), offsets, 0, due_ms))
        return found

    def add(self, offsets: Int64s, due_ms: Int64s) -> None:
        """Add messages, none of them below those that are here."""
        if not len(offsets):
            return
        pieces = self._pieces
        pieces.append(_packed(offsets, due_ms))
        while len(pieces) > 1 and _is_worth_joining(pieces[-2].rows, pieces[-1].rows):
            together = [piece.columns() for piece in pieces[-2:]]
            joined = _packed(*(np.concatenate(column) for column in zip(*together, strict=True)))
            pieces[-2:] = [joined]

    def columns(self) -> tuple[Int64s, Int64s]:
        """Return (offsets, due times) of all, as copies."""
        # Filled part by part: all of the parts beside the whole would be twice the memory.
        offsets, due = np.empty(len(self), np.int64), np.empty(len(self), np.int64)
        start = 0
        for piece in self._pieces:
            end = start + piece.rows
            offsets[start:end], due[start:end] = piece.columns()
            start = end
        return offsets, due

    def copy(self) -> "Opened":
        """Return one that stays as this is now."""
        twin = Opened()
        twin._pieces = self._pieces.copy()
        return twin


def _packed(offsets: Int64s, due_ms: Int64s) -> _Piece:
    first, count = int(offsets[0]), len(offsets)
    is_run = int(offsets[-1]) - first == count - 1
    least_due = int(due_ms.min())
    return _Piece(
        first,
        count,
        None if is_run else _narrow(offsets - first),
        least_due,
        _narrow(due_ms - least_due),
    )


def _narrow(distances: Int64s) -> npt.NDArray[np.uint32] | Int64s:
    """Return distances, none of them negative, in four bytes each if they fit."""
    return distances.astype(np.uint32) if int(distances.max()) < 1 << 32 else distances


def _is_worth_joining(before: int, last: int) -> bool:
    return before <= 2 * last and before + last <= PIECE_ROWS_MAX
