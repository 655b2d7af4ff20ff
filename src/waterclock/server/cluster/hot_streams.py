"""Streams that are split over nodes: performs in a running node what `cluster/hot_streams` decides.

A partition is a stream of the same name in the memory of another node than the owner. Requests come
to it as to any stream (`server/streams/api.py` asks `place` where); what partitions say to each
other goes over the peer link. For a stream that is not split nothing is done but to count its
requests.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, assert_never

from waterclock.cluster.hash_ring import HashRing
from waterclock.cluster.hot_streams import exchange
from waterclock.cluster.hot_streams.frames import (
    DELETE,
    PARTITION,
    PULL,
    WANT,
    WATCH,
    Asked,
    BadPartition,
    Moved,
    decode_messages,
    decode_name,
    decode_number,
    decode_report,
    decode_request,
    encode_asked,
    encode_keep,
    encode_messages,
    encode_number,
    encode_report,
)
from waterclock.cluster.hot_streams.partitions import (
    Effect,
    Exchanged,
    Local,
    Partitions,
    Released,
    Return,
    SendKeep,
)
from waterclock.cluster.hot_streams.scaler import ScalerConfig
from waterclock.cluster.hot_streams.split import Keep
from waterclock.cluster.peer_link.channels import Channel
from waterclock.model.errors import CapacityReached, Unreachable
from waterclock.node.streams.host import StreamHost
from waterclock.server.cluster.forwarder import Asks
from waterclock.server.cluster.ownership import RingOwnership
from waterclock.server.cluster.partition_channels import Asking, Waiting
from waterclock.server.cluster.partition_memory import look, put, take

TICK_S: Final = 0.1

_log = logging.getLogger(__name__)


class HotStreams:
    """The split streams that a node knows of. `run` must run."""

    def __init__(
        self,
        asks: Asks,
        ownership: RingOwnership,
        host: StreamHost,
        on_stray: Callable[[str], None],
    ) -> None:
        """`on_stray` has what is here of a stream brought to its owner, and whoever waits at it."""
        self._loop = asyncio.get_running_loop()
        self._asks = asks
        self._host = host
        self._on_stray = on_stray
        self._size = host.config.ring_messages
        config = ScalerConfig(
            rate=host.config.partition_rate, partitions_max=host.config.partitions_max
        )
        me = ownership.node_id
        self.core = Partitions(me, config, self._look, ownership.ring, self.now_ms())
        self.routes = self.core.routes
        """Where the requests for split streams go."""
        ownership.on_change.append(self._ring_changed)
        self._due: set[str] = set()
        """Streams that were used in this turn of the loop."""
        self._wants: dict[tuple[str, str], Waiting] = {}
        self._watches: dict[str, Waiting] = {}
        self.pulled = 0
        """Messages that came here from other partitions, because polls waited."""
        self.lost = 0
        """Messages for which there was no room when they came."""
        self.broken_pulls = 0
        """Fetches whose link broke: the other node may have sent messages, which are lost."""

    def __repr__(self) -> str:
        return f"<HotStreams {self.core!r}>"

    # For metrics

    @property
    def split(self) -> int:
        """How many streams are split whose owner this node is."""
        return sum(each.is_root for each in self.core.exchanges.values())

    @property
    def partitions(self) -> int:
        """How many partitions are at this node, those of its own streams among them."""
        return len(self.core.exchanges)

    @property
    def signal(self) -> float:
        """How many partitions the busiest stream would fill; above the number of nodes: add one."""
        return self.core.signal(self.now_ms())

    # Requests

    def used(self, stream: str) -> None:
        """This node is about to answer a send or a poll of a stream."""
        self.core.used(stream)
        if stream in self.core.exchanges:
            if not self._due:
                self._loop.call_soon(self._evaluate)
            self._due.add(stream)

    def place(self, stream: str, *, is_send: bool) -> str | None:
        """Return the node that a send or a poll goes to; None: this one, or the owner."""
        route = self.routes.get(stream)
        if route is None:
            return None
        return route.send() if is_send else route.poll()

    def knows(self, stream: str) -> bool:
        """Return whether a stream is split, or was and is not yet whole again."""
        return stream in self.routes or stream in self.core.exchanges

    def is_part_only(self, stream: str) -> bool:
        """Return whether this node has a partition of a stream that another one owns."""
        return stream in self.core.exchanges and not self.core.owns(stream)

    def has_part(self, stream: str) -> bool:
        """Return whether this node has a partition of a stream."""
        return stream in self.core.exchanges

    def ordered(self, stream: str) -> None:
        """The owner is asked for something that needs the messages in one order."""
        self.core.ordered(stream, self.now_ms())

    def deleted(self, stream: str) -> None:
        """Forget the other partitions of a stream too."""
        split = self.core.split_of(stream)
        for node in () if split is None else split.nodes[1:]:
            self._ask(node, encode_asked(Asked(DELETE, stream)), _nothing)

    def now_ms(self) -> int:
        """Return the time of windows and leases."""
        return self._host.now_ms()

    async def run(self) -> None:
        """Split streams, and see to what partitions wait for, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self._perform(self.core.tick(self.now_ms()))

    def _evaluate(self) -> None:
        due, self._due = self._due, set()
        for stream in due:
            self._perform(self.core.changed(stream))

    def _look(self, stream: str) -> Local:
        return look(self._host, stream, self._size)

    def _ring_changed(self, _before: HashRing, ring: HashRing) -> None:
        self._perform(self.core.ring_changed(ring, self.now_ms()))

    # What the core wants

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Exchanged):
                self._exchange(effect.stream, effect.effect)
            elif isinstance(effect, SendKeep):
                self._send_keep(effect.node, effect.keep)
            elif isinstance(effect, Released):
                self._release(effect.stream)
            elif isinstance(effect, Return):
                self._on_stray(effect.stream)
            else:
                assert_never(effect)

    def _exchange(self, stream: str, effect: exchange.Effect) -> None:
        if isinstance(effect, exchange.Want):
            asked = Asked(WANT, stream, effect.messages)
            self._ask(effect.root, encode_asked(asked), lambda body: self._answered(stream, body))
        elif isinstance(effect, exchange.Watch):
            node = effect.node
            asked = Asked(WATCH, stream)
            self._ask(node, encode_asked(asked), lambda body: self._has(stream, node, body))
        elif isinstance(effect, exchange.Pull):
            source = effect.source
            asked = Asked(PULL, stream, effect.messages)
            self._ask(
                source,
                encode_asked(asked),
                lambda body: self._pulled(stream, source, body),
                self._pull_broke,
            )
        elif isinstance(effect, exchange.Has):
            if (watch := self._watches.pop(stream, None)) is not None:
                watch.answer(encode_number(effect.messages))
        elif isinstance(effect, exchange.Tell):
            if (want := self._wants.pop((stream, effect.node), None)) is not None:
                want.answer(effect.source.encode())
        else:
            assert_never(effect)

    def _send_keep(self, node: str, keep: Keep) -> None:
        def reported(body: bytes | None) -> None:
            report = None if body is None else decode_report(body)
            if report is not None:
                now_ms = self.now_ms()
                self._perform(self.core.reported(keep.stream, node, report, now_ms))

        self._ask(node, encode_keep(keep), reported)

    def _release(self, stream: str) -> None:
        """Answer nobody any more about a stream."""
        parked = [key for key in self._wants if key[0] == stream]
        waiting = [self._wants.pop(key) for key in parked]
        if (watch := self._watches.pop(stream, None)) is not None:
            waiting.append(watch)
        for each in waiting:
            each.refuse()

    def _ask(
        self,
        node: str,
        body: bytes,
        heard: Callable[[bytes | None], None],
        broke: Callable[[], None] | None = None,
    ) -> None:
        """Ask a node; `heard` takes what it answers later, or None if it does not."""
        asking = Asking(heard, broke)
        try:
            asking.channel = self._asks.ask(node, PARTITION, body, asking)
        except Unreachable:
            self._loop.call_soon(heard, None)

    # What others answer

    def _answered(self, stream: str, body: bytes | None) -> None:
        source = None if body is None else decode_name(body)
        self._perform(self.core.answered(stream, source))

    def _has(self, stream: str, node: str, body: bytes | None) -> None:
        messages = 0 if body is None else decode_number(body)
        self._perform(self.core.has(stream, node, messages))

    def _pull_broke(self) -> None:
        self.broken_pulls += 1
        _log.warning("partition_pull_broke: messages that were on their way here are lost")

    def _pulled(self, stream: str, source: str, body: bytes | None) -> None:
        if body is None:
            self._perform(self.core.pull_failed(stream))
            return
        items, left = decode_messages(body)
        self._put(stream, items)
        self._perform(self.core.pulled(stream, source, left if items else 0))

    def _put(self, stream: str, items: list[Moved]) -> None:
        """Put messages of another partition here."""
        route = self.routes.get(stream)
        size = self._size if route is None else route.keep.size
        for item in items:
            try:
                put(self._host, stream, item, size)
            except CapacityReached as error:
                self.lost += 1
                _log.warning("partition_message_lost stream=%r why=%s", stream, error)
            else:
                self.pulled += 1

    # What others ask

    def requested(self, node: str, channel: Channel, body: bytes, *, is_last: bool) -> None:
        """Answer another node."""
        waiting = Waiting(channel)
        if not is_last:
            channel.cancel("a request in pieces")
            return
        try:
            asked = decode_request(body)
        except BadPartition as error:
            channel.cancel(str(error))
            return
        if isinstance(asked, Keep):
            self._keep_heard(node, waiting, asked)
        elif asked.kind == WANT:
            self._wanted(node, waiting, asked)
        elif asked.kind == WATCH:
            self._watched(waiting, asked.stream)
        elif asked.kind == PULL:
            self._pull(waiting, asked)
        else:
            self._delete(waiting, asked.stream)

    def _keep_heard(self, node: str, waiting: Waiting, keep: Keep) -> None:
        report, effects = self.core.keep_heard(node, keep, self.now_ms())
        if self.has_part(keep.stream) and self._size_here(keep) != keep.size:
            with suppress(CapacityReached):  # its first sender hears of it
                self._host.resize(keep.stream, keep.size)
        waiting.answer(b"" if report is None else encode_report(report))
        self._perform(effects)

    def _size_here(self, keep: Keep) -> int | None:
        """Return how many messages the partition of a stream keeps, once it is made."""
        stream = self._host.table.find(keep.stream)
        return None if stream is None or stream.ring is None else stream.ring.size

    def _wanted(self, node: str, waiting: Waiting, asked: Asked) -> None:
        key = (asked.stream, node)
        if (older := self._wants.pop(key, None)) is not None:
            older.refuse()
        self._wants[key] = waiting
        effects = self.core.wanted(asked.stream, node, asked.messages)
        if effects is None:
            del self._wants[key]
            waiting.refuse()
        else:
            self._perform(effects)

    def _watched(self, waiting: Waiting, stream: str) -> None:
        if (older := self._watches.pop(stream, None)) is not None:
            older.refuse()
        self._watches[stream] = waiting
        effects = self.core.watched(stream)
        if effects is None:
            del self._watches[stream]
            waiting.refuse()
        else:
            self._perform(effects)

    def _pull(self, waiting: Waiting, asked: Asked) -> None:
        if not self.has_part(asked.stream):
            waiting.refuse()
            return
        try:
            items = take(self._host, asked.stream, asked.messages)
        except CapacityReached:  # so many wait that nobody else may, not even for a moment
            waiting.refuse()
            return
        waiting.answer(encode_messages(items, self._look(asked.stream).backlog))
        self._perform(self.core.changed(asked.stream))

    def _delete(self, waiting: Waiting, stream: str) -> None:
        if stream in self.core.exchanges:
            self._host.delete(stream)
        waiting.answer(b"")


def _nothing(_body: bytes | None) -> None:
    """Nothing depends on that."""
