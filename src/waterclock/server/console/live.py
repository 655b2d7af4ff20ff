"""What is now, told to every open page each second: counted once for all of them.

Pages share a tick. Whoever waits for the next one first counts it for the others, so ten consoles
cost the node one pass over its topics, and none cost nothing at all. What a page is told depends on
its parameters and on what its principal may see; pages for which that is the same share the bytes.
A page that reads slowly misses ticks, and nothing is kept for it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from waterclock.model.errors import LimitExceeded
from waterclock.node.counters import LATENESS_MS
from waterclock.node.history.counting import (
    GroupCounts,
    NodeCounts,
    TopicCounts,
    count_all,
    lateness_of,
)
from waterclock.node.node import Node
from waterclock.security.rights import Rights
from waterclock.server.console.models import (
    DeadLettersRow,
    GroupRow,
    LiveParameters,
    NodeNow,
    Snapshot,
    TopicRow,
)
from waterclock.server.http.messages import EVENTS, Streamed
from waterclock.storage.folders.data_folder import DiskSpace

if TYPE_CHECKING:
    from waterclock.server.cluster.cluster import Cluster

TICK_S = 1.0
"""How often pages are told. Lower is smoother, and costs the node more while somebody looks."""
COST_MAX = 0.01
"""Of the loop's time, what counting may take: a node that has more to count tells less often."""
TICK_S_MAX = 5.0
PAGES_MAX = 200
"""Pages that are open at a time."""
SPACE_TICKS = 10
"""How often the disk is asked for its room, in ticks."""
LATE_BUCKETS = len(LATENESS_MS) + 1
HEADERS = b"Cache-Control: no-store\r\nX-Accel-Buffering: no\r\n"


class Tick:
    """What was counted at one time, and before."""

    def __init__(
        self,
        number: int,
        now_ms: int,
        before: NodeCounts,
        after: NodeCounts,
        streams: tuple[int, ...],
    ) -> None:
        self.number = number
        self.now_ms = now_ms
        self.before = before
        self.after = after
        self.streams = streams
        """Sent and received, so far."""
        self.seconds = max(0.001, (after.steady_ms - before.steady_ms) / 1_000)
        self.node: NodeNow | None = None
        self.dead_letters: dict[str, int] | None = None
        self.events: dict[tuple[object, ...], bytes] = {}
        """What pages are sent of it, by what they asked and may see."""


class Live:
    """Tells pages what is now."""

    def __init__(self, node: Node, cluster: "Cluster | None") -> None:
        self._node = node
        self._cluster = cluster
        self._counting = asyncio.Lock()
        self._tick: Tick | None = None
        self._space: DiskSpace | None = None
        self._cost_s = 0.0
        """Of a count, of late."""
        self.pages = 0

    def __repr__(self) -> str:
        return f"<Live {self.pages} pages>"

    def open(self, asked: LiveParameters, rights: Rights) -> Streamed:
        """Begin to tell a page."""
        if self.pages >= PAGES_MAX:
            raise LimitExceeded("open pages of the console", PAGES_MAX)
        self.pages += 1
        return Streamed(200, self._pieces(asked, rights), EVENTS, HEADERS, on_over=self._over)

    def _over(self) -> None:
        self.pages -= 1

    async def _pieces(self, asked: LiveParameters, rights: Rights) -> AsyncIterator[bytes]:
        seen = 0
        while True:
            tick = await self._next(seen)
            seen = tick.number
            yield await self._event(tick, asked, rights)

    async def _next(self, seen: int) -> Tick:
        """Return a tick that was not seen yet, once there is one."""
        async with self._counting:
            tick, clock = self._tick, self._node.clock
            if tick is not None:
                age_s = (clock.monotonic_ms() - tick.after.steady_ms) / 1_000
                if tick.number > seen and age_s < self._tick_s:
                    return tick
                if tick.number == seen:
                    await asyncio.sleep(max(0.0, self._tick_s - age_s))
            began = time.thread_time()
            self._tick = await self._counted(tick)
            self._cost_s = 0.7 * self._cost_s + 0.3 * (time.thread_time() - began)
            return self._tick

    @property
    def _tick_s(self) -> float:
        return max(TICK_S, min(TICK_S_MAX, self._cost_s / COST_MAX))

    async def _counted(self, last: Tick | None) -> Tick:
        node = self._node
        after = await count_all(node.topics.all(), node.groups.hosts(), node.clock.monotonic_ms())
        before = node.recorder.counts if last is None else last.after
        number = 1 if last is None else last.number + 1
        if number % SPACE_TICKS == 1:
            self._space = await node.disk.space()
        counters = node.streams.table.counters
        moved = (counters.sent, counters.received)
        tick = Tick(number, node.clock.now_ms(), before or after, after, moved)
        tick.node = self._node_now(tick, moved if last is None else last.streams)
        return tick

    # The node

    def _node_now(self, tick: Tick, streams_before: tuple[int, ...]) -> NodeNow:
        node, seconds, sums = self._node, tick.seconds, _sums(tick.before, tick.after)
        late_ms = lateness_of(sums.late_before, sums.late_after, 0.99)
        space, table = self._space, node.streams.table
        moved = zip(tick.streams, streams_before, strict=True)
        sent, received = (max(0, now - then) / seconds for now, then in moved)
        return NodeNow(
            in_rate=sums.published / seconds,
            out_rate=sums.delivered / seconds,
            acked_rate=sums.acked / seconds,
            fired_rate=sums.fired / seconds,
            dead_lettered_rate=sums.dead_lettered / seconds,
            stream_in_rate=sent,
            stream_out_rate=received,
            lateness_p99_ms=None if late_ms != late_ms else late_ms,
            pending=sums.pending,
            lag=sums.lag,
            unacked=sums.unacked,
            topics=len(tick.after.topics),
            groups=len(tick.after.groups),
            streams=len(table),
            waiting=table.waiting,
            size_bytes=sums.size_bytes,
            disk_bytes=None if space is None else space.size_bytes,
            disk_free_bytes=None if space is None else space.free_bytes,
            is_ready=node.is_ready,
            problems=node.problems(),
            members=None if self._cluster is None else self._cluster.members,
        )

    # A page

    async def _event(self, tick: Tick, asked: LiveParameters, rights: Rights) -> bytes:
        key = (rights, *msgspec.structs.astuple(asked))
        event = tick.events.get(key)
        if event is None:
            if asked.view == "deadLetters" and tick.dead_letters is None:
                tick.dead_letters = await self._node.dead_letters.counts()
            snapshot = snapshot_of(tick, asked, rights)
            event = tick.events[key] = b"data: %b\n\n" % msgspec.json.encode(snapshot)
        return event


def snapshot_of(tick: Tick, asked: LiveParameters, rights: Rights) -> Snapshot:
    """Return what a page is told of a tick: what its principal may see of it."""
    node = tick.node if rights.allows("read") else None
    found = Snapshot(now_ms=tick.now_ms, node=node, total=0)
    wanted = asked.filter.casefold()
    match asked.view:
        case "topics":
            topics = [
                each
                for each in tick.after.topics.values()
                if wanted in each.topic.casefold() and rights.sees(topic=each.topic)
            ]
            rows = _page(topics, asked, tick.before.topics.get)
            found.topics, found.total = [_topic_row(each, tick) for each in rows], len(topics)
        case "groups":
            known = tick.before.by_group
            groups = [
                each
                for each in tick.after.groups
                if wanted in f"{each.topic}/{each.group}".casefold()
                and rights.sees(topic=each.topic, group=each.group)
            ]
            shown = _page(groups, asked, known.get)
            found.groups = [_group_row(each, known.get(each.key), tick.seconds) for each in shown]
            found.total = len(groups)
        case "deadLetters":
            counts = [
                (topic, count)
                for topic, count in sorted((tick.dead_letters or {}).items())
                if wanted in topic.casefold() and rights.allows("read", topic=topic)
            ]
            page = counts[asked.start : asked.start + asked.limit]
            found.dead_letters = [DeadLettersRow(topic=topic, count=n) for topic, n in page]
            found.total = len(counts)
        case "overview":
            pass
    return found


@dataclass(slots=True)
class _Sums:
    """Over all topics and groups: what came since the count before, and what stands."""

    published: int = 0
    fired: int = 0
    delivered: int = 0
    acked: int = 0
    dead_lettered: int = 0
    pending: int = 0
    lag: int = 0
    unacked: int = 0
    size_bytes: int = 0
    late_before: list[int] = field(default_factory=lambda: [0] * LATE_BUCKETS)
    late_after: list[int] = field(default_factory=lambda: [0] * LATE_BUCKETS)


def _sums(before: NodeCounts, after: NodeCounts) -> _Sums:
    sums, topics, groups = _Sums(), before.topics, before.by_group
    for topic in after.topics.values():
        then = topics.get(topic.topic, topic)
        sums.published += max(0, topic.published - then.published)
        sums.pending += topic.pending
        sums.size_bytes += topic.size_bytes
        if topic.fired > then.fired:
            sums.fired += topic.fired - then.fired
            sums.late_before = list(map(sum, zip(sums.late_before, then.lateness, strict=True)))
            sums.late_after = list(map(sum, zip(sums.late_after, topic.lateness, strict=True)))
    for group in after.groups:
        was = groups.get(group.key, group)
        sums.delivered += max(0, group.delivered - was.delivered)
        sums.acked += max(0, group.acked - was.acked)
        sums.dead_lettered += max(0, group.dead_lettered - was.dead_lettered)
        sums.lag += group.lag
        sums.unacked += group.unacked
    return sums


def _topic_row(each: TopicCounts, tick: Tick) -> TopicRow:
    before = tick.before.topics.get(each.topic, each)
    return TopicRow(
        topic=each.topic,
        partitions=each.partitions,
        in_rate=max(0, each.published - before.published) / tick.seconds,
        out_rate=max(0, each.delivered - before.delivered) / tick.seconds,
        messages=each.messages,
        size_bytes=each.size_bytes,
        pending=each.pending,
        groups=each.groups,
        lag=each.lag,
        closed=each.closed,
        problems=each.problems,
    )


def _group_row(each: GroupCounts, before: GroupCounts | None, seconds: float) -> GroupRow:
    then = each if before is None else before
    return GroupRow(
        topic=each.topic,
        group=each.group,
        members=each.members,
        partitions=each.partitions,
        out_rate=max(0, each.delivered - then.delivered) / seconds,
        acked_rate=max(0, each.acked - then.acked) / seconds,
        lag=each.lag,
        unacked=each.unacked,
        waiting=each.waiting,
    )


_COUNTED = {"in": "published", "out": "delivered"}
"""Rates, by what was counted: they sort as its growth does."""

Counted = TypeVar("Counted", TopicCounts, GroupCounts)


def _page(
    found: list[Counted], asked: LiveParameters, before: Callable[[Any], Counted | None]
) -> list[Counted]:
    """Return those of a page, sorted; of those that are equal, by name."""
    found.sort(key=lambda each: each.key)
    field_ = {"size": "size_bytes"}.get(asked.sort, asked.sort)
    if asked.sort == "name" and asked.descending:
        found.reverse()
    elif asked.sort in _COUNTED:
        count = attrgetter(_COUNTED[asked.sort])
        if found and hasattr(found[0], _COUNTED[asked.sort]):
            found.sort(
                key=lambda each: count(each) - count(before(each.known_by) or each),
                reverse=asked.descending,
            )
    elif found and asked.sort != "name" and hasattr(found[0], field_):
        found.sort(key=attrgetter(field_), reverse=asked.descending)
    return found[asked.start : asked.start + asked.limit]
