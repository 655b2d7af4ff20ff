"""A hierarchical timing wheel over packed row numbers: which timers' ticks have come?

Varghese and Lauck's wheel ("Hashed and Hierarchical Timing Wheels", 1987), with three liberties.

A slot is a queue of row numbers, four bytes each, and says nothing of when they are due: `ticks_of`
does, as it is now. An entry counts only if its timer's tick lies in its slot. So a timer that is
retired or moved needs no search here; moved, it is simply added again, and whatever entry does
not count any more is dropped when it is met.

A slot of level L spans 60^L ticks and is named by its *absolute* turn (tick // 60^L); slots exist
while they hold something. So there is no far bucket, nothing wraps, downtime of any length is
leapt over from slot to slot, and going back is free: what is filed stays filed rightly.

A timer goes to the lowest level where its turn is less than 120 ahead: two rounds of a dial of 60.
A slot is sunk into the level below in parts, during the whole turn before its own; because of the
second round nothing is added to a slot once that has begun. So a slot of millions costs each tick
its share and no tick a stall.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from waterclock.schedule.slot import Packed, Rows, Slot

Int64s = npt.NDArray[np.int64]

SLOTS = 60
AHEAD_MAX = 2 * SLOTS
LEVELS = 10
"""Enough for every 64-bit time at a tick of 10 ms; levels nobody uses cost nothing."""
SPANS = [SLOTS**level for level in range(LEVELS)]
"""Ticks that a slot of each level spans."""

SHARE_MIN = 8_192
"""Least number of entries sunk ahead of their time at once; below it, calls cost more than work."""
WORK_MAX = 65_536
"""About how many entries one call looks at because their time has come; then it returns."""

STAGE_MAX = 16_384
"""Most entries added before they are filed: more make adding cheaper, and the call that files
longer."""

NEVER = -1
"""The tick of a timer that does not run (any more)."""
_FAR = 1 << 62


class Wheel:
    """Timers by tick. Everything due at or before tick `now` has been taken."""

    def __init__(self, now: int, ticks_of: Callable[[Rows], Int64s]) -> None:
        self.now = now
        self._ticks_of = ticks_of
        self._levels: list[dict[int, Slot]] = [{} for _ in range(LEVELS)]
        self._count = 0
        self._staged: list[tuple[Packed, Int64s]] = []
        """Added and not filed yet: a few rows for each of many slots are filed better together."""
        self._staged_count = 0
        self._staged_first = _FAR

    def __len__(self) -> int:
        """How many entries there are, stale ones included."""
        return self._count + self._staged_count

    def __repr__(self) -> str:
        return f"<Wheel at tick {self.now}, {len(self)} entries>"

    def add(self, rows: Rows, ticks: Int64s) -> None:
        """File timers under their ticks; for one already passed, the wheel goes back to it."""
        if not len(rows):
            return
        first = int(ticks.min())
        self.now = min(self.now, first - 1)
        self._staged.append((rows.astype(np.uint32), ticks))
        self._staged_count += len(rows)
        self._staged_first = min(self._staged_first, first)
        if self._staged_count >= STAGE_MAX:
            self._file_staged()

    def _file_staged(self) -> None:
        if self._staged:
            rows, ticks = zip(*self._staged, strict=True)
            self._staged, self._staged_count, self._staged_first = [], 0, _FAR
            self._place(np.concatenate(rows), np.concatenate(ticks))

    def _place(self, rows: Packed, ticks: Int64s) -> None:
        farthest = int(ticks.max())
        for level, span in enumerate(SPANS):
            end = self.now // span + AHEAD_MAX
            if farthest // span < end:
                self._file(level, rows, ticks // span)
                return
            is_here = ticks < end * span
            if is_here.any():
                self._file(level, rows[is_here], ticks[is_here] // span)
                rows, ticks = rows[~is_here], ticks[~is_here]
        raise AssertionError(f"tick {farthest} is beyond the last level")

    def _file(self, level: int, rows: Packed, turns: Int64s) -> None:
        """Put rows into the slots of their turns, keeping the order within each."""
        self._count += len(rows)
        first = int(turns.min())
        # Less than 120 turns, so eight bits: numpy sorts those by counting.
        keys = (turns - first).astype(np.uint8)
        ordered = rows[keys.argsort(kind="stable")]
        slots = self._levels[level]
        start = 0
        for turn, count in enumerate(np.bincount(keys).tolist(), first):
            if count:
                slot = slots.get(turn)
                if slot is None:
                    slot = slots[turn] = Slot()
                slot.extend(ordered[start : start + count])
                start += count

    def advance(self, target: int, wanted: int) -> Rows:
        """Go on to tick `target` and return timers due by then, those of earlier ticks first.

        Stops before `target` once `wanted` are found or much work is done: call again, until
        `next_event() > target`. What is due at `now` or before has then been returned, in no
        order, and perhaps a part of what is due after it.
        """
        self._file_staged()
        if target < self.now:  # the clock was set back
            self.now = target
        found: list[Rows] = []
        budget = WORK_MAX
        while (first := self._first()) is not None and first[0] <= target:
            start, level, turn = first
            self.now = start - 1
            if wanted <= 0 or budget <= 0:
                break
            is_over = (turn + 1) * SPANS[level] - 1 <= target
            if level == 0 or (is_over and len(self._levels[level][turn]) <= budget):
                taken, due = self._take_due(level, turn, budget)
                found.append(due)
                budget -= taken
                wanted -= len(due)
            else:
                budget -= self._sink(level, turn, budget)
        else:
            elapsed = max(1, target - self.now)
            self.now = target
            self._work_ahead(elapsed)
        return np.concatenate(found) if found else np.empty(0, np.intp)

    def next_event(self) -> int | None:
        """Return the tick at which `advance` next has something to do, or None."""
        events = [
            max(self.now + 1, (min(slots) - 1) * span) if level else min(slots)
            for level, (slots, span) in enumerate(zip(self._levels, SPANS, strict=True))
            if slots
        ]
        if self._staged:
            events.append(self._staged_first)
        return min(events, default=None)

    def soon(self, last: int, limit: int) -> Rows:
        """Return about the first `limit` entries up to a tick, of the two lowest levels."""
        self._file_staged()
        parts: list[Rows] = []
        for slots, span in zip(self._levels[:2], SPANS[:2], strict=True):
            for turn in sorted(turn for turn in slots if turn * span <= last):
                if limit <= 0:
                    break
                rows = slots[turn].first(WORK_MAX)
                parts.append(
                    rows[self._ticks_of(rows) <= last][:limit] if span > 1 else rows[:limit]
                )
                limit -= len(parts[-1])
        return np.concatenate([*parts, np.empty(0, np.intp)])

    def _first(self) -> tuple[int, int, int] | None:
        """Return (first tick, level, turn) of the earliest slot; of equals, the highest level."""
        best: tuple[int, int, int] | None = None
        for level, slots in enumerate(self._levels):
            if slots:
                turn = min(slots)
                start = turn * SPANS[level]
                if best is None or start <= best[0]:
                    best = start, level, turn
        return best

    def _take_due(self, level: int, turn: int, count: int) -> tuple[int, Rows]:
        """Take entries of a slot that is over; return how many, and the timers that are due."""
        rows = self._take(level, turn, count)
        return len(rows), rows[self._ticks_of(rows) // SPANS[level] == turn]

    def _take(self, level: int, turn: int, count: int) -> Rows:
        slot = self._levels[level][turn]
        rows = slot.take(count)
        if not len(slot):
            del self._levels[level][turn]
        self._count -= len(rows)
        return rows

    def _work_ahead(self, elapsed: int) -> None:
        """Sink a share of each slot whose turn is next: as much as of the time until it is gone."""
        for level in range(1, LEVELS):
            turn = self.now // SPANS[level] + 1
            slot = self._levels[level].get(turn)
            if slot is not None:
                left = turn * SPANS[level] - self.now - 1
                share = -(-len(slot) * elapsed // (elapsed + left))
                self._sink(level, turn, max(SHARE_MIN, share))

    def _sink(self, level: int, turn: int, count: int) -> int:
        """File the first `count` entries of a slot lower; return how many there were."""
        rows = self._take(level, turn, count)
        ticks = self._ticks_of(rows)
        counts = ticks // SPANS[level] == turn
        if counts.any():
            self._place(rows[counts].astype(np.uint32), ticks[counts])
        return len(rows)

    def check_invariants(self) -> None:
        """Raise AssertionError if the wheel contradicts itself."""
        assert self._count == sum(len(s) for slots in self._levels for s in slots.values())
        assert self._staged_first > self.now
        for slots, span in zip(self._levels, SPANS, strict=True):
            assert all(slots.values()), "a slot is there while it holds something"
            assert all(turn * span > self.now for turn in slots), "a slot was passed"
