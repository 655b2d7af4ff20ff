"""Which partitions are fetched: those that have room, as long as the pool has.

A partition is paused at `queue_max` records held and resumed at half of that, so one that is stuck
takes nothing from the others. It is paused too while its offset map is nearly full.

Bytes are bounded for all partitions together, and shared out as they are needed: one may hold far
more than its share as long as all hold less than half of `queue_bytes_max`. From there on those are
paused that hold half of their share or more, until they, or all, hold less than a quarter; the
others can fill up the other half, and no more. One that holds nothing is never paused for its
bytes, so a message that is larger than all the room there is comes through. Polls ask for fewer
records if these are large, and at first, when nobody knows.

Pausing is dear (a client throws away what it fetched ahead), so a pool whose workers are all busy
first just stops polling. But a consumer that does not poll is taken for dead: if it lasts,
everything is paused, and the shell can poll again.
"""

from collections.abc import Iterable

from waterclock.burrow.core.config import EngineConfig
from waterclock.burrow.core.effects import Effect, Pause, Resume
from waterclock.burrow.core.partition import PartitionState
from waterclock.burrow.core.records import TopicPartition
from waterclock.burrow.core.work import HeldBytes

UNKNOWN_BYTES = 1 << 20
"""What a record is taken to have before the first was read: as much as Kafka lets it by default."""


class Backpressure:
    """Pauses and resumes partitions."""

    __slots__ = (
        "_bytes_max", "_check_ms", "_full_ms_max", "_held", "_queue_max", "_record_bytes",
        "_share_bytes", "is_full",
    )  # fmt: skip

    def __init__(self, config: EngineConfig, held: HeldBytes) -> None:
        self._queue_max = config.queue_max
        self._bytes_max = config.queue_bytes_max
        self._held = held
        self._share_bytes = config.queue_bytes_max
        self._record_bytes = UNKNOWN_BYTES
        """What a record has, by the last polls: more is believed at once, and less by halves."""
        self._full_ms_max = config.full_ms_max
        self._check_ms = 0
        self.is_full = False
        """Whether everything is paused, because nobody has time for it."""

    def share_among(self, partitions: int) -> None:
        """Note how many partitions there are."""
        self._share_bytes = self._bytes_max // max(1, partitions)

    def count_for(self, room: int) -> int:
        """Return how many records to poll, of those there is room for: no more than fit."""
        # Others have used up more than their share if nothing is free, and will not get more.
        free = max(self._bytes_max - self._held.total, self._share_bytes // 2)
        return min(room, max(1, free // self._record_bytes))

    def has_reached(self, state: PartitionState) -> bool:
        """Say whether a partition holds so much that it may have to be paused."""
        return state.work.held >= self._queue_max or self._is_heavy(state, 2)

    def _is_heavy(self, state: PartitionState, part: int) -> bool:
        """Say whether a partition has this part of its share, and all have it of the whole."""
        held = state.work.held_bytes
        is_much = self._held.total >= self._bytes_max // part
        return is_much and held > 0 and held >= self._share_bytes // part

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
        if not state.is_paused:
            return self.has_reached(state)
        is_long = state.work.held > self._queue_max // 2
        return is_long or self._is_heavy(state, 4)

    def polled(self, count: int, more_bytes: int, now_ms: int) -> None:
        """Note that the shell has polled, and got so many records with so many bytes to hold."""
        self._check_ms = now_ms + self._full_ms_max
        if count:
            self._record_bytes = max(more_bytes // count, self._record_bytes // 2, 1)

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
