"""A member's session: its answers come in, deliveries and notices go out. Knows no transport.

A transport opens a session, passes on what the member says, and takes what goes out by iterating.
The queue of a session holds ranges of offsets and a few notices, bounded by the member's credit;
bytes are read from the log when the transport asks for the next delivery. So a member that reads
slowly holds no memory of the node, and what it does not read is not lost: a lease begins when the
delivery is taken from the queue, however long it stood there.

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
    moved                         another node is the home of the group: nothing is counted or saved
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
"""Refusals queued for a member that does not read them; further ones are dropped."""
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
    MOVED = "another node serves the group now"


class QueuedDelivery:
    """Messages of one partition in a session's queue: ascending ranges, read when taken."""

    __slots__ = ("attempt", "deadline_ms", "generation", "partition", "ranges")

    def __init__(self, partition: "GroupPartition", effect: Deliver) -> None:
        self.partition = partition
        self.generation = effect.generation
        self.attempt = effect.attempt
        self.deadline_ms = effect.deadline_ms
        self.ranges = deque(effect.ranges)

    @property
    def is_readable(self) -> bool:
        """The log has it; one that was opened anew may not show it yet, and one that is elsewhere
        has to be pulled."""
        ranges = self.ranges
        return not ranges or self.partition.has(ranges[0][0], ranges[-1][1])

    def takes(self, partition: "GroupPartition", effect: Deliver) -> bool:
        """Tell whether these could go out together with what is here."""
        return (
            partition is self.partition
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
        """Remove the ranges below an offset: they were sent, or are gone from the log."""
        ranges, unsent = self.ranges, self.partition.unsent
        while ranges and ranges[0][1] <= offset:
            unsent.cut(*ranges.popleft())
        if ranges and ranges[0][0] < offset:
            unsent.cut(ranges[0][0], offset)
            ranges[0] = offset, ranges[0][1]


class Session:
    """One member's session. Open one with `Groups.open_session`; you must `close` it."""

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
        self.partitions: list[GroupPartition] = []
        """What it owns; `GroupDelivery` keeps this."""
        self.on_refused: Callable[[Refused], None] | None = None
        """Hears of refusals while an answer is taken; they do not go out then."""
        self.made_partitions = 0
        """Of its topic, if opening it has made that."""
        self.turn = 0
        self.pump: asyncio.Handle | None = None
        self.is_pump_late = False
        self._host = host
        self._delivery = host.delivery
        self._queue: deque[Assigned | Revoked | Lost | Refused | QueuedDelivery] = deque()
        self._refusals = self._refused_ranges = 0
        self._waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = "open" if self.ending is None else self.ending.value
        return f"<Session of {self.member}, {state}, {len(self._queue)} queued, {self.credit!r}>"

    # What the member says

    def heartbeat(self) -> None:
        """Note that the member is there. Whatever else it says has the same effect."""
        if self.ending is None:
            self._host.heard(self)

    def set_credit(self, messages: int, bytes_: int) -> None:
        """Set how much the member can hold from now on, in all."""
        if self.ending is None:
            self.credit.set(messages=messages, bytes=bytes_)
            self._host.heard(self)
            self._delivery.wake(self)

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
        if self.ending is None:
            self._host.heard(self)
            self._delivery.answer(
                self, kind, partition, generation, ranges, at_ms=at_ms, after_ms=after_ms
            )

    def give_back_unsent(self) -> None:
        """Let others have what is queued and has not gone out. Set no credit before, or it comes
        here again."""
        if self.ending is None:
            self._delivery.give_back_unsent(self)

    def leave(self) -> None:
        """End in good order."""
        self.close(clean=True)

    async def settled(self) -> int:
        """Return 0 once the member's dead messages stand in the dead letter topic. If they cannot
        be written for too long, return how many are not."""
        return await self._host.dead_letters.wait_written(self)

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
        while self._queue and self.ending is None:
            item = self._queue[0]
            if not isinstance(item, QueuedDelivery):
                self._queue.popleft()
                if isinstance(item, Refused):
                    self._refusals -= 1
                    self._refused_ranges -= len(item.ranges)
                return item
            if not item.is_readable:
                if self._put_off():
                    continue
                return None
            delivery = self._delivery.hand_out(item)
            if not item.ranges and self._queue and self._queue[0] is item:
                self._queue.popleft()
            if delivery is not None:
                return delivery
        return None

    def _put_off(self) -> bool:
        """Have something else be next; False if all that is queued cannot be read at present."""
        for at, item in enumerate(self._queue):
            if not isinstance(item, QueuedDelivery) or item.is_readable:
                self._queue.rotate(-at)
                return True
        return False

    # What the group does

    def wake(self) -> None:
        """Look again at what is queued: its log was opened anew, or more of it can be read."""
        if self._queue:
            self._wake()

    def notify(self, notice: Assigned | Revoked | Lost) -> None:
        """Queue a notice about a partition."""
        self._queue.append(notice)
        self._wake()

    def refuse(self, refusal: Refused) -> None:
        """Queue a refusal, unless there are too many, or `on_refused` hears of it at once."""
        if self.on_refused is not None:
            self.on_refused(refusal)
        elif self._refusals < REFUSALS_MAX:
            if self._refused_ranges >= REFUSED_RANGES_MAX:
                refusal = replace(refusal, ranges=())
            self._refusals += 1
            self._refused_ranges += len(refusal.ranges)
            self._queue.append(refusal)
            self._wake()

    def deliver(self, partition: "GroupPartition", effect: Deliver) -> None:
        """Queue messages."""
        for start, end in effect.ranges:
            partition.unsent.put(start, end, None)
        last = self._queue[-1] if self._queue else None
        if isinstance(last, QueuedDelivery) and last.ranges and last.takes(partition, effect):
            last.add(effect)
        else:
            self._queue.append(QueuedDelivery(partition, effect))
        self._wake()

    @property
    def unsent_messages(self) -> int:
        """How many messages have not gone out."""
        queued = (item for item in self._queue if isinstance(item, QueuedDelivery))
        return sum(end - start for delivery in queued for start, end in delivery.ranges)

    def queued(self, partition: "GroupPartition") -> list[QueuedDelivery]:
        """Return what of a partition has not gone out."""
        queued = (item for item in self._queue if isinstance(item, QueuedDelivery))
        return [delivery for delivery in queued if delivery.partition is partition]

    def withdraw(self, partition: "GroupPartition") -> list[Range]:
        """Remove what of a partition has not gone out from the queue; return its ranges."""
        withdrawn = [span for delivery in self.queued(partition) for span in delivery.ranges]
        if withdrawn:
            self._queue = deque(
                item
                for item in self._queue
                if not (isinstance(item, QueuedDelivery) and item.partition is partition)
            )
            for span in withdrawn:
                partition.unsent.cut(*span)
        return withdrawn

    def end(self, ending: Ending) -> None:
        """End the session: nothing more goes out. What is queued stays until it is withdrawn."""
        if self.ending is None:
            self.ending = ending
            if self.pump is not None:
                self.pump.cancel()
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
