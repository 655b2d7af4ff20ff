"""What the topics and groups of a node have done so far, counted up in one pass over them.

Nothing is counted twice on a hot path: these are sums over the counters that partitions and groups
have anyway. A node may have thousands of both, so the pass goes in slices, with a turn for everyone
else between two of them. Two such counts make rates (`rates`).
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from waterclock.model.errors import NotLeader
from waterclock.node.counters import LATENESS_MS
from waterclock.node.groups.host import GroupHost
from waterclock.node.topics import Topic

SLICE_PARTITIONS = 250
NONE_LATE = (0,) * (len(LATENESS_MS) + 1)


@dataclass(slots=True)
class TopicCounts:
    """Of one topic, as far as it is on this node."""

    topic: str
    partitions: int
    published: int = 0
    fired: int = 0
    delivered: int = 0
    led: int = 0
    """Partitions that this node takes publishes for: of these its word counts."""
    messages: int = 0
    """Offsets between start and end, of those it leads."""
    size_bytes: int = 0
    """Of those it leads."""
    copied_bytes: int = 0
    """Of its copies of what other nodes lead."""
    pending: int = 0
    groups: int = 0
    lag: int = 0
    closed: int = 0
    """Partitions that are not open here."""
    problems: int = 0
    lateness: Sequence[int] = NONE_LATE


@dataclass(slots=True)
class GroupCounts:
    """Of one group on one topic."""

    topic: str
    group: str
    members: int
    partitions: int
    delivered: int
    acked: int
    redelivered: int
    dead_lettered: int
    lag: int = 0
    unacked: int = 0
    waiting: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """What it is known by."""
        return self.topic, self.group


@dataclass
class NodeCounts:
    """All of them, at one time of a clock that only goes forward."""

    steady_ms: int
    topics: dict[str, TopicCounts]
    groups: list[GroupCounts]

    @cached_property
    def by_group(self) -> dict[tuple[str, str], GroupCounts]:
        return {each.key: each for each in self.groups}


async def count_all(
    topics: Sequence[Topic], groups: Iterable[GroupHost], steady_ms: int
) -> NodeCounts:
    """Return what every topic and group has done since the node started."""
    counted: dict[str, TopicCounts] = {}
    looked_at = 0
    for topic in topics:
        found = counted[topic.name] = TopicCounts(topic.name, len(topic.partitions))
        for host in tuple(topic.partitions):
            looked_at += 1
            if looked_at % SLICE_PARTITIONS == 0:
                await asyncio.sleep(0)
            if not host.is_open:
                found.closed += 1
                found.problems += host.problem is not None
                continue
            counters, store = host.counters, host.store
            # What it has done stays done when another node leads: sums that went back and came
            # again would make rates of what is long past.
            found.published += counters.published
            if counters.fired:
                found.fired += counters.fired
                late = counters.lateness_ms.counts
                found.lateness = [a + b for a, b in zip(found.lateness, late, strict=True)]
            found.problems += bool(store.faults)
            size_bytes = sum(segment.end_position for segment in store.segments)
            if not host.is_here:
                found.copied_bytes += size_bytes
                continue  # another node has its timers
            found.led += 1
            found.messages += max(0, store.acknowledged_end - store.start)
            found.size_bytes += size_bytes
            try:
                found.pending += len(host.scheduler)
            except NotLeader:
                continue  # it takes over, or stops
    listed = []
    for group in tuple(groups):
        listed.append(_counts(group))
        looked_at += len(group.partitions)
        if looked_at >= SLICE_PARTITIONS:
            looked_at = 0
            await asyncio.sleep(0)
        if (of := counted.get(group.topic)) is not None:
            of.groups += 1
            of.delivered += listed[-1].delivered
            of.lag = max(of.lag, listed[-1].lag)
    return NodeCounts(steady_ms, counted, listed)


def _counts(host: GroupHost) -> GroupCounts:
    counters = host.counters
    found = GroupCounts(
        host.topic,
        host.name,
        len(host.members),
        len(host.partitions),
        counters.delivered,
        counters.acked,
        counters.redelivered,
        counters.dead_lettered,
    )
    for partition in host.partitions:
        cursor = partition.cursor
        found.lag += cursor.lag(partition.end)
        found.unacked += cursor.unacked
        found.waiting += cursor.waiting
    return found


def lateness_of(before: Sequence[int], after: Sequence[int], part: float) -> float:
    """Return the bound below which a part of the messages fired meanwhile were late, in ms; NaN if
    none was fired."""
    counts = [max(0, b - a) for a, b in zip(before, after, strict=True)]
    total = sum(counts)
    if not total:
        return float("nan")
    reached, bounds = 0, (*LATENESS_MS, 2 * LATENESS_MS[-1])
    for count, bound in zip(counts, bounds, strict=True):
        reached += count
        if reached >= part * total:
            return float(bound)
    raise AssertionError("a part is at most the whole")
