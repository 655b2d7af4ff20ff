"""All open promises of a partition: the near ones in memory, the far ones where they lie on disk.

What is due before the *horizon* is near, what is due later is far. The horizon is moved on long
before the clock comes to it, and what is then near is loaded, part by part. Nothing is fired past
what has been loaded: after a clock was set forward, loading comes first. A clock set back leaves
what is near in memory.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from waterclock.model.ids import Millis
from waterclock.schedule.cold_timers import Far
from waterclock.schedule.near import Near
from waterclock.schedule.overflow import Promises, first_of

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class TimerIndex:
    """Near and far promises. Offsets and due times are parallel arrays."""

    def __init__(self, far: Far, *, now_ms: int, near_ms: int, tick_ms: int) -> None:
        self.far = far
        self._near = Near(now_ms, tick_ms)
        self._near_ms = near_ms
        self._now_ms = now_ms
        self._horizon_ms = 0
        """What is due before this is near, once it is loaded ..."""
        self._loaded_ms = 0
        """... and what is due before this is loaded."""

    def __len__(self) -> int:
        return len(self._near) + len(self.far)

    def __repr__(self) -> str:
        return f"<TimerIndex {self._near!r}, {self.far!r}>"

    # What happened

    def open(self, offsets: Int64s, due_ms: Int64s) -> None:
        """Add promises; their offsets ascend."""
        is_near = due_ms < self._horizon_ms
        if is_near.all():
            self._near.open(offsets, due_ms, self._now_ms)
        else:
            self._near.open(offsets[is_near], due_ms[is_near], self._now_ms)
            self.far.open(offsets[~is_near], due_ms[~is_near])

    def retire(self, offsets: Int64s) -> Bools:
        """Forget promises, all different, that fired or were cancelled; return which there were."""
        was_open = self._near.retire(offsets)
        left = np.flatnonzero(~was_open)
        if len(left):
            was_open[left] = self.far.retire(offsets[left])
        return was_open

    def move(self, offsets: Int64s, due_ms: Int64s) -> Bools:
        """Give promises new due times; offsets ascend. Return which there were."""
        was_open = np.zeros(len(offsets), np.bool_)
        is_near = due_ms < self._horizon_ms
        stays = np.flatnonzero(is_near)
        was_open[stays] = self._near.move(offsets[stays], due_ms[stays])
        left = np.flatnonzero(~was_open)
        found = left[self.retire(offsets[left])]
        was_open[found] = True
        self.open(offsets[found], due_ms[found])
        return was_open

    def give_back(self, offsets: Int64s) -> None:
        """Take back promises that were handed out and not written; they are due as before."""
        self._near.give_back(offsets)

    def tick(self, now_ms: int, limit: int) -> Int64s:
        """Return the first promises due, at most `limit`: retire or give back each.

        Call again at `next_deadline()`, which is not later than `now_ms` if there is more.
        """
        self._now_ms = now_ms
        return self._near.tick(self._bound(now_ms), limit)

    # What is there

    def next_deadline(self) -> Millis | None:
        """Return when to call `tick` next, or None if nothing that is loaded waits."""
        return self._near.next_deadline()

    def is_due(self, now_ms: int) -> bool:
        """Tell whether `tick` has something to do."""
        deadline = self._near.next_deadline()
        return deadline is not None and deadline <= self._bound(now_ms)

    def soon(self, now_ms: int, ahead_ms: int, limit: int) -> Int64s:
        """Return about the first `limit` promises that fire next, in no order, to read ahead."""
        due = self.tick(now_ms, limit)
        self.give_back(due)
        if len(due) == limit:
            return due
        return np.concatenate([due, self._near.soon(now_ms + ahead_ms, limit - len(due))])

    def is_open(self, offsets: Int64s) -> Bools:
        """Tell which are open."""
        return np.asarray(self.due_of(offsets) >= 0)

    def due_of(self, offsets: Int64s) -> Int64s:
        """Return the due time of each, -1 for what is not open."""
        due = self._near.due_of(offsets)
        left = np.flatnonzero(due < 0)
        if len(left):
            due[left] = self.far.due_of(offsets[left])
        return due

    def open_from(self, offset: int, limit: int) -> Promises:
        """Return the first `limit` promises at or above an offset, by offset."""
        parts = [self._near.open_from(offset, limit), self.far.open_from(offset, limit)]
        return first_of(parts, limit)

    # The horizon

    def must_load(self, now_ms: int) -> bool:
        """Tell whether it is time to load what is near: half of what was loaded has passed."""
        return now_ms >= self._loaded_ms - self._near_ms // 2

    def load(self, now_ms: int) -> Iterator[None]:
        """Move the horizon and load what is before it, yielding between parts."""
        self._now_ms = now_ms
        # First: what is promised while this goes on must not be taken for far.
        self._horizon_ms = max(self._horizon_ms, now_ms + self._near_ms)
        for offsets, due_ms in self.far.nearing(self._horizon_ms):
            self._near.open(offsets, due_ms, now_ms)
            yield
        self._loaded_ms = self._horizon_ms

    def _bound(self, now_ms: int) -> int:
        """Return up to when promises may be fired."""
        return min(now_ms, self._loaded_ms - 1)

    def check_invariants(self) -> None:
        """Raise AssertionError if something contradicts itself. Slow: for tests."""
        self._near.check_invariants()
        self.far.check_invariants()
        offsets, _ = self._near.open_from(0, len(self))
        assert (self.far.due_of(offsets) < 0).all(), "a promise is both near and far"
