"""Whatever the clock does, an occurrence comes at most once; a steady one leaves none out."""

from collections import Counter
from collections.abc import Iterable

from hypothesis import example, given
from hypothesis import strategies as st

from tests.node.recurring import recurrence
from waterclock.node.schedule.recurrence_records import (
    AHEAD_MAX,
    HELD_MAX,
    Occurrence,
    RecurrenceRecord,
    rule_of,
)

SECOND_MS = 1_000
TICK_MS = 500
START_MS = 1_700_000_000_000
GLITCH = [(3_600 * SECOND_MS, 3), (-3_600 * SECOND_MS, 37)]
"""For a second and a half it is an hour later; then all is well for a while."""


class World:
    """A recurrence, what it has scheduled and what has come, under a clock that can be set."""

    def __init__(self) -> None:
        recurs = recurrence("r", every_ms=SECOND_MS)
        self.record = RecurrenceRecord(recurrence=recurs, token="x", anchor_ms=START_MS)
        self.rule = rule_of(self.record)
        self.now_ms = START_MS
        self.pending: dict[str, int] = {}
        self.used: set[str] = set()
        self.came: Counter[int] = Counter()
        self.is_held = False
        """Nothing fires, whatever the time."""

    def set_clock(self, by_ms: int) -> None:
        self.now_ms = max(START_MS, self.now_ms + by_ms)
        self._look()

    def tick(self) -> None:
        self.now_ms += TICK_MS
        self._look()

    def _look(self) -> None:
        for name, due_ms in list(self.pending.items()):
            if due_ms <= self.now_ms and not self.is_held:
                del self.pending[name]
                self.came[due_ms] += 1
        for _ in range(3):  # as often as it asks for it
            record = self.record
            if record.unwanted:
                gone = [p for p in record.unwanted if self.pending.pop(p.message_id, 0)]
                record = record.with_cancelled(self.rule, gone)
            if record.is_due(self.now_ms) or record.is_overtaken(self.rule, self.now_ms):
                record = self._scheduled(record)
            self.record = record
        assert not self.record.unwanted
        assert len(self.record.ahead) <= AHEAD_MAX + HELD_MAX
        known = {occurrence.message_id for occurrence in self.record.upcoming}
        assert self.is_held or set(self.pending) <= known

    def _scheduled(self, record: RecurrenceRecord) -> RecurrenceRecord:
        due_ms = record.next_open(self.rule, self.now_ms)
        assert due_ms is not None
        name = record.message_id(due_ms)
        assert name not in self.used  # else dedup would take it for the one before
        self.used.add(name)
        self.pending[name] = due_ms
        return record.with_occurrence(
            self.rule,
            Occurrence("t", 0, 0, due_ms, name),
            self.now_ms,
            may_fire=lambda one: one.message_id in self.pending,
        )


def live(world: World, steps: Iterable[tuple[int, int]]) -> list[int]:
    """Return what was left out while the clock went on as it should."""
    left_out: list[int] = []
    for by_ms, ticks in steps:
        world.set_clock(by_ms)
        for _ in range(ticks):
            before_ms = world.now_ms
            world.tick()
            due_ms = world.rule.next_after(before_ms)
            if due_ms is not None and due_ms <= world.now_ms and not world.came[due_ms]:
                left_out.append(due_ms)
    return left_out


@given(
    st.lists(
        st.tuples(st.integers(-60, 60).map(lambda s: s * TICK_MS), st.integers(0, 80)), max_size=24
    )
)
@example([(0, 40), *GLITCH * 12, (0, 7_300)])
@example([(60 * TICK_MS, 0), *[(-3 * TICK_MS, 0)] * 20, (0, 80)])
def test_each_occurrence_comes_once_and_a_steady_clock_leaves_none_out(steps):
    world = World()

    assert live(world, steps) == []
    assert set(world.came.values()) <= {1}


def test_a_clock_that_is_set_for_ever_leaves_out_little_and_doubles_nothing():
    world = World()

    left_out = live(world, [(0, 40), *GLITCH * 100, (0, 7_300)])

    assert set(world.came.values()) == {1}
    assert 0 < len(left_out) < 1_500
    silence_ms = longest = 0
    for due_ms in range(START_MS + SECOND_MS, world.now_ms, SECOND_MS):
        silence_ms = 0 if world.came[due_ms] else silence_ms + SECOND_MS
        longest = max(longest, silence_ms)
    assert longest <= 120 * SECOND_MS


def test_of_many_that_do_not_fire_the_latest_are_kept():
    world = World()
    world.is_held = True

    live(world, [(0, 40), (60 * SECOND_MS, 40)])

    assert len(world.pending) > 2 * HELD_MAX
    latest = sorted(world.pending.values())[-HELD_MAX - 1 :]
    assert sorted(one.due_ms for one in world.record.upcoming) == latest
