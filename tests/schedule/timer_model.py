"""What timers must do, said plainly: a dict of due times, and a sort for every question."""

from waterclock.schedule.hot_timers import TimerState


class TimerModel:
    """Open promises as a dict; as slow as it is simple."""

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
