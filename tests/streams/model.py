"""A stream as simple as can be: lists of what each reader has not read yet. Slow, easy to trust.

`expected` effects are told in words that do not depend on how the core keeps its books.
"""

from dataclasses import dataclass, field

from waterclock.streams.effects import Deliver
from waterclock.streams.waiters import Receiver, Sender

Expected = tuple[object, ...]


@dataclass
class Reader:
    """What somebody has not read yet."""

    unread: list[int] = field(default_factory=list)
    missed: int = 0

    def lose(self, positions: set[int]) -> None:
        lost = [each for each in self.unread if each in positions]
        self.missed += len(lost)
        self.unread = [each for each in self.unread if each not in positions]


class ModelStream:
    """Says what must happen."""

    def __init__(self) -> None:
        self.size: int | None = None
        self.end = 0
        self.kept: dict[int, tuple[bytes, int]] = {}
        """Body and when it expires, by position."""
        self.shared = Reader()
        self.is_shared = False
        self.named: dict[str, Reader] = {}
        self.receivers: list[Receiver] = []
        self.resumed: dict[Receiver, Reader] = {}
        self.senders: list[Sender] = []

    # What is asked

    def send(self, sender: Sender, size: int, now_ms: int) -> list[Expected]:
        if self.size is None:
            self.size = size
        expected: list[Expected] = []
        is_behind = sender.is_blocking and bool(self.senders)
        if not self.size or is_behind or (sender.is_blocking and self.is_full()):
            self.senders.append(sender)
            self.admit(expected)
        else:
            self.put(sender, expected)
        return expected

    def receive(self, receiver: Receiver, now_ms: int) -> list[Expected]:
        expected: list[Expected] = []
        if receiver.competes:
            self.is_shared = True
            reader = self.shared
        elif receiver.after is not None:
            first = min(self.kept, default=self.end + 1)
            if self.size and receiver.after < first - 1:
                missed = first - 1 - receiver.after
                if receiver.consumer:
                    self.named[receiver.consumer] = Reader(sorted(self.kept), missed)
                expected.append(("refuse", receiver, missed, first - 1))
                self.admit(expected)
                return expected
            unread = [each for each in sorted(self.kept) if each > receiver.after]
            reader = Reader(unread, self.end - receiver.after - len(unread))
            if receiver.consumer:
                receiver.is_confirming = True
                self.named[receiver.consumer] = reader
            else:
                self.resumed[receiver] = reader
        else:
            reader = self.named.setdefault(receiver.consumer, Reader(sorted(self.kept)))
        unread = list(reader.unread)
        positions = self.next_of(receiver, reader, now_ms)
        if positions:
            if self.confirms(receiver):
                reader.unread = unread
            self.deliver(receiver, reader, positions, expected)
        else:
            self.receivers.append(receiver)
        self.admit(expected)
        return expected

    def next_of(self, receiver: Receiver, reader: Reader, now_ms: int) -> list[int]:
        """Take what comes next out of what is unread."""
        found: list[int] = []
        # Those who compete are given what is left, one by one; others a piece of the ring.
        count, enough = (1, receiver.limit) if receiver.competes else (receiver.limit, 1)
        while reader.unread and len(found) < enough:
            piece, reader.unread = reader.unread[:count], reader.unread[count:]
            found += [p for p in piece if not 0 < self.kept[p][1] <= now_ms]
        return found

    def give_back(self, given: Deliver, now_ms: int, *, competed: bool) -> list[Expected]:
        expected: list[Expected] = []
        kept = [position for position in given.positions if position in self.kept]
        if given.sender is not None and given.others:
            return [("accept", given.sender, given.positions[0], given.others)]
        name = given.receiver.consumer
        namesakes = [r for r in self.receivers if name and r.consumer == name]
        if given.sender is not None:
            self.senders.insert(0, given.sender)
        elif namesakes:
            self.receivers.remove(namesakes[0])
            expected.append(("deliver", namesakes[0], tuple(given.positions), given.missed, None))
        elif given.receiver.consumer:
            again = [p for p in sorted(self.kept) if p >= given.positions[0]]
            reader = self.named.setdefault(given.receiver.consumer, Reader())
            reader.missed += len(given.positions) - len(kept)
            reader.unread = sorted({*reader.unread, *again})
        elif competed:
            self.shared.missed += given.missed + len(given.positions) - len(kept)
            self.shared.unread = sorted([*self.shared.unread, *kept])
            self.offer(now_ms, expected)
        self.admit(expected)
        return expected

    def resize(self, size: int) -> list[Expected]:
        expected: list[Expected] = []
        self.size = size
        self.drop(len(self.kept) - size)
        self.admit(expected)
        return expected

    # What follows

    def is_full(self) -> bool:
        assert self.size is not None
        readers = list(self.named.values())
        if self.is_shared or not readers:
            readers.append(self.shared)
        oldest = min((r.unread[0] for r in readers if r.unread), default=self.end + 1)
        return self.end - oldest + 1 >= self.size

    def drop(self, count: int) -> None:
        gone = set(sorted(self.kept)[: max(0, count)])
        for position in gone:
            del self.kept[position]
        for reader in (self.shared, *self.named.values(), *self.resumed.values()):
            reader.lose(gone)

    def put(self, sender: Sender, expected: list[Expected]) -> None:
        assert self.size
        self.drop(len(self.kept) + 1 - self.size)
        self.end += 1
        self.kept[self.end] = sender.item.body, sender.item.expires_ms
        waiting = sorted(self.next_receivers(), key=lambda receiver: receiver.competes)
        expected.append(("accept", sender, self.end, len(waiting)))
        for reader in (self.shared, *self.named.values(), *self.resumed.values()):
            reader.unread.append(self.end)
        for receiver in waiting:
            self.receivers.remove(receiver)
            reader = self.reader_of(receiver)
            if not self.confirms(receiver):
                reader.unread.remove(self.end)
            self.deliver(receiver, reader, [self.end], expected)

    def next_receivers(self) -> list[Receiver]:
        """Return who gets a message, in the order they came: all but the later of one name, and
        of those who compete one."""
        found: list[Receiver] = []
        for receiver in self.receivers:
            is_alone = not (receiver.consumer or receiver.competes)
            if is_alone or not any(
                (r.consumer, r.competes) == (receiver.consumer, receiver.competes) for r in found
            ):
                found.append(receiver)
        return found

    def reader_of(self, receiver: Receiver) -> Reader:
        if receiver.consumer:
            return self.named[receiver.consumer]
        return self.resumed.get(receiver, self.shared)

    def deliver(
        self, receiver: Receiver, reader: Reader, positions: list[int], expected: list[Expected]
    ) -> None:
        expected.append(("deliver", receiver, tuple(positions), reader.missed, None))
        if not self.confirms(receiver):
            reader.missed = 0

    def confirms(self, receiver: Receiver) -> bool:
        """Whether its consumer stays where it is until it says what it is done with."""
        return bool(receiver.consumer) and receiver.is_confirming

    def admit(self, expected: list[Expected]) -> None:
        while self.senders:
            if self.size:
                if self.is_full():
                    return
                self.put(self.senders.pop(0), expected)
            elif self.receivers:
                sender, (first, *others) = self.senders.pop(0), self.next_receivers()
                self.end += 1
                expected.append(("meet", first, self.end, sender))
                expected += [("deliver", other, (self.end,), 0, None) for other in others]
                self.receivers = [r for r in self.receivers if r not in (first, *others)]
            else:
                return

    def offer(self, now_ms: int, expected: list[Expected]) -> None:
        for receiver in [r for r in self.receivers if r.competes]:
            positions = self.next_of(receiver, self.shared, now_ms)
            if not positions:
                return
            self.receivers.remove(receiver)
            self.deliver(receiver, self.shared, positions, expected)
