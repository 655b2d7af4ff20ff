"""What dispatchers and workers count, under the names of the Prometheus world.

Counting is plain arithmetic, in bulk, on the loop; families are made when somebody scrapes. Each
count is a field, and its docstring here is its help text there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(slots=True)
class WorkerCounts:
    """What a worker did since it started, in messages where nothing else is said."""

    received: int = 0
    written: int = 0
    repeats: int = 0
    """Found written already."""
    skipped: int = 0
    """The handler returned None."""
    failed: int = 0
    """Given back with a reason."""
    retried: int = 0
    """Not written at the first attempt, for the server was away."""
    extended: int = 0
    refused_frames: int = 0
    """Frames of leaders whose epoch is over."""
    refused_messages: int = 0
    refused_writes: int = 0
    """Written by us under an epoch that was over: the server refused."""


@dataclass(slots=True)
class DispatcherCounts:
    """What a dispatcher did since it started, over all the times it led."""

    received: int = 0
    """From the source."""
    added: int = 0
    repeated: int = 0
    handed_out: int = 0
    redelivered: int = 0
    acked: int = 0
    nacked: int = 0
    expired: int = 0
    orphaned: int = 0
    dead_lettered: int = 0
    lost: int = 0
    """Pub/sub only: heard and not kept, for there was no room, or pushed out of the ring."""
    gaps: int = 0
    """Pub/sub only: times the subscription broke, or a take-over did not know where to go on."""
    elections: int = 0
    """Times it became the leader."""
    stale: int = 0
    """Calls that Redis refused because somebody else leads."""
    bad_connections: int = 0
    """Connections closed for what they sent."""


class Counts(Collector):
    """A collector of one of these, with some gauges beside."""

    def __init__(
        self,
        prefix: str,
        counts: WorkerCounts | DispatcherCounts,
        gauges: Callable[[], Mapping[str, float]],
    ) -> None:
        self._prefix = prefix
        self._counts = counts
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        """Yield everything, for a registry."""
        for field in fields(self._counts):
            name = f"{self._prefix}_{field.name}"
            yield CounterMetricFamily(
                name, f"{field.name} since the start", value=getattr(self._counts, field.name)
            )
        for name, value in self._gauges().items():
            yield GaugeMetricFamily(f"{self._prefix}_{name}", name, value=value)
