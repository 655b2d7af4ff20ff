"""Timers due after the horizon, kept where they lie: in the `.due` side-cars of their segments.

A side-car lists, for one segment of the log, what it did to the set of timers: those it opened,
those of earlier segments it ended, and those of earlier segments it moved. Its columns are mapped
from disk; in memory there is one byte for each row. A timer lives in the last row that speaks of
it: where it was opened, or where it was moved last. What the active segment has opened or moved has
no side-car to lie in yet, and waits in the overflow.

A row has two flags. OPEN: at the end of the last segment that was folded in, the timer was open
and this its row. It says nothing of the active segment, so it is a durable fact once the segment
is: that is what a checkpoint holds. COLD: the timer is open now, and this is where it is kept; not
so once it was loaded into memory, ended, or moved.

Segments are folded in order. Much may have to be done for one, so `fold` and `take_due` are
generators, to be driven with pauses; run one at a time, and anything else meanwhile.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from waterclock.schedule.overflow import Overflow, Timers, first_of
from waterclock.schedule.slot import Rows

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Flags = npt.NDArray[np.uint8]

OPEN = np.uint8(1)
COLD = np.uint8(2)

STEP_ROWS = 65_536
"""Rows dealt with between two pauses."""


class SegmentChanges(NamedTuple):
    """What a segment says of timers, net: the columns of its `.due` side-car, by offset."""

    opened: Int64s
    opened_due: Int64s
    retired: Int64s
    """Of earlier segments, like those below."""
    moved: Int64s
    moved_due: Int64s


class Run:
    """Timers of one segment, by offset: those it opened, or those it moved."""

    __slots__ = ("cold_count", "due", "flags", "offsets")

    def __init__(self, offsets: Int64s, due: Int64s, flags: Flags) -> None:
        self.offsets = offsets
        self.due = due
        self.flags = flags
        self.cold_count = int(np.count_nonzero(flags & COLD))
        """How many rows are cold."""

    def find(self, offsets: Int64s, flag: np.uint8) -> tuple[Rows, Bools]:
        """Return the row of each, and which are there and have the flag."""
        rows = np.minimum(self.offsets.searchsorted(offsets), len(self.offsets) - 1)
        return rows, (self.offsets[rows] == offsets) & ((self.flags[rows] & flag) != 0)

    def clear(self, rows: Rows, flag: np.uint8) -> None:
        """Take a flag from rows, all different, that have it."""
        self.flags[rows] &= ~flag
        if flag == COLD:
            self.cold_count -= len(rows)

    def refit(self, offsets: Int64s, due: Int64s) -> "Run":
        """Return the same in other columns, which may lack rows of timers that are over."""
        if len(offsets) == len(self.offsets):
            return Run(offsets, due, self.flags)
        rows = self.offsets.searchsorted(offsets)
        assert (self.offsets[rows] == offsets).all(), "a rewritten segment has new timers"
        return Run(offsets, due, self.flags[rows])


class Segment(NamedTuple):
    """What is known of the timers a segment speaks of."""

    opened: Run
    moved: Run


class ColdTimers:
    """The timers that are cold. Offsets and due times are parallel arrays."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}
        self._bases: list[int] = []
        """Base offsets of the segments, ascending."""
        self._overflow = Overflow()

    def __len__(self) -> int:
        return len(self._overflow) + sum(run.cold_count for run in self._runs())

    def __repr__(self) -> str:
        return f"<ColdTimers {len(self)} timers, {len(self._overflow)} of them in memory>"

    # Timers

    def open(self, offsets: Int64s, due_ms: Int64s) -> None:
        """Add timers that the active segment has opened or moved; their offsets ascend."""
        self._overflow.add(offsets, due_ms)

    def retire(self, offsets: Int64s) -> Bools:
        """Forget timers, all different; return which were here."""
        was_here = self._overflow.retire(offsets)
        left = np.flatnonzero(~was_here)
        for run, rows, asks in self._found(offsets[left], COLD):
            run.clear(rows, COLD)
            was_here[left[asks]] = True
        return was_here

    def due_of(self, offsets: Int64s) -> Int64s:
        """Return the due time of each, -1 for those that are not here."""
        due = self._overflow.due_of(offsets)
        left = np.flatnonzero(due < 0)
        for run, rows, asks in self._found(offsets[left], COLD):
            due[left[asks]] = run.due[rows]
        return due

    def open_from(self, offset: int, limit: int) -> Timers:
        """Return the first `limit` timers at or above an offset, by offset."""
        parts = self._overflow.parts_from(offset, limit)
        parts += [_cold_from(run, offset, limit) for run in self._moved_runs()]
        left = limit
        for base in self._bases[max(0, bisect_right(self._bases, offset) - 1) :]:
            if left <= 0:
                break
            parts.append(_cold_from(self._segments[base].opened, offset, left))
            left -= len(parts[-1][0])
        return first_of(parts, limit)

    def take_due(self, end_ms: int) -> Iterator[Timers]:
        """Remove and yield, part by part, what is due before a time. Each part ascends."""
        for run in self._runs():
            for start in range(0, len(run.offsets) if run.cold_count else 0, STEP_ROWS):
                part = slice(start, start + STEP_ROWS)
                is_hot = ((run.flags[part] & COLD) != 0) & (run.due[part] < end_ms)
                rows = np.flatnonzero(is_hot) + start
                run.clear(rows, COLD)
                yield run.offsets[rows], run.due[rows]
        # Again and again: what is done between two parts may join the pieces of the overflow.
        while (held := self._overflow.take_due(end_ms)) is not None:
            yield held

    # Segments

    @property
    def bases(self) -> list[int]:
        """The base offsets of the segments folded in, ascending."""
        return self._bases

    def fold(self, base: int, changes: SegmentChanges) -> Iterator[None]:
        """Take in what a segment says: the next one, now sealed. Yields between parts.

        You must go on to the end: rows lose their flags here before others have them.
        """
        assert not self._bases or base > self._bases[-1], "segments are folded in order"
        for start in range(0, len(changes.retired), STEP_ROWS):
            self._clear_open(changes.retired[start : start + STEP_ROWS])
            yield
        moved_flags = np.zeros(len(changes.moved), np.uint8)
        for start in range(0, len(changes.moved), STEP_ROWS):
            part = slice(start, start + STEP_ROWS)
            moved_flags[part] = self._clear_open(changes.moved[part]) * OPEN
            yield
        opened = Run(changes.opened, changes.opened_due, np.full(len(changes.opened), OPEN))
        moved = Run(changes.moved, changes.moved_due, moved_flags)
        self._add(base, Segment(opened, moved))
        for run in (opened, moved):
            for start in range(0, len(run.offsets), STEP_ROWS):
                part = slice(start, start + STEP_ROWS)
                # What has been moved again since is in the overflow with another due time.
                is_held = self._overflow.retire(run.offsets[part], run.due[part])
                run.flags[part] |= is_held * COLD
                run.cold_count += int(np.count_nonzero(is_held))
                yield

    def restore(self, base: int, changes: SegmentChanges, opened: Bools, moved: Bools) -> None:
        """Take in a segment with the OPEN flags that a checkpoint had for it."""
        self._add(
            base,
            Segment(
                Run(changes.opened, changes.opened_due, opened * OPEN),
                Run(changes.moved, changes.moved_due, moved * OPEN),
            ),
        )

    def begin(self) -> None:
        """Take what was open at the end of the last segment to be open and cold now.

        At the start, once all segments are in; then tell what the active one did.
        """
        for run in self._runs():
            run.flags = (run.flags & OPEN) * (OPEN | COLD)
            run.cold_count = int(np.count_nonzero(run.flags))

    def refit(self, base: int, changes: SegmentChanges) -> None:
        """Take other columns for a segment: it was written anew, or its side-car was mapped."""
        opened, moved = self._segments[base]
        self._segments[base] = Segment(
            opened.refit(changes.opened, changes.opened_due),
            moved.refit(changes.moved, changes.moved_due),
        )

    def drop(self, base: int) -> None:
        """Let go of a segment that is gone; it held nothing."""
        del self._segments[base]
        self._bases.remove(base)

    def open_flags(self, base: int) -> tuple[Bools, Bools]:
        """Return the OPEN flags of a segment, for a checkpoint: of what it opened and moved."""
        opened, moved = self._segments[base]
        return (opened.flags & OPEN) != 0, (moved.flags & OPEN) != 0

    def _add(self, base: int, segment: Segment) -> None:
        self._segments[base] = segment
        self._bases.append(base)

    def _clear_open(self, offsets: Int64s) -> Bools:
        """Note that timers are over, or have a later row; return which were open."""
        was_open = np.zeros(len(offsets), np.bool_)
        for run, rows, asks in self._found(offsets, OPEN):
            run.clear(rows, OPEN)
            was_open[asks] = True
        return was_open

    def _found(self, offsets: Int64s, flag: np.uint8) -> Iterator[tuple[Run, Rows, Rows]]:
        """Yield (run, rows, which asks) for timers whose row has a flag; all are different."""
        if not len(offsets) or not self._bases:
            return
        order = offsets.argsort(kind="stable")
        wanted = offsets[order]
        numbers = np.searchsorted(self._bases, wanted, side="right") - 1
        is_left = np.ones(len(wanted), np.bool_)
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(wanted)]
        for start, end in pairwise(cuts):
            if numbers[start] >= 0:
                run = self._segments[self._bases[int(numbers[start])]].opened
                yield from _found_in(run, wanted, np.arange(start, end), flag, order, is_left)
        for run in self._moved_runs():
            yield from _found_in(run, wanted, np.flatnonzero(is_left), flag, order, is_left)

    def _runs(self) -> Iterator[Run]:
        for base in self._bases:
            yield self._segments[base].opened
        yield from self._moved_runs()

    def _moved_runs(self) -> Iterator[Run]:
        """Yield the moved runs that hold anything, the latest first: timers end up there."""
        for base in reversed(self._bases):
            moved = self._segments[base].moved
            if len(moved.offsets):
                yield moved

    def check_invariants(self) -> None:
        """Raise AssertionError if something contradicts itself. Slow: for tests."""
        self._overflow.check_invariants()
        for flag in (OPEN, COLD):
            having = [run.offsets[(run.flags & flag) != 0] for run in self._runs()]
            offsets = np.concatenate([*having, np.empty(0, np.int64)])
            assert len(np.unique(offsets)) == len(offsets), "a timer has two rows"
        for run in self._runs():
            assert run.cold_count == np.count_nonzero(run.flags & COLD)


def _found_in(
    run: Run, wanted: Int64s, asks: Rows, flag: np.uint8, order: Rows, is_left: Bools
) -> Iterator[tuple[Run, Rows, Rows]]:
    if not len(run.offsets) or not len(asks):
        return
    rows, is_here = run.find(wanted[asks], flag)
    if is_here.any():
        is_left[asks[is_here]] = False
        yield run, rows[is_here], order[asks[is_here]]


def _cold_from(run: Run, offset: int, limit: int) -> Timers:
    """Return the first `limit` cold timers of a run at or above an offset."""
    parts: list[Rows] = []
    at = int(run.offsets.searchsorted(offset))
    end = len(run.offsets) if run.cold_count else 0
    while at < end and limit > 0:
        rows = np.flatnonzero(run.flags[at : at + STEP_ROWS] & COLD)[:limit] + at
        at += STEP_ROWS
        limit -= len(rows)
        parts.append(rows)
    chosen = np.concatenate([*parts, np.empty(0, np.intp)])
    return run.offsets[chosen], run.due[chosen]
