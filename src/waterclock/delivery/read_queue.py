"""What was read of the log and not handed out yet, in log order.

A queue of ranges: messages with their size, and stretches with nothing to deliver, which keep their
place so that progress never runs ahead of what is handed out (see `cursor.py`). After a restart the
log is read again from the first offset that is not done; the runs that were done beyond it are
left out here.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from waterclock.delivery.spans import Range

SKIP = -1
"""Instead of a size: nothing to deliver here."""


class ReadQueue:
    """The queue, and how far the log was read."""

    def __init__(self, read_end: int, *, done_before: Iterable[Range] = ()) -> None:
        self.read_end = read_end
        self.messages = 0
        self._queue: deque[tuple[int, int, int]] = deque()
        self._done_before = deque(done_before)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return iter(self._queue)

    def advance(self, start: int, end: int) -> list[Range]:
        """Note that the log was read to `end`; return what of it is new and was not done before."""
        assert start <= self.read_end, f"the log was not read from {self.read_end} on"
        start = max(start, self.read_end)
        self.read_end = max(end, self.read_end)
        new: list[Range] = []
        before = self._done_before
        while before and before[0][0] < end and start < end:
            low, high = before[0]
            if start < low:
                new.append((start, low))
            start = max(start, min(high, end))
            if high > end:
                break
            before.popleft()
        if start < end:
            new.append((start, end))
        return new

    def append(self, start: int, end: int, bytes_each: int) -> None:
        """Put a range at the end of the queue."""
        if start < end:
            self._queue.append((start, end, bytes_each))
            self.messages += end - start if bytes_each != SKIP else 0

    def first(self) -> tuple[int, int, int]:
        """Return the head of the queue: start, end and bytes_each, or SKIP."""
        return self._queue[0]

    def take(self, count: int) -> None:
        """Remove so many offsets from the head."""
        start, end, bytes_each = self._queue[0]
        self.messages -= count if bytes_each != SKIP else 0
        if start + count == end:
            self._queue.popleft()
        else:
            self._queue[0] = start + count, end, bytes_each

    def skip(self, start: int, end: int) -> None:
        """Leave nothing to deliver in a range, wherever it stands in the queue."""
        old, self._queue, self.messages = self._queue, deque(), 0
        for low, high, bytes_each in old:
            left, right = max(low, min(start, high)), min(high, max(end, low))
            if left >= right:
                self.append(low, high, bytes_each)
                continue
            self.append(low, left, bytes_each)
            self.append(left, right, SKIP)
            self.append(right, high, bytes_each)

    def check_invariants(self) -> None:
        """Fail if the queue is out of order or miscounted."""
        at = 0
        for start, end, _ in self._queue:
            assert at <= start < end <= self.read_end
            at = end
        assert self.messages == sum(e - s for s, e, size in self._queue if size != SKIP)
