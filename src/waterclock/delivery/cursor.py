"""One group in one partition: what is handed out next, to whom, and what is done.

The shell reads the log to the cursor in order, from `read_from` on: ranges to deliver or to skip.
It hands them to the member that owns the partition, as far as credit reaches, and keeps a message
in mind until it is acked or durably dead (`leases.py`). Rules:

- At least once. An offset is done when it was acked, written to the dead letter topic, or had
  nothing to deliver; everything else is handed out again, also after a restart from `encode`.
- First deliveries are in log order. What comes again is handed out before anything new.
- Never more in a member's hands than its credit, nor than `unacked_max`.
- The cursor takes answers of the generation that owns the partition, and refuses all others.
- Progress is bounded by holding back, never by forgetting. Each run of done offsets has an
  outstanding message below it, so with at most `runs_max` of these there are no more runs. What is
  to be skipped is for this reason marked done in its turn, not when it is read.
"""

from collections.abc import Iterable, Iterator
from typing import assert_never

from waterclock.delivery.credits import Credit
from waterclock.delivery.events import (
    Acked,
    DeadLettered,
    Effect,
    Event,
    Extended,
    LogRead,
    LogTrimmed,
    MemberEvent,
    Nacked,
    PartitionAssigned,
    PartitionReleased,
    PartitionRevoked,
    RangeReadable,
    RangeSkipped,
    Reason,
    Refuse,
    Rejected,
    ReportDrained,
    RevocationCancelled,
    StaleGeneration,
    WriteDeadLetters,
)
from waterclock.delivery.leases import Leases, Piece, deliveries, refusal
from waterclock.delivery.progress import (
    Past,
    decode_progress,
    empty_tracker,
    encode_progress,
    rows_of,
)
from waterclock.delivery.read_queue import SKIP, ReadQueue
from waterclock.delivery.retries import retry_delay_ms
from waterclock.delivery.spans import Range, SpanMap, Terms, joined
from waterclock.model.ids import Millis, Offset
from waterclock.model.sections import DeliveryConfig


class Cursor:
    """A group's position in a partition. Begin reading the log at `read_from`."""

    def __init__(
        self, config: DeliveryConfig, *, committed: int = 0, has_dead_letters: bool = True
    ) -> None:
        self._config = config
        self._tracker = empty_tracker(committed)
        self._leases = Leases(config, has_dead_letters=has_dead_letters)
        self._read_queue = ReadQueue(committed)
        # From before a restart, about what has not been read again yet.
        self._past: SpanMap[Past] = SpanMap()
        self._generation: int | None = None
        self._generation_min = 0
        self._credit: Credit | None = None
        self._is_draining = False
        self._is_drained = False
        self.timed_out = 0
        """Messages whose lease ended without an answer, so far."""

    @classmethod
    def decode(
        cls,
        data: bytes,
        config: DeliveryConfig,
        *,
        log_end: int | None = None,
        has_dead_letters: bool = True,
    ) -> "Cursor":
        """Return a cursor that goes on where `encode` was called; BadInput if it is not one.

        Say where the log ends if it may have lost its tail: new messages will have the offsets that
        were lost, so nothing of what was known about these must be left.
        """
        tracker, past = decode_progress(data, log_end=log_end)
        cursor = cls(config, committed=tracker.committed, has_dead_letters=has_dead_letters)
        cursor._tracker = tracker
        cursor._read_queue = ReadQueue(tracker.committed, done_before=tracker.runs())
        for start, end, what in past:
            cursor._past.put(start, end, what)
        return cursor

    def __repr__(self) -> str:
        return (
            f"<Cursor at {self.committed}, read to {self._read_queue.read_end}, {self._leases!r}>"
        )

    # What a shell may ask

    @property
    def committed(self) -> Offset:
        """Everything below this is done."""
        return self._tracker.committed

    @property
    def read_from(self) -> Offset:
        """Where the next range from the log must start."""
        return Offset(self._read_queue.read_end)

    @property
    def generation(self) -> int | None:
        """The generation of the owner; None if nobody owns the partition."""
        return self._generation

    @property
    def room(self) -> int:
        """How many messages could be handed out now if they were read. Read the log only if this is
        not 0: nothing is gained by reading ahead of it."""
        if (
            self._credit is None
            or self._is_draining
            or self._leases.due
            or self._read_queue.messages
        ):
            return 0
        room = min(
            self._credit.messages_max - self._credit.held_messages,
            self._config.unacked_max - self._leases.leased.offsets,
            self._config.runs_max - self._leases.outstanding,
        )
        return max(0, room)

    @property
    def unacked(self) -> int:
        """How many messages the owner holds."""
        return self._leases.leased.offsets

    @property
    def backlog(self) -> int:
        """How many messages stand ready and only want for credit."""
        return self._read_queue.messages + self._leases.due.offsets

    @property
    def waiting(self) -> int:
        """How many messages wait for a retry, or to be written to the dead letter topic."""
        return self._leases.outstanding - self._leases.leased.offsets

    @property
    def has_waits(self) -> bool:
        """Tell whether a message waits, or did before a restart and has not been read again."""
        return self.waiting > 0 or bool(self._past)

    def lag(self, end: int) -> int:
        """Return how many offsets below `end` are not done."""
        return sum(high - low for low, high in self._tracker.missing(end))

    def untaken(self, end: int) -> list[Range]:
        """Return what below `end` is neither done nor in the owner's hands."""
        return self._leases.leased.part(self._tracker.missing(end))[1]

    def configure(self, config: DeliveryConfig) -> None:
        """Go on under other settings; what was handed out before keeps its terms."""
        self._config = self._leases.config = config

    def encode(self, *, shift_ms: int = 0) -> bytes:
        """Return progress as bytes, for `decode` after a restart; its times are moved by a shift.

        After the restart they mean the wall clock's time, whatever clock `now_ms` came from before.
        """
        rows = (*self._leases.past_rows(), rows_of(self._past))
        return encode_progress(self._tracker, *rows, shift_ms=shift_ms)

    # The contract of every core

    def handle(self, event: Event, now_ms: Millis) -> list[Effect]:
        """Take note of what happened; return what to do, in this order."""
        effects: list[Effect] = []
        match event:
            case LogRead(ranges):
                for read in ranges:
                    effects += self._read(read)
            case LogTrimmed(start):
                self._trim(start)
            case DeadLettered(ranges):
                self._settle_dead(ranges)
            case PartitionAssigned(generation, credit):
                self._assign(generation, credit)
            case PartitionRevoked(generation):
                if generation == self._generation:
                    self._is_draining = True
            case RevocationCancelled(generation):
                if generation == self._generation:
                    self._is_draining = self._is_drained = False
            case PartitionReleased(generation, is_counted):
                if generation == self._generation:
                    effects += self._release(now_ms, is_counted=is_counted)
            case Acked() | Nacked() | Rejected() | Extended():
                if event.generation != self._generation:
                    return [Refuse(StaleGeneration(event.generation, self._generation))]
                effects += self._answer(event, now_ms)
            case _:
                assert_never(event)
        effects += self._go_on(now_ms)
        return effects

    def tick(self, now_ms: Millis) -> list[Effect]:
        """Return what the time asks for: leases that ended, retries, credit that became free."""
        ended = self._leases.leased.expire(now_ms)
        effects: list[Effect] = []
        if ended:
            self._free(ended)
            self.timed_out += sum(end - start for start, end, _ in ended)
            effects += self._leases.fail(ended, Reason.TIMED_OUT, now_ms=now_ms, retry_at_ms=None)
        effects += self._go_on(now_ms)
        return effects

    def next_deadline(self) -> Millis | None:
        """Return when to tick, if nothing else happens before."""
        deadline = self._leases.next_deadline()
        return None if deadline is None else Millis(deadline)

    def check_invariants(self) -> None:
        """Fail if an offset is neither done nor leased, queued, waiting or dead, or is both."""
        leases = self._leases
        leases.check_invariants()
        self._tracker.check_invariants()
        self._read_queue.check_invariants()
        spans: list[Range] = [s[:2] for s in (*leases.leased, *leases.waiting, *leases.due)]
        spans += [s[:2] for s in leases.dead]
        spans += [s[:2] for s in self._read_queue]
        missing = [r for r in self._tracker.missing(self._read_queue.read_end) if r[0] < r[1]]
        assert joined(sorted(spans)) == tuple(missing), (sorted(spans), missing)
        assert not self._leases.leased or self._generation is not None
        assert self._leases.leased.offsets <= self._config.unacked_max
        if self._credit is not None:
            assert self._leases.leased.offsets <= self._credit.held_messages

    # Reading

    def _read(self, read: RangeReadable | RangeSkipped) -> list[WriteDeadLetters]:
        effects: list[WriteDeadLetters] = []
        bytes_each = SKIP
        if isinstance(read, RangeReadable):
            bytes_each = -(-read.size_bytes // max(1, read.end - read.start))
        else:
            self._drop(read.start, min(read.end, self._read_queue.read_end))
        for start, end in self._read_queue.advance(read.start, read.end):
            effects += self._enqueue(start, end, bytes_each)
        return effects

    def _enqueue(self, start: int, end: int, bytes_each: int) -> list[WriteDeadLetters]:
        """Take up what has a past where it stood; queue the rest."""
        effects: list[WriteDeadLetters] = []
        for low, high, past in self._past.cut(start, end):
            if bytes_each == SKIP:
                continue  # the message is gone from the log, and its past with it
            self._read_queue.append(start, low, bytes_each)
            start = high
            piece = low, high, Terms(past.failed, past.until_ms, bytes_each)
            effects += self._leases.recall(piece, past.reason)
        self._read_queue.append(start, end, bytes_each)
        return effects

    def _drop(self, start: int, end: int) -> None:
        """Make a range done that was read before, wherever its messages are."""
        if start >= end:
            return
        leased, outstanding = self._leases.forget(start, end)
        self._free(leased)
        for low, high in outstanding:
            self._tracker.add(low, high)
        self._read_queue.skip(start, end)

    def _trim(self, start: int) -> None:
        for low, high in self._leases.forget_waiting(start):
            self._tracker.add(low, high)
        self._read_queue.skip(0, start)
        if self._read_queue.read_end < start:
            self._read(RangeSkipped(self._read_queue.read_end, start))

    # The owner

    def _assign(self, generation: int, credit: Credit) -> None:
        assert generation >= self._generation_min, f"generation {generation} was there before"
        if self._generation is not None:
            self._release(0, is_counted=False)
        self._generation, self._generation_min = generation, generation + 1
        self._credit = credit
        self._is_draining = self._is_drained = False

    def _release(self, now_ms: int, *, is_counted: bool) -> list[WriteDeadLetters]:
        held = list(self._leases.leased)
        self._leases.take([piece[:2] for piece in held])
        self._free(held)
        self._generation, self._credit = None, None
        self._is_draining = self._is_drained = False
        return self._leases.lose(held, now_ms=now_ms, is_counted=is_counted)

    def _answer(self, event: MemberEvent, now_ms: int) -> list[Effect]:
        """Do what the owner says, and refuse what it says of messages it does not hold."""
        config, leases = self._config, self._leases
        if isinstance(event, Extended):
            until_ms = min(event.deadline_ms, now_ms + config.lease_ms_max)
            return refusal(leases.extend(event.ranges, until_ms=until_ms))
        pieces, unknown = leases.take(event.ranges)
        self._free(pieces)
        effects = refusal(unknown)
        match event:
            case Acked():
                add = self._tracker.add
                for start, end, _ in pieces:
                    add(start, end)
            case Rejected():
                effects += leases.reject(pieces, now_ms=now_ms)
            case Nacked(_, _, retry_at_ms, is_counted):
                if retry_at_ms is not None:
                    retry_at_ms = max(now_ms, min(retry_at_ms, now_ms + config.retry_ahead_ms_max))
                if is_counted:
                    effects += leases.fail(
                        pieces, Reason.NACKED, now_ms=now_ms, retry_at_ms=retry_at_ms
                    )
                else:
                    # Not at once: a member that gives back what it gets would go in circles.
                    default_ms = now_ms + retry_delay_ms(config, offset=self.committed, failed=0)
                    until_ms = default_ms if retry_at_ms is None else retry_at_ms
                    leases.give_back(pieces, until_ms=until_ms)
            case _:
                assert_never(event)
        return effects

    def _free(self, pieces: Iterable[Piece]) -> None:
        assert self._credit is not None or not pieces
        if self._credit is not None:
            messages = size = 0
            for start, end, terms in pieces:
                messages += end - start
                size += (end - start) * terms.bytes_each
            self._credit.give(messages, bytes=size)

    def _settle_dead(self, ranges: Iterable[Range]) -> None:
        for start, end in ranges:
            for low, high, _ in self._leases.dead.cut(start, end):
                self._tracker.add(low, high)

    # Handing out

    def _go_on(self, now_ms: int) -> list[Effect]:
        self._leases.wake(now_ms)
        self._pass_gaps()
        effects: list[Effect] = []
        if self._generation is not None:
            until_ms = now_ms + self._config.ack_timeout_ms
            if self._leases.due:
                again = self._leases.lease_due(self._take_credit, until_ms=until_ms)
                effects += deliveries(self._generation, again, deadline_ms=until_ms)
            if self._read_queue and not self._leases.due:
                fresh = self._next_ahead(until_ms)
                effects += deliveries(self._generation, fresh, deadline_ms=until_ms)
        if self._is_draining and not self._is_drained and not self._leases.leased:
            assert self._generation is not None
            self._is_drained = True
            effects.append(ReportDrained(self._generation))
        return effects

    def _next_ahead(self, until_ms: int) -> Iterator[tuple[int, Range]]:
        while self._read_queue:
            start, end, bytes_each = self._read_queue.first()
            most = min(end - start, self._config.runs_max - self._leases.outstanding)
            count = self._take_credit(most, bytes_each)
            if not count:
                return
            self._read_queue.take(count)
            self._leases.lease(start, start + count, Terms(0, until_ms, bytes_each))
            yield 0, (start, start + count)
            self._pass_gaps()

    def _pass_gaps(self) -> None:
        """Mark done what is first in the queue with nothing to deliver."""
        while self._read_queue and self._read_queue.first()[2] == SKIP:
            start, end, _ = self._read_queue.first()
            self._tracker.add(start, end)
            self._read_queue.take(end - start)

    def _take_credit(self, messages: int, bytes_each: int) -> int:
        messages = min(messages, self._config.unacked_max - self._leases.leased.offsets)
        if self._credit is None or self._is_draining or messages <= 0:
            return 0
        return self._credit.take(messages, bytes_each=bytes_each)
