"""Timers that are due and wait to be handed out, in (due, offset) order.

A few sorted runs. Usually there is one; late arrivals (added or given back after their time) make
new ones, which are merged with their like, so there are never more than log n. What is retired or
moved meanwhile stays here and is recognised when it comes out: the table decides.
"""

import numpy as np
import numpy.typing as npt

from waterclock.schedule.slot import Rows

Int64s = npt.NDArray[np.int64]
Entries = tuple[Int64s, Int64s, Rows]
"""Due times, offsets and rows."""
Order = npt.NDArray[np.intp]

_NOTHING: Entries = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.intp))


def due_order(due: Int64s, offsets: Int64s) -> Order:
    """Return the permutation that sorts by (due, offset)."""
    if len(offsets) < 2:
        return np.arange(len(offsets))
    order: Order = offsets.argsort(kind="stable")
    by_due = due[order]
    first = by_due.min()
    if by_due.max() - first < 1 << 16:
        # Timers of a tick or a few: sixteen bits, which numpy sorts by counting.
        by_due = (by_due - first).astype(np.uint16)
    order = order[by_due.argsort(kind="stable")]
    return order


class _Run:
    __slots__ = ("at", "due", "offsets", "rows")

    def __init__(self, due: Int64s, offsets: Int64s, rows: Rows) -> None:
        self.due = due
        self.offsets = offsets
        self.rows = rows
        self.at = 0

    def __len__(self) -> int:
        return len(self.due) - self.at

    def due_by(self, bound_ms: int) -> int:
        """Return how many of those left are due at `bound_ms`."""
        return max(0, int(self.due.searchsorted(bound_ms, side="right")) - self.at)

    def cut(self, count: int) -> Entries:
        """Return the first `count` of those left."""
        part = slice(self.at, self.at + count)
        return self.due[part], self.offsets[part], self.rows[part]


class Ready:
    """A queue in (due, offset) order. The row is where an offset was when it was added."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        """How many entries there are, stale ones included."""
        return sum(map(len, self._runs))

    def push(self, due: Int64s, offsets: Int64s, rows: Rows) -> None:
        """Add timers in any order."""
        if not len(due):
            return
        runs = self._runs
        while runs and len(runs[-1]) <= 2 * len(due):
            run = runs.pop()
            due, offsets, rows = _joined([run.cut(len(run)), (due, offsets, rows)])
        order = due_order(due, offsets)
        runs.append(_Run(due[order], offsets[order], rows[order]))

    def count_due(self, bound_ms: int) -> int:
        """Return how many entries are due at `bound_ms`."""
        return sum(run.due_by(bound_ms) for run in self._runs)

    def first_due(self) -> int | None:
        """Return the due time of the first, if any."""
        return min((int(run.due[run.at]) for run in self._runs), default=None)

    def pop(self, bound_ms: int, limit: int) -> Entries:
        """Remove and return (due times, offsets, rows) of the first `limit` due at `bound_ms`."""
        parts = [run.cut(min(limit, run.due_by(bound_ms))) for run in self._runs]
        if not parts:
            return _NOTHING
        if len(parts) == 1:
            self._runs[0].at += len(parts[0][0])
            popped = parts[0]
        else:
            due, offsets, rows = _joined(parts)
            order = due_order(due, offsets)[:limit]
            source = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])[order]
            for index, count in enumerate(np.bincount(source).tolist()):
                self._runs[index].at += count
            popped = due[order], offsets[order], rows[order]
        self._runs = [run for run in self._runs if len(run)]
        return popped


def _joined(parts: list[Entries]) -> Entries:
    due, offsets, rows = zip(*parts, strict=True)
    return np.concatenate(due), np.concatenate(offsets), np.concatenate(rows)
