"""All split streams as one node sees them: those it is the root of, and its partitions of others.

    used(stream), ordered(stream)      a request came; one that wants all messages in one order
    route(stream)                      where requests go, if the stream is split
    tick(now_ms)                       measure, split, shrink, tell others; try again what failed
    ring_changed(ring, now_ms)         every stream has one partition again
    keep_heard, reported               the root's word, and a partition's answer
    changed, wanted, watched, ...      what the partitions say to each other: `exchange.py`

It returns what to do. A stream is split only if messages of it have no order to keep but that of
their partition: not if it has named consumers or readers with a position, is stored, or is a
rendezvous (`Local.has_order`). When the ring changes, a partition is none any more, and the node
returns what it has of the stream to the owner; the owner may split it again.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol

from waterclock.cluster.hot_streams import exchange
from waterclock.cluster.hot_streams.exchange import Exchange
from waterclock.cluster.hot_streams.scaler import Scaler, ScalerConfig
from waterclock.cluster.hot_streams.split import (
    KEEP_MS,
    SPREAD_MS,
    Keep,
    Report,
    Route,
    Split,
)

METERED_PERCENT = 50
"""A stream is measured from so much of the rate on that one partition is meant for."""


class Ring(Protocol):
    """Who owns what."""

    @property
    def version(self) -> int:
        """The same on nodes that know the same nodes."""
        ...

    @property
    def nodes(self) -> tuple[str, ...]:
        """All of them."""
        ...

    def owner(self, name: str) -> str:
        """Return the owner of a stream."""
        ...

    def successors(self, name: str) -> Iterator[str]:
        """Yield the owner, and the others in order."""
        ...


class Local(NamedTuple):
    """A stream as it is in this node's memory."""

    backlog: int = 0
    """Messages that no competing receiver has had."""
    polls: int = 0
    """Competing receivers that wait."""
    room: int = 0
    """Messages that could come without one being overwritten that somebody has yet to read."""
    size: int = 0
    has_order: bool = False
    """It must not be split."""


class Exchanged(NamedTuple):
    """Do what one partition has to do for another."""

    stream: str
    effect: exchange.Effect


class SendKeep(NamedTuple):
    """Tell a node how a stream is split; `Partitions.reported` hears the answer."""

    node: str
    keep: Keep


class Released(NamedTuple):
    """This node has no partition of a stream any more: answer no Want or Watch of it."""

    stream: str


class Return(NamedTuple):
    """Hand what is here of a stream over to its owner, and whoever waits; said until it is done."""

    stream: str


Effect = Exchanged | SendKeep | Released | Return


class _Meter:
    """What the root of a busy stream knows."""

    __slots__ = ("scaler", "split", "spread_ms")

    def __init__(self, scaler: Scaler) -> None:
        self.scaler = scaler
        self.split: Split | None = None
        self.spread_ms = 0
        """When all nodes were told."""


class Partitions:
    """The core of one node. `look` says how a stream is in its memory."""

    def __init__(
        self, me: str, config: ScalerConfig, look: Callable[[str], Local], ring: Ring, now_ms: int
    ) -> None:
        self.me = me
        self.config = config
        self._look = look
        self._ring = ring
        self._ticked_ms = now_ms
        self._version = now_ms
        """Of the last split: by the clock, so that it is greater after a restart."""
        self._counts: defaultdict[str, int] = defaultdict(int)
        """Requests that this node has answered since the last tick."""
        self._ordered: set[str] = set()
        self._meters: dict[str, _Meter] = {}
        self._orphans: set[str] = set()
        self.routes: dict[str, Route] = {}
        """Of all split streams that are known here."""
        self.exchanges: dict[str, Exchange] = {}
        """Of the partitions at this node."""
        self.grown = self.shrunk = self.refused = 0

    def __repr__(self) -> str:
        return f"<Partitions of {self.me}, {len(self.exchanges)} of {len(self.routes)} split>"

    # Requests

    def used(self, stream: str) -> None:
        """A request of a stream is answered here. This is done for every one."""
        self._counts[stream] += 1

    def ordered(self, stream: str, now_ms: int) -> None:
        """The owner was asked for something that needs one order, or that is stored."""
        self._ordered.add(stream)
        if (meter := self._meters.get(stream)) is not None:
            meter.scaler.pin(now_ms)

    def owns(self, stream: str) -> bool:
        """Return whether this node is the owner of a stream."""
        # A node that leaves knows a ring without itself: perhaps of nobody.
        return not self._ring.nodes or self._ring.owner(stream) == self.me

    def split_of(self, stream: str) -> Split | None:
        """Return how a stream is split that this node is the root of."""
        meter = self._meters.get(stream)
        return None if meter is None else meter.split

    def signal(self, now_ms: int) -> float:
        """Return how many partitions the busiest stream here would fill."""
        signals = (meter.scaler.signal(now_ms) for meter in self._meters.values())
        return max(signals, default=0.0)

    # Time

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        for stream, each in self.exchanges.items():
            here = self._look(stream)
            effects += _of(stream, each.changed(here.backlog, here.polls, here.room))
            effects += _of(stream, each.tick())
        if now_ms - self._ticked_ms >= KEEP_MS:
            effects += self._measure(now_ms)
        return effects

    def _measure(self, now_ms: int) -> list[Effect]:
        passed_ms = now_ms - self._ticked_ms
        self._ticked_ms = now_ms
        effects = [e for stream in list(self._orphans) for e in self._return(stream)]
        effects += [e for stream in self._expired(now_ms) for e in self._let_go(stream)]
        least = self.config.rate * METERED_PERCENT * passed_ms // 100_000
        for stream, count in self._counts.items():
            if count < least or stream in self._meters:
                continue
            if self.owns(stream):
                scaler = Scaler(self.config, now_ms - passed_ms)
                self._meters[stream] = _Meter(scaler)
                if stream in self._ordered:
                    scaler.pin(now_ms)
        for stream, meter in list(self._meters.items()):
            requests = self._counts.pop(stream, 0)
            meter.scaler.note(now_ms, requests)
            effects += self._scale(stream, meter, requests, now_ms)
            is_quiet = meter.scaler.rate(now_ms, self.config.down_window_ms) < least / 2
            if meter.split is None and is_quiet and not meter.scaler.is_pinned(now_ms):
                del self._meters[stream]
        self._ordered.clear()
        # A partition's count goes on until the root asks for it.
        kept = {s: n for s, n in self._counts.items() if s in self.exchanges}
        self._counts = defaultdict(int, kept)
        return effects

    def _scale(self, stream: str, meter: _Meter, requests: int, now_ms: int) -> list[Effect]:
        split, scaler, here = meter.split, meter.scaler, self._look(stream)
        if here.has_order:
            scaler.pin(now_ms)
        present = 1 if split is None else split.write
        count = scaler.count(now_ms, present, most=len(self._ring.nodes))
        if split is None and count > 1:
            self._version = max(self._version + 1, now_ms)
            versions = {"ring_version": self._ring.version, "version": self._version}
            split = meter.split = Split(stream, self.me, **versions)
            self.exchanges[stream] = Exchange(self.me, self.me)
        if split is None:
            self.refused += scaler.is_pinned(now_ms) and scaler.signal(now_ms) > 1
            return []
        self.grown += count > present
        self.shrunk += count < present
        successors = list(islice(self._ring.successors(stream), count))
        is_change = split.resize(count, successors, now_ms) | split.expire(now_ms)
        return self._spread(meter, split, requests, now_ms, is_change=is_change)

    def _spread(
        self, meter: _Meter, split: Split, requests: int, now_ms: int, *, is_change: bool
    ) -> list[Effect]:
        """Tell the partitions how the stream is split, and now and then everybody."""
        stream, effects = split.stream, list[Effect]()
        here = self._look(stream)
        keep = split.keep(here.size, requests, here.backlog)
        is_for_all = is_change or now_ms - meter.spread_ms >= SPREAD_MS
        if is_for_all:
            meter.spread_ms = now_ms
        nodes = self._ring.nodes if is_for_all else split.nodes
        effects += (SendKeep(node, keep) for node in nodes if node != self.me)
        self._version = max(self._version, split.version)
        if split.is_over:
            meter.split = None
            self.routes.pop(stream, None)
            effects += self._drop(stream)
            return effects
        self.routes[stream] = Route(keep, self.me, now_ms)
        found = self.exchanges[stream].set_others(split.nodes, split.closing)
        return effects + _of(stream, found)

    def _expired(self, now_ms: int) -> list[str]:
        """Return the split streams whose root is not heard any more."""
        return [stream for stream, route in self.routes.items() if route.is_over(now_ms)]

    # The ring

    def ring_changed(self, ring: Ring, now_ms: int) -> list[Effect]:
        """Take another ring: nothing is split in it yet."""
        self._ring = ring
        effects: list[Effect] = []
        for stream in [*self.routes, *self.exchanges]:
            effects += self._let_go(stream)
        self._counts.clear()
        for stream, meter in list(self._meters.items()):
            meter.split = None
            meter.scaler.settle(now_ms)
            if not self.owns(stream):
                del self._meters[stream]
        return effects

    def _let_go(self, stream: str) -> list[Effect]:
        """Have no partition of a stream, and know of none."""
        self.routes.pop(stream, None)
        return self._drop(stream)

    def _drop(self, stream: str) -> list[Effect]:
        """Have no partition of a stream."""
        if self.exchanges.pop(stream, None) is None:
            return []
        self._orphans.add(stream)
        return [Released(stream), *self._return(stream)]

    def _return(self, stream: str) -> list[Effect]:
        if stream not in self._orphans:
            return []
        here = self._look(stream)
        if stream in self.exchanges or self.owns(stream) or not (here.backlog or here.polls):
            self._orphans.discard(stream)
            return []
        return [Return(stream)]

    # The root's word

    def keep_heard(
        self, sender: str, keep: Keep, now_ms: int
    ) -> tuple[Report | None, list[Effect]]:
        """Take how a stream is split; return what to answer. None: it is not so in our ring."""
        known = self.routes.get(keep.stream)
        if keep.ring_version != self._ring.version or self._ring.owner(keep.stream) != sender:
            return None, []  # the root is in its own ring: this one is not empty
        if known is not None and known.keep.version > keep.version:
            return None, []
        if len(keep.nodes) == 1:
            return None, self._let_go(keep.stream)
        route = self.routes[keep.stream] = Route(keep, self.me, now_ms)
        if self.me not in keep.nodes:
            return None, self._drop(keep.stream)
        return self._held(keep, is_leaving=route.index >= keep.read)

    def _held(self, keep: Keep, *, is_leaving: bool) -> tuple[Report, list[Effect]]:
        """Answer as a partition; one that is leaving lets go when nothing is left there."""
        found = self.exchanges.get(keep.stream)
        here = self._look(keep.stream)
        requests = self._counts.pop(keep.stream, 0)
        if found is None:
            found = self.exchanges[keep.stream] = Exchange(self.me, keep.nodes[0])
            found.set_others(keep.nodes, ())
        effects = found.changed(here.backlog, here.polls, here.room)
        if is_leaving and found.is_idle:
            report = Report(keep.version, requests, 0, is_released=True)
            return report, self._drop(keep.stream)
        report = Report(keep.version, requests, here.backlog)
        return report, _of(keep.stream, effects)

    def reported(self, stream: str, node: str, report: Report, now_ms: int) -> list[Effect]:
        """A partition of a stream of ours has answered."""
        meter = self._meters.get(stream)
        if meter is None or meter.split is None:
            return []
        meter.scaler.note(now_ms, report.requests)
        if not meter.split.reported(node, report, now_ms):
            return []
        return self._spread(meter, meter.split, 0, now_ms, is_change=True)

    # The partitions to each other

    def changed(self, stream: str) -> list[Effect]:
        """Something was done to a stream here that is split."""
        if (found := self.exchanges.get(stream)) is None:
            return []
        here = self._look(stream)
        return _of(stream, found.changed(here.backlog, here.polls, here.room))

    def wanted(self, stream: str, node: str, count: int) -> list[Effect] | None:
        """Polls wait at another partition; None: this node is not the root."""
        found = self.exchanges.get(stream)
        if found is None or not found.is_root:
            return None
        return _of(stream, found.wanted(node, count))

    def watched(self, stream: str) -> list[Effect] | None:
        """The root wants to know of messages; None: this node has no partition."""
        found = self.exchanges.get(stream)
        return None if found is None else _of(stream, found.watched())

    def answered(self, stream: str, source: str | None) -> list[Effect]:
        """A Want was answered, or (None) was not."""
        found = self.exchanges.get(stream)
        return [] if found is None else _of(stream, found.answered(source))

    def has(self, stream: str, node: str, count: int) -> list[Effect]:
        """A Watch was answered, or (0) was not."""
        found = self.exchanges.get(stream)
        return [] if found is None else _of(stream, found.has(node, count))

    def pulled(self, stream: str, source: str, left: int) -> list[Effect]:
        """What was pulled is in this node's memory now."""
        if (found := self.exchanges.get(stream)) is None:
            self._orphans.add(stream)  # it came too late, and belongs to the owner
            return self._return(stream)
        here = self._look(stream)
        return _of(stream, found.pulled(source, left, backlog=here.backlog, polls=here.polls))

    def pull_failed(self, stream: str) -> list[Effect]:
        """The other partition did not answer."""
        found = self.exchanges.get(stream)
        return [] if found is None else _of(stream, found.pull_failed())


def _of(stream: str, effects: list[exchange.Effect]) -> list[Effect]:
    return [Exchanged(stream, each) for each in effects]
