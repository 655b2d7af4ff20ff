"""Promises due in the far future, kept where they lie: in the `.due` side-cars of their segments.

A side-car lists, for one segment of the log, what it did to the set of promises: those it opened,
those of earlier segments it ended, and those of earlier segments it moved. Its columns are mapped
from disk; in memory there is one byte for each row. A promise lives in the last row that speaks of
it: where it was opened, or where it was moved last. What the active segment has opened or moved has
no side-car to lie in yet, and waits in a pile.

A row has two flags. OPEN: at the end of the last segment that was folded in, the promise was open
and this its row. It says nothing of the active segment, so it is a durable fact once the segment
is: that is what a checkpoint holds. FAR: the promise is open now, and this is where it is kept; not
so once it was loaded into memory, ended, or moved.

Segments are folded in order. Much may have to be done for one, so `fold` and `nearing` are
generators, to be driven with pauses; run one at a time, and anything else meanwhile.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from waterclock.schedule.overflow import Pile, Promises, first_of
from waterclock.schedule.slot import Rows

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Flags = npt.NDArray[np.uint8]

OPEN = np.uint8(1)
FAR = np.uint8(2)

STEP_ROWS = 65_536
"""Rows dealt with between two pauses."""


class Words(NamedTuple):
    """What a segment says of promises, net: the columns of its `.due` side-car, by offset."""

    opened: Int64s
    opened_due: Int64s
    retired: Int64s
    """Of earlier segments, like those below."""
    moved: Int64s
    moved_due: Int64s


class Run:
    """Promises of one segment, by offset: those it opened, or those it moved."""

    __slots__ = ("due", "far", "flags", "offsets")

    def __init__(self, offsets: Int64s, due: Int64s, flags: Flags) -> None:
        self.offsets = offsets
        self.due = due
        self.flags = flags
        self.far = int(np.count_nonzero(flags & FAR))
        """How many rows are far."""

    def find(self, offsets: Int64s, flag: np.uint8) -> tuple[Rows, Bools]:
        """Return the row of each, and which are there and have the flag."""
        rows = np.minimum(self.offsets.searchsorted(offsets), len(self.offsets) - 1)
        return rows, (self.offsets[rows] == offsets) & ((self.flags[rows] & flag) != 0)

    def clear(self, rows: Rows, flag: np.uint8) -> None:
        """Take a flag from rows, all different, that have it."""
        self.flags[rows] &= ~flag
        if flag == FAR:
            self.far -= len(rows)

    def refit(self, offsets: Int64s, due: Int64s) -> "Run":
        """Return the same in other columns, which may lack rows of promises that are over."""
        if len(offsets) == len(self.offsets):
            return Run(offsets, due, self.flags)
        rows = self.offsets.searchsorted(offsets)
        assert (self.offsets[rows] == offsets).all(), "a rewritten segment has new promises"
        return Run(offsets, due, self.flags[rows])


class Segment(NamedTuple):
    """What is known of the promises a segment speaks of."""

    opened: Run
    moved: Run


class Far:
    """The promises that are far. Offsets and due times are parallel arrays."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}
        self._bases: list[int] = []
        """Base offsets of the segments, ascending."""
        self._pile = Pile()

    def __len__(self) -> int:
        return len(self._pile) + sum(run.far for run in self._runs())

    def __repr__(self) -> str:
        return f"<Far {len(self)} promises, {len(self._pile)} of them in memory>"

    # Promises

    def open(self, offsets: Int64s, due_ms: Int64s) -> None:
        """Add promises that the active segment has opened or moved; their offsets ascend."""
        self._pile.add(offsets, due_ms)

    def retire(self, offsets: Int64s) -> Bools:
        """Forget promises, all different; return which were here."""
        was_here = self._pile.retire(offsets)
        left = np.flatnonzero(~was_here)
        for run, rows, asks in self._found(offsets[left], FAR):
            run.clear(rows, FAR)
            was_here[left[asks]] = True
        return was_here

    def due_of(self, offsets: Int64s) -> Int64s:
        """Return the due time of each, -1 for those that are not here."""
        due = self._pile.due_of(offsets)
        left = np.flatnonzero(due < 0)
        for run, rows, asks in self._found(offsets[left], FAR):
            due[left[asks]] = run.due[rows]
        return due

    def open_from(self, offset: int, limit: int) -> Promises:
        """Return the first `limit` promises at or above an offset, by offset."""
        parts = self._pile.parts_from(offset, limit)
        parts += [_far_from(run, offset, limit) for run in self._moved_runs()]
        left = limit
        for base in self._bases[max(0, bisect_right(self._bases, offset) - 1) :]:
            if left <= 0:
                break
            parts.append(_far_from(self._segments[base].opened, offset, left))
            left -= len(parts[-1][0])
        return first_of(parts, limit)

    def nearing(self, end_ms: int) -> Iterator[Promises]:
        """Remove and yield, part by part, what is due before a time. Each part ascends."""
        for run in self._runs():
            for start in range(0, len(run.offsets) if run.far else 0, STEP_ROWS):
                part = slice(start, start + STEP_ROWS)
                is_near = ((run.flags[part] & FAR) != 0) & (run.due[part] < end_ms)
                rows = np.flatnonzero(is_near) + start
                run.clear(rows, FAR)
                yield run.offsets[rows], run.due[rows]
        # Again and again: what is done between two parts may join the pieces of the pile.
        while (piled := self._pile.take_due(end_ms)) is not None:
            yield piled

    # Segments

    @property
    def bases(self) -> list[int]:
        """The base offsets of the segments folded in, ascending."""
        return self._bases

    def fold(self, base: int, words: Words) -> Iterator[None]:
        """Take in what a segment says: the next one, now sealed. Yields between parts.

        You must go on to the end: rows lose their flags here before others have them.
        """
        assert not self._bases or base > self._bases[-1], "segments are folded in order"
        for start in range(0, len(words.retired), STEP_ROWS):
            self._clear_open(words.retired[start : start + STEP_ROWS])
            yield
        moved_flags = np.zeros(len(words.moved), np.uint8)
        for start in range(0, len(words.moved), STEP_ROWS):
            part = slice(start, start + STEP_ROWS)
            moved_flags[part] = self._clear_open(words.moved[part]) * OPEN
            yield
        opened = Run(words.opened, words.opened_due, np.full(len(words.opened), OPEN))
        moved = Run(words.moved, words.moved_due, moved_flags)
        self._add(base, Segment(opened, moved))
        for run in (opened, moved):
            for start in range(0, len(run.offsets), STEP_ROWS):
                part = slice(start, start + STEP_ROWS)
                # What has been moved again since is in the pile with another due time.
                is_piled = self._pile.retire(run.offsets[part], run.due[part])
                run.flags[part] |= is_piled * FAR
                run.far += int(np.count_nonzero(is_piled))
                yield

    def restore(self, base: int, words: Words, opened: Bools, moved: Bools) -> None:
        """Take in a segment with the OPEN flags that a checkpoint had for it."""
        self._add(
            base,
            Segment(
                Run(words.opened, words.opened_due, opened * OPEN),
                Run(words.moved, words.moved_due, moved * OPEN),
            ),
        )

    def begin(self) -> None:
        """Take what was open at the end of the last segment to be open and far now.

        At the start, once all segments are in; then tell what the active one did.
        """
        for run in self._runs():
            run.flags = (run.flags & OPEN) * (OPEN | FAR)
            run.far = int(np.count_nonzero(run.flags))

    def refit(self, base: int, words: Words) -> None:
        """Take other columns for a segment: it was written anew, or its side-car was mapped."""
        opened, moved = self._segments[base]
        self._segments[base] = Segment(
            opened.refit(words.opened, words.opened_due),
            moved.refit(words.moved, words.moved_due),
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
        """Note that promises are over, or have a later row; return which were open."""
        was_open = np.zeros(len(offsets), np.bool_)
        for run, rows, asks in self._found(offsets, OPEN):
            run.clear(rows, OPEN)
            was_open[asks] = True
        return was_open

    def _found(self, offsets: Int64s, flag: np.uint8) -> Iterator[tuple[Run, Rows, Rows]]:
        """Yield (run, rows, which asks) for promises whose row has a flag; all are different."""
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
        """Yield the moved runs that hold anything, the latest first: promises end up there."""
        for base in reversed(self._bases):
            moved = self._segments[base].moved
            if len(moved.offsets):
                yield moved

    def check_invariants(self) -> None:
        """Raise AssertionError if something contradicts itself. Slow: for tests."""
        self._pile.check_invariants()
        for flag in (OPEN, FAR):
            having = [run.offsets[(run.flags & flag) != 0] for run in self._runs()]
            offsets = np.concatenate([*having, np.empty(0, np.int64)])
            assert len(np.unique(offsets)) == len(offsets), "a promise has two rows"
        for run in self._runs():
            assert run.far == np.count_nonzero(run.flags & FAR)


def _found_in(
    run: Run, wanted: Int64s, asks: Rows, flag: np.uint8, order: Rows, is_left: Bools
) -> Iterator[tuple[Run, Rows, Rows]]:
    if not len(run.offsets) or not len(asks):
        return
    rows, is_here = run.find(wanted[asks], flag)
    if is_here.any():
        is_left[asks[is_here]] = False
        yield run, rows[is_here], order[asks[is_here]]


def _far_from(run: Run, offset: int, limit: int) -> Promises:
    """Return the first `limit` far promises of a run at or above an offset."""
    parts: list[Rows] = []
    at = int(run.offsets.searchsorted(offset))
    end = len(run.offsets) if run.far else 0
    while at < end and limit > 0:
        rows = np.flatnonzero(run.flags[at : at + STEP_ROWS] & FAR)[:limit] + at
        at += STEP_ROWS
        limit -= len(rows)
        parts.append(rows)
    chosen = np.concatenate([*parts, np.empty(0, np.intp)])
    return run.offsets[chosen], run.due[chosen]
