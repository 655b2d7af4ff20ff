"""Open timers in memory, come in any order, not to be fired from here: offsets and due times.

A few sorted pieces. Each arrival is one; pieces that are alike in size are joined, so there are
never more than log n and some large ones. What is retired stays in its piece, dead, until then.
"""

import numpy as np
import numpy.typing as npt

from waterclock.schedule.slot import Rows

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Timers = tuple[Int64s, Int64s]
"""Offsets, ascending, and due times."""

_NOTHING: Timers = (np.empty(0, np.int64), np.empty(0, np.int64))

PIECE_MAX = 262_144
"""Pieces are not joined beyond this size: joining takes its time in one go."""


class Piece:
    """Timers that came together, by offset."""

    __slots__ = ("count", "due", "is_alive", "offsets")

    def __init__(self, offsets: Int64s, due: Int64s) -> None:
        self.offsets = offsets
        self.due = due
        self.is_alive: Bools = np.ones(len(offsets), np.bool_)
        self.count = len(offsets)

    def find(self, offsets: Int64s) -> tuple[Rows, Bools]:
        """Return the row of each, and which are there and alive."""
        rows = np.minimum(self.offsets.searchsorted(offsets), len(self.offsets) - 1)
        return rows, (self.offsets[rows] == offsets) & self.is_alive[rows]

    def retire(self, rows: Rows) -> None:
        """Mark living rows, all different, as dead."""
        self.is_alive[rows] = False
        self.count -= len(rows)

    def open_ones(self) -> Timers:
        """Return what is alive."""
        if self.count == len(self.offsets):
            return self.offsets, self.due
        return self.offsets[self.is_alive], self.due[self.is_alive]


class Overflow:
    """A set of open timers."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def __len__(self) -> int:
        return sum(piece.count for piece in self._pieces)

    def __repr__(self) -> str:
        return f"<Overflow of {len(self)} in {len(self._pieces)} pieces>"

    def add(self, offsets: Int64s, due: Int64s) -> None:
        """Add timers, none of which is here; their offsets ascend."""
        if not len(offsets):
            return
        pieces = self._pieces
        pieces.append(Piece(offsets, due))
        while len(pieces) > 1 and pieces[-2].count <= 2 * pieces[-1].count:
            if pieces[-2].count + pieces[-1].count > PIECE_MAX:
                break
            last, before = pieces.pop(), pieces.pop()
            pieces.append(Piece(*joined([before.open_ones(), last.open_ones()])))

    def retire(self, offsets: Int64s, due: Int64s | None = None) -> Bools:
        """Forget timers, all different; return which were here, with that due time if given."""
        was_here = np.zeros(len(offsets), np.bool_)
        for piece in self._pieces:
            rows, is_here = piece.find(offsets)
            if due is not None:
                is_here &= piece.due[rows] == due
            piece.retire(rows[is_here])
            was_here |= is_here
        self._pieces = [piece for piece in self._pieces if piece.count]
        return was_here

    def due_of(self, offsets: Int64s) -> Int64s:
        """Return the due time of each, -1 for those that are not here."""
        found: Int64s = np.full(len(offsets), -1, np.int64)
        for piece in self._pieces:
            rows, is_here = piece.find(offsets)
            found[is_here] = piece.due[rows[is_here]]
        return found

    def take_due(self, end_ms: int) -> Timers | None:
        """Remove and return some of what is due before a time, ascending; None if nothing is."""
        for piece in self._pieces:
            rows = np.flatnonzero(piece.is_alive & (piece.due < end_ms))
            if len(rows):
                piece.retire(rows)
                self._pieces = [piece for piece in self._pieces if piece.count]
                return piece.offsets[rows], piece.due[rows]
        return None

    def parts_from(self, offset: int, limit: int) -> list[Timers]:
        """Return, of each piece, the first `limit` timers at or above an offset."""
        parts = []
        for piece in self._pieces:
            start = int(piece.offsets.searchsorted(offset))
            rows = np.flatnonzero(piece.is_alive[start:])[:limit] + start
            parts.append((piece.offsets[rows], piece.due[rows]))
        return parts

    def check_invariants(self) -> None:
        """Raise AssertionError if something contradicts itself. Slow: for tests."""
        alive = [piece.open_ones()[0] for piece in self._pieces]
        for piece in self._pieces:
            assert (np.diff(piece.offsets) > 0).all()
            assert piece.count == int(piece.is_alive.sum()) > 0
        everything = np.concatenate([*alive, np.empty(0, np.int64)])
        assert len(np.unique(everything)) == len(everything), "a timer is in two pieces"


def joined(parts: list[Timers]) -> Timers:
    """Return timers from several ascending parts as one."""
    offsets = np.concatenate([part[0] for part in parts])
    due = np.concatenate([part[1] for part in parts])
    if len(offsets) > 1 and not (offsets[1:] > offsets[:-1]).all():
        order = offsets.argsort(kind="stable")
        offsets, due = offsets[order], due[order]
    return offsets, due


def first_of(parts: list[Timers], limit: int) -> Timers:
    """Return the first `limit` of several ascending parts, each of which was cut at `limit`."""
    parts = sorted((part for part in parts if len(part[0])), key=lambda part: int(part[0][0]))
    if not parts:
        return _NOTHING
    full = [int(offsets[-1]) for offsets, _ in parts if len(offsets) == limit]
    if full:
        # What is behind the end of a full part is not among the first.
        ends = [int(offsets.searchsorted(min(full), side="right")) for offsets, _ in parts]
        parts = [(o[:end], due[:end]) for (o, due), end in zip(parts, ends, strict=True)]
    offsets, due = joined(parts)
    return offsets[:limit], due[:limit]
