"""Waiting senders and receivers: queued in the order they came, until they are served, leave, or
time out.

Leaving costs the same however many wait: a waiter that leaves is marked, and passed over when its
turn comes. Deadlines are kept for all of them together, in slots of `SLOT_MS`: no timer each.
"""

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from waterclock.model.ids import Millis
from waterclock.streams.ring import Item

if TYPE_CHECKING:
    from waterclock.streams.effects import Deliver

SLOT_MS = 64


class WaiterHandle(Protocol):
    """What the shell calls on any waiter."""

    def timed_out(self) -> None:
        """The other side did not come before the deadline."""
        ...

    def dismissed(self) -> None:
        """The node stops, or the stream is gone: the client should ask again."""
        ...

    def moved(self) -> None:
        """The stream goes to another node, which is to be asked."""
        ...


class SenderHandle(WaiterHandle, Protocol):
    """What the shell calls on a sender."""

    def accepted(self, position: int, receivers: int) -> None:
        """The message is in the stream, or was handed over."""
        ...


class ReceiverHandle(WaiterHandle, Protocol):
    """What the shell calls on a receiver."""

    def delivered(self, given: "Deliver") -> bool:
        """Take messages; False if the receiver is not there any more: then others get them."""
        ...

    def refused(self, missed: int, oldest: int) -> None:
        """What follows the receiver's position is gone."""
        ...

    def must_read(self, receiver: "Receiver") -> None:
        """There is more in the store than the receiver has seen."""
        ...


class Waiter:
    """A sender or receiver that may have to wait. The shell calls `handle`; the core never does."""

    __slots__ = ("deadline_ms", "handle", "queue", "stream")

    def __init__(self, stream: str, handle: WaiterHandle | None, deadline_ms: int) -> None:
        self.stream = stream
        # A core without a shell needs none, and the core never looks at it.
        self.handle: WaiterHandle = handle  # type: ignore[assignment]
        self.deadline_ms = deadline_ms
        self.queue: WaitQueue[Any] | None = None
        """Where it waits, if it does."""


class Sender(Waiter):
    """Brings a message; waits for a receiver, or (`is_blocking`) for room."""

    __slots__ = ("is_blocking", "item")
    handle: SenderHandle

    def __init__(
        self,
        stream: str,
        item: Item,
        handle: SenderHandle | None = None,
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
    handle: ReceiverHandle

    def __init__(
        self,
        stream: str,
        handle: ReceiverHandle | None = None,
        *,
        deadline_ms: int = 0,
        consumer: str = "",
        after: int | None = None,
        limit: int = 1,
        is_confirming: bool = False,
        is_poll: bool = True,
    ) -> None:
        # As a `Waiter`; set here, for this is done for every poll.
        self.stream = stream
        self.handle = handle  # type: ignore[assignment]
        self.deadline_ms = deadline_ms
        self.queue = None
        self.consumer = consumer
        self.is_confirming = is_confirming
        """The consumer does not move past what it is given; nor if it brings a position."""
        self.is_poll = is_poll
        """The receiver asks once; a listener asks again and again."""
        self.after = after
        self.limit = limit
        self.number = 0
        """The order of arrival, among all receivers."""

    @property
    def competes(self) -> bool:
        """Each message goes to one of the competing receivers."""
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
        """Put a waiter at the end."""
        waiter.queue = self
        self._waiters.append(waiter)

    def rejoin(self, waiter: W) -> None:
        """Put a waiter at the front: its turn had come already."""
        waiter.queue = self
        self._waiters.insert(0, waiter)

    def first(self) -> W | None:
        """Return the waiter whose turn it is."""
        waiters = self._waiters
        while waiters and waiters[0].queue is None:
            del waiters[0]
            self._gone -= 1
        return waiters[0] if waiters else None

    def serve(self) -> W:
        """Remove the waiter whose turn it is, and return it. There must be one."""
        waiters = self._waiters
        waiter = waiters[0] if waiters[0].queue is self else self.first()
        assert waiter is not None
        waiter.queue = None
        del waiters[0]
        return waiter

    def leave(self, waiter: W) -> None:
        """Remove a waiter of this queue."""
        assert waiter.queue is self
        waiter.queue = None
        self._gone += 1
        if self._gone * 2 > len(self._waiters):
            self._waiters = self.all()
            self._gone = 0

    def all(self) -> list[W]:
        """Return all waiters, in order."""
        return [each for each in self._waiters if each.queue is self]

    def clear(self) -> list[W]:
        """Remove all waiters; return them, in order."""
        waiters = self.all()
        for waiter in waiters:
            waiter.queue = None
        self._waiters, self._gone = [], 0
        return waiters


def first_of_each_name(queue: WaitQueue[Receiver], position: int) -> list[Receiver]:
    """Remove the receivers that get a message: of each consumer's name the first. The others wait
    on, for the message after it. A confirming receiver is served beside its namesake, which may be
    gone."""
    names: set[str] = set()
    found = []
    for receiver in queue.clear():
        if receiver.consumer in names and not receiver.is_confirming:
            receiver.after = position
            queue.join(receiver)
        else:
            found.append(receiver)
            if receiver.consumer:
                names.add(receiver.consumer)
    return found


def all_who_get(
    watching: WaitQueue[Receiver] | None, competing: WaitQueue[Receiver] | None, position: int
) -> list[Receiver]:
    """Remove the receivers that get a message, of the competing ones one; in order of arrival."""
    found = [] if watching is None else first_of_each_name(watching, position)
    if competing is not None and competing.first() is not None:
        found.append(competing.serve())
    return sorted(found, key=lambda receiver: receiver.number)


def leave_as(queue: WaitQueue[Receiver] | None, consumer: str) -> Receiver | None:
    """Remove the first receiver of a consumer's name, and return it."""
    for receiver in queue.all() if queue is not None else ():
        if receiver.consumer == consumer:
            assert queue is not None
            queue.leave(receiver)
            return receiver
    return None


class Deadlines:
    def __init__(self) -> None:
        self._slots: dict[int, set[Waiter]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def __repr__(self) -> str:
        return f"<Deadlines of {len(self)}>"

    def add(self, waiter: Waiter) -> None:
        """Note a waiter's deadline."""
        slot = waiter.deadline_ms // SLOT_MS
        waiters = self._slots.get(slot)
        if waiters is None:
            self._slots[slot] = {waiter}
        else:
            waiters.add(waiter)

    def discard(self, waiter: Waiter) -> None:
        """Forget a waiter's deadline."""
        slot = waiter.deadline_ms // SLOT_MS
        waiters = self._slots.get(slot)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._slots[slot]

    def over(self, now_ms: int) -> list[Waiter]:
        """Remove the waiters whose deadline has passed; return them, the earliest first."""
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
        """Return the first deadline, or a little before."""
        if not self._slots:
            return None
        return Millis(min(waiter.deadline_ms for waiter in self._slots[min(self._slots)]))

    def all(self) -> list[Waiter]:
        """Return every waiter that has a deadline here."""
        return [waiter for waiters in self._slots.values() for waiter in waiters]
