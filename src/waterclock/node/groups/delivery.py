"""GroupDelivery the members of a group: the log read for them, messages handed out, answers taken.

The cursors decide (`delivery/cursor.py`); what they decide is performed at once, in the turn of the
loop in which they decided. A session is served (`wake`) when the log has grown, when it has
answered and when its credit has changed: once a turn for all of these, each time beginning with
another of its partitions. If it has little credit free it is served a moment later, with more: a
member that acks one message at a time must not be sent one message at a time.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Protocol, assert_never

from waterclock.delivery.events import (
    Acked,
    DeadLetter,
    DeadLettered,
    Deliver,
    Effect,
    Event,
    Extended,
    GroupEvent,
    LogRead,
    LogTrimmed,
    MemberEvent,
    Nacked,
    PartitionAssigned,
    PartitionReleased,
    PartitionRevoked,
    RangeSkipped,
    Refuse,
    Rejected,
    ReportDrained,
    StaleGeneration,
)
from waterclock.delivery.spans import Range, joined
from waterclock.model.clock import Clock, SteadyClock
from waterclock.model.errors import BadInput, WaterclockError
from waterclock.model.ids import Millis
from waterclock.model.limits import check
from waterclock.model.sections import DeliveryConfig
from waterclock.node.counters import GroupCounters
from waterclock.node.groups.fetch_plan import plan_fetch
from waterclock.node.groups.outbound import Assigned, Delivery, Lost, Refused, gather
from waterclock.node.groups.partition import GroupPartition
from waterclock.node.groups.session import AnswerKind, QueuedDelivery, Session

SERVE_LATER_S = 0.002
"""How long a session with little free credit waits to be served."""
LITTLE_PARTS = 4
"""Less than this part of its credit is little."""
RANGES_MAX = 20_000
"""Most ranges of an answer, unless a member may hold more messages than that: each takes about a
microsecond."""

log = logging.getLogger("waterclock.delivery")


class Watcher(Protocol):
    """Who performs what concerns more than one partition: the group's host."""

    def drained(self, place: GroupPartition, generation: int) -> None:
        """The owner of a revoked partition holds nothing more of it."""
        ...

    def died(self, place: GroupPartition, letter: DeadLetter) -> None:
        """Messages are dead and have to be written to the dead letter topic."""
        ...

    def due(self, deadline_ms: int | None) -> None:
        """Time must be told at the deadline, or before."""
        ...


class GroupDelivery:
    """Drives the cursors of a group."""

    def __init__(
        self,
        config: DeliveryConfig,
        wall: Clock,
        clock: SteadyClock,
        counters: GroupCounters,
        watcher: Watcher,
    ) -> None:
        self.config = config
        self._wall = wall
        """Tells which messages have expired. Everything else goes by the other."""
        self._clock = clock
        self._counters = counters
        self._watcher = watcher

    # From members

    def answer(
        self,
        session: Session,
        place: GroupPartition,
        kind: AnswerKind,
        *,
        generation: int,
        ranges: Sequence[Range],
        at_ms: int,
    ) -> None:
        """Tell the cursor what the owner says; refuse what others say."""
        check("ranges of an answer", len(ranges), max(RANGES_MAX, self.config.unacked_max))
        if any(start >= end for start, end in ranges):
            raise BadInput("ranges of an answer: a range must end behind its start")
        if place.session is not session:
            self._counters.refused += 1
            session.refuse(Refused(place.number, generation, (), is_stale=True))
            return
        if at_ms:
            at_ms = max(1, at_ms - self._clock.set_by_ms())
        if place.unsent and generation == place.cursor.generation:
            ranges = self._sent(session, place, generation, ranges)
        event = _event(kind, generation, list(ranges), at_ms)
        effects = place.cursor.handle(event, self._clock.now_ms())
        named = sum(end - start for start, end in ranges)
        for effect in effects:
            if isinstance(effect, Refuse):
                named -= self._refuse(session, place, generation, effect)
        self._count(kind, named)
        place.is_changed = True
        self._perform(place, effects)
        self.wake(session)

    def _sent(
        self, session: Session, place: GroupPartition, generation: int, ranges: Sequence[Range]
    ) -> Sequence[Range]:
        """Refuse what still stands in line, of which the member cannot know; return the rest.

        Were it believed, a message given back would stand in line once more each time.
        """
        if max((end for _, end in ranges), default=0) <= place.unsent.first()[0]:
            return ranges  # as nearly always
        unsent, sent = place.unsent.part(ranges)
        if unsent:
            self._counters.refused += 1
            session.refuse(Refused(place.number, generation, joined(unsent), is_stale=False))
        return sent

    def _refuse(
        self, session: Session, place: GroupPartition, generation: int, effect: Refuse
    ) -> int:
        """Tell the member; return how many messages it named in vain."""
        self._counters.refused += 1
        if isinstance(effect.problem, StaleGeneration):
            session.refuse(Refused(place.number, generation, (), is_stale=True))
            return 0
        unknown = effect.problem.ranges
        session.refuse(Refused(place.number, generation, unknown, is_stale=False))
        return sum(end - start for start, end in unknown)

    def _count(self, kind: AnswerKind, messages: int) -> None:
        counters = self._counters
        counters.acked += messages if kind is AnswerKind.ACK else 0
        counters.nacked += messages if kind is AnswerKind.NACK else 0
        counters.rejected += messages if kind is AnswerKind.REJECT else 0

    def hand_out(self, queued: QueuedDelivery) -> Delivery | None:
        """Read the next messages of a queued from the log; None if those had all disappeared."""
        place, now_ms = queued.place, self._clock.now_ms()
        found = gather(place.log, queued.ranges, self._wall.now_ms())
        queued.drop_below(found.end)
        if found.gone:
            self._counters.expired += found.expired
            missed = sum(end - start for start, end in found.gone) - found.expired
            self._counters.missed += missed
            place.missed += missed
            skipped = tuple(RangeSkipped(start, end) for start, end in found.gone)
            self._tell(place, LogRead(skipped), now_ms)
            self.readable(place)  # there is room for others now
        messages = found.messages
        if messages is None:
            return None
        self._counters.delivered += messages.count
        self._counters.delivered_bytes += messages.size_bytes
        self._counters.redelivered += messages.count if queued.attempt > 1 else 0
        # The lease is the member's, not the line's: it begins anew for what stood here for long.
        deadline_ms = queued.deadline_ms
        if deadline_ms - now_ms < self._lease_ms * 3 // 4:
            deadline_ms = now_ms + self._lease_ms
            self._tell(place, Extended(queued.generation, messages.ranges, deadline_ms), now_ms)
        ends_ms = deadline_ms + self._clock.set_by_ms()
        return Delivery(
            place.number, queued.generation, queued.attempt, ends_ms, deadline_ms - now_ms, messages
        )

    @property
    def _lease_ms(self) -> int:
        return min(self.config.ack_timeout_ms, self.config.lease_ms_max)

    # From the group

    def assign(self, place: GroupPartition, session: Session, generation: int) -> None:
        """Have a session own a partition."""
        place.session = session
        session.places.append(place)
        session.tell(Assigned(place.number, generation, place.cursor.committed))
        self.tell(place, PartitionAssigned(generation, session.credit))

    def release(self, place: GroupPartition, generation: int, *, is_counted: bool) -> None:
        """Have nobody own a partition. What never went out is not counted against it."""
        session, now_ms = place.session, self._clock.now_ms()
        assert session is not None
        unsent = session.withdraw(place)
        if unsent:
            # Revoked first, or it would be handed to the same owner again.
            self._tell(place, PartitionRevoked(generation), now_ms)
            self._tell(place, Nacked(generation, unsent, now_ms, is_counted=False), now_ms)
        self._tell(place, PartitionReleased(generation, is_counted), now_ms)
        place.session = None
        session.places.remove(place)
        session.tell(Lost(place.number, generation))
        self.wake(session)  # it has credit again for its other partitions

    def tell(self, place: GroupPartition, event: GroupEvent | DeadLettered) -> None:
        """Tell a cursor what the group has decided, or that dead letters are durable."""
        self._tell(place, event, self._clock.now_ms())
        self.readable(place)

    # The log and the time

    def readable(self, place: GroupPartition) -> None:
        """Take note that there may be more to hand out: the log has grown, or there is room."""
        if place.session is not None:
            self.wake(place.session)

    def trim(self, place: GroupPartition, start: int, *, missed: int) -> None:
        """Go on at `start`: what lies below goes, and so many messages of it were never done."""
        place.missed += missed
        self._counters.missed += missed
        self._tell(place, LogTrimmed(start), self._clock.now_ms())
        self.readable(place)

    def tick(self, place: GroupPartition, now_ms: Millis) -> None:
        """Tell a cursor the time."""
        if place.session is not None:
            for queued in place.session.in_line(place):
                if queued.deadline_ms <= now_ms:
                    self._renew(queued, now_ms)
        before = place.cursor.timed_out
        effects = place.cursor.tick(now_ms)
        if place.cursor.timed_out != before:
            self._counters.timed_out += place.cursor.timed_out - before
            place.is_changed = True
            if place.session is not None:
                self.wake(place.session)
        self._perform(place, effects)

    def _renew(self, queued: QueuedDelivery, now_ms: Millis) -> None:
        """Let a lease of messages that have not gone out yet begin anew."""
        queued.deadline_ms = now_ms + self._lease_ms
        event = Extended(queued.generation, list(queued.ranges), queued.deadline_ms)
        self._tell(queued.place, event, now_ms)

    def wake(self, session: Session) -> None:
        """Serve a session soon: in this turn of the loop, or a moment later."""
        if session.ending is not None:
            return
        credit = session.credit
        is_late = credit.held_messages > 0 and credit.free * LITTLE_PARTS < credit.messages_max
        if session.pump is not None:
            if is_late or not session.is_pump_late:
                return
            session.pump.cancel()
        session.is_pump_late = is_late
        loop = asyncio.get_running_loop()
        if is_late:
            session.pump = loop.call_later(SERVE_LATER_S, self._serve, session)
        else:
            session.pump = loop.call_soon(self._serve, session)

    def _serve(self, session: Session) -> None:
        """Hand out what there is, as far as credit reaches, one partition after the other."""
        session.pump = None
        places = [place for place in session.places if place.has_work]
        session.turn += 1
        is_more = False
        for at in range(len(places)):
            if not session.credit.free:
                self._counters.starved += 1
                return
            place = places[(session.turn + at) % len(places)]
            if place.cursor.backlog:
                self.tick(place, self._clock.now_ms())
            is_more |= self._read_on(place, session)
        if is_more:
            self.wake(session)

    def _read_on(self, place: GroupPartition, session: Session) -> bool:
        """Read the log as far as there is room; return whether there is room for more."""
        cursor, credit, now_ms = place.cursor, session.credit, self._clock.now_ms()
        if not cursor.room or not place.is_readable:
            return False
        try:
            found = plan_fetch(
                place.log,
                cursor.read_from,
                room=cursor.room,
                bytes_free=credit.bytes_max - credit.held_bytes,
                now_ms=self._wall.now_ms(),
            )
        except WaterclockError as error:
            place.problem = str(error)
            log.error("unreadable place=%r error=%s", place, error)
            return False
        if found:
            self._tell(place, LogRead(tuple(found)), now_ms)
        return bool(cursor.room) and cursor.read_from < place.log.end

    # Performing

    def _tell(self, place: GroupPartition, event: Event, now_ms: Millis) -> None:
        place.is_changed = True
        self._perform(place, place.cursor.handle(event, now_ms))

    def _perform(self, place: GroupPartition, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Deliver():
                    assert place.session is not None
                    place.session.deliver(place, effect)
                case DeadLetter():
                    self._watcher.died(place, effect)
                case ReportDrained(generation):
                    self._watcher.drained(place, generation)
                case Refuse():
                    pass  # the sender was told
                case _:
                    assert_never(effect)
        self._watcher.due(place.cursor.next_deadline())


def _event(kind: AnswerKind, generation: int, ranges: list[Range], at_ms: int) -> MemberEvent:
    match kind:
        case AnswerKind.ACK:
            return Acked(generation, ranges)
        case AnswerKind.NACK:
            return Nacked(generation, ranges, at_ms or None)
        case AnswerKind.GIVE_BACK:
            return Nacked(generation, ranges, at_ms or None, is_counted=False)
        case AnswerKind.REJECT:
            return Rejected(generation, ranges)
        case AnswerKind.EXTEND:
            return Extended(generation, ranges, at_ms)
        case _:
            assert_never(kind)
