"""What a pool counts, under the names of the Prometheus world, and how it is in one object.

Counting is plain arithmetic on the loop, in bulk; families are made when Prometheus scrapes. A
scraper may be on another thread, so it reads numbers and finished snapshots only.

    from prometheus_client import REGISTRY
    REGISTRY.register(pool.metrics)
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from waterclock.burrow.core.partition import PartitionState, PartitionView
from waterclock.burrow.core.records import Record, TopicPartition
from waterclock.model.failure_kinds import FailureKinds

State = Literal["new", "running", "stopping", "stopped", "halted", "failed"]

BOUNDS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)
"""Upper ends of the buckets of processing time."""
_PLACE = ["topic", "partition"]


class Tally:
    """Counts of one partition, over all its assignments to this pool."""

    __slots__ = ("buckets", "committed", "dead_lettered", "failed", "final", "seconds", "succeeded")

    def __init__(self) -> None:
        self.succeeded = 0
        self.failed = 0
        """Attempts that failed and are tried again."""
        self.final = 0
        """Records that were given up, or went to the dead letters."""
        self.dead_lettered = 0
        self.committed = 0
        """Offsets by which commits moved on."""
        self.seconds = 0.0
        self.buckets = [0] * (len(BOUNDS_S) + 1)

    def add(self, times: list[float]) -> None:
        """Count records that were done, by how long each took; the list is ours from now on."""
        self.succeeded += len(times)
        self.seconds += sum(times)
        # Sorted, a whole bucket is one step, and mostly there are few.
        times.sort()
        first, last = bisect_left(BOUNDS_S, times[0]), bisect_left(BOUNDS_S, times[-1])
        start = 0
        for bucket in range(first, last):
            end = bisect_right(times, BOUNDS_S[bucket])
            self.buckets[bucket] += end - start
            start = end
        self.buckets[last] += len(times) - start


class PoolMetrics(Collector):
    """The counts of a pool, and how its partitions were when it last looked."""

    def __init__(self) -> None:
        self.tallies: dict[tuple[str, int], Tally] = {}
        self.views: Sequence[PartitionView] = ()
        self.log_ends: dict[TopicPartition, int] = {}
        self.source_lags: Mapping[TopicPartition, int] = {}
        """What a source says that knows better than we could reckon."""
        self.utilization = 0.0
        """The share of their time the workers were busy, lately."""
        self.workers = 0
        self.rebalances = 0
        self.commits = 0
        self.commit_failures = 0
        self.failures = FailureKinds()
        """Of the function, told apart."""
        self.now_ms = 0
        """When the views were taken, on their clock."""

    def tally(self, topic: str, partition: int) -> Tally:
        """Return the counts of a partition."""
        found = self.tallies.get((topic, partition))
        if found is None:
            found = self.tallies[topic, partition] = Tally()
        return found

    def finished(self, records: Iterable[Record], seconds: Iterable[float]) -> None:
        """Count records that were done, and how long each took. Not after the engine was told: a
        record that is not held does not know any more what it counts for."""
        groups: dict[PartitionState | None, list[float]] = {None: []}
        home: PartitionState | None = None
        group = groups[None]
        for record, took in zip(records, seconds, strict=True):
            if record.home is not home:
                home = record.home
                group = groups.setdefault(home, [])
            group.append(took)
        for home, times in groups.items():
            if home is not None:
                self.tally(*home.name).add(times)

    def lags(self) -> dict[TopicPartition, int]:
        """Return how many messages of each partition are stored and not finished."""
        found = {}
        for view in self.views:
            if view.name in self.source_lags:
                found[view.name] = self.source_lags[view.name]
                continue
            end = self.log_ends.get(view.name, view.polled_end)
            if end is not None and view.frontier is not None:
                found[view.name] = max(0, end - view.frontier)
        return found

    def totals(self) -> tuple[int, int]:
        """Return how many attempts ended well and how many did not."""
        tallies = list(self.tallies.values())
        good = sum(tally.succeeded for tally in tallies)
        return good, sum(tally.failed + tally.final for tally in tallies)

    def collect(self) -> Iterable[Metric]:
        """Yield everything, for a registry."""
        yield from self._counts()
        yield from self._gauges()
        yield from self._partition_gauges()

    def _counts(self) -> Iterable[Metric]:
        processed = CounterMetricFamily(
            "burrow_messages_processed", "Messages worked on, by how it ended.",
            labels=[*_PLACE, "status"],
        )  # fmt: skip
        errors = CounterMetricFamily(
            "burrow_errors", "Attempts that failed.", labels=[*_PLACE, "retriable"]
        )
        committed = CounterMetricFamily(
            "burrow_offsets_committed", "Offsets by which commits moved on.", labels=_PLACE
        )
        durations = HistogramMetricFamily(
            "burrow_processing_duration_seconds", "Time in the function.", labels=_PLACE
        )
        for (topic, number), tally in list(self.tallies.items()):
            place = [topic, str(number)]
            for status, count in (
                ("success", tally.succeeded),
                ("retry", tally.failed),
                ("failed", tally.final),
                ("dead_letter", tally.dead_lettered),
            ):
                processed.add_metric([*place, status], count)
            errors.add_metric([*place, "true"], tally.failed)
            errors.add_metric([*place, "false"], tally.final)
            committed.add_metric(place, tally.committed)
            sum_so_far, buckets = 0, []
            for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), tally.buckets, strict=True):
                sum_so_far += count
                buckets.append((bound, float(sum_so_far)))
            durations.add_metric(place, buckets, tally.seconds)
        yield from (processed, errors, committed, durations)

    def _gauges(self) -> Iterable[Metric]:
        for name, text, value in (
            ("burrow_worker_utilization", "Share of time workers are busy.", self.utilization),
            ("burrow_workers", "Workers there are.", self.workers),
            ("burrow_partitions", "Partitions this process has.", len(self.views)),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        for name, text, value in (
            ("burrow_rebalances", "Times partitions came or went.", self.rebalances),
            ("burrow_commits", "Commits that were answered.", self.commits),
            ("burrow_commit_failures", "Partitions a commit failed for.", self.commit_failures),
        ):
            yield CounterMetricFamily(name, text, value=value)

    def _partition_gauges(self) -> Iterable[Metric]:
        lags = self.lags()
        families = {
            name: GaugeMetricFamily(name, text, labels=_PLACE)
            for name, text in (
                ("burrow_offset_lag", "Messages stored and not finished."),
                ("burrow_inflight_messages", "Messages with workers."),
                ("burrow_waiting_messages", "Messages that wait for a worker or their key."),
                ("burrow_retrying_messages", "Messages that wait to be tried again."),
                ("burrow_given_up_messages", "Messages left unfinished for good."),
                ("burrow_gap_runs", "Runs of finished messages behind an unfinished one."),
                ("burrow_metadata_usage_ratio", "How full the room for the offset map is."),
                ("burrow_paused", "Whether the partition is paused."),
                ("burrow_oldest_unfinished_seconds", "How long the commit has not moved on."),
            )
        }
        for view in self.views:
            place = [view.name.topic, str(view.name.partition)]
            since_ms = self.now_ms if view.stuck_since_ms is None else view.stuck_since_ms
            values = (
                lags.get(view.name, 0), view.in_flight, view.waiting, view.retrying, view.given_up,
                view.run_count, view.map_usage, view.is_paused, (self.now_ms - since_ms) / 1_000,
            )  # fmt: skip
            for family, value in zip(families.values(), values, strict=True):
                family.add_metric(place, float(value))
        yield from families.values()


@dataclass(frozen=True, slots=True)
class Health:
    """How a pool is, when it last looked: about once a second."""

    state: State
    workers: int
    workers_busy: float
    """How many were busy, on average of late."""
    partitions: int
    offset_lag: dict[TopicPartition, int] = field(default_factory=dict)
    error_rate: float = 0.0
    """The share of attempts that failed, of late."""
    errors_in_a_row: int = 0
    """Records given up with no success between them."""
    attempts: int = 0
    """How often the function has been done with a record since the start, whatever came of it."""
    failures: int = 0
    """How many of these failed."""
    last_error: str = ""
    """The last failure, and the line it came from."""
    stuck_seconds: float = 0.0
    """How long the partition that has been stuck for longest could not commit any further."""
    problems: tuple[str, ...] = ()
    """What is wrong, each in a sentence."""

    @property
    def is_healthy(self) -> bool:
        """Whether the pool runs and nothing is wrong with it. One without partitions is healthy:
        there may be more members than partitions."""
        return self.state == "running" and not self.problems
