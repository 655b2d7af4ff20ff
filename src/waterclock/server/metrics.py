"""What a node counts, as Prometheus reads it, put together on each scrape.

Hot paths count with plain integers (`node/counters.py`). A node may have thousands of partitions
and groups, so the text is made in small steps, the loop let go between them; a scrape meanwhile, or
within a second, gets the same text. Labels are names of topics, groups and partitions, whose
numbers are limited; nothing a client can invent without limit becomes a label. Of groups, which
anybody can make who consumes, only some are shown (`group_ranking.py`).
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from math import nan
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

import waterclock
from waterclock.model.errors import NotLeader
from waterclock.node.counters import Histogram
from waterclock.node.groups.host import GroupHost
from waterclock.node.node import Node
from waterclock.node.partition.host import PartitionHost
from waterclock.server.access import Access
from waterclock.server.calls import Calls
from waterclock.server.families import (
    Family,
    Sample,
    counter,
    gauge,
    histogram,
    one_counter,
    one_gauge,
)
from waterclock.server.group_ranking import OTHER, GroupRanking, rank_groups
from waterclock.server.http.counters import HttpCounters
from waterclock.server.reload import Reloader
from waterclock.server.request_metrics import request_families, request_histograms
from waterclock.server.security_metrics import security_families
from waterclock.storage.folders.data_folder import DiskSpace

if TYPE_CHECKING:
    from waterclock.server.cluster.cluster import Cluster

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4.encode()

CHUNK = 500
"""Samples made in one go: about 3 ms."""
CACHE_MS = 1_000
BEAT_S = 0.010
"""How often the loop is checked for stalls."""
HORIZONS_CACHE_MS = 10_000
"""Counting 10 M timers by horizon takes a while."""
HORIZONS = ("overdue", "1m", "1h", "1d", "30d", "later")
"""The labels of `schedule.hot_timers.HORIZONS_MS`."""

PARTITION = ("topic", "partition")
GROUP = ("topic", "group")
GROUP_PARTITION = (*GROUP, "partition")

_PARTITION_COUNTS = {
    "published_messages": ("Messages written.", "published"),
    "published_bytes": ("Bytes of batches published.", "published_bytes"),
    "published_batches": ("Batches published.", "batches"),
    "duplicate_messages": ("Messages published before and not written again.", "duplicates"),
    "fired_messages": ("Scheduled messages that became due and were written.", "fired"),
    "cancelled_messages": ("Scheduled messages that were cancelled.", "cancelled"),
    "rescheduled_messages": ("Scheduled messages that were moved.", "rescheduled"),
    "expired_messages": ("Scheduled messages that were too late to fire.", "expired"),
}
_GROUP_COUNTS = {
    "delivered_messages": ("Messages delivered, redeliveries included.", "delivered"),
    "delivered_bytes": ("Bytes delivered.", "delivered_bytes"),
    "redelivered_messages": ("Messages delivered again.", "redelivered"),
    "acked_messages": ("Messages acknowledged.", "acked"),
    "nacked_messages": ("Messages members failed at.", "nacked"),
    "rejected_messages": ("Messages members said can never succeed.", "rejected"),
    "timed_out_messages": ("Messages not answered in time.", "timed_out"),
    "dead_lettered_messages": ("Messages given up.", "dead_lettered"),
    "undelivered_expired_messages": ("Messages that expired before delivery.", "expired"),
    "missed_messages": ("Messages retention took before they were done.", "missed"),
    "refused_answers": ("Answers about messages the member did not hold.", "refused"),
    "credit_starved": ("Times there was something to deliver and no credit.", "starved"),
    "rebalances": ("Times partitions were assigned anew.", "rebalances"),
}


_STREAM_COUNTS = {
    "stream_sent_messages": ("Messages senders brought.", "sent"),
    "stream_received_messages": ("Messages receivers were given.", "received"),
    "stream_matched_messages": ("Messages for which a receiver was waiting.", "matched"),
    "stream_polls_answered": ("Polls answered with messages.", "polled"),
    "stream_poll_timeouts": ("Polls for which nothing came in time.", "receive_timeouts"),
    "stream_send_timeouts": ("Sends for which no receiver came in time.", "send_timeouts"),
    "stream_overwritten_messages": ("Messages that gave way to newer ones.", "overwritten"),
    "stream_missed_messages": ("Messages that readers missed.", "missed"),
    "stream_returned_messages": ("Messages matched to a receiver that had gone.", "given_back"),
    "stream_forgotten": ("Idle streams that were forgotten.", "forgotten"),
}


class _Collected(CollectorRegistry):
    """Metrics that were collected already, for `generate_latest`."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        super().__init__()
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


class LoopWatch:
    """Beats every 10 ms. A beat that is 50 ms late means that nothing at all ran for that long."""

    def __init__(self) -> None:
        self.stall_ms = Histogram()

    async def run(self) -> None:
        """Beat until cancelled."""
        due = time.perf_counter()
        while True:
            due += BEAT_S
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            now = time.perf_counter()
            self.stall_ms.observe(max(0.0, now - due) * 1_000)
            # Beats that were missed are one stall, not many.
            due = now


class Metrics:
    """The metrics of a node and of the server before it."""

    def __init__(
        self,
        node: Node,
        calls: Calls,
        http: HttpCounters,
        watch: LoopWatch,
        access: Access,
        reloader: Reloader,
        cluster: "Cluster | None" = None,
    ) -> None:
        self._node = node
        self._cluster = cluster
        self._calls = calls
        self._http = http
        self._access = access
        self._reloader = reloader
        self._watch = watch
        self._process: Collector = ProcessCollector(registry=None)
        self._rendering = asyncio.Lock()
        self._text = b""
        self._text_ms: int | None = None
        self._horizons: dict[PartitionHost, tuple[int, list[int]]] = {}
        self._ranking = GroupRanking()
        self._space: DiskSpace | None = None

    async def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        async with self._rendering:
            now_ms = self._node.clock.monotonic_ms()
            if self._text_ms is None or now_ms - self._text_ms >= CACHE_MS:
                self._text = await self._render()
                self._text_ms = now_ms
        return self._text

    async def _render(self) -> bytes:
        await self._count_horizons()
        self._space = await self._node.disk.space()
        shown_max = self._node.config.server.metrics_groups_max
        self._ranking = await rank_groups(self._node.groups.hosts(), shown_max=shown_max)
        parts = [generate_latest(_Collected(self._process.collect()))]
        parts += [generate_latest(_Collected(self.histograms()))]
        for family in self.families():
            samples = iter(family.samples)
            is_first = True
            while chunk := list(islice(samples, CHUNK)):
                parts.append(_text(family, chunk, with_head=is_first))
                is_first = False
                await asyncio.sleep(0)
        return b"".join(parts)

    async def _count_horizons(self) -> None:
        """Count pending messages by horizon, where the last count is old."""
        clock = self._node.clock
        fresh: dict[PartitionHost, tuple[int, list[int]]] = {}
        for host in self._hosts():
            now_ms = clock.monotonic_ms()
            counted = self._horizons.get(host)
            if counted is None or now_ms - counted[0] >= HORIZONS_CACHE_MS:
                try:
                    scheduler = host.scheduler
                except NotLeader:
                    continue  # its timers run on another node, which counts them
                counted = now_ms, (await scheduler.horizons(clock.now_ms())).tolist()
            fresh[host] = counted
        self._horizons = fresh

    # What there is

    def families(self) -> Iterator[Family]:
        """Yield everything but histograms; samples are made as they are taken."""
        yield from self._node_families()
        yield from request_families(self._calls, self._http)
        yield from security_families(self._access, self._reloader)
        yield from self._stream_families()
        if self._cluster is not None and not self._node.is_joining:
            from waterclock.server.cluster.metrics import cluster_families

            yield from cluster_families(self._cluster, self._node.name)
        for name, (documentation, attribute) in _PARTITION_COUNTS.items():
            samples = self._each_partition(_counter(attribute))
            yield counter(name, documentation, PARTITION, samples)
        for name, documentation, value in (
            ("log_bytes", "Bytes of the log on disk.", _log_bytes),
            ("log_start_offset", "The first offset still there.", lambda h: h.store.start),
            ("log_end_offset", "The end of what can be read.", lambda h: h.store.acknowledged_end),
        ):
            yield gauge(name, documentation, PARTITION, self._each_partition(value))
        yield gauge(
            "scheduled_messages", "Pending messages.", ("topic", "horizon"), self._scheduled()
        )
        yield from self._group_families()

    def _group_families(self) -> Iterator[Family]:
        ranking = self._ranking
        for name, (documentation, attribute) in _GROUP_COUNTS.items():
            yield counter(name, documentation, GROUP, self._each_group(_counter(attribute)))
        members = self._each_group(lambda host: len(host.members), ranking.other_members)
        yield gauge("group_members", "Members of a group.", GROUP, members)
        lag = self._each_group_partition("lag", ranking.other_lag)
        yield gauge("group_lag_messages", "Offsets not done.", GROUP_PARTITION, lag)
        unacked = self._each_group_partition("unacked", ranking.other_unacked)
        documentation = "Delivered and not answered."
        yield gauge("group_unacked_messages", documentation, GROUP_PARTITION, unacked)
        yield one_gauge(
            "metrics_hidden_groups",
            "Groups without lines of their own here: see server.metrics_groups_max.",
            ranking.hidden_groups,
        )
        yield one_gauge(
            "metrics_hidden_group_partitions",
            "Partitions of groups without lines of their own here.",
            ranking.hidden_partitions,
        )

    def _node_families(self) -> Iterator[Family]:
        node = self._node
        info = [((waterclock.__version__, node.name), 1.0)]
        yield gauge("node_info", "The node.", ("version", "node"), info)
        yield one_gauge(
            "ready",
            "Whether the node takes requests and can store them: 200 or 503 of /health/ready.",
            node.is_ready,
        )
        yield one_gauge("problems", "See /health/ready.", len(node.problems()))
        is_full = node.disk.shortage is not None
        yield one_gauge("disk_full", "Whether there was no room to write something.", is_full)
        size, free = self._space or (nan, nan)
        yield one_gauge("disk_bytes", "Size of the disk with the data folder.", size)
        yield one_gauge("disk_free_bytes", "What of it the node can have.", free)
        yield one_gauge("topics", "Topics.", len(node.topics.all()))

    def _stream_families(self) -> Iterator[Family]:
        streams, persister = self._node.streams.table, self._node.persister
        for name, (documentation, attribute) in _STREAM_COUNTS.items():
            yield one_counter(name, documentation, getattr(streams.counters, attribute))
        yield one_gauge("streams", "In-memory streams.", len(streams))
        yield one_gauge("stream_waiting", "Senders and receivers that wait.", streams.waiting)
        yield one_gauge("stream_bytes", "Messages in memory.", streams.size_bytes)
        stored, failed = persister.stored, persister.failed
        yield one_counter("stream_stored_messages", "Messages brought to the store.", stored)
        yield one_counter("stream_store_failures", "Messages it did not take.", failed)
        is_up = persister.problem is None
        yield one_gauge("stream_store_up", "Whether the store can be reached.", is_up)

    def histograms(self) -> Iterator[Metric]:
        """Yield the histograms, of the whole node each: by partition they would be too many."""
        hosts = list(self._hosts())
        yield _of_node(
            "fsync_seconds", "Time of an fsync.", [host.counters.fsync_ms for host in hosts]
        )
        yield _of_node(
            "publish_seconds",
            "Time from the append of a batch until it is durable.",
            [host.counters.publish_ms for host in hosts],
        )
        yield _of_node(
            "schedule_lateness_seconds",
            "How long after their due time messages were fired.",
            [host.counters.lateness_ms for host in hosts],
        )
        yield _of_node(
            "stream_wait_seconds",
            "How long messages of in-memory streams waited for a receiver.",
            [self._node.streams.wait_ms],
        )
        yield _of_node("loop_stall_seconds", "How long nothing at all ran.", [self._watch.stall_ms])
        yield from request_histograms(self._calls, self._http)

    def _hosts(self) -> Iterator[PartitionHost]:
        for topic in self._node.topics.all():
            yield from (host for host in topic.partitions if host.is_open)

    def _each_partition(self, value: Callable[[PartitionHost], float]) -> Iterator[Sample]:
        for host in self._hosts():
            yield (host.topic, str(host.partition)), value(host)

    def _each_group(
        self, value: Callable[[GroupHost], float], other: float | None = None
    ) -> Iterator[Sample]:
        for host in self._ranking.groups:
            yield (host.topic, host.name), value(host)
        if other is not None and self._ranking.hidden_groups:
            yield (OTHER, OTHER), other

    def _each_group_partition(self, attribute: str, other: float) -> Iterator[Sample]:
        for host, partition in self._ranking.partitions:
            labels = (host.topic, host.name, str(partition.partition))
            yield labels, getattr(partition, attribute)
        if self._ranking.hidden_partitions:
            yield (OTHER, OTHER, OTHER), other

    def _scheduled(self) -> Iterator[Sample]:
        totals: dict[str, list[int]] = {}
        for host, (_, counts) in self._horizons.items():
            total = totals.setdefault(host.topic, [0] * len(HORIZONS))
            totals[host.topic] = [a + b for a, b in zip(total, counts, strict=True)]
        for topic, counts in totals.items():
            for horizon, count in zip(HORIZONS, counts, strict=True):
                yield (topic, horizon), count


def _counter(name: str) -> Callable[[PartitionHost | GroupHost], float]:
    return lambda host: getattr(host.counters, name)


def _of_node(name: str, documentation: str, parts: Sequence[Histogram]) -> Metric:
    return histogram(name, documentation, (), [((), parts)])


def _text(family: Family, samples: Iterable[Sample], *, with_head: bool) -> bytes:
    metric = family.kind(family.name, family.documentation, labels=family.labels)
    for labels, value in samples:
        metric.add_metric(labels, value)
    text = generate_latest(_Collected([metric]))
    # Its help and type stand once.
    return text if with_head else text.split(b"\n", 2)[2]


def _log_bytes(host: PartitionHost) -> int:
    return sum(segment.end_position for segment in host.store.segments)
