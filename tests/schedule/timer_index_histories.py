"""Random histories of an index over segments, in which what takes long is done in small steps.

Scheduled messages are opened, moved, retired and fired; segments are sealed, taken in part by part,
and thinned of what is over; what nears is loaded part by part; in the middle of all that the clock
leaps and everything is begun anew from what the segments say, with or without a checkpoint.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from waterclock.schedule.cold_timers import Bools, ColdTimers, Int64s, SegmentChanges
from waterclock.schedule.timer_index import TimerIndex

START_MS = 1_700_000_000_000
TICK_MS = 100
TIMES_MS = [0, 40, 950, 3_000, 9_000, 10_500, 12_000, 60_000, 3_600_000, 86_400_000]
STRETCH = st.builds(lambda time, more: time + more, st.sampled_from(TIMES_MS), st.integers(0, 120))
PICKS = st.lists(st.integers(0, 1 << 30), min_size=1, max_size=6)


def int64s(values: list[int]) -> Int64s:
    return np.array(values, np.int64)


@dataclass
class Segment:
    """What a segment of the log says, net."""

    base: int
    opened: dict[int, int] = field(default_factory=dict)
    retired: set[int] = field(default_factory=set)
    moved: dict[int, int] = field(default_factory=dict)

    def move(self, offset: int, due: int) -> None:
        (self.opened if offset >= self.base else self.moved)[offset] = due

    def retire(self, offset: int) -> None:
        if offset >= self.base:
            del self.opened[offset]
        else:
            self.moved.pop(offset, None)
            self.retired.add(offset)

    def changes(self) -> SegmentChanges:
        opened, moved = sorted(self.opened.items()), sorted(self.moved.items())
        columns = [
            [o for o, _ in opened], [d for _, d in opened], sorted(self.retired),
            [o for o, _ in moved], [d for _, d in moved],
        ]  # fmt: skip
        return SegmentChanges(*map(int64s, columns))


class TimerIndexHistories(RuleBasedStateMachine):
    """An index and a dict side by side."""

    @initialize(hot_window_ms=st.sampled_from([1_000, 10_000, 7_200_000]))
    def begin(self, hot_window_ms: int) -> None:
        self.hot_window_ms = hot_window_ms
        self.now_ms = START_MS
        self.open: dict[int, int] = {}
        self.end = 0
        self.sealed: list[Segment] = []
        self.active = Segment(0)
        self.folded = 0
        """How many of the sealed segments were taken in whole."""
        self.saved: list[tuple[Bools, Bools]] = []
        self.work: Iterator[object] | None = None
        self.begin_anew(0)

    def begin_anew(self, saved: int) -> None:
        """Make the index from what the segments say, believing the checkpoint of the first."""
        cold = ColdTimers()
        for number, segment in enumerate(self.sealed):
            if number < saved:
                cold.restore(segment.base, segment.changes(), *self.saved[number])
            else:
                list(cold.fold(segment.base, segment.changes()))
        cold.begin()
        changes = self.active.changes()
        cold.retire(changes.retired)
        was_open = cold.retire(changes.moved)
        cold.open(changes.moved[was_open], changes.moved_due[was_open])
        cold.open(changes.opened, changes.opened_due)
        self.index = TimerIndex(
            cold, now_ms=self.now_ms, hot_window_ms=self.hot_window_ms, tick_ms=TICK_MS
        )
        list(self.index.load(self.now_ms))
        self.folded = len(self.sealed)
        self.work = None

    def known(self, picks: list[int]) -> list[int]:
        """Turn numbers into offsets, ascending, most of them of open scheduled messages."""
        offsets = sorted(self.open)
        chosen = {
            offsets[p % len(offsets)] if offsets and p % 9 else p % (self.end + 3) for p in picks
        }
        return sorted(chosen)

    @rule(delays=st.lists(STRETCH, min_size=1, max_size=8), gap=st.sampled_from([0, 0, 2]))
    def publish(self, delays: list[int], gap: int) -> None:
        offsets = [self.end + gap + i for i in range(len(delays))]
        due = [self.now_ms + delay for delay in delays]
        self.end = offsets[-1] + 1

        self.index.open(int64s(offsets), int64s(due))

        self.open |= zip(offsets, due, strict=True)
        self.active.opened |= zip(offsets, due, strict=True)

    @rule(picks=PICKS)
    def cancel(self, picks: list[int]) -> None:
        offsets = self.known(picks)

        assert self.index.retire(int64s(offsets)).tolist() == [o in self.open for o in offsets]

        self.forget(offsets)

    def forget(self, offsets: list[int]) -> None:
        for offset in offsets:
            if self.open.pop(offset, None) is not None:
                self.active.retire(offset)

    @rule(picks=PICKS, away=STRETCH, is_back=st.booleans())
    def move(self, picks: list[int], away: int, is_back: bool) -> None:
        offsets = self.known(picks)
        start = self.now_ms + (-away if is_back else away)
        due = [start + o * 7919 % 300 for o in offsets]

        moved = self.index.move(int64s(offsets), int64s(due)).tolist()

        assert moved == [o in self.open for o in offsets]
        for offset, time in zip(offsets, due, strict=True):
            if offset in self.open:
                self.open[offset] = time
                self.active.move(offset, time)

    @rule(limit=st.sampled_from([1, 3, 1_000]), outcome=st.sampled_from(["write", "fail"]))
    def fire(self, limit: int, outcome: str) -> None:
        bound = self.now_ms // TICK_MS * TICK_MS
        expected = [o for due, o in sorted((d, o) for o, d in self.open.items()) if due <= bound]
        for _ in range(100):
            fired: list[int] = self.index.tick(self.now_ms, limit).tolist()
            # What is not loaded yet may be missing at the end, but nothing may overtake it.
            assert fired == expected[: len(fired)]
            if outcome == "fail":
                self.index.give_back(int64s(fired))
                return
            assert self.index.retire(int64s(fired)).all()
            self.forget(fired)
            del expected[: len(fired)]
            if not self.index.is_due(self.now_ms):
                break
        if not self.index.must_load(self.now_ms) and self.work is None:
            assert expected == []

    @rule(ahead=STRETCH)
    def clock_goes_on(self, ahead: int) -> None:
        self.now_ms += ahead

    @rule(back=STRETCH)
    def clock_is_set_back(self, back: int) -> None:
        self.now_ms -= back

    @rule()
    def seal(self) -> None:
        self.sealed.append(self.active)
        self.end += 1
        self.active = Segment(self.end)

    @rule(steps=st.sampled_from([1, 2, 100]))
    def work_on(self, steps: int) -> None:
        """Take in a segment, or load what is near, in steps with other things between them."""
        for _ in range(steps):
            if self.work is None:
                if self.index.must_load(self.now_ms):
                    self.work = self.index.load(self.now_ms)
                elif self.folded < len(self.sealed):
                    segment = self.sealed[self.folded]
                    self.work = self.index.cold.fold(segment.base, segment.changes())
                    self.folded += 1
                else:
                    return
            if next(self.work, "over") == "over":
                self.work = None

    @rule(pick=st.integers(0, 1 << 30))
    def thin(self, pick: int) -> None:
        """Write a segment anew, the oldest first, without the scheduled messages that are over."""
        if self.work is None and self.folded:
            for segment in self.sealed[: 1 + pick % self.folded]:
                segment.opened = {o: d for o, d in segment.opened.items() if o in self.open}
                segment.moved = {o: d for o, d in segment.moved.items() if o in self.open}
                self.index.cold.refit(segment.base, segment.changes())
            self.saved = []

    @rule()
    def save(self) -> None:
        if self.work is None:
            bases = [segment.base for segment in self.sealed[: self.folded]]
            self.saved = [self.index.cold.open_flags(base) for base in bases]

    @rule(is_believed=st.booleans())
    def restart(self, is_believed: bool) -> None:
        self.begin_anew(len(self.saved) if is_believed else 0)

    @rule(offset=st.integers(0, 40), limit=st.sampled_from([1, 5, 1_000]))
    def list_from(self, offset: int, limit: int) -> None:
        offsets, due = self.index.open_from(offset, limit)
        expected = [(o, self.open[o]) for o in sorted(self.open) if o >= offset][:limit]
        assert list(zip(offsets.tolist(), due.tolist(), strict=True)) == expected

    @rule()
    def look_ahead(self) -> None:
        soon = self.index.soon(self.now_ms, 2_000, 1_000)
        assert set(soon.tolist()) <= set(self.open)

    @invariant()
    def index_and_dict_agree(self) -> None:
        if not hasattr(self, "index"):
            return
        asked = sorted({*self.open, *range(min(self.end, 60))})
        due = self.index.due_of(int64s(asked)).tolist()
        assert due == [self.open.get(offset, -1) for offset in asked]
        assert len(self.index) == len(self.open)
        self.index.check_invariants()
