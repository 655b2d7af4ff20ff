"""What is now, told to every open page each second: counted once for all of them.

Pages share a tick. Whoever waits for the next one first counts it for the others, so ten consoles
cost the node one pass over its topics, and none cost nothing at all. Nodes that share topics are
asked for what they have counted, once a tick, and answer many with one count as well; one that says
nothing does not hold up the tick (`other_nodes.py`). What a page is told depends on its parameters
and on what its principal may see; pages for which that is the same share the bytes. A page that
reads slowly misses ticks, and nothing is kept for it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from waterclock.history.history import STEP_MS
from waterclock.model.errors import LimitExceeded, NotAuthenticated
from waterclock.model.ids import Millis
from waterclock.node.counters import LATENESS_MS
from waterclock.node.history.counting import NodeCounts, count_all, lateness_of
from waterclock.node.node import Node
from waterclock.security.rights import Rights
from waterclock.server.cluster.replication_status import led
from waterclock.server.console.alarms import Alarms
from waterclock.server.console.counts import (
    group_rows,
    merged,
    part_of,
    snapshot_of,
    topic_rows,
)
from waterclock.server.console.models import Counts, LiveParameters, NodeNow
from waterclock.server.console.other_nodes import OtherNodes
from waterclock.server.http.messages import EVENTS, Response, Streamed
from waterclock.storage.folders.data_folder import DiskSpace

if TYPE_CHECKING:
    from waterclock.server.cluster.cluster import Cluster

COUNTS = "/console/counts"
TICK_S = 1.0
"""How often pages are told. Lower is smoother, and costs the node more while somebody looks."""
COST_MAX = 0.01
"""Of the loop's time, what counting may take: a node that has more to count tells less often."""
TICK_S_MAX = 5.0
PAGES_MAX = 200
"""Pages that are open at a time."""
STALE_MS = 2 * STEP_MS
"""After so long without a page, rates are of the time since the node's own last sample."""
REPLICAS_TICKS = 3
"""How often the node looks which replicas of what it leads it reaches, in ticks."""
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
        self.whole: dict[bool, Counts] = {}
        """Of all nodes, without dead letters and with them."""
        self.for_nodes: dict[bool, bytes] = {}
        """What other nodes are sent of it, likewise."""
        self.events: dict[tuple[object, ...], bytes] = {}
        """What pages are sent of it, by what they asked and may see."""


class Live:
    """Tells pages what is now."""

    def __init__(self, node: Node, cluster: "Cluster | None") -> None:
        self._node = node
        self._cluster = cluster
        self._others = OtherNodes(self._ask, node.spawn)
        self._counting = asyncio.Lock()
        self._asking = asyncio.Lock()
        self._tick: Tick | None = None
        self._space: DiskSpace | None = None
        self._under_replicated = 0
        self._alarms = Alarms()
        self._cost_s = 0.0
        """Of a count, of late."""
        self.pages = 0

    def __repr__(self) -> str:
        return f"<Live {self.pages} pages>"

    def open(self, asked: LiveParameters, rights_now: Callable[[], Rights]) -> Streamed:
        """Begin to tell a page, each time as much as its principal may see then."""
        if self.pages >= PAGES_MAX:
            raise LimitExceeded("open pages of the console", PAGES_MAX)
        self.pages += 1
        return Streamed(200, self._pieces(asked, rights_now), EVENTS, HEADERS, on_over=self._over)

    def _over(self) -> None:
        self.pages -= 1

    async def _pieces(
        self, asked: LiveParameters, rights_now: Callable[[], Rights]
    ) -> AsyncIterator[bytes]:
        seen = 0
        while True:
            tick = await self._next(seen)
            seen = tick.number
            try:
                rights = rights_now()
            except NotAuthenticated:
                return  # the page asks again, and hears why
            yield await self._event(tick, asked, rights)

    async def _next(self, seen: int) -> Tick:
        """Return a tick that was not seen yet, once there is one."""
        # At once where there is one: behind the lock a page may be waiting for the next.
        if (fresh := self._fresh(seen)) is not None:
            return fresh
        async with self._counting:
            if (fresh := self._fresh(seen)) is not None:
                return fresh
            tick = self._tick
            if tick is not None and tick.number == seen:
                await asyncio.sleep(max(0.0, self._tick_s - self._age_s(tick)))
            began = time.thread_time()
            self._tick = await self._counted(tick)
            self._cost_s = 0.7 * self._cost_s + 0.3 * (time.thread_time() - began)
            return self._tick

    def _fresh(self, seen: int) -> Tick | None:
        tick = self._tick
        if tick is None or tick.number <= seen or self._age_s(tick) >= self._tick_s:
            return None
        return tick

    def _age_s(self, tick: Tick) -> float:
        return (self._node.clock.monotonic_ms() - tick.after.steady_ms) / 1_000

    @property
    def _tick_s(self) -> float:
        return max(TICK_S, min(TICK_S_MAX, self._cost_s / COST_MAX))

    async def _counted(self, last: Tick | None) -> Tick:
        node = self._node
        after = await count_all(node.topics.all(), node.groups.hosts(), node.clock.monotonic_ms())
        number = 1 if last is None else last.number + 1
        if last is not None and after.steady_ms - last.after.steady_ms > STALE_MS:
            last = None
        before = node.recorder.counts if last is None else last.after
        if number % SPACE_TICKS == 1:
            self._space = await node.disk.space()
        if number % REPLICAS_TICKS == 1:
            self._under_replicated = self._count_under_replicated()
        counters = node.streams.table.counters
        moved = (counters.sent, counters.received)
        tick = Tick(number, node.clock.now_ms(), before or after, after, moved)
        tick.node = self._node_now(tick, moved if last is None else last.streams)
        return tick

    # The node

    def _count_under_replicated(self) -> int:
        status = None if self._cluster is None else self._cluster.replication
        if status is None:
            return 0
        return sum(view.is_under_replicated for view in led(status.views(), self._node.name))

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
            redelivered_rate=sums.redelivered / seconds,
            under_replicated=self._under_replicated,
        )

    # A page

    async def _event(self, tick: Tick, asked: LiveParameters, rights: Rights) -> bytes:
        key = (rights, *msgspec.structs.astuple(asked))
        event = tick.events.get(key)
        if event is None:
            has_dead = asked.view == "deadLetters"
            counts = await self._whole(tick, has_dead=has_dead)
            snapshot = snapshot_of(tick.now_ms, counts, asked, rights)
            event = tick.events[key] = b"data: %b\n\n" % msgspec.json.encode(snapshot)
        return event

    async def _whole(self, tick: Tick, *, has_dead: bool) -> Counts:
        """Return what all nodes have counted that share topics; all pages share that, too."""
        found = tick.whole.get(has_dead)
        if found is None:
            async with self._asking:
                found = tick.whole.get(has_dead)
                if found is None:
                    own = await self._counts(tick, has_dead=has_dead)
                    found = tick.whole[has_dead] = await self._with_others(tick, own)
        return found

    async def _with_others(self, tick: Tick, own: Counts) -> Counts:
        cluster = self._cluster
        if cluster is None or cluster.places is None or cluster.forwarder is None:
            return own  # nobody shares its topics
        names = cluster.others
        answers = await self._others.counts(names, has_dead=own.dead_letters is not None)
        began = time.thread_time()
        others = [msgspec.msgpack.decode(answer, type=Counts) for answer in answers.values()]
        whole = merged(own, others, [name for name in names if name not in answers])
        members = () if cluster.membership is None else cluster.membership.members()
        failed = [each.name for each in members if each.state == "failed"]
        whole.node.problems += self._alarms.of(whole, Millis(tick.now_ms), failed=failed)
        self._cost_s += 0.3 * (time.thread_time() - began)
        return whole

    async def _ask(self, name: str, has_dead: bool) -> Response | None:
        assert self._cluster is not None
        assert self._cluster.forwarder is not None
        query = b"deadLetters=true" if has_dead else b""
        return await self._cluster.forwarder.ask_node(name, COUNTS.encode(), query)

    async def _counts(self, tick: Tick, *, has_dead: bool) -> Counts:
        """Return what this node has counted, as rows."""
        assert tick.node is not None
        dead = await self._node.dead_letters.counts() if has_dead else None
        return Counts(
            name=self._node.name,
            node=tick.node,
            topics=topic_rows(tick.before, tick.after, tick.seconds),
            groups=group_rows(tick.before, tick.after, tick.seconds),
            dead_letters=dead,
        )

    async def for_nodes(self, *, has_dead: bool) -> bytes:
        """Return what this node has counted, for another one."""
        last = self._tick
        tick = await self._next(0 if last is None else last.number - 1)
        found = tick.for_nodes.get(has_dead)
        if found is None:
            counts = await self._counts(tick, has_dead=has_dead)
            found = tick.for_nodes[has_dead] = msgspec.msgpack.encode(part_of(counts))
        return found


@dataclass(slots=True)
class _Sums:
    """Over all topics and groups: what came since the count before, and what stands."""

    published: int = 0
    fired: int = 0
    delivered: int = 0
    acked: int = 0
    redelivered: int = 0
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
        sums.size_bytes += topic.size_bytes + topic.copied_bytes
        if topic.fired > then.fired:
            sums.fired += topic.fired - then.fired
            sums.late_before = list(map(sum, zip(sums.late_before, then.lateness, strict=True)))
            sums.late_after = list(map(sum, zip(sums.late_after, topic.lateness, strict=True)))
    for group in after.groups:
        was = groups.get(group.key, group)
        sums.delivered += max(0, group.delivered - was.delivered)
        sums.acked += max(0, group.acked - was.acked)
        sums.redelivered += max(0, group.redelivered - was.redelivered)
        sums.dead_lettered += max(0, group.dead_lettered - was.dead_lettered)
        sums.lag += group.lag
        sums.unacked += group.unacked
    return sums
