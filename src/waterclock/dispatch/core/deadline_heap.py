"""Batches by their time, soonest first: deadlines of what is out, and ends of rests.

A batch has one entry at most, and its `deadline_ms` may move later without the heap being
told: a batch that comes too early is put back. So extending a deadline costs nothing, and the cost
of time is by batches, never by messages.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from waterclock.dispatch.core.batches import Batch, BatchState

DONE_MIN = 1_000
"""Below so many entries those of batches that are done just wait for their time."""


class DeadlineHeap:
    """Batches at one place, each due at its `deadline_ms`."""

    def __init__(self, state: BatchState) -> None:
        self._state = state
        self._heap: list[tuple[int, int, Batch]] = []
        self._sequence = 0
        self._length_max = DONE_MIN

    def __repr__(self) -> str:
        return f"<DeadlineHeap of {len(self._heap)} batches>"

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, batch: Batch) -> None:
        """Enter a batch that is not in here."""
        if len(self._heap) >= self._length_max:
            self._drop_done()
        self._sequence += 1
        heappush(self._heap, (batch.deadline_ms, self._sequence, batch))

    def due(self, now_ms: int) -> Iterator[Batch]:
        """Take out the batches whose time has come."""
        while self._heap and self._heap[0][0] <= now_ms:
            _, _, batch = heappop(self._heap)
            if not self._is_current(batch):
                continue
            if batch.deadline_ms > now_ms:
                self.put(batch)
            else:
                yield batch

    def next_time(self) -> int | None:
        """Return when to look again; it may turn out too early."""
        return self._heap[0][0] if self._heap else None

    def has(self, batch: Batch) -> bool:
        """Say whether a batch is in here; slow, for tests."""
        return any(each is batch for _, _, each in self._heap)

    def _is_current(self, batch: Batch) -> bool:
        return batch.left > 0 and batch.state is self._state

    def _drop_done(self) -> None:
        self._heap = [entry for entry in self._heap if self._is_current(entry[2])]
        heapify(self._heap)
        self._length_max = max(DONE_MIN, 2 * len(self._heap))
