"""The messages of a partition that were handed out and are not done. Each is in one of four states:

    leased    a member holds it until its ack deadline; only these use credit
    waiting   it failed, or was given back, and comes again at its time
    due       that time has come; the next credit is for these, the lowest offset first
    dead      it failed too often and is on its way to the dead letter topic

                  ┌──────── handed out ────────┐
                  ▼                            │
    (fresh) ─▶ leased ── failed, returned ─▶ waiting ─▶ due
                  │ └─── failed too often, rejected ──▶ dead ─── written ─▶ (done)
                  └───── acked ───────────────────────────────────────────▶ (done)

A dead message is no member's concern, and it is done only when its dead letter is durable. Kafka's
share groups let a slow dead letter queue use up their record locks; here it uses none.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from waterclock.delivery.events import (
    Deliver,
    Effect,
    Reason,
    Refuse,
    UnknownLease,
    WriteDeadLetters,
)
from waterclock.delivery.progress import Rows, made_rows
from waterclock.delivery.retries import retry_delay_ms
from waterclock.delivery.spans import Range, SpanMap, Terms, TimedSpans, joined
from waterclock.model.sections import DeliveryConfig

Piece = tuple[int, int, Terms]


class Death(NamedTuple):
    """What the dead letter says."""

    reason: Reason
    attempts: int


class Leases:
    """The four places, and the ways between them."""

    def __init__(self, config: DeliveryConfig, *, has_dead_letters: bool = True) -> None:
        """Without dead letters nothing ever dies: what fails too often, or is rejected, comes again
        after the longest wait there is."""
        self.config = config
        self._has_dead_letters = has_dead_letters
        self.leased = TimedSpans()
        self.waiting = TimedSpans()
        self.due: SpanMap[Terms] = SpanMap()
        self.dead: SpanMap[Death] = SpanMap()

    def __repr__(self) -> str:
        return (
            f"<Leases {self.leased.offsets} leased, {self.waiting.offsets} waiting, "
            f"{self.due.offsets} due, {self.dead.offsets} dead>"
        )

    @property
    def outstanding(self) -> int:
        """How many messages were handed out and are not done."""
        return self.leased.offsets + self.waiting.offsets + self.due.offsets + self.dead.offsets

    def lease(self, start: int, end: int, terms: Terms) -> None:
        """Note that a member has these, until `terms.until_ms`."""
        self.leased.put(start, end, terms)

    def take(self, ranges: Iterable[Range]) -> tuple[list[Piece], list[Range]]:
        """Remove leases; return them, and the parts of the ranges that were not leased."""
        pieces: list[Piece] = []
        unknown: list[Range] = []
        cut = self.leased.cut
        for start, end in ranges:
            found = cut(start, end)
            pieces += found
            if not found or found[0][0] != start or found[-1][1] != end or len(found) > 1:
                unknown += _gaps(start, end, found)
        return pieces, unknown

    def extend(self, ranges: Iterable[Range], *, until_ms: int) -> list[Range]:
        """Move ack deadlines; return the parts of the ranges that were not leased."""
        unknown: list[Range] = []
        for span in ranges:  # one by one: a message named twice is still held the second time
            pieces, strange = self.take([span])
            unknown += strange
            for start, end, terms in pieces:
                self.leased.put(start, end, terms._replace(until_ms=until_ms))
        return unknown

    def fail(
        self, pieces: Iterable[Piece], reason: Reason, *, now_ms: int, retry_at_ms: int | None
    ) -> list[WriteDeadLetters]:
        """Count a failure of leases that were taken: they come again, or are dead."""
        dead: dict[Death, list[Range]] = {}
        for start, end, terms in pieces:
            failed = terms.failed + 1
            if failed > self.config.max_retries:
                if self._has_dead_letters:
                    dead.setdefault(Death(reason, failed), []).append((start, end))
                else:
                    self._put_off((start, end, terms), now_ms)
                continue
            until_ms = retry_at_ms
            if until_ms is None:
                until_ms = now_ms + retry_delay_ms(self.config, offset=start, failed=failed)
            self.waiting.put(start, end, Terms(failed, until_ms, terms.bytes_each))
        return self._declare_dead(dead)

    def reject(self, pieces: Iterable[Piece], *, now_ms: int) -> list[WriteDeadLetters]:
        """Declare leases that were taken dead, however often they failed."""
        dead: dict[Death, list[Range]] = {}
        for start, end, terms in pieces:
            if not self._has_dead_letters:
                self._put_off((start, end, terms), now_ms)
                continue
            death = Death(Reason.REJECTED, terms.failed + 1)
            dead.setdefault(death, []).append((start, end))
        return self._declare_dead(dead)

    def _put_off(self, piece: Piece, now_ms: int) -> None:
        """Have a message that should be dead come again, as late as may be."""
        start, end, terms = piece
        failed = self.config.max_retries
        until_ms = now_ms + self.config.retry_delay_ms_max
        self.waiting.put(start, end, Terms(failed, until_ms, terms.bytes_each))

    def give_back(self, pieces: Iterable[Piece], *, until_ms: int | None) -> None:
        """Let leases that were taken come again, at once or later, without counting a failure."""
        for start, end, terms in pieces:
            if until_ms is None:
                self.due.put(start, end, terms._replace(until_ms=0))
            else:
                self.waiting.put(start, end, terms._replace(until_ms=until_ms))

    def lose(self, pieces: list[Piece], *, now_ms: int, is_counted: bool) -> list[WriteDeadLetters]:
        """Let leases that were taken come again because their owner is gone; if `is_counted`, and
        lost owners are counted at all, the first has failed."""
        lost: list[Piece] = []
        if is_counted and self.config.count_lost_owners and pieces:
            # The first is what the owner was at, for all we know. To count all that it had merely
            # been sent would make dead letters of a thousand messages after a few bad connections.
            (start, end, terms), *pieces = pieces
            lost = [(start, start + 1, terms)]
            if end > start + 1:
                pieces.insert(0, (start + 1, end, terms))
        self.give_back(pieces, until_ms=None)
        return self.fail(lost, Reason.OWNER_LOST, now_ms=now_ms, retry_at_ms=None)

    def recall(self, piece: Piece, reason: Reason | None) -> list[WriteDeadLetters]:
        """Take up a message where a former run of the node left it."""
        start, end, terms = piece
        if terms.failed > self.config.max_retries:  # there were more before a restart
            reason = reason or Reason.NACKED
        if reason is None or not self._has_dead_letters:
            failed = min(terms.failed, self.config.max_retries)
            self.waiting.put(start, end, terms._replace(failed=failed))
            return []
        return self._declare_dead({Death(reason, terms.failed): [(start, end)]})

    def wake(self, now_ms: int) -> None:
        """Make due what has waited long enough."""
        for start, end, terms in self.waiting.expire(now_ms):
            self.due.put(start, end, terms._replace(until_ms=0))

    def lease_due(
        self, take: Callable[[int, int], int], *, until_ms: int
    ) -> Iterator[tuple[int, Range]]:
        """Lease what is due, as far as `take` (messages, bytes_each) allows; yield failures and
        ranges."""
        while self.due:
            start, end, terms = self.due.first()
            taken_end = start + take(end - start, terms.bytes_each)
            if taken_end == start:
                return
            self.due.cut(start, taken_end)
            self.lease(start, taken_end, terms._replace(until_ms=until_ms))
            yield terms.failed, (start, taken_end)

    def forget_waiting(self, end: int) -> list[Range]:
        """Remove what is below `end` and would have come again; return it."""
        return [piece[:2] for piece in (*self.waiting.cut(0, end), *self.due.cut(0, end))]

    def forget(self, start: int, end: int) -> tuple[list[Piece], list[Range]]:
        """Remove all that is known of a range; return what was leased, and all that was here."""
        leased = self.leased.cut(start, end)
        others = (*self.waiting.cut(start, end), *self.due.cut(start, end))
        dead = self.dead.cut(start, end)
        return leased, [piece[:2] for piece in (*leased, *others, *dead)]

    def past_rows(self) -> list[Rows]:
        """Return what must be known of these messages after a restart."""
        found = []
        for spans in (self.leased, self.due, self.waiting):
            starts, ends, values = spans.columns()
            failed = [terms.failed for terms in values]
            is_waiting = spans is self.waiting
            until = [terms.until_ms for terms in values] if is_waiting else 0
            rows = made_rows(starts, ends, until=until, failed=failed, reason=0)
            # What merely was handed out, or given back, is handed out as if it were new.
            found.append(rows if is_waiting else rows[rows["failed"] > 0])
        starts, ends, deaths = self.dead.columns()
        attempts = [death.attempts for death in deaths]
        reasons = [int(death.reason) for death in deaths]
        found.append(made_rows(starts, ends, until=0, failed=attempts, reason=reasons))
        return found

    def next_deadline(self) -> int | None:
        """Return when a lease or a wait may end."""
        times = (self.leased.next_deadline(), self.waiting.next_deadline())
        return min((ms for ms in times if ms is not None), default=None)

    def check_invariants(self) -> None:
        """Fail if a message is in two places, or has failed more often than it may."""
        for spans in (self.leased, self.waiting, self.due, self.dead):
            spans.check_invariants()
        pending = [*self.leased, *self.waiting, *self.due]
        everything = sorted([span[:2] for span in pending] + [span[:2] for span in self.dead])
        at = 0
        for start, end in everything:
            assert at <= start, f"[{start}, {end}) is in two places"
            at = end
        assert all(terms.failed <= self.config.max_retries for _, _, terms in pending)

    def _declare_dead(self, dead: dict[Death, list[Range]]) -> list[WriteDeadLetters]:
        effects = []
        for death, ranges in dead.items():
            for start, end in ranges:
                self.dead.put(start, end, death)
            effects.append(WriteDeadLetters(joined(sorted(ranges)), death.reason, death.attempts))
        return effects


def deliveries(
    generation: int, taken: Iterable[tuple[int, Range]], *, deadline_ms: int
) -> list[Deliver]:
    """Return what to send, given failures so far and ranges: one for each attempt."""
    attempts: dict[int, list[Range]] = {}
    for failed, span in taken:
        attempts.setdefault(failed + 1, []).append(span)
    return [
        Deliver(generation, joined(ranges), attempt, deadline_ms)
        for attempt, ranges in attempts.items()
    ]


def refusal(unknown: list[Range]) -> list[Effect]:
    """Return the refusal of messages that the member named and does not hold."""
    return [Refuse(UnknownLease(tuple(unknown)))] if unknown else []


def _gaps(start: int, end: int, pieces: Iterable[Piece]) -> list[Range]:
    """Return the parts of [start, end) between the pieces; a range that is none is all gap."""
    gaps = []
    at = start
    for low, high, _ in pieces:
        if at < low:
            gaps.append((at, low))
        at = high
    if at < end or start >= end:
        gaps.append((at, end))
    return gaps
