"""A member's stream: what it says, and what is on its way to it. Knows no transport.

A transport opens a session, passes on what the member says, and takes what goes out by iterating.
What waits to go out are ranges of offsets and a few words, bounded by the member's credit; bytes
are read from the log when the transport asks for the next thing. So a member that reads slowly
holds no memory of the node, and what it does not read is not lost: its lease begins when it is
taken from here, however long it stood in line.

How a session ends:

    leave, or close(clean=True)   what the member held is handed out again at once, uncounted
    close(clean=False)            the connection broke. The member is taken to be dead at once,
                                  not after `session_timeout`. Nothing is counted, unless by
                                  `count_lost_owners` the first it held of each partition has
                                  failed, for it may have died of that
    silence                       nothing was heard for `session_timeout`: as if it broke
    replaced                      the member opened another session: likewise
    stopping                      the node goes down: nothing is counted, progress is saved
    topic gone                    its topic was deleted
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

from waterclock.delivery.credits import Credit
from waterclock.delivery.events import Deliver
from waterclock.delivery.spans import Range
from waterclock.node.groups.outbound import Assigned, Lost, Outbound, Refused, Revoked

if TYPE_CHECKING:
    from waterclock.node.groups.host import GroupHost
    from waterclock.node.groups.partition import GroupPartition

REFUSALS_MAX = 1_000
"""Refusals in line for a member that does not read them; it is told of no more than these."""
REFUSED_RANGES_MAX = 20_000
"""Ranges these name, give or take an answer's; further ones name none."""


class AnswerKind(IntEnum):
    """What a member says about messages it holds. The numbers are those of the API."""

    ACK = 0
    NACK = 1
    GIVE_BACK = 2
    REJECT = 3
    EXTEND = 4


class Ending(Enum):
    """Why a session is over."""

    LEFT = "the member left"
    BROKEN = "the connection broke"
    SILENT = "nothing was heard of the member for too long"
    REPLACED = "the member opened another session"
    STOPPING = "the node is stopping"
    TOPIC_GONE = "the topic was deleted"


class QueuedDelivery:
    """Messages of one partition in line to go out: ascending ranges, read when their turn comes."""

    __slots__ = ("attempt", "deadline_ms", "generation", "place", "ranges")

    def __init__(self, place: "GroupPartition", effect: Deliver) -> None:
        self.place = place
        self.generation = effect.generation
        self.attempt = effect.attempt
        self.deadline_ms = effect.deadline_ms
        self.ranges = deque(effect.ranges)

    def takes(self, place: "GroupPartition", effect: Deliver) -> bool:
        """Tell whether these could go out together with what is here."""
        return (
            place is self.place
            and effect.generation == self.generation
            and effect.attempt == self.attempt
            and effect.ranges[0][0] >= self.ranges[-1][1]
        )

    def add(self, effect: Deliver) -> None:
        """Put them at the end."""
        self.deadline_ms = min(self.deadline_ms, effect.deadline_ms)
        for start, end in effect.ranges:
            if self.ranges[-1][1] == start:
                self.ranges[-1] = self.ranges[-1][0], end
            else:
                self.ranges.append((start, end))

    def drop_below(self, offset: int) -> None:
        """Take out what was dealt with."""
        ranges, unsent = self.ranges, self.place.unsent
        while ranges and ranges[0][1] <= offset:
            unsent.cut(*ranges.popleft())
        if ranges and ranges[0][0] < offset:
            unsent.cut(ranges[0][0], offset)
            ranges[0] = offset, ranges[0][1]


class Session:
    """One member's stream. Open one with `Groups.open_session`; you must `close` it."""

    def __init__(
        self, host: "GroupHost", member: str, *, credit: Credit, heartbeat_ms: int
    ) -> None:
        self.member = member
        self.heartbeat_ms = heartbeat_ms
        """The member should be heard at least this often."""
        self.heard_ms = 0
        self.credit = credit
        self.ending: Ending | None = None
        """Why it is over, once it is."""
        self.places: list[GroupPartition] = []
        """What it owns; the host keeps this."""
        self.on_refused: Callable[[Refused], None] | None = None
        """Hears of refusals while an answer is taken; they do not go out then."""
        self.made_partitions = 0
        """Of its topic, if opening it has made that."""
        self.turn = 0
        self.pump: asyncio.Handle | None = None
        self.is_pump_late = False
        self._host = host
        self._line: deque[Assigned | Revoked | Lost | Refused | QueuedDelivery] = deque()
        self._refusals = self._refused_ranges = 0
        self._waiter: asyncio.Future[None] | None = None
        self._credit_changes = 0

    def __repr__(self) -> str:
        state = "open" if self.ending is None else self.ending.value
        return f"<Session of {self.member}, {state}, {len(self._line)} in line, {self.credit!r}>"

    # What the member says

    def heartbeat(self) -> None:
        """Note that the member is there. Whatever else it says has the same effect."""
        if self.ending is None:
            self._host.heard(self)

    def set_credit(self, messages: int, bytes_: int) -> None:
        """Say how much the member can hold from now on, in all."""
        if self.ending is not None:
            return
        self._credit_changes += 1
        self.credit.set(self._credit_changes, messages=messages, bytes=bytes_)
        self._host.heard(self)
        self._host.wake(self)

    def answer(
        self,
        kind: AnswerKind,
        partition: int,
        generation: int,
        ranges: Sequence[Range],
        at_ms: int = 0,
        *,
        after_ms: int = 0,
    ) -> None:
        """Take an answer about messages the member holds. What it does not hold comes back as
        Refused; a partition that is none of the topic's, or a range that is none, is BadInput.

        When to try again, or how long to hold them, is an instant of the wall clock (`at_ms`) or a
        span from now (`after_ms`)."""
        if self.ending is not None:
            return
        self._host.heard(self)
        if after_ms:
            at_ms = self._host.after(after_ms)
        self._host.answer(self, kind, partition, generation, ranges, at_ms)

    def leave(self) -> None:
        """End in good order."""
        self.close(clean=True)

    async def settled(self) -> int:
        """Return 0 once what died in the member's hands stands in the dead letters. If that cannot
        be written for too long, return how many messages wait for it."""
        return await self._host.settled(self)

    def close(self, *, clean: bool) -> None:
        """End, in good order or because the connection broke. Again is harmless."""
        if self.ending is None:
            self._host.member_gone(self, is_clean=clean)
            self.end(Ending.LEFT if clean else Ending.BROKEN)

    # What goes out

    def __aiter__(self) -> "Session":
        return self

    async def __anext__(self) -> Outbound:
        while True:
            found = self.take()
            if found is not None:
                return found
            if self.ending is not None:
                raise StopAsyncIteration
            await self.ready()

    async def ready(self) -> None:
        """Return once something more may go out, or the session is over. One may wait at a time."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def take(self) -> Outbound | None:
        """Return the next thing to go out, if there is one now."""
        while self._line and self.ending is None:
            item = self._line[0]
            if not isinstance(item, QueuedDelivery):
                self._line.popleft()
                if isinstance(item, Refused):
                    self._refusals -= 1
                    self._refused_ranges -= len(item.ranges)
                return item
            delivery = self._host.hand_out(item)
            if not item.ranges and self._line and self._line[0] is item:
                self._line.popleft()
            if delivery is not None:
                return delivery
        return None

    # What the host does

    def tell(self, word: Assigned | Revoked | Lost) -> None:
        """Have a word go out."""
        self._line.append(word)
        self._wake()

    def refuse(self, refusal: Refused) -> None:
        """Have a refusal go out, unless there are too many, or somebody hears of them at once."""
        if self.on_refused is not None:
            self.on_refused(refusal)
        elif self._refusals < REFUSALS_MAX:
            if self._refused_ranges >= REFUSED_RANGES_MAX:
                refusal = replace(refusal, ranges=())
            self._refusals += 1
            self._refused_ranges += len(refusal.ranges)
            self._line.append(refusal)
            self._wake()

    def deliver(self, place: "GroupPartition", effect: Deliver) -> None:
        """Have messages go out."""
        for start, end in effect.ranges:
            place.unsent.put(start, end, None)
        last = self._line[-1] if self._line else None
        if isinstance(last, QueuedDelivery) and last.ranges and last.takes(place, effect):
            last.add(effect)
        else:
            self._line.append(QueuedDelivery(place, effect))
        self._wake()

    @property
    def unsent_messages(self) -> int:
        """How many messages have not gone out."""
        parcels = (item for item in self._line if isinstance(item, QueuedDelivery))
        return sum(end - start for queued in parcels for start, end in queued.ranges)

    def in_line(self, place: "GroupPartition") -> list[QueuedDelivery]:
        """Return what of a partition has not gone out."""
        return [
            item for item in self._line if isinstance(item, QueuedDelivery) and item.place is place
        ]

    def withdraw(self, place: "GroupPartition") -> list[Range]:
        """Take what of a partition has not gone out from the line."""
        withdrawn = [span for queued in self.in_line(place) for span in queued.ranges]
        if withdrawn:
            kept = (
                i for i in self._line if not (isinstance(i, QueuedDelivery) and i.place is place)
            )
            self._line = deque(kept)
            for span in withdrawn:
                place.unsent.cut(*span)
        return withdrawn

    def end(self, ending: Ending) -> None:
        """Be over: nothing more goes out. What is in line stays until it is withdrawn."""
        if self.ending is None:
            self.ending = ending
            if self.pump is not None:
                self.pump.cancel()
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
