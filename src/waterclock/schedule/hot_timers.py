"""The open timers of one partition: which are due now, and in what order?

Rules:
- Never early. A due time is rounded up to a tick, the time given to `tick` down, and nothing else
  is asked whether a timer is due: so a clock that was set back holds, whatever happened before.
- (due, offset) order. `tick` hands out the first of all that are due, however they became so.
- Nothing is lost between being handed out and being written: a *firing* timer is retired by
  the scheduler that wrote it, or given back.
- No call does much more than its batch needs. `tick` returns early when there is much to do (call
  it again while `next_deadline() <= now_ms`); dead rows and stale wheel entries are cleared away in
  parts, in proportion to what each call touches.

The table says what is true; wheel and ready queue may hold what is stale. When too much of table or
wheel is, the dead rows are squeezed out of the table, part by part, and what has moved is filed in
a new wheel beside the old; until the pass is over, both are asked what is due.
"""

import numpy as np
import numpy.typing as npt

from waterclock.model.ids import Millis
from waterclock.model.units import DAY_MS, HOUR_MS, MINUTE_MS
from waterclock.schedule.ready import Entries, Ready
from waterclock.schedule.slot import Rows
from waterclock.schedule.table import Bools, State, States, Table
from waterclock.schedule.wheel import NEVER, Wheel

Int64s = npt.NDArray[np.int64]

TICK_MS = 100
TICK_MS_MIN = 10
TIDY_ROWS_MIN = 16_384
"""Rows cleared up at once; below it, calls cost more than work."""
TIDY_ROWS_EACH = 8
"""Rows cleared up for each row touched: more than one, or clearing up would never catch up."""
STALE_SLACK = 65_536
"""Stale entries that are not worth a new wheel, beyond half as many as there are timers."""
HORIZONS_MS = (0, MINUTE_MS, HOUR_MS, DAY_MS, 30 * DAY_MS)
"""How soon timers are due is told in counts: within each of these, and later than all."""


class HotTimers:
    """The timers of a partition. Offsets and due times are parallel arrays."""

    def __init__(self, now_ms: int, tick_ms: int = TICK_MS) -> None:
        assert tick_ms >= TICK_MS_MIN, tick_ms
        self.last_offset = -1
        """The greatest offset that was ever added."""
        self._tick_ms = tick_ms
        self._table = Table()
        self._ready = Ready()
        self._wheels = [Wheel(now_ms // tick_ms, self._ticks_of)]
        """One; while rows are squeezed, a second one holds those that have been."""
        self._tidy_rows = 0
        """Rows that calls so far have earned to be cleared up."""
        self._fired: tuple[Int64s, Rows] | None = None
        """What was handed out last, and where it was: most likely it is retired next."""

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        return f"<HotTimers {len(self)} open, {len(self._ready)} ready, tick {self._tick_ms} ms>"

    # What happened

    def open(self, offsets: Int64s, due_ms: Int64s) -> None:
        """Add timers. Their offsets must ascend, and be above all that were ever added."""
        assert (np.diff(offsets) > 0).all()
        assert len(offsets) == len(due_ms)
        if len(offsets):
            self.last_offset = int(offsets[-1])
        self._schedule(self._table.append(offsets, due_ms), due_ms)
        self._tidy(len(offsets))

    def retire(self, offsets: Int64s) -> Bools:
        """Forget timers that fired or were cancelled; return which there were."""
        rows, states = self._find(offsets)
        was_open: Bools = states != State.DEAD
        self._table.retire(_distinct(rows[was_open]))
        self._tidy(len(offsets))
        return was_open

    def move(self, offsets: Int64s, due_ms: Int64s) -> Bools:
        """Give timers new due times; return which were moved: those open and not firing."""
        rows, states = self._table.find(offsets)
        can_move: Bools = (states == State.WAITING) | (states == State.READY)
        rows, due_ms = rows[can_move], due_ms[can_move]
        self._table.move(rows, due_ms)
        self._schedule(rows, due_ms)
        self._tidy(len(offsets))
        return can_move

    def give_back(self, offsets: Int64s) -> None:
        """Take back firing timers that were not written; they are due as before."""
        rows, states = self._table.find(offsets)
        self._make_ready(rows[states == State.FIRING])

    def tick(self, now_ms: int, limit: int) -> Int64s:
        """Return the first timers due, at most `limit`, now *firing*: retire or give back each.

        Call again at `next_deadline()`, which is not later than `now_ms` if there is more.
        """
        assert limit > 0, limit
        target = now_ms // self._tick_ms
        fired: list[tuple[Int64s, Rows]] = []
        left = limit
        while left > 0:
            popped = self._pop_due(target, left)
            fired.append(self._fire(*popped))
            left -= len(fired[-1][0])
            if len(fired[-1][0]) == len(popped[0]):
                break  # nothing stale was in the way, so there is no more
        offsets, rows = (np.concatenate(column) for column in zip(*fired, strict=True))
        self._fired = offsets, rows
        self._tidy(len(offsets))
        return offsets

    # What is there

    def next_deadline(self) -> Millis | None:
        """Return when to call `tick` next, or None if there is nothing to wait for."""
        ticks = [wheel.next_event() for wheel in self._wheels]
        first_due = self._ready.first_due()
        if first_due is not None:
            ticks.append(-(-first_due // self._tick_ms))
        known = [tick for tick in ticks if tick is not None]
        return Millis(min(known) * self._tick_ms) if known else None

    def is_due(self, now_ms: int) -> bool:
        """Tell whether `tick` has something to do."""
        deadline = self.next_deadline()
        return deadline is not None and deadline <= now_ms

    def soon(self, until_ms: int, limit: int) -> Int64s:
        """Return about the first `limit` timers due until a time not far ahead, in no order.

        For reading ahead: some may be missing, and what is due already may be among them.
        """
        last = -(-until_ms // self._tick_ms)
        rows = np.concatenate([wheel.soon(last, limit) for wheel in self._wheels])
        offsets: Int64s = self._table.offset[rows[self._table.state[rows] == State.WAITING]]
        return offsets[:limit]

    def due_of(self, offsets: Int64s) -> Int64s:
        """Return the due time of each, or -1 if it is unknown."""
        rows, states = self._table.find(offsets)
        return np.where(states != State.DEAD, self._table.due[rows], -1)

    def open_from(self, offset: int, limit: int) -> tuple[Int64s, Int64s]:
        """Return (offsets, due times) of the first timers at or above an offset, by offset."""
        rows = self._table.open_from(offset, limit)
        return self._table.offset[rows], self._table.due[rows]

    def snapshot(self) -> tuple[Int64s, Int64s]:
        """Return (offsets, due times) of all timers, firing ones included, as copies."""
        rows = np.flatnonzero(self._table.state[: self._table.count] != State.DEAD)
        return self._table.offset[rows], self._table.due[rows]

    # How

    def _ticks_of(self, rows: Rows) -> Int64s:
        ticks = self._ticks(self._table.due[rows])
        ticks[self._table.state[rows] != State.WAITING] = NEVER
        return ticks

    def _ticks(self, due_ms: Int64s) -> Int64s:
        ticks: Int64s = -(-due_ms // self._tick_ms)
        np.maximum(ticks, 0, out=ticks)
        return ticks

    def _find(self, offsets: Int64s) -> tuple[Rows, States]:
        if self._fired is not None and np.array_equal(self._fired[0], offsets):
            return self._table.locate(*self._fired)
        return self._table.find(offsets)

    def _schedule(self, rows: Rows, due_ms: Int64s) -> None:
        ticks = self._ticks(due_ms)
        if len(self._wheels) > 1:
            is_squeezed = rows < self._table.head
            self._wheels[1].add(rows[is_squeezed], ticks[is_squeezed])
            rows, ticks = rows[~is_squeezed], ticks[~is_squeezed]
        self._wheels[0].add(rows, ticks)

    def _pop_due(self, target: int, limit: int) -> Entries:
        """Remove and return the first of the ready queue, once all that comes before is in it."""
        for wheel in self._wheels:
            # What is ready may be handed out as far as the wheel has come, or order would be lost.
            waiting = self._ready.count_due(min(target, wheel.now) * self._tick_ms)
            self._make_ready(wheel.advance(target, limit - waiting))
        reached = min(wheel.now for wheel in self._wheels)
        return self._ready.pop(reached * self._tick_ms, limit)

    def _make_ready(self, rows: Rows) -> None:
        if not len(rows):
            return
        rows = _distinct(rows)  # a timer moved away and back may be found twice
        self._table.state[rows] = State.READY
        self._ready.push(self._table.due[rows], self._table.offset[rows], rows)

    def _fire(self, due_ms: Int64s, offsets: Int64s, rows: Rows) -> tuple[Int64s, Rows]:
        """Mark as firing those that are still what the ready queue took them for; return them."""
        rows, states = self._table.locate(offsets, rows)
        is_true = (states == State.READY) & (self._table.due[rows] == due_ms)
        is_true[1:] &= (offsets[1:] != offsets[:-1]) | (due_ms[1:] != due_ms[:-1])
        rows = rows[is_true]
        self._table.state[rows] = State.FIRING
        return offsets[is_true], rows

    def _tidy(self, touched: int) -> None:
        """Do a part of what clearing up there is, once it has become worth a call."""
        if len(self._wheels) == 1:
            entries = len(self._wheels[0])
            is_stale = entries > len(self) + len(self) // 2 + STALE_SLACK
            if not is_stale and not self._table.needs_tidying:
                return
            self._wheels.append(Wheel(self._wheels[0].now, self._ticks_of))
        self._tidy_rows += touched * TIDY_ROWS_EACH
        if self._tidy_rows < TIDY_ROWS_MIN:
            return
        squeezed = self._table.tidy(self._tidy_rows)
        self._tidy_rows = 0
        is_waiting = self._table.state[squeezed] == State.WAITING
        rows = np.flatnonzero(is_waiting) + squeezed.start
        self._wheels[1].add(rows, self._ticks(self._table.due[rows]))
        if not self._table.is_tidying:
            del self._wheels[0]

    def check_invariants(self) -> None:
        """Raise AssertionError if something contradicts itself. Slow: for tests."""
        self._table.check_invariants()
        assert len(self._wheels) == 2 or not self._table.is_tidying
        for wheel in self._wheels:
            wheel.check_invariants()


def _distinct(rows: Rows) -> Rows:
    """Return the rows in order, each once."""
    ordered = np.sort(rows)
    is_first = np.ones(len(rows), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]
