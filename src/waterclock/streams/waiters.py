"""Who waits: senders and receivers, in the order they came, until they are served, leave, or time
is over.

Leaving costs the same however many wait: who leaves is marked, and passed over when its turn comes.
Time is kept for all of them together, in slots of `SLOT_MS`: no timer each.
"""

from typing import Any, Generic, TypeVar

from waterclock.model.ids import Millis
from waterclock.streams.ring import Item

SLOT_MS = 64


class Waiter:
    """Somebody who may have to wait. `handle` is the shell's own, to tell it by."""

    __slots__ = ("deadline_ms", "handle", "line", "stream")

    def __init__(self, stream: str, handle: object, deadline_ms: int) -> None:
        self.stream = stream
        self.handle = handle
        self.deadline_ms = deadline_ms
        self.line: WaitQueue[Any] | None = None
        """Where it waits, if it does."""


class Sender(Waiter):
    """Brings a message."""

    __slots__ = ("is_blocking", "item")

    def __init__(
        self,
        stream: str,
        item: Item,
        handle: object = None,
        *,
        deadline_ms: int = 0,
        is_blocking: bool = False,
    ) -> None:
        super().__init__(stream, handle, deadline_ms)
        self.item = item
        self.is_blocking = is_blocking
        """Waits for room in a full ring, rather than have the oldest message overwritten."""

    def __repr__(self) -> str:
        return f"<Sender to {self.stream!r}>"


class Receiver(Waiter):
    """Wants messages.

    Without a consumer and without a position it competes with all others of that kind. With a
    consumer's name it gets every message, and its position is kept under that name; with a position
    it gets what follows that.
    """

    __slots__ = ("after", "consumer", "is_confirming", "is_poll", "limit", "number")

    def __init__(
        self,
        stream: str,
        handle: object = None,
        *,
        deadline_ms: int = 0,
        consumer: str = "",
        after: int | None = None,
        limit: int = 1,
        is_confirming: bool = False,
        is_poll: bool = True,
    ) -> None:
        super().__init__(stream, handle, deadline_ms)
        self.consumer = consumer
        self.is_confirming = is_confirming
        """Its consumer does not move past what it is given; so too, if it brings a position."""
        self.is_poll = is_poll
        """It asks once; not one of those who listen, and ask again and again."""
        self.after = after
        self.limit = limit
        self.number = 0
        """Tells who came first, among all who wait."""

    @property
    def competes(self) -> bool:
        """Each message goes to one of its kind."""
        return not self.consumer and self.after is None

    def __repr__(self) -> str:
        who = self.consumer or ("anyone" if self.after is None else f"after {self.after}")
        return f"<Receiver of {self.stream!r}, {who}>"


W = TypeVar("W", bound=Waiter)


class WaitQueue(Generic[W]):
    """Waiters, first come, first served."""

    __slots__ = ("_gone", "_waiters")

    def __init__(self) -> None:
        self._waiters: list[W] = []
        self._gone = 0

    def __len__(self) -> int:
        return len(self._waiters) - self._gone

    def __repr__(self) -> str:
        return f"<WaitQueue of {len(self)}>"

    def join(self, waiter: W) -> None:
        """Stand at the end."""
        waiter.line = self
        self._waiters.append(waiter)

    def rejoin(self, waiter: W) -> None:
        """Stand at the front: its turn had come already."""
        waiter.line = self
        self._waiters.insert(0, waiter)

    def first(self) -> W | None:
        """Return whose turn it is."""
        waiters = self._waiters
        while waiters and waiters[0].line is None:
            del waiters[0]
            self._gone -= 1
        return waiters[0] if waiters else None

    def serve(self) -> W:
        """Take out whose turn it is. There must be one."""
        waiter = self.first()
        assert waiter is not None
        waiter.line = None
        del self._waiters[0]
        return waiter

    def leave(self, waiter: W) -> None:
        """Let somebody in the line go."""
        assert waiter.line is self
        waiter.line = None
        self._gone += 1
        if self._gone * 2 > len(self._waiters):
            self._waiters = self.all()
            self._gone = 0

    def all(self) -> list[W]:
        """Return all who wait, in order."""
        return [each for each in self._waiters if each.line is self]

    def clear(self) -> list[W]:
        """Let everyone go; return them, in order."""
        waiters = self.all()
        for waiter in waiters:
            waiter.line = None
        self._waiters, self._gone = [], 0
        return waiters


def first_of_each_name(line: WaitQueue[Receiver], position: int) -> list[Receiver]:
    """Take out those who are to get a message: all but those whose namesake came before. They wait
    on, for what comes after it. Who confirms waits for no namesake, who may be gone."""
    names: set[str] = set()
    found = []
    for receiver in line.clear():
        if receiver.consumer in names and not receiver.is_confirming:
            receiver.after = position
            line.join(receiver)
        else:
            found.append(receiver)
            if receiver.consumer:
                names.add(receiver.consumer)
    return found


def all_who_get(
    watching: WaitQueue[Receiver] | None, competing: WaitQueue[Receiver] | None, position: int
) -> list[Receiver]:
    """Take out all who are to get a message, those who compete but one; who came first is first."""
    found = [] if watching is None else first_of_each_name(watching, position)
    if competing is not None and competing.first() is not None:
        found.append(competing.serve())
    return sorted(found, key=lambda receiver: receiver.number)


def leave_as(line: WaitQueue[Receiver] | None, consumer: str) -> Receiver | None:
    """Take out the first who waits under a name."""
    for receiver in line.all() if line is not None else ():
        if receiver.consumer == consumer:
            assert line is not None
            line.leave(receiver)
            return receiver
    return None


class Deadlines:
    """When whose time is over."""

    def __init__(self) -> None:
        self._slots: dict[int, set[Waiter]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def __repr__(self) -> str:
        return f"<Deadlines of {len(self)}>"

    def add(self, waiter: Waiter) -> None:
        """Count somebody's time."""
        slot = waiter.deadline_ms // SLOT_MS
        waiters = self._slots.get(slot)
        if waiters is None:
            self._slots[slot] = {waiter}
        else:
            waiters.add(waiter)

    def discard(self, waiter: Waiter) -> None:
        """Count it no more."""
        slot = waiter.deadline_ms // SLOT_MS
        waiters = self._slots.get(slot)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._slots[slot]

    def over(self, now_ms: int) -> list[Waiter]:
        """Take out all whose time is over, who waits the longest first."""
        present = now_ms // SLOT_MS
        found: list[Waiter] = []
        for slot in [slot for slot in self._slots if slot <= present]:
            due = [waiter for waiter in self._slots[slot] if waiter.deadline_ms <= now_ms]
            found += due
            self._slots[slot].difference_update(due)
            if not self._slots[slot]:
                del self._slots[slot]
        return sorted(found, key=lambda waiter: waiter.deadline_ms)

    def next_ms(self) -> Millis | None:
        """Return when to look again: the first deadline, or a little before."""
        if not self._slots:
            return None
        return Millis(min(waiter.deadline_ms for waiter in self._slots[min(self._slots)]))

    def all(self) -> list[Waiter]:
        """Return everyone whose time is counted."""
        return [waiter for waiters in self._slots.values() for waiter in waiters]
