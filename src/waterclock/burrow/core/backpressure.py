"""Which partitions are fetched: those that have room, as long as the pool has.

A partition is paused at `queue_max` records held and resumed at half of that, so one that is stuck
takes nothing from the others. It is paused too while its offset map is nearly full. Pausing is dear
(a client throws away what it fetched ahead), so a pool whose workers are all busy first just stops
polling. But a consumer that does not poll is taken for dead: if it lasts, everything is paused, and
the shell can poll again.
"""

from collections.abc import Iterable

from waterclock.burrow.core.config import EngineConfig
from waterclock.burrow.core.effects import Effect, Pause, Resume
from waterclock.burrow.core.partition import PartitionState
from waterclock.burrow.core.records import TopicPartition


class Backpressure:
    """Pauses and resumes partitions."""

    __slots__ = ("_check_ms", "_full_ms_max", "_queue_max", "is_full")

    def __init__(self, config: EngineConfig) -> None:
        self._queue_max = config.queue_max
        self._full_ms_max = config.full_ms_max
        self._check_ms = 0
        self.is_full = False
        """Whether everything is paused, because nobody has time for it."""

    def settle(self, states: Iterable[PartitionState]) -> list[Effect]:
        """Pause and resume what should be."""
        paused: list[TopicPartition] = []
        resumed: list[TopicPartition] = []
        for state in states:
            is_wanted = self._is_pause_wanted(state)
            if is_wanted != state.is_paused:
                state.is_paused = is_wanted
                (paused if is_wanted else resumed).append(state.name)
        effects: list[Effect] = []
        if paused:
            effects.append(Pause(tuple(paused)))
        if resumed:
            effects.append(Resume(tuple(resumed)))
        return effects

    def _is_pause_wanted(self, state: PartitionState) -> bool:
        if self.is_full or state.is_pressed:
            return True
        held = state.work.held
        return held >= self._queue_max or (state.is_paused and held > self._queue_max // 2)

    def polled(self, now_ms: int) -> None:
        """Note that the shell has polled."""
        self._check_ms = now_ms + self._full_ms_max

    def deadline_ms(self, room: int) -> int | None:
        """Return when to look whether the pool is full."""
        return self._check_ms if self.is_full or not room else None

    def see_room(self, room: int, states: Iterable[PartitionState], now_ms: int) -> list[Effect]:
        """Pause everything if there has been no room for long; resume when there is."""
        if self.is_full == (room == 0):
            if self.is_full:
                self._check_ms = now_ms + self._full_ms_max
            return []
        if not self.is_full and now_ms < self._check_ms:
            return []
        self.is_full = not self.is_full
        self._check_ms = now_ms + self._full_ms_max
        return self.settle(states)
