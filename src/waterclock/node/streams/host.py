"""In-memory streams in a running node: the core, its clock, and the handles of waiters.

Callers bring a handle for each sender and receiver; the host calls it once with the outcome,
perhaps before the call returns. Nobody waits in a task. One task ticks all streams.

Times are those of a monotonic clock, also for messages that expire in memory.
"""

import asyncio
from collections import deque
from collections.abc import Collection
from typing import Protocol, assert_never

from waterclock.model.clock import Clock, SteadyClock
from waterclock.model.errors import CapacityReached
from waterclock.model.sections import StreamsConfig
from waterclock.node.counters import Histogram
from waterclock.streams.effects import (
    Accept,
    Deliver,
    Dismiss,
    Effect,
    Move,
    ReadStore,
    Refuse,
    TimeOut,
)
from waterclock.streams.exported import Exported
from waterclock.streams.ring import Item
from waterclock.streams.streams import Put, Streams, Taken
from waterclock.streams.waiters import Receiver, Sender

TICK_S = 0.05
"""How late a deadline may be noticed."""
INCARNATIONS_PER_MS = 1 << 16
"""Streams begun faster than this, for as long as a node runs, would repeat incarnations."""


class Ownership(Protocol):
    """Knows which node matches the senders and receivers of a stream."""

    @property
    def node_id(self) -> str:
        """This node's own."""
        ...

    @property
    def others(self) -> Collection[str]:
        """The ids of all other nodes that own streams."""
        ...

    def owner(self, stream: str) -> str | None:
        """Return the id of the node that owns a stream; None if it is this one. Its own id says
        that the stream is still on its way here."""
        ...

    def address(self, node_id: str) -> str:
        """Return where clients reach a node over HTTP."""
        ...


class SoleOwner:
    """Owns every stream: the node has no cluster."""

    node_id = ""
    others = ()

    def owner(self, stream: str) -> str | None:
        """Return None: the stream is this node's."""
        return None

    def address(self, node_id: str) -> str:
        """Return nothing: nobody else is there."""
        return ""


class StreamHost:
    """All in-memory streams of a node.

    `table` answers what there is; what changes it goes through the methods here, which perform the
    effects.
    """

    def __init__(self, config: StreamsConfig, clock: Clock) -> None:
        self.config = config
        self.now_ms = SteadyClock(clock).now_ms
        """Tells the time of deadlines and expiry."""
        first = clock.now_ms() * INCARNATIONS_PER_MS
        self.table = Streams(config, first_incarnation=first)
        self.wait_ms = Histogram()
        """How long messages waited for a receiver; of those given together, the oldest."""
        self._wall = clock

    def __repr__(self) -> str:
        return f"<StreamHost {self.table!r}>"

    # What callers do

    def put(self, name: str, item: Item) -> Put | None:
        """Put a message into a ring, and give it to a receiver that waits; None: it must be
        sent."""
        put = self.table.put(name, item, now_ms=self.now_ms())
        if put is not None and put.given is not None and (rest := self._deliver(put.given)):
            self._perform(rest)
        return put

    def take(self, name: str, *, now_ms: int) -> Taken | None:
        """Take a message that is there; None: it must be received."""
        taken = self.table.take(name, now_ms=now_ms)
        if taken is not None:
            self.wait_ms.observe(max(0, self._wall.now_ms() - taken.item.sent_ms))
        return taken

    def send(self, sender: Sender, *, size: int) -> None:
        """Take a message; call the sender's handle, now or later."""
        self._perform(self.table.send(sender, size=size, now_ms=self.now_ms()))

    def offer(self, name: str, item: Item) -> None:
        """Put a stored message into a stream for its receivers, if there is room in memory.

        No sender waits for that, and none is refused: the message is stored, and can be read.
        """
        sender = Sender(name, item, _NOBODY, deadline_ms=self.now_ms())
        try:
            self.send(sender, size=self.config.ring_messages)
        except CapacityReached:
            return
        self.table.leave(sender)

    def wait(self, receiver: Receiver, *, now_ms: int) -> None:
        """Give a message to a competing receiver's handle, most likely later: there was none to
        take."""
        if not self.table.wait(receiver, now_ms=now_ms):
            self.receive(receiver)

    def receive(self, receiver: Receiver) -> None:
        """Give messages to a receiver's handle, now or later."""
        self._perform(self.table.receive(receiver, now_ms=self.now_ms()))

    def confirm(self, name: str, consumer: str, stored: int) -> None:
        """Take note that a named consumer has come so far in the store."""
        self._perform(self.table.confirm(name, consumer, stored, now_ms=self.now_ms()))

    def tail(self, receiver: Receiver) -> None:
        """Give what is stored after a position to a receiver's handle when it comes."""
        self._perform(self.table.tail(receiver, now_ms=self.now_ms()))

    def note_stored(self, name: str, position: int, item: Item | None) -> None:
        """Wake the receivers that tail a stream: there is a message in the store, and perhaps
        which."""
        self._perform(self.table.stored(name, position, item))

    def note_read(self, given: Deliver) -> None:
        """Count what a receiver got from the store."""
        counters = self.table.counters
        counters.received += len(given.items)
        counters.polled += given.receiver.is_poll

    def give_back(self, given: Deliver) -> None:
        """Take back what was delivered and its receiver could not use. Its sender was answered."""
        given = given._replace(sender=None)
        self._perform(self.table.give_back(given, now_ms=self.now_ms()))

    def resize(self, name: str, size: int) -> None:
        """Let a stream hold another number of messages."""
        self._perform(self.table.resize(name, size, now_ms=self.now_ms()))

    def delete(self, name: str) -> bool:
        """Forget a stream; return whether it was there."""
        is_known = self.table.find(name) is not None
        self._perform(self.table.forget(name))
        return is_known

    # What other nodes do

    def move_waiters(self, name: str) -> None:
        """Have the waiters of a stream ask another node."""
        self._perform(self.table.move_waiters(name))

    def export(self, name: str) -> Exported | None:
        """Let a stream go to another node; None if there is nothing of it. Its waiters ask there
        from now on."""
        self.move_waiters(name)
        exported = self.table.export(name, now_ms=self.now_ms())
        return None if exported is None or exported.is_empty else exported

    def take_in(self, exported: Exported) -> None:
        """Take a stream of another node in; raises CapacityReached."""
        self._perform(self.table.take_in(exported, now_ms=self.now_ms()))

    def stop(self) -> None:
        """Dismiss all waiters, and all that come from now on."""
        self._perform(self.table.drain())

    async def run(self) -> None:
        """Tick the streams until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self._perform(self.table.tick(self.now_ms()))

    def _perform(self, effects: list[Effect]) -> None:
        if not effects:
            return
        todo = deque(effects)
        while todo:
            effect = todo.popleft()
            # By type, not by pattern: this is done for every message, and patterns cost more.
            if isinstance(effect, Deliver):
                todo += self._deliver(effect)
            elif isinstance(effect, Accept):
                effect.sender.handle.accepted(effect.position, effect.receivers)
            elif isinstance(effect, TimeOut):
                effect.waiter.handle.timed_out()
            elif isinstance(effect, Refuse):
                effect.receiver.handle.refused(effect.missed, effect.oldest)
            elif isinstance(effect, ReadStore):
                effect.receiver.handle.must_read(effect.receiver)
            elif isinstance(effect, Dismiss):
                effect.waiter.handle.dismissed()
            elif isinstance(effect, Move):
                effect.waiter.handle.moved()
            else:
                assert_never(effect)

    def _deliver(self, given: Deliver) -> list[Effect]:
        if not given.receiver.handle.delivered(given):
            return self.table.give_back(given, now_ms=self.now_ms())
        self.wait_ms.observe(max(0, self._wall.now_ms() - given.items[0].sent_ms))
        if given.sender is not None:
            given.sender.handle.accepted(given.positions[0], 1)
        return []


class _Nobody:
    """Sends, and does not listen."""

    def accepted(self, position: int, receivers: int) -> None:
        pass

    def timed_out(self) -> None:
        pass

    def dismissed(self) -> None:
        pass

    def moved(self) -> None:
        pass


_NOBODY = _Nobody()
