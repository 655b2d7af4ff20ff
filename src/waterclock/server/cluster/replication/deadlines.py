"""When the cores want to be ticked: one timer for all of them, and none while nothing is due."""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waterclock.server.cluster.replication.hosted import Hosted


class Deadlines:
    """Calls `tick` for each partition when it is due, by the milliseconds of `now_ms`."""

    def __init__(self, now_ms: Callable[[], int], tick: Callable[["Hosted"], None]) -> None:
        self._now_ms = now_ms
        self._tick = tick
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[int, int, Hosted]] = []
        self._sequence = count()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Deadlines {len(self._heap)}>"

    def set(self, hosted: "Hosted", due_ms: int | None) -> None:
        """Tick a partition then, and not at the time it had before."""
        if due_ms == hosted.due_ms:
            return
        hosted.due_ms = due_ms
        if due_ms is not None:
            heappush(self._heap, (due_ms, next(self._sequence), hosted))
            if self._heap[0][2] is hosted:
                self._wait()

    def close(self) -> None:
        """Tick nothing any more."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            wait_s = max(0, self._heap[0][0] - self._now_ms()) / 1_000
            self._timer = self._loop.call_later(wait_s, self._rang)

    def _rang(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, _, hosted = heappop(self._heap)
            if hosted.due_ms == due_ms:
                hosted.due_ms = None
                self._tick(hosted)
        self._wait()
