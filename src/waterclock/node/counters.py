"""What a node counts: plain integers on hot paths, given names and units only when somebody asks.

`server/metrics.py` exports them. A counter only goes up; what can be asked of a store or a group
(bytes, lag, members) is not counted twice.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

MILLISECONDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
LATENESS_MS = (1, 10, 25, 50, 75, 100, 150, 200, 250, 500, 1_000, 5_000, 60_000, 3_600_000)


class Histogram:
    """How many observations were at most each bound, in the bound's unit."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[int, ...] = MILLISECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """One for each bound and one for what is beyond all; not cumulative."""
        self.total = 0.0

    def __repr__(self) -> str:
        return f"<Histogram of {self.count}, mean {self.total / max(self.count, 1):.3g}>"

    @property
    def count(self) -> int:
        """How many observations there were."""
        return sum(self.counts)

    def observe(self, value: float, count: int = 1) -> None:
        """Note `count` observations of one value."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def add(self, counts: Iterable[int], total: float) -> None:
        """Note observations that were sorted into the bounds elsewhere."""
        self.counts = [have + more for have, more in zip(self.counts, counts, strict=True)]
        self.total += total


@dataclass(slots=True)
class PartitionCounters:
    """Of one partition, since the node started."""

    published: int = 0
    published_bytes: int = 0
    batches: int = 0
    duplicates: int = 0
    """Messages that were published before and not written again."""
    fired: int = 0
    cancelled: int = 0
    rescheduled: int = 0
    expired: int = 0
    fsync_ms: Histogram = field(default_factory=Histogram)
    publish_ms: Histogram = field(default_factory=Histogram)
    """From append to durable, once for each batch."""
    lateness_ms: Histogram = field(default_factory=lambda: Histogram(LATENESS_MS))
    """How long after their due time messages were fired."""


@dataclass(slots=True)
class GroupCounters:
    """Of one group on one topic, since the node started."""

    delivered: int = 0
    delivered_bytes: int = 0
    redelivered: int = 0
    acked: int = 0
    nacked: int = 0
    rejected: int = 0
    timed_out: int = 0
    dead_lettered: int = 0
    expired: int = 0
    missed: int = 0
    """Messages that retention took before they were done."""
    refused: int = 0
    starved: int = 0
    """Times there was something to deliver and no credit."""
    rebalances: int = 0
