"""All streams of a node: found by name, made by their first use, forgotten when idle.

There is no task and no timer for a stream. `tick` times out the waiters whose deadline has passed
and walks over some of the streams, to forget those that are idle.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from waterclock.model.errors import CapacityReached
from waterclock.model.ids import Millis
from waterclock.model.sections import StreamsConfig
from waterclock.streams.consumer import consumer_bytes
from waterclock.streams.counters import StreamCounters
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
from waterclock.streams.stream import Stream
from waterclock.streams.waiters import Deadlines, Receiver, Sender, Waiter, WaitQueue

TICKS_A_ROUND = 1_200
"""In so many ticks every stream is looked at once."""
STRAYS_MAX = 1_000
"""Streams that were forgotten, beyond as many as there are, before all are let go."""


class Taken(NamedTuple):
    """A message that was there."""

    incarnation: int
    position: int
    item: Item
    missed: int


class Put(NamedTuple):
    """Where a message was put."""

    incarnation: int
    position: int
    given: Deliver | None
    """To whom it goes, too: perform it."""


class _Reads:
    """The reads of one stream from the store that are under way."""

    __slots__ = ("count", "stored_end")

    def __init__(self) -> None:
        self.count = 0
        self.stored_end = 0
        """The last position stored since the first of them began, as far as is known."""


class Streams:
    """The table of streams."""

    def __init__(self, config: StreamsConfig, *, first_incarnation: int = 1) -> None:
        """Incarnations must not repeat: begin behind the last one of the run before."""
        self._config = config
        self.counters = StreamCounters()
        self.size_bytes = 0
        """About what messages take, in rings and with waiting senders, and consumers."""
        self._streams: dict[str, Stream] = {}
        self._deadlines = Deadlines()
        self._waiting = 0
        self._next_incarnation = first_incarnation
        self._next_number = 1
        self._round: deque[Stream] = deque()
        """All streams, and some that were forgotten: the first is looked at next."""
        self._strays = 0
        """How many of them were forgotten."""
        self._reads: dict[str, _Reads] = {}
        self._tailed: set[str] = set()
        """Streams with receivers that wait for stored messages, and some that had such."""
        self._is_draining = False

    def __len__(self) -> int:
        return len(self._streams)

    def __repr__(self) -> str:
        return f"<Streams {len(self)}, {self._waiting} waiting, {self.size_bytes} B>"

    @property
    def waiting(self) -> int:
        """How many wait, senders and receivers."""
        return self._waiting

    def find(self, name: str) -> Stream | None:
        """Return a stream that is known."""
        return self._streams.get(name)

    def names(self) -> Iterator[str]:
        """Return the names of all streams, as they were first used."""
        return iter(self._streams)

    # What senders and receivers do

    # The short ways are for what happens most: what they do is what `send` and `receive` would.

    def put(self, name: str, item: Item, *, now_ms: int) -> Put | None:
        """Put a message into a ring, for the first of the competing receivers, if any waits.

        The short way of `send`: None means that it must be sent.
        """
        stream = self._streams.get(name)
        if stream is None or self._is_draining or stream.watching or stream.senders:
            return None
        ring, size = stream.ring, item.size_bytes
        if ring is None or not ring.size or self.size_bytes + size > self._config.bytes_max:
            return None
        counters = self.counters
        displaced = ring.put(item)
        if displaced is not None:
            counters.overwritten += 1
            size -= displaced.size_bytes
        self.size_bytes += size
        counters.sent += 1
        stream.touched_ms = now_ms
        if not (competing := stream.competing):
            return Put(stream.incarnation, ring.end, None)
        receiver, stream.taken = competing.serve(), ring.end
        given = Deliver(receiver, [ring.end], [item], stream.missed)
        counters.received += 1
        counters.polled += receiver.is_poll
        counters.missed += stream.missed
        counters.matched += 1
        stream.missed = 0
        stream.competing = competing or None
        self._waiting -= 1
        self._deadlines.discard(receiver)
        return Put(stream.incarnation, ring.end, given)

    def take(self, name: str, *, now_ms: int) -> Taken | None:
        """Take the next message for a competing receiver, if that is simple.

        The short way for what happens most: None means that it must be received.
        """
        stream = self._streams.get(name)
        if stream is None or stream.ring is None or self._is_draining:
            return None
        ring = stream.ring
        position = max(stream.taken + 1, ring.first)
        if position > ring.end or stream.returned or stream.senders:
            return None
        item = ring.get(position)
        if item.expires_ms:
            return None
        missed = stream.missed + position - 1 - stream.taken
        stream.taken, stream.missed = position, 0
        stream.is_shared = True
        stream.touched_ms = now_ms
        self.counters.received += 1
        self.counters.polled += 1
        self.counters.missed += missed
        return Taken(stream.incarnation, position, item, missed)

    def wait(self, receiver: Receiver, *, now_ms: int) -> bool:
        """Let a competing receiver wait, if that is simple.

        The short way of `receive`, after nothing was there to `take`: False means that it must be
        received.
        """
        stream = self._streams.get(receiver.stream)
        if stream is None or self._is_draining or stream.returned or stream.senders:
            return False
        if stream.ring is not None and stream.taken < stream.ring.end:
            return False
        self._check_waiters()
        stream.is_shared = True
        stream.touched_ms = now_ms
        receiver.number = self._next_number
        self._next_number += 1
        if stream.competing is None:
            stream.competing = WaitQueue()
        stream.competing.join(receiver)
        self._waiting += 1
        self._deadlines.add(receiver)
        return True

    def send(self, sender: Sender, *, size: int, now_ms: int) -> list[Effect]:
        """Take a message; without an `Accept` or `Deliver` of it, its sender waits."""
        if self._is_draining:
            return [Dismiss(sender)]
        self._check_bytes(sender.item.size_bytes)
        stream = self._stream(sender.stream, now_ms)
        if sender.is_blocking or not (size if stream.ring is None else stream.ring.size):
            self._check_waiters()
        self.counters.sent += 1
        return self._settled(stream, stream.send(sender, size, now_ms), sender)

    def receive(self, receiver: Receiver, *, now_ms: int) -> list[Effect]:
        """Give what there is; without a `Deliver` or `Refuse`, the receiver waits."""
        if self._is_draining:
            return [Dismiss(receiver)]
        self._check_waiters()
        stream = self._stream(receiver.stream, now_ms)
        if receiver.consumer:
            self._check_consumers(stream, receiver.consumer)
        receiver.number = self._next_number
        self._next_number += 1
        return self._settled(stream, stream.receive(receiver, now_ms), receiver)

    def confirm(self, name: str, consumer: str, stored: int, *, now_ms: int) -> list[Effect]:
        """Take note that a named consumer has come so far in the store."""
        stream = self._stream(name, now_ms)
        self._check_consumers(stream, consumer)
        return self._settled(stream, stream.confirm(consumer, stored, now_ms))

    @contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Read a stream from the store in this block, and `tail` in it: nothing is passed over.

        What is stored meanwhile is remembered, also of streams that are not in memory.
        """
        reads = self._reads.setdefault(name, _Reads())
        reads.count += 1
        try:
            yield
        finally:
            reads.count -= 1
            if not reads.count:
                del self._reads[name]

    def tail(self, receiver: Receiver, *, now_ms: int) -> list[Effect]:
        """Let a receiver wait for what is stored after its position. It must have been `reading`
        since before it found that there is nothing."""
        if self._is_draining:
            return [Dismiss(receiver)]
        self._check_waiters()
        assert receiver.after is not None
        if receiver.after < self._reads[receiver.stream].stored_end:
            return [ReadStore(receiver)]
        stream = self._stream(receiver.stream, now_ms)
        stream.tail(receiver)
        self._tailed.add(receiver.stream)
        return self._settled(stream, [], receiver)

    def tailed(self) -> list[str]:
        """Return the names of the streams that have receivers waiting for stored messages."""
        found = {n for n in self._tailed if (s := self._streams.get(n)) and s.tail_queue}
        self._tailed = found
        return list(found)

    def stored(self, name: str, position: int, item: Item | None) -> list[Effect]:
        """Serve the receivers that tail a stream: there is a message in the store, perhaps this."""
        if (reads := self._reads.get(name)) is not None:
            reads.stored_end = max(reads.stored_end, position)
        stream = self._streams.get(name)
        return [] if stream is None else self._settled(stream, stream.stored(position, item))

    def leave(self, waiter: Waiter) -> None:
        """Remove a waiter: nothing is matched to it from now on."""
        if waiter.queue is not None:
            waiter.queue.leave(waiter)
            self._waits_no_more(waiter)
            self._streams[waiter.stream].drop_empty_queues()

    def give_back(self, given: Deliver, *, now_ms: int) -> list[Effect]:
        """Take back what a receiver could not be given; others may get it."""
        if given.sender is not None and given.others:  # who have it
            return [Accept(given.sender, given.positions[0], given.others)]
        self.counters.given_back += len(given.items)
        self.counters.received -= len(given.items)
        self.counters.polled -= given.receiver.is_poll
        stream = self._streams.get(given.receiver.stream)
        if stream is None:  # it was forgotten, or moved, with all that it had
            return [] if given.sender is None else [Dismiss(given.sender)]
        stream.touched_ms = now_ms
        return self._settled(stream, stream.give_back(given, now_ms), given.sender)

    # What others do

    def resize(self, name: str, size: int, *, now_ms: int) -> list[Effect]:
        """Let a stream hold another number of messages."""
        stream = self._stream(name, now_ms)
        return self._settled(stream, stream.resize(size, now_ms))

    def forget(self, name: str) -> list[Effect]:
        """Forget a stream; its waiters are dismissed."""
        stream = self._streams.pop(name, None)
        self._tailed.discard(name)
        if stream is None:
            return []
        effects = self._settled(stream, stream.dismiss())
        self._let_go(stream)
        return effects

    def _let_go(self, stream: Stream) -> None:
        """Keep nothing of a stream that is no longer in the table."""
        self._drop_bytes(stream)
        stream.clear()
        self._strays += 1
        if self._strays > len(self._streams) + STRAYS_MAX:
            self._round = deque(each for each in self._round if self._is_known(each))
            self._strays = 0

    def drain(self) -> list[Effect]:
        """Dismiss all waiters, and whoever comes from now on."""
        self._is_draining = True
        streams = list(self._streams.values())
        return [each for stream in streams for each in self._settled(stream, stream.dismiss())]

    # Between nodes

    def move_waiters(self, name: str) -> list[Effect]:
        """Tell the waiters of a stream that it goes to another node."""
        stream = self._streams.get(name)
        if stream is None:
            return []
        effects: list[Effect] = [Move(waiter) for waiter in stream.clear_queues()]
        stream.drop_empty_queues()
        return self._settled(stream, effects)

    def export(self, name: str, *, now_ms: int) -> Exported | None:
        """Let a stream go, and return all of it; None if it is not here. It must have no waiters:
        `move_waiters`."""
        stream = self._streams.pop(name, None)
        self._tailed.discard(name)
        if stream is None:
            return None
        assert not stream.waiting
        exported = Exported.of(stream, now_ms)
        self._let_go(stream)
        return exported

    def take_in(self, exported: Exported, *, now_ms: int) -> list[Effect]:
        """Take a stream of another node in; raises CapacityReached.

        If there is one of the name, what comes is put behind what is there, and the waiters ask
        again. The same stream twice is taken once.
        """
        self._check_bytes(exported.size_bytes)
        known = self._streams.get(exported.name)
        if known is not None and known.incarnation == exported.incarnation:
            return []
        if known is None and len(self._streams) >= self._config.streams_max:
            raise CapacityReached("streams", self._config.streams_max)
        effects = self.move_waiters(exported.name)
        if known is None or known.ring is None:
            self._revive(exported, known, now_ms)
        else:
            items = exported.append_to(known, now_ms)
            self.size_bytes += sum(item.size_bytes for item in items)
            self._settled(known, [])
        return effects

    def _revive(self, exported: Exported, known: Stream | None, now_ms: int) -> None:
        """Go on with a stream; one that is known, and to which nothing was sent, is replaced."""
        stream = exported.revive(now_ms)
        if known is not None:
            stream.adopt(known.consumers or {})
            del self._streams[exported.name]
            self._let_go(known)
        self._streams[exported.name] = stream
        self._round.append(stream)
        self.size_bytes += stream.size_bytes

    # Time

    def tick(self, now_ms: int) -> list[Effect]:
        """Time out the waiters whose deadline has passed, and forget streams that are idle."""
        effects: list[Effect] = []
        for waiter in self._deadlines.over(now_ms):
            assert waiter.queue is not None
            waiter.queue.leave(waiter)
            self._streams[waiter.stream].drop_empty_queues()
            self._waits_no_more(waiter)
            effects.append(TimeOut(waiter))
            if isinstance(waiter, Sender):
                self.counters.send_timeouts += 1
            elif isinstance(waiter, Receiver):
                self.counters.receive_timeouts += waiter.is_poll
        for _ in range(-(-len(self._round) // TICKS_A_ROUND)):
            effects += self._look_at_next(now_ms)
        return effects

    def next_deadline(self) -> Millis | None:
        """Return the first deadline of a waiter."""
        return self._deadlines.next_ms()

    def _look_at_next(self, now_ms: int) -> list[Effect]:
        stream = self._round.popleft()
        if not self._is_known(stream):
            self._strays -= 1
            return []
        if now_ms - stream.touched_ms >= self._config.idle_ms and not stream.waiting:
            del self._streams[stream.name]
            self._tailed.discard(stream.name)
            self._drop_bytes(stream)
            self.counters.forgotten += 1
            return []
        self._round.append(stream)
        over_ms = now_ms - self._config.consumer_idle_ms
        idle = [n for n, each in (stream.consumers or {}).items() if each.seen_ms <= over_ms]
        return self._settled(stream, [e for n in idle for e in stream.forget_consumer(n, now_ms)])

    # Keeping count

    def _is_known(self, stream: Stream) -> bool:
        return self._streams.get(stream.name) is stream

    def _stream(self, name: str, now_ms: int) -> Stream:
        stream = self._streams.get(name)
        if stream is None:
            if len(self._streams) >= self._config.streams_max:
                raise CapacityReached("streams", self._config.streams_max)
            stream = self._streams[name] = Stream(name, self._next_incarnation)
            self._round.append(stream)
            self._next_incarnation += 1
        stream.touched_ms = now_ms
        return stream

    def _check_consumers(self, stream: Stream, consumer: str) -> None:
        known = stream.consumers or {}
        if consumer not in known and len(known) >= self._config.consumers_max:
            raise CapacityReached("consumers of a stream", self._config.consumers_max)
        if consumer not in known:
            self._check_bytes(consumer_bytes(consumer))

    def _check_bytes(self, size: int) -> None:
        if self.size_bytes + size > self._config.bytes_max:
            raise CapacityReached("bytes of all streams", self._config.bytes_max)

    def _check_waiters(self) -> None:
        if self._waiting >= self._config.waiters_max:
            raise CapacityReached("waiting senders and receivers", self._config.waiters_max)

    def _settled(
        self, stream: Stream, effects: list[Effect], newcomer: Waiter | None = None
    ) -> list[Effect]:
        """Take note of what a stream has decided."""
        counters = self.counters
        for effect in effects:
            # By type, not by pattern: this is done for every message, and patterns cost twice that.
            if isinstance(effect, Deliver):
                counters.received += len(effect.items)
                counters.polled += effect.receiver.is_poll
                counters.missed += effect.missed
                self._waits_no_more(effect.receiver, newcomer)
                if effect.sender is not None:
                    counters.matched += 1
                    self._waits_no_more(effect.sender, newcomer)
            elif isinstance(effect, Accept):
                counters.matched += effect.receivers > 0
                self.size_bytes += effect.sender.item.size_bytes
                self._waits_no_more(effect.sender, newcomer)
            elif isinstance(effect, Refuse):
                counters.missed += effect.missed
            elif isinstance(effect, ReadStore):
                self._waits_no_more(effect.receiver)
            else:
                self._waits_no_more(effect.waiter, newcomer)
        if stream.displaced or stream.displaced_bytes:
            counters.overwritten += stream.displaced
            self.size_bytes -= stream.displaced_bytes
            stream.displaced = stream.displaced_bytes = 0
        if newcomer is not None and newcomer.queue is not None:
            self._waits(newcomer)
        return effects

    def _waits(self, waiter: Waiter) -> None:
        self._waiting += 1
        self._deadlines.add(waiter)
        if isinstance(waiter, Sender):
            self.size_bytes += waiter.item.size_bytes

    def _waits_no_more(self, waiter: Waiter, newcomer: Waiter | None = None) -> None:
        if waiter is not newcomer:
            self._waiting -= 1
            self._deadlines.discard(waiter)
            if isinstance(waiter, Sender):
                self.size_bytes -= waiter.item.size_bytes

    def _drop_bytes(self, stream: Stream) -> None:
        self.size_bytes -= stream.size_bytes

    def check_invariants(self) -> None:
        """Fail if counts contradict what is counted. Slow: for tests."""
        waiting = sum(stream.waiting for stream in self._streams.values())
        assert waiting == self._waiting == len(self._deadlines)
        waiters = self._deadlines.all()
        assert all(waiter.queue is not None for waiter in waiters)
        total = sum(stream.size_bytes for stream in self._streams.values())
        total += sum(each.item.size_bytes for each in waiters if isinstance(each, Sender))
        assert total == self.size_bytes
        strays = sum(not self._is_known(stream) for stream in self._round)
        assert (strays, len(self._round) - strays) == (self._strays, len(self._streams))
