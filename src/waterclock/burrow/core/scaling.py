"""How many workers there should be: more while work waits and all are busy, fewer when they idle.

Grown by half and shrunk by a quarter, so that a load between two sizes finds one and stays. Busy
enough to grow (90 %) and idle enough to shrink (40 %) are far apart: after growing, workers that
were all busy are still at least 50 % busy, and after shrinking at most 80 %. Shrinking waits for
three measures in a row, because a worker too many costs little and one too few is lag.
"""

from waterclock.model.errors import BadConfig

GROW_AT_PERCENT = 90
SHRINK_AT_PERCENT = 40
SHRINK_AFTER = 3


class Scaling:
    """The number of workers, from what was measured."""

    __slots__ = ("_idle_in_a_row", "workers", "workers_max", "workers_min")

    def __init__(self, workers_min: int, workers_max: int) -> None:
        if not 1 <= workers_min <= workers_max:
            raise BadConfig("scale", f"must be 1 <= min <= max, not ({workers_min}, {workers_max})")
        self.workers_min = workers_min
        self.workers_max = workers_max
        self.workers = workers_min
        self._idle_in_a_row = 0

    def __repr__(self) -> str:
        return f"<Scaling {self.workers} workers of {self.workers_min} to {self.workers_max}>"

    def measured(self, *, busy_percent: int, lag: int) -> int:
        """Return how many workers there should be, after one more interval.

        `busy_percent` is the share of the interval the workers worked, on average; `lag` is how
        many messages are stored and not finished.
        """
        if busy_percent >= GROW_AT_PERCENT and lag > self.workers:
            self._idle_in_a_row = 0
            # No more than there is work for.
            wanted = min(self.workers + (self.workers + 1) // 2, lag)
            self.workers = min(wanted, self.workers_max)
        elif busy_percent <= SHRINK_AT_PERCENT:
            self._idle_in_a_row += 1
            if self._idle_in_a_row >= SHRINK_AFTER:
                self._idle_in_a_row = 0
                self.workers = max(self.workers - (self.workers + 3) // 4, self.workers_min)
        else:
            self._idle_in_a_row = 0
        return self.workers
