"""Virtual time: what is to happen when, in one order for one seed."""

from collections.abc import Callable
from heapq import heappop, heappush

Step = Callable[[], None]


class Timeline:
    """Everything that is still to happen in a simulated world."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._order = 0
        self._heap: list[tuple[int, int, Step]] = []

    def __repr__(self) -> str:
        return f"<Timeline at {self.now_ms} ms, {len(self._heap)} to come>"

    def after(self, delay_ms: int, act: Step) -> None:
        """Have something done; of two at the same time, the one that was asked for first."""
        assert delay_ms >= 0, delay_ms
        self._order += 1
        heappush(self._heap, (self.now_ms + delay_ms, self._order, act))

    def run(self, until_ms: int) -> None:
        """Let time pass."""
        while self._heap and self._heap[0][0] <= until_ms:
            self.now_ms, _, act = heappop(self._heap)
            act()
        self.now_ms = until_ms
