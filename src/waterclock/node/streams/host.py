"""Light streams in a running node: the core, its clock, and those who wait to hear from it.

Callers bring a handle for each sender and receiver; it is told what became of it, once, perhaps
before the call returns. Nobody waits in a task. One task for all streams tells the time.

Times are those of a clock that nobody sets, also for messages that expire in memory.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
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
    ReadStore,
    Refuse,
    TimeOut,
)
from waterclock.streams.ring import Item
from waterclock.streams.stream import Stream
from waterclock.streams.streams import Streams, Taken
from waterclock.streams.waiters import Receiver, Sender, Waiter

TICK_S = 0.05
"""How late a deadline may be noticed."""
INCARNATIONS_PER_MS = 1 << 16
"""Streams begun faster than this, for as long as a node runs, would repeat incarnations."""


class Handle(Protocol):
    """Whoever sent or receives."""

    def accepted(self, position: int, receivers: int) -> None:
        """Its message is in the stream, or was handed over."""
        ...

    def delivered(self, given: Deliver) -> bool:
        """Messages for it; False if it is not there any more: then others get them."""
        ...

    def refused(self, missed: int, oldest: int) -> None:
        """What follows its position is gone."""
        ...

    def must_read(self, receiver: Receiver) -> None:
        """There is more in the store than it was told of."""
        ...

    def timed_out(self) -> None:
        """Nobody came."""
        ...

    def dismissed(self) -> None:
        """It should ask again: the node stops, or the stream is gone or moving."""
        ...


class StreamHost:
    """All light streams of a node."""

    def __init__(self, config: StreamsConfig, clock: Clock) -> None:
        self.config = config
        self._clock = SteadyClock(clock)
        first = clock.now_ms() * INCARNATIONS_PER_MS
        self._streams = Streams(config, first_incarnation=first)
        self.counters = self._streams.counters
        self.wait_ms = Histogram()
        """How long messages waited for a receiver; of those given together, the oldest."""
        self._wall = clock

    def __repr__(self) -> str:
        return f"<StreamHost {self._streams!r}>"

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def waiting(self) -> int:
        """How many wait, senders and receivers."""
        return self._streams.waiting

    @property
    def size_bytes(self) -> int:
        """About what the messages in memory take."""
        return self._streams.size_bytes

    def now_ms(self) -> int:
        """Return the time by which deadlines and expiry are told."""
        return self._clock.now_ms()

    def find(self, name: str) -> Stream | None:
        """Return a stream that is known."""
        return self._streams.find(name)

    def names(self) -> Iterator[str]:
        """Return the names of all streams; do nothing else while you go through them."""
        return self._streams.names()

    # What callers do

    def put(self, name: str, item: Item) -> int:
        """Put a message into a ring where nobody waits; 0: it must be sent."""
        return self._streams.put(name, item, now_ms=self.now_ms())

    def take(self, name: str) -> Taken | None:
        """Take a message that is there; None: it must be received."""
        taken = self._streams.take(name, now_ms=self.now_ms())
        if taken is not None:
            self.wait_ms.observe(max(0, self._wall.now_ms() - taken.item.sent_ms))
        return taken

    def send(self, sender: Sender, *, size: int) -> None:
        """Take a message; the sender's handle hears of it, now or later."""
        self._perform(self._streams.send(sender, size=size, now_ms=self.now_ms()))

    def offer(self, name: str, item: Item) -> None:
        """Put a stored message into a stream for whoever wants it, if there is room in memory.

        Nobody waits for that, and nobody is refused: it is stored, and can be read.
        """
        sender = Sender(name, item, _NOBODY, deadline_ms=self.now_ms())
        try:
            self.send(sender, size=self.config.ring_messages)
        except CapacityReached:
            return
        self.leave(sender)

    def receive(self, receiver: Receiver) -> None:
        """Give messages to a receiver's handle, now or later."""
        self._perform(self._streams.receive(receiver, now_ms=self.now_ms()))

    def confirm(self, name: str, consumer: str, stored: int) -> None:
        """Take note that a named consumer has come so far in the store."""
        self._perform(self._streams.confirm(name, consumer, stored, now_ms=self.now_ms()))

    def reading(self, name: str) -> AbstractContextManager[None]:
        """Read a stream from the store in this block, and `tail` in it: nothing is passed over."""
        return self._streams.reading(name)

    def tailed(self) -> list[str]:
        """Return the names of the streams where somebody waits for what is stored."""
        return self._streams.tailed()

    def tail(self, receiver: Receiver) -> None:
        """Give what is stored after a position to a receiver's handle when it comes."""
        self._perform(self._streams.tail(receiver, now_ms=self.now_ms()))

    def stored(self, name: str, position: int, item: Item | None) -> None:
        """Tell those who wait for it that there is a message in the store, and perhaps which."""
        self._perform(self._streams.stored(name, position, item))

    def note_read(self, given: Deliver) -> None:
        """Count what a receiver got from the store."""
        self.counters.received += len(given.items)
        self.counters.polled += given.receiver.is_poll

    def give_back(self, given: Deliver) -> None:
        """Take back what was delivered and its receiver could not use. Its sender was answered."""
        given = given._replace(sender=None)
        self._perform(self._streams.give_back(given, now_ms=self.now_ms()))

    def leave(self, waiter: Waiter) -> None:
        """Let somebody go who waits no more."""
        self._streams.leave(waiter)

    def resize(self, name: str, size: int) -> None:
        """Let a stream hold another number of messages."""
        self._perform(self._streams.resize(name, size, now_ms=self.now_ms()))

    def forget(self, name: str) -> bool:
        """Forget a stream; return whether it was there."""
        is_known = self._streams.find(name) is not None
        self._perform(self._streams.forget(name))
        return is_known

    def drain(self) -> None:
        """Send everyone away, now and from now on."""
        self._perform(self._streams.drain())

    async def run(self) -> None:
        """Tell the time until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self._perform(self._streams.tick(self.now_ms()))

    def _perform(self, effects: list[Effect]) -> None:
        todo = deque(effects)
        while todo:
            effect = todo.popleft()
            # By type, not by pattern: this is done for every message, and patterns cost more.
            if isinstance(effect, Deliver):
                todo += self._deliver(effect)
            elif isinstance(effect, Accept):
                _handle(effect.sender).accepted(effect.position, effect.receivers)
            elif isinstance(effect, TimeOut):
                _handle(effect.waiter).timed_out()
            elif isinstance(effect, Refuse):
                _handle(effect.receiver).refused(effect.missed, effect.oldest)
            elif isinstance(effect, ReadStore):
                _handle(effect.receiver).must_read(effect.receiver)
            elif isinstance(effect, Dismiss):
                _handle(effect.waiter).dismissed()
            else:
                assert_never(effect)

    def _deliver(self, given: Deliver) -> list[Effect]:
        if not _handle(given.receiver).delivered(given):
            return self._streams.give_back(given, now_ms=self.now_ms())
        self.wait_ms.observe(max(0, self._wall.now_ms() - given.items[0].sent_ms))
        if given.sender is not None:
            _handle(given.sender).accepted(given.positions[0], 1)
        return []


class _Nobody:
    """Sends, and does not listen."""

    def accepted(self, position: int, receivers: int) -> None:
        pass

    def dismissed(self) -> None:
        pass


_NOBODY = _Nobody()


def _handle(waiter: Waiter) -> Handle:
    handle: Handle = waiter.handle  # type: ignore[assignment]
    return handle
