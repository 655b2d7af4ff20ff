"""Deadlines of a core, the nearest first. A cancelled one costs nothing once it is at the head."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeAlias

Action: TypeAlias = Callable[[int], None]
"""What happens at a deadline; it is told the time."""


class Timer:
    """One deadline; it can be cancelled."""

    __slots__ = ("action", "due_ms")

    def __init__(self, due_ms: int, action: Action) -> None:
        self.due_ms = due_ms
        self.action: Action | None = action

    def cancel(self) -> None:
        """Let nothing happen at this deadline."""
        self.action = None


class Timers:
    """All deadlines of one core."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._count = 0

    def at(self, due_ms: int, action: Action) -> Timer:
        """Let something happen; what is due at the same time happens in the order it was asked."""
        timer = Timer(due_ms, action)
        self._count += 1
        heappush(self._heap, (due_ms, self._count, timer))
        return timer

    def next_deadline(self) -> int | None:
        """Return when the next one is due, None if there is none."""
        heap = self._heap
        while heap and heap[0][2].action is None:
            heappop(heap)
        return heap[0][0] if heap else None

    def run(self, now_ms: int) -> None:
        """Let all that is due happen."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            action = heappop(heap)[2].action
            if action is not None:
                action(now_ms)
