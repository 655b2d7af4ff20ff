"""The timers in memory: most came in the order of their offsets, some did not.

`Timers` wants offsets that ascend, as promises come. But what was far is loaded, or rescheduled,
out of that order. So there are several wings, each a `Timers` of its own; an arrival goes to the
wing with the greatest offsets below its own, or founds a new one. In time a wing runs empty and
goes. Small wings that would become too many are joined.

The order of firing is that of all wings together. To know it, each is asked for as many as are
wanted, and what is not among the first of all is given back.

Between `tick` and `retire` or `give_back` of what it handed out, call nothing else.
"""

import numpy as np
import numpy.typing as npt

from waterclock.model.ids import Millis
from waterclock.schedule.hot_timers import Timers
from waterclock.schedule.overflow import Promises, first_of, joined
from waterclock.schedule.ready import due_order

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

WINGS_MAX = 16
"""More wings are joined, the smallest first ..."""
JOIN_MAX = 131_072
"""... as long as they have no more timers than this: joining takes its time in one go."""

_NOTHING: Int64s = np.empty(0, np.int64)


class _Wing:
    __slots__ = ("last", "timers")

    def __init__(self, timers: Timers) -> None:
        self.timers = timers
        self.last = -1
        """The greatest offset that was ever added."""

    def open(self, offsets: Int64s, due_ms: Int64s) -> None:
        self.timers.open(offsets, due_ms)
        self.last = int(offsets[-1])


class Near:
    """Timers whose offsets may come in any order. Offsets and due times are parallel arrays."""

    def __init__(self, now_ms: int, tick_ms: int) -> None:
        self._tick_ms = tick_ms
        self._wings = [_Wing(Timers(now_ms, tick_ms))]
        """By their last offset, the greatest first."""

    def __len__(self) -> int:
        return sum(len(wing.timers) for wing in self._wings)

    def __repr__(self) -> str:
        return f"<Near {len(self)} timers in {len(self._wings)} wings>"

    # What happened

    def open(self, offsets: Int64s, due_ms: Int64s, now_ms: int) -> None:
        """Add promises, none of which is here; their offsets ascend."""
        if not len(offsets):
            return
        first = int(offsets[0])
        wing = next((wing for wing in self._wings if wing.last < first), None)
        if wing is None:
            wing = _Wing(Timers(now_ms, self._tick_ms))
            self._wings.append(wing)
        wing.open(offsets, due_ms)
        self._tidy(now_ms)

    def _tidy(self, now_ms: int) -> None:
        """Let go of empty wings, and join small ones that are too many."""
        self._wings = [w for w in self._wings if len(w.timers)] or self._wings[:1]
        if len(self._wings) > WINGS_MAX:
            by_size = sorted(self._wings, key=lambda wing: len(wing.timers))
            sizes = np.cumsum([len(wing.timers) for wing in by_size])
            count = min(int(sizes.searchsorted(JOIN_MAX, side="right")), WINGS_MAX)
            if count > 1:
                small, rest = by_size[:count], by_size[count:]
                wing = _Wing(Timers(now_ms, self._tick_ms))
                wing.open(*joined([each.timers.snapshot() for each in small]))
                self._wings = [*rest, wing]
        self._wings.sort(key=lambda wing: -wing.last)

    def retire(self, offsets: Int64s) -> Bools:
        """Forget promises, all different; return which were here."""
        was_here = np.zeros(len(offsets), np.bool_)
        for wing in self._wings:
            left = np.flatnonzero(~was_here)
            was_here[left] = wing.timers.retire(offsets[left])
        return was_here

    def move(self, offsets: Int64s, due_ms: Int64s) -> Bools:
        """Give promises new due times; return which were here."""
        was_here = np.zeros(len(offsets), np.bool_)
        for wing in self._wings:
            left = np.flatnonzero(~was_here)
            was_here[left] = wing.timers.move(offsets[left], due_ms[left])
        return was_here

    def give_back(self, offsets: Int64s) -> None:
        """Take back promises that were handed out and not written; they are due as before."""
        if len(offsets):
            for wing in self._wings:
                wing.timers.give_back(offsets)

    def tick(self, now_ms: int, limit: int) -> Int64s:
        """Return the first promises due, at most `limit`: retire or give back each.

        Call again at `next_deadline()`, which is not later than `now_ms` if there is more.
        """
        wings = [wing for wing in self._wings if _is_due(wing.timers, now_ms)]
        if len(wings) < 2:
            return wings[0].timers.tick(now_ms, limit) if wings else _NOTHING
        handed = [wing.timers.tick(now_ms, limit) for wing in wings]
        for wing, offsets in zip(wings, handed, strict=True):
            if len(offsets) < limit and _is_due(wing.timers, now_ms):
                # It has more to look through first, and what it finds may come before all else.
                return self._keep(wings, handed, _NOTHING)
        due = np.concatenate([wing.timers.due_of(o) for wing, o in zip(wings, handed, strict=True)])
        offsets = np.concatenate(handed)
        return self._keep(wings, handed, offsets[due_order(due, offsets)[:limit]])

    def _keep(self, wings: list[_Wing], handed: list[Int64s], chosen: Int64s) -> Int64s:
        """Give back all that was handed out but `chosen`, which is returned."""
        for wing, offsets in zip(wings, handed, strict=True):
            wing.timers.give_back(offsets[~np.isin(offsets, chosen)])
        return chosen

    # What is there

    def next_deadline(self) -> Millis | None:
        """Return when to call `tick` next, or None if there is nothing to wait for."""
        deadlines = [wing.timers.next_deadline() for wing in self._wings]
        return min((d for d in deadlines if d is not None), default=None)

    def soon(self, until_ms: int, limit: int) -> Int64s:
        """Return about the first `limit` promises due until a time not far ahead, in no order."""
        return np.concatenate([wing.timers.soon(until_ms, limit) for wing in self._wings])[:limit]

    def due_of(self, offsets: Int64s) -> Int64s:
        """Return the due time of each, -1 for those that are not here."""
        found = self._wings[0].timers.due_of(offsets)
        for wing in self._wings[1:]:
            left = np.flatnonzero(found < 0)
            found[left] = wing.timers.due_of(offsets[left])
        return found

    def open_from(self, offset: int, limit: int) -> Promises:
        """Return the first `limit` promises at or above an offset, by offset."""
        return first_of([w.timers.open_from(offset, limit) for w in self._wings], limit)

    def check_invariants(self) -> None:
        """Raise AssertionError if something contradicts itself. Slow: for tests."""
        alive = [wing.timers.snapshot()[0] for wing in self._wings]
        for wing in self._wings:
            wing.timers.check_invariants()
        everything = np.concatenate(alive)
        assert len(np.unique(everything)) == len(everything), "a promise is in two wings"
        assert [wing.last for wing in self._wings] == sorted(
            (wing.last for wing in self._wings), reverse=True
        )


def _is_due(timers: Timers, now_ms: int) -> bool:
    deadline = timers.next_deadline()
    return deadline is not None and deadline <= now_ms
