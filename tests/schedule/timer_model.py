"""What timers must do, said plainly: a dict of due times, and a sort for every question."""

from enum import IntEnum

import numpy as np

from waterclock.schedule.hot_timers import HotTimers, Int64s
from waterclock.schedule.table import States


class TimerState(IntEnum):
    """What is known of a timer."""

    UNKNOWN = 0
    """Fired, cancelled, or never there."""
    OPEN = 1
    FIRING = 2


_OF_TABLE: States = np.array(
    [TimerState.UNKNOWN, TimerState.OPEN, TimerState.OPEN, TimerState.FIRING], np.uint8
)


def state_of(timers: HotTimers, offsets: Int64s) -> States:
    """Return the `TimerState` of each."""
    return _OF_TABLE[timers._table.find(offsets)[1]]


class TimerModel:
    """Open timers as a dict; as slow as it is simple."""

    def __init__(self, tick_ms: int) -> None:
        self.tick_ms = tick_ms
        self.due: dict[int, int] = {}
        self.firing: set[int] = set()

    def due_now(self, now_ms: int) -> list[int]:
        """Offsets that are due and not handed out, in (due, offset) order."""
        bound = now_ms // self.tick_ms * self.tick_ms
        ready = [(due, o) for o, due in self.due.items() if due <= bound and o not in self.firing]
        return [offset for _, offset in sorted(ready)]

    def state(self, offset: int) -> TimerState:
        if offset in self.firing:
            return TimerState.FIRING
        return TimerState.OPEN if offset in self.due else TimerState.UNKNOWN
