"""Random histories of timers, checked against the plain model at every step.

Rules of Hypothesis' state machine: scheduled messages are opened, moved, retired, handed out, given
back; the clock goes on, leaps weeks, and is set back; the whole is restored from a snapshot and the
tail.
"""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.schedule.timer_model import TimerModel, state_of
from waterclock.schedule.hot_timers import HotTimers, Int64s

START_MS = 1_700_000_000_000
STRETCHES_MS = [0, 50, 250, 7_000, 60_000, 800_000, 10_000_000, 3_000_000_000, 200_000_000_000]
STRETCH = st.sampled_from(STRETCHES_MS).flatmap(lambda most: st.integers(0, most))
PICKS = st.lists(st.integers(0, 1 << 30), min_size=1, max_size=30)
COUNTS = st.one_of(st.integers(1, 12), st.just(60))


def int64s(values: list[int]) -> Int64s:
    return np.array(values, np.int64)


class TimerHistories(RuleBasedStateMachine):
    """Timers and model side by side."""

    @initialize(tick_ms=st.sampled_from([10, 100, 1_000]))
    def begin(self, tick_ms: int) -> None:
        self.now_ms = START_MS
        self.model = TimerModel(tick_ms)
        self.timers = HotTimers(self.now_ms, tick_ms)
        self.end = 0
        self.saved = self.timers.snapshot()
        self.tail: list[tuple[str, Int64s, Int64s]] = []

    def known(self, picks: list[int]) -> list[int]:
        """Turn numbers into offsets, most of them of open scheduled messages."""
        offsets = sorted(self.model.due)
        chosen = {offsets[p % len(offsets)] if offsets and p % 9 else p % 100 for p in picks}
        return sorted(chosen, key=lambda offset: hash((offset, len(picks))))

    def log(self, kind: str, offsets: list[int], due: list[int]) -> None:
        self.tail.append((kind, int64s(offsets), int64s(due)))

    @rule(gap=st.sampled_from([0, 0, 3, 1 << 33]), count=COUNTS, lag=STRETCH, step=STRETCH)
    def open(self, gap: int, count: int, lag: int, step: int) -> None:
        start = self.now_ms - (lag if lag % 4 == 0 else -lag)
        due = [max(0, start + (i * 7919 % count) * step) for i in range(count)]
        offsets = list(range(self.end + gap, self.end + gap + count))
        self.end = offsets[-1] + 1

        self.timers.open(int64s(offsets), int64s(due))

        self.model.due |= zip(offsets, due, strict=True)
        self.log("open", offsets, due)

    @rule(picks=PICKS)
    def retire(self, picks: list[int]) -> None:
        offsets = self.known(picks)

        was_open = self.timers.retire(int64s(offsets)).tolist()

        assert was_open == [o in self.model.due for o in offsets]
        self.forget(offsets)

    def forget(self, offsets: list[int]) -> None:
        for offset in offsets:
            self.model.due.pop(offset, None)
            self.model.firing.discard(offset)
        self.log("retire", offsets, [])

    @rule(picks=PICKS, away=STRETCH, is_back=st.booleans(), repeats=st.integers(1, 3))
    def move(self, picks: list[int], away: int, is_back: bool, repeats: int) -> None:
        offsets = self.known(picks)
        can_move = [o in self.model.due and o not in self.model.firing for o in offsets]
        for turn in range(repeats):
            start = self.now_ms - away if is_back ^ (turn % 2 == 1) else self.now_ms + away
            due = [max(0, start + p % 1_000) for p in offsets]
            assert self.timers.move(int64s(offsets), int64s(due)).tolist() == can_move
            moved = [
                pair
                for pair, can in zip(zip(offsets, due, strict=True), can_move, strict=True)
                if can
            ]
            self.model.due |= moved
            self.log("move", [o for o, _ in moved], [d for _, d in moved])

    @rule(ahead=STRETCH)
    def clock_goes_on(self, ahead: int) -> None:
        self.now_ms += ahead

    @rule(pick=st.integers(0, 1 << 30), off=st.sampled_from([-1, 0, 1, 9]))
    def clock_comes_close(self, pick: int, off: int) -> None:
        """To within a moment of when some scheduled message is due."""
        times = sorted(set(self.model.due.values()))
        if times:
            tick_ms = self.model.tick_ms
            self.now_ms = max(0, -(-times[pick % len(times)] // tick_ms) * tick_ms + off)

    @rule(back=STRETCH)
    def clock_is_set_back(self, back: int) -> None:
        self.now_ms = max(0, self.now_ms - back)

    @rule(limit=st.sampled_from([1, 3, 100]), outcome=st.sampled_from(["write", "fail", "hold"]))
    def tick(self, limit: int, outcome: str) -> None:
        expected = self.model.due_now(self.now_ms)[:limit]

        fired = self.tick_until_found(limit)

        assert fired == expected
        assert all(self.model.due[offset] <= self.now_ms for offset in fired), "early"
        self.model.firing |= set(fired)
        if outcome == "write":
            assert self.timers.retire(int64s(fired)).all()
            self.forget(fired)
        elif outcome == "fail":
            self.timers.give_back(int64s(fired[::-1]))
            self.model.firing -= set(fired)

    def tick_until_found(self, limit: int) -> list[int]:
        """Call as a shell does: again, while the deadline has passed and there is room."""
        fired: list[int] = self.timers.tick(self.now_ms, limit).tolist()
        for _ in range(10_000):
            deadline = self.timers.next_deadline()
            if len(fired) == limit or deadline is None or deadline > self.now_ms:
                break
            fired += self.timers.tick(self.now_ms, limit - len(fired)).tolist()
        else:
            raise AssertionError("the deadline does not move")
        return fired

    @rule()
    def sleep_until_the_deadline(self) -> None:
        """A shell that only ever wakes at the deadline misses nothing."""
        deadline = self.timers.next_deadline()
        waiting = [o for o in self.model.due if o not in self.model.firing]
        assert deadline is not None or not waiting
        if deadline is not None and waiting:
            tick_ms = self.model.tick_ms
            first = -(-min(self.model.due[o] for o in waiting) // tick_ms) * tick_ms
            assert deadline <= first or deadline <= self.now_ms
            self.now_ms = max(self.now_ms, deadline)

    @rule()
    def save(self) -> None:
        self.saved = self.timers.snapshot()
        self.tail = []
        assert dict(zip(*(c.tolist() for c in self.saved), strict=True)) == self.model.due

    @rule()
    def restart(self) -> None:
        self.timers = HotTimers(self.now_ms, self.model.tick_ms)
        self.timers.open(*self.saved)
        for kind, offsets, due in self.tail:
            if kind == "open":
                self.timers.open(offsets, due)
            elif kind == "retire":
                self.timers.retire(offsets)
            else:
                assert self.timers.move(offsets, due).all()
        self.model.firing = set()

    @rule(offset=st.integers(0, 60), limit=st.sampled_from([1, 7, 1_000]))
    def list_from(self, offset: int, limit: int) -> None:
        offsets, due = self.timers.open_from(offset, limit)
        expected = [(o, self.model.due[o]) for o in sorted(self.model.due) if o >= offset][:limit]
        assert list(zip(offsets.tolist(), due.tolist(), strict=True)) == expected

    @rule(ahead=STRETCH, limit=st.sampled_from([1, 7, 1_000]))
    def look_ahead(self, ahead: int, limit: int) -> None:
        soon = self.timers.soon(self.now_ms + ahead, limit).tolist()
        waiting = {o for o in self.model.due if o not in self.model.firing}
        assert len(soon) <= limit
        assert set(soon) <= waiting

    @invariant()
    def timers_and_model_agree(self) -> None:
        offsets = list(range(min(self.end, 100))) + sorted(self.model.due)
        states = state_of(self.timers, int64s(offsets)).tolist()
        assert states == [self.model.state(offset) for offset in offsets]
        assert len(self.timers) == len(self.model.due)
        self.timers.check_invariants()

    def teardown(self) -> None:
        """In the end everything comes out, in order."""
        if not hasattr(self, "timers"):
            return
        last = max(self.model.due.values(), default=0)
        self.now_ms = max(self.now_ms, last + self.model.tick_ms)
        expected = self.model.due_now(self.now_ms)
        assert self.tick_until_found(len(expected) + 1) == expected
