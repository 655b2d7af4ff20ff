"""One stream: its ring, the positions of its receivers, and the queues of those that wait.

Competing receivers share one position, `taken`; what one of them gives back goes out first. Named
consumers each have a position of their own. A receiver that waits has read everything: so a new
message goes to all waiting receivers with a position, to the first of each name and to the first of
the competing ones, and then it is in the ring.

A stream of size 0 keeps nothing: a sender waits until a receiver does, and then the message goes to
the same receivers as in any other stream. A full ring overwrites its oldest message, unless a
blocking sender waits until all known consumers have read that; so consumers that have left are to
be forgotten.
"""

from heapq import heappop, heappush

from waterclock.streams.consumer import Consumer, consumer_bytes
from waterclock.streams.effects import Accept, Deliver, Dismiss, Effect, ReadStore, Refuse
from waterclock.streams.ring import Item, Ring, fitting
from waterclock.streams.waiters import (
    Receiver,
    Sender,
    Waiter,
    WaitQueue,
    all_who_get,
    first_of_each_name,
    leave_as,
)

GIVEN_BYTES_MAX = 16 << 20
"""A receiver that wants many messages gets no more than these, and one more, at once."""


class Stream:
    """Matches senders and receivers; its table (`streams.py`) keeps the time."""

    __slots__ = (
        "competing",
        "consumers",
        "displaced",
        "displaced_bytes",
        "incarnation",
        "is_shared",
        "missed",
        "name",
        "returned",
        "ring",
        "senders",
        "tail_queue",
        "taken",
        "touched_ms",
        "watching",
    )

    def __init__(self, name: str, incarnation: int) -> None:
        self.name = name
        self.incarnation = incarnation
        """Tells this stream from another of the same name, before or after it."""
        self.ring: Ring | None = None
        """Made by the first send, which says how large."""
        self.touched_ms = 0
        self.taken = 0
        """The position of the competing receivers."""
        self.is_shared = False
        """There was a competing receiver."""
        self.missed = 0
        """Messages that the competing receivers were too late for, not yet reported to one."""
        self.displaced = self.displaced_bytes = 0
        """What has left the ring since the table asked; bytes of consumers too, if any came."""
        self.returned: list[int] | None = None
        """Positions below `taken` that go out again first: a heap."""
        self.consumers: dict[str, Consumer] | None = None
        self.competing: WaitQueue[Receiver] | None = None
        self.watching: WaitQueue[Receiver] | None = None
        """Receivers with a name or a position."""
        self.tail_queue: WaitQueue[Receiver] | None = None
        """Receivers that wait for stored messages."""
        self.senders: WaitQueue[Sender] | None = None

    def __repr__(self) -> str:
        return f"<Stream {self.name!r} {self.ring}, {self.waiting} waiting>"

    @property
    def waiting(self) -> int:
        """How many wait."""
        queues = (self.competing, self.watching, self.tail_queue, self.senders)
        return sum(len(queue) for queue in queues if queue is not None)

    @property
    def size_bytes(self) -> int:
        """About what its messages and its consumers take."""
        messages = 0 if self.ring is None else self.ring.size_bytes
        return messages + sum(map(consumer_bytes, self.consumers or ()))

    @property
    def is_quiet(self) -> bool:
        """There is no waiter for a message, or for room."""
        return not (self.competing or self.watching or self.senders)

    def drop_empty_queues(self) -> None:
        """Keep no empty queues: there may be a million streams."""
        self.competing = self.competing or None
        self.watching = self.watching or None
        self.tail_queue = self.tail_queue or None
        self.senders = self.senders or None

    def is_full(self) -> bool:
        """One more message would overwrite one that a consumer has not read."""
        ring = self.ring
        if ring is None:
            return False
        self._note_overwritten(ring.first)
        return ring.end - max(self._slowest(), ring.first - 1) >= ring.size

    def _note_overwritten(self, first: int) -> None:
        """Let go of what was given back and is below the first message."""
        while self.returned and self.returned[0] < first:
            heappop(self.returned)
            self.missed += 1

    def _slowest(self) -> int:
        positions = [each.position for each in self.consumers.values()] if self.consumers else []
        if self.is_shared or not positions:
            positions.append(self.returned[0] - 1 if self.returned else self.taken)
        return min(positions)

    # Sending

    def send(self, sender: Sender, size: int, now_ms: int) -> list[Effect]:
        """Take a message, or let its sender wait (then there is no `Accept` of it)."""
        ring = self.ring
        if ring is None:
            ring = self.ring = Ring(size)
        effects: list[Effect] = []
        must_wait = self.is_full() if sender.is_blocking else not ring.size
        if must_wait or (sender.is_blocking and self.senders):
            self.senders = self.senders or WaitQueue()
            self.senders.join(sender)
            self._admit(now_ms, effects)
        else:
            self._put(sender, now_ms, effects)
        return effects

    def _put(self, sender: Sender, now_ms: int, effects: list[Effect]) -> None:
        """Put a message into the ring and give it to the receivers that wait for it."""
        ring, item = self.ring, sender.item
        assert ring is not None
        displaced = ring.put(item)
        if displaced is not None:
            self.displaced += 1
            self.displaced_bytes += displaced.size_bytes
        position, receivers = ring.end, 0
        at = len(effects)
        if self.watching is not None:
            for receiver in first_of_each_name(self.watching, position):
                missed = self._missed(receiver, position)
                self._advance(receiver, position)
                effects.append(Deliver(receiver, [position], [item], missed))
                receivers += 1
        if self.competing is not None and self.competing.first() is not None:
            receiver = self.competing.serve()
            self.taken = position
            effects.append(Deliver(receiver, [position], [item], self.missed))
            self.missed = 0
            receivers += 1
        self.drop_empty_queues()
        # The sender hears of it first; a receiver that is gone changes nothing for it.
        effects.insert(at, Accept(sender, position, receivers))

    def _admit(self, now_ms: int, effects: list[Effect]) -> None:
        """Serve the waiting senders, as far as there is room, or a receiver to meet."""
        ring, senders = self.ring, self.senders
        if ring is None or senders is None:
            return
        while senders.first() is not None:
            if not ring.size:
                receivers = all_who_get(self.watching, self.competing, ring.end + 1)
                if not receivers:
                    return
                effects += self._meet(senders.serve(), receivers)
            elif self.is_full():
                return
            else:
                self._put(senders.serve(), now_ms, effects)
        self.senders = None

    def _meet(self, sender: Sender, receivers: list[Receiver]) -> list[Effect]:
        """Hand a message over. The sender waits for the first to take it, and only for that one."""
        assert self.ring is not None
        self.ring.put(sender.item)
        self.taken = self.ring.end
        for receiver in receivers:
            if not receiver.competes:
                receiver.is_confirming = False  # nothing is kept that could come again
                self._advance(receiver, self.taken)
        first, *others = (Deliver(each, [self.taken], [sender.item]) for each in receivers)
        return [first._replace(sender=sender, others=len(others)), *others]

    # Receiving

    def receive(self, receiver: Receiver, now_ms: int) -> list[Effect]:
        """Give what is there, or let the receiver wait (then there is no effect for it)."""
        found: Deliver | Refuse | None
        if receiver.competes:
            self.is_shared = True
            found = self._take(receiver, now_ms)
            if found is None:
                self.competing = self.competing or WaitQueue()
                self.competing.join(receiver)
        else:
            found = self._watch(receiver, now_ms)
            if found is None:
                self.watching = self.watching or WaitQueue()
                self.watching.join(receiver)
        effects: list[Effect] = [] if found is None else [found]
        self._admit(now_ms, effects)
        return effects

    def _take(self, receiver: Receiver, now_ms: int) -> Deliver | None:
        """Take the next messages for a competing receiver."""
        ring = self.ring
        if ring is None:
            return None
        first = ring.first
        positions: list[int] = []
        room = GIVEN_BYTES_MAX
        self._note_overwritten(first)
        while self.returned and len(positions) < receiver.limit and room > 0:
            position = heappop(self.returned)
            item = ring.get(position)
            if not item.is_over(now_ms):
                positions.append(position)
                room -= len(item.body)
        if self.taken < first - 1:
            self.missed += first - 1 - self.taken
            self.taken = first - 1
        while len(positions) < receiver.limit and self.taken < ring.end and room > 0:
            self.taken += 1
            item = ring.get(self.taken)
            if not item.is_over(now_ms):
                positions.append(self.taken)
                room -= len(item.body)
        if not positions:
            return None
        missed, self.missed = self.missed, 0
        return Deliver(receiver, positions, [ring.get(each) for each in positions], missed)

    def _watch(self, receiver: Receiver, now_ms: int) -> Deliver | Refuse | None:
        """Return what follows a position: the one that was brought, or the consumer's own."""
        ring, after = self.ring, receiver.after
        is_resumed = after is not None
        consumer = self._consumer(receiver.consumer) if receiver.consumer else None
        if consumer is not None:
            consumer.seen_ms = now_ms
            if after is None:
                after = consumer.position
            else:
                consumer.position, consumer.missed = after, 0
                receiver.is_confirming = True
        assert after is not None
        receiver.after = after
        if ring is None or not ring.size:
            return None
        first = ring.first
        if is_resumed and not first - 1 <= after <= ring.end:
            return Refuse(receiver, max(0, first - 1 - after), first - 1)
        missed = self._missed(receiver, max(first, after + 1))
        start = max(first, after + 1)
        while start <= ring.end:
            items = fitting(ring.read(start, receiver.limit), GIVEN_BYTES_MAX)
            kept = [at for at, item in enumerate(items) if not item.is_over(now_ms)]
            self._advance(receiver, start + len(items) - 1)
            if kept:
                positions = [start + at for at in kept]
                return Deliver(receiver, positions, [items[at] for at in kept], missed)
            start += len(items)
        if consumer is not None:  # it was given nothing, so there is nothing to confirm
            consumer.position, consumer.missed = receiver.after, missed
        return None

    def _missed(self, receiver: Receiver, position: int) -> int:
        """Return how many messages below a position a receiver was too late for."""
        assert receiver.after is not None
        missed = position - 1 - receiver.after
        if receiver.consumer:
            consumer = self._consumer(receiver.consumer)
            missed += consumer.missed
            consumer.missed = consumer.missed if receiver.is_confirming else 0
        self._advance(receiver, position - 1)
        return missed

    def _advance(self, receiver: Receiver, position: int) -> None:
        receiver.after = position
        if receiver.consumer and not receiver.is_confirming:
            self._consumer(receiver.consumer).position = position

    def _consumer(self, name: str) -> Consumer:
        """Return a named consumer; a new one begins with the oldest message there is."""
        if self.consumers is None:
            self.consumers = {}
        consumer = self.consumers.get(name)
        if consumer is None:
            start = 0 if self.ring is None else self.ring.first - 1
            consumer = self.consumers[name] = Consumer(start)
            self.displaced_bytes -= consumer_bytes(name)
        return consumer

    def confirm(self, name: str, stored: int, now_ms: int) -> list[Effect]:
        """Take note that a consumer has come so far in the store."""
        consumer = self._consumer(name)
        consumer.seen_ms = now_ms
        consumer.confirm_stored(self.ring, stored)
        effects: list[Effect] = []
        self._admit(now_ms, effects)
        return effects

    def give_back(self, given: Deliver, now_ms: int) -> list[Effect]:
        """Take back what a receiver could not be given any more."""
        effects: list[Effect] = []
        receiver = given.receiver
        if given.sender is not None:
            self.senders = self.senders or WaitQueue()
            self.senders.rejoin(given.sender)
        elif receiver.consumer:
            self._give_to_namesake(given, effects)
        elif receiver.after is None:
            self.missed += given.missed
            self.returned = self.returned or []
            for position in given.positions:
                if position <= self.taken:  # else it is of another stream of the name
                    heappush(self.returned, position)
            self._offer(now_ms, effects)
        self._admit(now_ms, effects)
        return effects

    def _give_to_namesake(self, given: Deliver, effects: list[Effect]) -> None:
        """Give what was for a consumer to another receiver of its name, now or later."""
        consumer = self._consumer(given.receiver.consumer)
        receiver = leave_as(self.watching, given.receiver.consumer)
        done = 0 if receiver is None or receiver.is_confirming else receiver.limit
        if done < len(given.positions):
            consumer.position = min(consumer.position, given.positions[done] - 1)
        if receiver is not None:
            positions, items = given.positions[: receiver.limit], given.items[: receiver.limit]
            receiver.after = positions[-1]
            effects.append(Deliver(receiver, positions, items, given.missed))
            self.drop_empty_queues()

    def _offer(self, now_ms: int, effects: list[Effect]) -> None:
        """Give what was given back to the competing receivers."""
        while self.competing is not None and (receiver := self.competing.first()) is not None:
            found = self._take(receiver, now_ms)
            if found is None:
                return
            self.competing.serve()
            effects.append(found)

    # What is stored

    def tail(self, receiver: Receiver) -> None:
        """Let a receiver wait for what is stored after its position."""
        assert receiver.after is not None
        self.tail_queue = self.tail_queue or WaitQueue()
        self.tail_queue.join(receiver)

    def stored(self, position: int, item: Item | None) -> list[Effect]:
        """Give a stored message to the receivers that wait for it. Receivers further behind, and
        all of them without an item, read on in the store."""
        effects: list[Effect] = []
        if self.tail_queue is None:
            return effects
        for receiver in self.tail_queue.clear():
            assert receiver.after is not None
            if receiver.after >= position:
                self.tail_queue.join(receiver)
            elif item is not None and receiver.after == position - 1:
                effects.append(Deliver(receiver, [position], [item]))
            else:
                effects.append(ReadStore(receiver))
        return effects

    # Other changes

    def adopt(self, consumers: dict[str, Consumer]) -> None:
        """Know consumers of a stream to which nothing was sent; the table counts their bytes."""
        for name, consumer in consumers.items():
            if self.consumers is None or name not in self.consumers:
                self._consumer(name).seen_ms = consumer.seen_ms
        self.displaced_bytes = 0

    def forget_consumer(self, name: str, now_ms: int) -> list[Effect]:
        """Forget a consumer's position: blocking senders wait for it no more."""
        effects: list[Effect] = []
        if self.consumers is not None:
            if self.consumers.pop(name, None) is not None:
                self.displaced_bytes += consumer_bytes(name)
            self._admit(now_ms, effects)
        return effects

    def resize(self, size: int, now_ms: int) -> list[Effect]:
        """Hold another number of messages."""
        effects: list[Effect] = []
        if self.ring is None:
            self.ring = Ring(size)
        else:
            dropped = self.ring.resize(size)
            self.displaced += len(dropped)
            self.displaced_bytes += sum(item.size_bytes for item in dropped)
        self._admit(now_ms, effects)
        return effects

    def clear(self) -> None:
        """Keep nothing: it is forgotten."""
        self.ring = self.returned = self.consumers = None

    def dismiss(self) -> list[Effect]:
        """Dismiss all waiters."""
        return [Dismiss(waiter) for waiter in self.clear_queues()]

    def clear_queues(self) -> list[Waiter]:
        """Remove all waiters, and return them."""
        waiters: list[Waiter] = []
        for queue in (self.senders, self.competing, self.watching, self.tail_queue):
            waiters += queue.clear() if queue is not None else []
        return waiters
