"""All open timers of a partition: the hot ones in memory, the cold ones where they lie on disk.

What is due before the *horizon* is hot, what is due later is cold. The horizon is moved on long
before the clock comes to it, and what is then hot is loaded, part by part. Nothing is fired past
what has been loaded: after a clock was set forward, loading comes first. A clock set back leaves
what is hot in memory.

`HotTimers` wants offsets that ascend, as scheduled messages come. But what was cold is loaded, or
rescheduled, out of that order. So there are several shards of them; an arrival goes to the shard
with the greatest offsets below its own, or founds a new one. In time a shard runs empty and goes.
Small shards that would become too many are joined.

The order of firing is that of all shards together. To know it, each is asked for as many as are
wanted, and what is not among the first of all is given back. Between `tick` and `retire` or
`give_back` of what it handed out, call nothing else.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from waterclock.model.ids import Millis
from waterclock.schedule.cold_timers import ColdTimers
from waterclock.schedule.hot_timers import HotTimers
from waterclock.schedule.overflow import Timers, first_of, joined
from waterclock.schedule.ready import due_order

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SHARDS_MAX = 16
"""More shards are joined, the smallest first ..."""
JOIN_MAX = 131_072
"""... as long as they have no more timers than this: joining takes its time in one go."""

_NOTHING: Int64s = np.empty(0, np.int64)


class TimerIndex:
    """Hot and cold timers. Offsets and due times are parallel arrays."""

    def __init__(self, cold: ColdTimers, *, now_ms: int, hot_window_ms: int, tick_ms: int) -> None:
        self.cold = cold
        self._hot_window_ms = hot_window_ms
        self._tick_ms = tick_ms
        self._shards = [HotTimers(now_ms, tick_ms)]
        """By their last offset, the greatest first."""
        self._now_ms = now_ms
        self._horizon_ms = 0
        """What is due before this is hot, once it is loaded ..."""
        self._loaded_ms = 0
        """... and what is due before this is loaded."""

    def __len__(self) -> int:
        return sum(map(len, self._shards)) + len(self.cold)

    def __repr__(self) -> str:
        hot = sum(map(len, self._shards))
        return f"<TimerIndex {hot} hot in {len(self._shards)} shards, {self.cold!r}>"

    def _parts(self) -> list[HotTimers | ColdTimers]:
        return [*self._shards, self.cold]

    # What happened

    def open(self, offsets: Int64s, due_ms: Int64s) -> None:
        """Add timers; their offsets ascend."""
        is_hot = due_ms < self._horizon_ms
        if is_hot.all():
            self._open_hot(offsets, due_ms)
        else:
            self._open_hot(offsets[is_hot], due_ms[is_hot])
            self.cold.open(offsets[~is_hot], due_ms[~is_hot])

    def _open_hot(self, offsets: Int64s, due_ms: Int64s) -> None:
        if not len(offsets):
            return
        first = int(offsets[0])
        shard = next((shard for shard in self._shards if shard.last_offset < first), None)
        if shard is None:
            shard = HotTimers(self._now_ms, self._tick_ms)
            self._shards.append(shard)
        shard.open(offsets, due_ms)
        self._tidy()

    def _tidy(self) -> None:
        """Let go of empty shards, and join small ones that are too many."""
        self._shards = [shard for shard in self._shards if len(shard)] or self._shards[:1]
        if len(self._shards) > SHARDS_MAX:
            by_size = sorted(self._shards, key=len)
            sizes = np.cumsum([len(shard) for shard in by_size])
            count = min(int(sizes.searchsorted(JOIN_MAX, side="right")), SHARDS_MAX)
            if count > 1:
                shard = HotTimers(self._now_ms, self._tick_ms)
                shard.open(*joined([each.snapshot() for each in by_size[:count]]))
                self._shards = [*by_size[count:], shard]
        self._shards.sort(key=lambda shard: -shard.last_offset)

    def retire(self, offsets: Int64s) -> Bools:
        """Forget timers, all different, that fired or were cancelled; return which there were."""
        was_open = np.zeros(len(offsets), np.bool_)
        for timers in self._parts():
            left = np.flatnonzero(~was_open)
            if not len(left):
                break
            was_open[left] = timers.retire(offsets[left])
        return was_open

    def move(self, offsets: Int64s, due_ms: Int64s) -> Bools:
        """Give timers new due times; offsets ascend. Return which there were."""
        was_open = np.zeros(len(offsets), np.bool_)
        stays_hot = due_ms < self._horizon_ms
        for shard in self._shards:
            left = np.flatnonzero(stays_hot & ~was_open)
            was_open[left] = shard.move(offsets[left], due_ms[left])
        left = np.flatnonzero(~was_open)
        found = left[self.retire(offsets[left])]
        was_open[found] = True
        self.open(offsets[found], due_ms[found])
        return was_open

    def give_back(self, offsets: Int64s) -> None:
        """Take back timers that were handed out and not written; they are due as before."""
        if len(offsets):
            for shard in self._shards:
                shard.give_back(offsets)

    def tick(self, now_ms: int, limit: int) -> Int64s:
        """Return the first timers due, at most `limit`: retire or give back each.

        Call again at `next_deadline()`, which is not later than `now_ms` if there is more.
        """
        self._now_ms = now_ms
        bound_ms = self._bound(now_ms)
        shards = [shard for shard in self._shards if shard.is_due(bound_ms)]
        if len(shards) < 2:
            return shards[0].tick(bound_ms, limit) if shards else _NOTHING
        handed = [shard.tick(bound_ms, limit) for shard in shards]
        for shard, offsets in zip(shards, handed, strict=True):
            if len(offsets) < limit and shard.is_due(bound_ms):
                # It has more to look through first, and what it finds may come before all else.
                return _keep(shards, handed, _NOTHING)
        due = np.concatenate([shard.due_of(o) for shard, o in zip(shards, handed, strict=True)])
        offsets = np.concatenate(handed)
        return _keep(shards, handed, offsets[due_order(due, offsets)[:limit]])

    # What is there

    def next_deadline(self) -> Millis | None:
        """Return when to call `tick` next, or None if nothing that is loaded waits."""
        deadlines = [shard.next_deadline() for shard in self._shards]
        return min((d for d in deadlines if d is not None), default=None)

    def is_due(self, now_ms: int) -> bool:
        """Tell whether `tick` has something to do."""
        bound_ms = self._bound(now_ms)
        return any(shard.is_due(bound_ms) for shard in self._shards)

    def soon(self, now_ms: int, ahead_ms: int, limit: int) -> Int64s:
        """Return about the first `limit` timers that fire next, in no order, to read ahead."""
        due = self.tick(now_ms, limit)
        self.give_back(due)
        until_ms, left = now_ms + ahead_ms, limit - len(due)
        if not left:
            return due
        coming = np.concatenate([shard.soon(until_ms, left) for shard in self._shards])
        return np.concatenate([due, coming[:left]])

    def is_open(self, offsets: Int64s) -> Bools:
        return np.asarray(self.due_of(offsets) >= 0)

    def due_of(self, offsets: Int64s) -> Int64s:
        """Return the due time of each, -1 for what is not open."""
        due = self._shards[0].due_of(offsets)
        for timers in self._parts()[1:]:
            left = np.flatnonzero(due < 0)
            if not len(left):
                break
            due[left] = timers.due_of(offsets[left])
        return due

    def open_from(self, offset: int, limit: int) -> Timers:
        """Return the first `limit` timers at or above an offset, by offset."""
        parts = [timers.open_from(offset, limit) for timers in self._parts()]
        return first_of(parts, limit)

    # The horizon

    def must_load(self, now_ms: int) -> bool:
        """Tell whether it is time to load what is hot: half of what was loaded has passed."""
        return now_ms >= self._loaded_ms - self._hot_window_ms // 2

    def load(self, now_ms: int) -> Iterator[None]:
        """Move the horizon and load what is before it, yielding between parts."""
        self._now_ms = now_ms
        # First: what is scheduled while this goes on must not be taken for cold.
        self._horizon_ms = max(self._horizon_ms, now_ms + self._hot_window_ms)
        for offsets, due_ms in self.cold.take_due(self._horizon_ms):
            self._open_hot(offsets, due_ms)
            yield
        self._loaded_ms = self._horizon_ms

    def _bound(self, now_ms: int) -> int:
        """Return up to when timers may be fired."""
        return min(now_ms, self._loaded_ms - 1)

    def check_invariants(self) -> None:
        """Raise AssertionError if something contradicts itself. Slow: for tests."""
        for timers in self._parts():
            timers.check_invariants()
        offsets = np.concatenate([shard.snapshot()[0] for shard in self._shards])
        assert len(np.unique(offsets)) == len(offsets), "a timer is in two shards"
        assert (self.cold.due_of(offsets) < 0).all(), "a timer is both hot and cold"
        lasts = [shard.last_offset for shard in self._shards]
        assert lasts == sorted(lasts, reverse=True)


def _keep(shards: list[HotTimers], handed: list[Int64s], chosen: Int64s) -> Int64s:
    """Give back all that shards handed out but `chosen`, which is returned."""
    for shard, offsets in zip(shards, handed, strict=True):
        shard.give_back(offsets[~np.isin(offsets, chosen)])
    return chosen
