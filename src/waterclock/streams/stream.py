"""One stream: a ring, who has read how far, and who waits for whom.

Receivers that compete share one position, `taken`; what is given back to them goes first. Named
consumers each have a position of their own. Whoever waits has read everything: so a new message
goes to all named ones who wait and to the first of those who compete, and then it is in the ring.

In a stream of size 0 nothing is kept: sender and receiver meet, the first of each, whoever it is.
A full ring overwrites its oldest message, unless the sender would rather wait until everyone has
read that: everyone we know of, so consumers that have left are to be forgotten.
"""

from heapq import heappop, heappush

from waterclock.streams.effects import Accept, Deliver, Dismiss, Effect, ReadStore, Refuse
from waterclock.streams.ring import Item, Ring
from waterclock.streams.waiting import Line, Receiver, Sender

GIVEN_BYTES_MAX = 16 << 20
"""A receiver that wants many messages gets no more than these, and one more, at once."""


class Consumer:
    """How far a named consumer has come, and when it was last heard of."""

    __slots__ = ("missed", "position", "seen_ms")

    def __init__(self, position: int) -> None:
        self.position = position
        self.missed = 0
        """Messages it was too late for, and was not told of yet."""
        self.seen_ms = 0


class Stream:
    """Decides who gets what; its table (`streams.py`) keeps the time."""

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
        "stored_end",
        "tailing",
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
        """How far those who compete have come."""
        self.is_shared = False
        """Somebody has competed."""
        self.missed = 0
        """Messages that those who compete were too late for, and nobody was told of yet."""
        self.displaced = self.displaced_bytes = 0
        """What has left the ring since the table asked."""
        self.returned: list[int] | None = None
        """Positions below `taken` that go out again first: a heap."""
        self.consumers: dict[str, Consumer] | None = None
        self.competing: Line[Receiver] | None = None
        self.watching: Line[Receiver] | None = None
        """Those with a name or a position."""
        self.tailing: Line[Receiver] | None = None
        """Those who wait for what is stored."""
        self.senders: Line[Sender] | None = None
        self.stored_end = 0
        """The last stored position we know of."""

    def __repr__(self) -> str:
        return f"<Stream {self.name!r} {self.ring}, {self.waiting} waiting>"

    @property
    def waiting(self) -> int:
        """How many wait."""
        lines = (self.competing, self.watching, self.tailing, self.senders)
        return sum(len(line) for line in lines if line is not None)

    @property
    def is_quiet(self) -> bool:
        """Nobody waits for a message, or for room."""
        return not (self.competing or self.watching or self.senders)

    def let_lines_go(self) -> None:
        """Keep no lines in which nobody waits: there may be a million streams."""
        self.competing = self.competing or None
        self.watching = self.watching or None
        self.tailing = self.tailing or None
        self.senders = self.senders or None

    def is_full(self) -> bool:
        """One more message would overwrite one that somebody has not read."""
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
        must_wait = self.is_full() if sender.is_patient else not ring.size
        if must_wait or (sender.is_patient and self.senders):
            self.senders = self.senders or Line()
            self.senders.join(sender)
            self._admit(now_ms, effects)
        else:
            self._put(sender, now_ms, effects)
        return effects

    def _put(self, sender: Sender, now_ms: int, effects: list[Effect]) -> None:
        """Put a message into the ring and give it to who waits for it."""
        ring, item = self.ring, sender.item
        assert ring is not None
        displaced = ring.put(item)
        if displaced is not None:
            self.displaced += 1
            self.displaced_bytes += displaced.size_bytes
        position, receivers = ring.end, 0
        at = len(effects)
        if self.watching is not None:
            for receiver in self.watching.clear():
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
        self.let_lines_go()
        # The sender hears of it first; a receiver that is gone changes nothing for it.
        effects.insert(at, Accept(sender, position, receivers))

    def _admit(self, now_ms: int, effects: list[Effect]) -> None:
        """Let in the senders who wait, as far as there is room, or somebody to meet."""
        ring, senders = self.ring, self.senders
        if ring is None or senders is None:
            return
        while (sender := senders.first()) is not None:
            if ring.size:
                if self.is_full():
                    return
                self._put(senders.serve(), now_ms, effects)
                continue
            receiver = self._next_receiver()
            if receiver is None:
                return
            senders.serve()
            ring.put(sender.item)
            self.taken = ring.end
            if not receiver.competes:
                self._advance(receiver, ring.end)
            effects.append(Deliver(receiver, [ring.end], [sender.item], sender=sender))
        self.senders = None

    def _next_receiver(self) -> Receiver | None:
        """Take out the receiver who came first, of whatever kind."""
        lines = [line for line in (self.competing, self.watching) if line is not None]
        heads = [(line.first(), line) for line in lines]
        waiting = [(head.number, line) for head, line in heads if head is not None]
        return min(waiting, key=lambda each: each[0])[1].serve() if waiting else None

    # Receiving

    def receive(self, receiver: Receiver, now_ms: int) -> list[Effect]:
        """Give what is there, or let the receiver wait (then there is no effect for it)."""
        found: Deliver | Refuse | None
        if receiver.competes:
            self.is_shared = True
            found = self._take(receiver, now_ms)
            if found is None:
                self.competing = self.competing or Line()
                self.competing.join(receiver)
        else:
            found = self._watch(receiver, now_ms)
            if found is None:
                self.watching = self.watching or Line()
                self.watching.join(receiver)
        effects: list[Effect] = [] if found is None else [found]
        self._admit(now_ms, effects)
        return effects

    def _take(self, receiver: Receiver, now_ms: int) -> Deliver | None:
        """Take the next messages for one who competes."""
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
            if not _is_over(item, now_ms):
                positions.append(position)
                room -= len(item.body)
        if self.taken < first - 1:
            self.missed += first - 1 - self.taken
            self.taken = first - 1
        while len(positions) < receiver.limit and self.taken < ring.end and room > 0:
            self.taken += 1
            item = ring.get(self.taken)
            if not _is_over(item, now_ms):
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
        if receiver.consumer:
            consumer = self._consumer(receiver.consumer)
            consumer.seen_ms = now_ms
            if after is None:
                after = consumer.position
            else:
                consumer.missed = 0
        assert after is not None
        self._advance(receiver, after)
        if ring is None or not ring.size:
            return None
        first = ring.first
        if is_resumed and not first - 1 <= after <= ring.end:
            return Refuse(receiver, max(0, first - 1 - after), first - 1)
        missed = self._missed(receiver, max(first, after + 1))
        start = max(first, after + 1)
        while start <= ring.end:
            items = _fitting(ring.read(start, receiver.limit))
            kept = [at for at, item in enumerate(items) if not _is_over(item, now_ms)]
            self._advance(receiver, start + len(items) - 1)
            if kept:
                positions = [start + at for at in kept]
                return Deliver(receiver, positions, [items[at] for at in kept], missed)
            start += len(items)
        if receiver.consumer:
            self._consumer(receiver.consumer).missed = missed
        return None

    def _missed(self, receiver: Receiver, position: int) -> int:
        """Return how many messages below a position a receiver was too late for."""
        assert receiver.after is not None
        missed = position - 1 - receiver.after
        if receiver.consumer:
            consumer = self._consumer(receiver.consumer)
            missed += consumer.missed
            consumer.missed = 0
        self._advance(receiver, position - 1)
        return missed

    def _advance(self, receiver: Receiver, position: int) -> None:
        receiver.after = position
        if receiver.consumer:
            self._consumer(receiver.consumer).position = position

    def _consumer(self, name: str) -> Consumer:
        """Return a named consumer; a new one begins with the oldest message there is."""
        if self.consumers is None:
            self.consumers = {}
        consumer = self.consumers.get(name)
        if consumer is None:
            start = 0 if self.ring is None else self.ring.first - 1
            consumer = self.consumers[name] = Consumer(start)
        return consumer

    def give_back(self, given: Deliver, now_ms: int) -> list[Effect]:
        """Take back what a receiver could not be given any more."""
        effects: list[Effect] = []
        receiver = given.receiver
        if given.sender is not None:
            self.senders = self.senders or Line()
            self.senders.rejoin(given.sender)
        elif receiver.consumer:
            consumer = self._consumer(receiver.consumer)
            consumer.position = min(consumer.position, given.positions[0] - 1)
        elif receiver.after is None:
            self.missed += given.missed
            self.returned = self.returned or []
            for position in given.positions:
                heappush(self.returned, position)
            self._offer(now_ms, effects)
        self._admit(now_ms, effects)
        return effects

    def _offer(self, now_ms: int, effects: list[Effect]) -> None:
        """Give what was given back to those who compete for it."""
        while self.competing is not None and (receiver := self.competing.first()) is not None:
            found = self._take(receiver, now_ms)
            if found is None:
                return
            self.competing.serve()
            effects.append(found)

    # What is stored

    def tail(self, receiver: Receiver) -> list[Effect]:
        """Let a receiver wait for what is stored after its position."""
        assert receiver.after is not None
        if receiver.after < self.stored_end:
            return [ReadStore(receiver)]
        self.tailing = self.tailing or Line()
        self.tailing.join(receiver)
        return []

    def stored(self, position: int, item: Item) -> list[Effect]:
        """Tell who waits for it that a message was stored."""
        self.stored_end = max(self.stored_end, position)
        effects: list[Effect] = []
        for receiver in self.tailing.clear() if self.tailing is not None else ():
            if receiver.after == position - 1:
                effects.append(Deliver(receiver, [position], [item]))
            else:
                effects.append(ReadStore(receiver))
        return effects

    # Other changes

    def forget_consumer(self, name: str, now_ms: int) -> list[Effect]:
        """Forget how far a consumer has come: nobody waits for it any more."""
        effects: list[Effect] = []
        if self.consumers is not None:
            self.consumers.pop(name, None)
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

    def dismiss(self) -> list[Effect]:
        """Send everyone who waits away."""
        effects: list[Effect] = []
        for line in (self.senders, self.competing, self.watching, self.tailing):
            effects += [Dismiss(waiter) for waiter in line.clear()] if line is not None else []
        return effects


def _fitting(items: list[Item]) -> list[Item]:
    """Return as many of the first as may be given at once."""
    room = GIVEN_BYTES_MAX
    for count, item in enumerate(items, 1):
        room -= len(item.body)
        if room <= 0:
            return items[:count]
    return items


def _is_over(item: Item, now_ms: int) -> bool:
    return 0 < item.expires_ms <= now_ms
