"""Delivery to the members of a group: the log is read for them, and their answers are taken.

The cursors decide (`delivery/cursor.py`); what they decide is performed at once, in the turn of the
loop in which they decided. A session is pumped (`wake`) when the log has grown, when the member has
answered and when its credit has changed: once a turn for all of these, each time beginning with
another of its partitions. If it has little credit free it is pumped a moment later, with more: a
member that acks one message at a time must not be sent one message at a time.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, assert_never

from waterclock.delivery.events import (
    Acked,
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
    WriteDeadLetters,
)
from waterclock.delivery.spans import Range, joined
from waterclock.model.clock import Clock, SteadyClock
from waterclock.model.errors import BadInput, WaterclockError
from waterclock.model.ids import Millis
from waterclock.model.limits import check
from waterclock.model.sections import DeliveryConfig
from waterclock.node.groups.fetch_plan import plan_fetch
from waterclock.node.groups.outbound import Assigned, Delivery, Lost, Refused, read_batch
from waterclock.node.groups.partition import GroupPartition
from waterclock.node.groups.session import AnswerKind, QueuedDelivery, Session

if TYPE_CHECKING:
    from waterclock.node.groups.host import GroupHost

PUMP_LATER_S = 0.002
"""How long a session with little free credit waits for more of it."""
LITTLE_PARTS = 4
"""Less than this part of its credit is little."""
RANGES_MAX = 20_000
"""Most ranges of an answer, unless a member may hold more messages than that: each takes about a
microsecond."""

log = logging.getLogger("waterclock.delivery")


class GroupDelivery:
    """Drives the cursors of a group."""

    def __init__(
        self, host: "GroupHost", config: DeliveryConfig, wall: Clock, clock: SteadyClock
    ) -> None:
        self.config = config
        self._host = host
        self._wall = wall
        """For the expiry of messages. Everything else goes by the other clock."""
        self._clock = clock
        self._counters = host.counters

    # From members

    def answer(
        self,
        session: Session,
        kind: AnswerKind,
        number: int,
        generation: int,
        ranges: Sequence[Range],
        *,
        at_ms: int,
        after_ms: int,
    ) -> None:
        """Pass the owner's answer to the cursor of a partition; refuse what others say."""
        partitions = self._host.partitions
        if not 0 <= number < len(partitions):
            raise BadInput(f"partition {number}: the topic has {len(partitions)}")
        partition = partitions[number]
        check("ranges of an answer", len(ranges), max(RANGES_MAX, self.config.unacked_max))
        if any(start >= end for start, end in ranges):
            raise BadInput("ranges of an answer: a range must end behind its start")
        if partition.session is not session:
            self._counters.refused += 1
            session.refuse(Refused(partition.number, generation, (), is_stale=True))
            return
        if after_ms:
            at_ms = self._clock.now_ms() + after_ms
        elif at_ms:
            at_ms = max(1, at_ms - self._clock.set_by_ms())
        if partition.unsent and generation == partition.cursor.generation:
            ranges = self._sent(session, partition, generation, ranges)
        event = _event(kind, generation, list(ranges), at_ms)
        effects = partition.cursor.handle(event, self._clock.now_ms())
        named = sum(end - start for start, end in ranges)
        for effect in effects:
            if isinstance(effect, Refuse):
                named -= self._refuse(session, partition, generation, effect)
        self._count(kind, named)
        partition.is_changed = True
        self._perform(partition, effects)
        self.wake(session)

    def _sent(
        self, session: Session, partition: GroupPartition, generation: int, ranges: Sequence[Range]
    ) -> Sequence[Range]:
        """Refuse what is still queued, of which the member cannot know; return the rest.

        Were it believed, a message given back would be queued once more each time.
        """
        if max((end for _, end in ranges), default=0) <= partition.unsent.first()[0]:
            return ranges  # as nearly always
        unsent, sent = partition.unsent.part(ranges)
        if unsent:
            self._counters.refused += 1
            session.refuse(Refused(partition.number, generation, joined(unsent), is_stale=False))
        return sent

    def _refuse(
        self, session: Session, partition: GroupPartition, generation: int, effect: Refuse
    ) -> int:
        """Send the member a refusal; return how many messages it named in vain."""
        self._counters.refused += 1
        if isinstance(effect.problem, StaleGeneration):
            session.refuse(Refused(partition.number, generation, (), is_stale=True))
            return 0
        unknown = effect.problem.ranges
        session.refuse(Refused(partition.number, generation, unknown, is_stale=False))
        return sum(end - start for start, end in unknown)

    def _count(self, kind: AnswerKind, messages: int) -> None:
        counters = self._counters
        counters.acked += messages if kind is AnswerKind.ACK else 0
        counters.nacked += messages if kind is AnswerKind.NACK else 0
        counters.rejected += messages if kind is AnswerKind.REJECT else 0

    def hand_out(self, queued: QueuedDelivery) -> Delivery | None:
        """Read the next queued messages from the log; None if those had all disappeared."""
        partition, now_ms = queued.partition, self._clock.now_ms()
        found = read_batch(partition.log, queued.ranges, self._wall.now_ms())
        queued.drop_below(found.end)
        if found.gone:
            self._counters.expired += found.expired
            missed = sum(end - start for start, end in found.gone) - found.expired
            self._counters.missed += missed
            partition.missed += missed
            skipped = tuple(RangeSkipped(start, end) for start, end in found.gone)
            self._handle(partition, LogRead(skipped), now_ms)
            self.readable(partition)  # there is room for others now
        batch = found.messages
        if batch is None:
            return None
        self._counters.delivered += batch.count
        self._counters.delivered_bytes += batch.size_bytes
        self._counters.redelivered += batch.count if queued.attempt > 1 else 0
        # The lease is the member's, not the queue's: it begins anew for what was queued for long.
        deadline_ms = queued.deadline_ms
        if deadline_ms - now_ms < self._lease_ms * 3 // 4:
            deadline_ms = now_ms + self._lease_ms
            self._handle(partition, Extended(queued.generation, batch.ranges, deadline_ms), now_ms)
        ends_ms = deadline_ms + self._clock.set_by_ms()
        return Delivery(
            partition.number,
            queued.generation,
            queued.attempt,
            ends_ms,
            deadline_ms - now_ms,
            batch,
        )

    def give_back_unsent(self, session: Session) -> None:
        """Take back what a session has queued; it is due at once, and nothing is counted."""
        now_ms = self._clock.now_ms()
        for partition in [each for each in session.partitions if each.unsent]:
            generation, unsent = partition.cursor.generation, session.withdraw(partition)
            if unsent and generation is not None:
                nacked = Nacked(generation, unsent, now_ms, is_counted=False)
                self._handle(partition, nacked, now_ms)

    @property
    def _lease_ms(self) -> int:
        return min(self.config.ack_timeout_ms, self.config.lease_ms_max)

    # From the group

    def assign(self, partition: GroupPartition, session: Session, generation: int) -> None:
        """Have a session own a partition."""
        partition.session = session
        session.partitions.append(partition)
        session.notify(Assigned(partition.number, generation, partition.cursor.committed))
        self.handle(partition, PartitionAssigned(generation, session.credit))

    def release(self, partition: GroupPartition, generation: int, *, is_counted: bool) -> None:
        """Have a partition owned by no session. What never went out is not counted against it."""
        session, now_ms = partition.session, self._clock.now_ms()
        assert session is not None
        unsent = session.withdraw(partition)
        if unsent:
            # Revoked first, or it would be handed to the same owner again.
            self._handle(partition, PartitionRevoked(generation), now_ms)
            self._handle(partition, Nacked(generation, unsent, now_ms, is_counted=False), now_ms)
        self._handle(partition, PartitionReleased(generation, is_counted), now_ms)
        partition.session = None
        session.partitions.remove(partition)
        session.notify(Lost(partition.number, generation))
        self.wake(session)  # it has credit again for its other partitions

    def handle(self, partition: GroupPartition, event: GroupEvent | DeadLettered) -> None:
        """Pass on what the group has decided, or that dead letters are durable."""
        self._handle(partition, event, self._clock.now_ms())
        self.readable(partition)

    # The log and the time

    def readable(self, partition: GroupPartition) -> None:
        """Wake the owner's session: the log has grown, or there is room."""
        if partition.session is not None:
            self.wake(partition.session)

    def trim(self, partition: GroupPartition, start: int, *, missed: int) -> None:
        """Go on at `start`: what lies below goes, and so many messages of it were never done."""
        partition.missed += missed
        self._counters.missed += missed
        self._handle(partition, LogTrimmed(start), self._clock.now_ms())
        self.readable(partition)

    def tick(self, partition: GroupPartition, now_ms: Millis) -> None:
        """Have a cursor do what the time asks for."""
        if partition.session is not None:
            for queued in partition.session.queued(partition):
                if queued.deadline_ms <= now_ms:
                    self._renew(queued, now_ms)
        before = partition.cursor.timed_out
        effects = partition.cursor.tick(now_ms)
        if partition.cursor.timed_out != before:
            self._counters.timed_out += partition.cursor.timed_out - before
            partition.is_changed = True
            if partition.session is not None:
                self.wake(partition.session)
        self._perform(partition, effects)

    def _renew(self, queued: QueuedDelivery, now_ms: Millis) -> None:
        """Let a lease of messages that have not gone out yet begin anew."""
        queued.deadline_ms = now_ms + self._lease_ms
        event = Extended(queued.generation, list(queued.ranges), queued.deadline_ms)
        self._handle(queued.partition, event, now_ms)

    def wake(self, session: Session) -> None:
        """Pump a session soon: in this turn of the loop, or a moment later."""
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
            session.pump = loop.call_later(PUMP_LATER_S, self._pump, session)
        else:
            session.pump = loop.call_soon(self._pump, session)

    def _pump(self, session: Session) -> None:
        """Hand out what there is, as far as credit reaches, one partition after the other."""
        session.pump = None
        partitions = [partition for partition in session.partitions if partition.has_work]
        session.turn += 1
        is_more = False
        for at in range(len(partitions)):
            if not session.credit.free:
                self._counters.starved += 1
                return
            partition = partitions[(session.turn + at) % len(partitions)]
            if partition.cursor.backlog:
                self.tick(partition, self._clock.now_ms())
            is_more |= self._read_on(partition, session)
        if is_more:
            self.wake(session)

    def _read_on(self, partition: GroupPartition, session: Session) -> bool:
        """Read the log as far as there is room; return whether there is room for more."""
        cursor, credit, now_ms = partition.cursor, session.credit, self._clock.now_ms()
        if not cursor.room or not partition.is_readable:
            return False
        try:
            found = plan_fetch(
                partition.log,
                cursor.read_from,
                room=cursor.room,
                bytes_free=credit.bytes_max - credit.held_bytes,
                now_ms=self._wall.now_ms(),
            )
        except WaterclockError as error:
            partition.problem = str(error)
            log.error("unreadable partition=%r error=%s", partition, error)
            return False
        if found:
            self._handle(partition, LogRead(tuple(found)), now_ms)
        # Where nothing was found, it is on its way here from another node, or will be: the copy
        # here turned out to be damaged.
        return bool(found and cursor.room) and cursor.read_from < partition.log.end

    # Performing

    def _handle(self, partition: GroupPartition, event: Event, now_ms: Millis) -> None:
        partition.is_changed = True
        self._perform(partition, partition.cursor.handle(event, now_ms))

    def _perform(self, partition: GroupPartition, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Deliver():
                    assert partition.session is not None
                    partition.session.deliver(partition, effect)
                case WriteDeadLetters():
                    self._host.write_dead_letters(partition, effect)
                case ReportDrained(generation):
                    self._host.drained(partition, generation)
                case Refuse():
                    pass  # the member has its refusal
                case _:
                    assert_never(effect)
        self._host.tick_by(partition.cursor.next_deadline())


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
