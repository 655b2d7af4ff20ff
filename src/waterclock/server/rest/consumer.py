"""A consumer over HTTP: a member of a group whose session lives on between its requests.

Polls and event streams wait in a queue. The first gets credit for what it asked for, and nothing is
delivered that nobody asked for; a waiter that holds as much as it may is passed over. A delivered
message has a lease, named

    <partition>-<generation>-<offset>-<attempt>

which ends with its deadline, as everywhere. The consumer remembers the attempts it has delivered:
an answer that comes too late must not count for the next attempt at the same message.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from waterclock.model.clock import SteadyClock
from waterclock.model.errors import WaterclockError
from waterclock.model.units import MIB, MINUTE_MS
from waterclock.node.groups.outbound import Delivery, Lost, Refused
from waterclock.node.groups.session import AnswerKind, Session
from waterclock.server.rows import append_times_of, fields_of
from waterclock.server.statuses import session_error

TAKEN_BYTES = 16 * MIB
"""About how much is delivered at a time; at least what one message may have, or such a message
would wait until nothing else is held."""
FORGET_MS = 1 * MINUTE_MS
"""How long after its deadline an attempt is remembered."""
DEAD_MAX = 64
"""Waiters that have left stay in the queue until there are so many, and as many as are waiting."""


class Lease(NamedTuple):
    """A message that was delivered and is not answered for."""

    partition: int
    generation: int
    offset: int
    attempt: int

    def __str__(self) -> str:
        return "-".join(map(str, self))


class DeliveredMessage(NamedTuple):
    """A message on its way to a consumer."""

    lease: Lease
    deadline_ms: int
    """In the time of the wall, for people."""
    ends_ms: int
    """The same by the clock that measures leases."""
    row: tuple[Any, ...]
    """Id, key, value, headers and due time."""
    appended_ms: int
    """When it was stored, to be delivered."""


class Waiter(Protocol):
    """A poll or an event stream that waits for messages."""

    limit: int
    """How many it takes."""
    is_over: bool
    """It does not wait any more."""

    def credit(self, held: int) -> int:
        """Return how many messages the consumer may hold for it, given how many it holds."""
        ...

    def take(self, messages: list[DeliveredMessage]) -> bool:
        """Take messages; False if the client has gone."""
        ...

    def fail(self, error: WaterclockError) -> None: ...


class Key(NamedTuple):
    """Names a consumer."""

    topic: str
    group: str
    consumer: str


class HttpConsumer:
    """One session, and the queue of those who wait for its messages. Keep `run` running."""

    def __init__(
        self, key: Key, session: Session, clock: SteadyClock, *, taken_bytes: int = TAKEN_BYTES
    ) -> None:
        self.key = key
        self.session = session
        self.used_ms = clock.now_ms()
        """When the last request came."""
        self._clock = clock
        """The clock of the group: setting the wall clock ends no lease, and forgets none."""
        self._taken_bytes = taken_bytes
        self._waiters: deque[Waiter] = deque()
        self._dead = 0
        self._over: deque[DeliveredMessage] = deque()
        """Taken from the session beyond what the first waiter wanted."""
        self._attempts: dict[tuple[int, int], tuple[int, int, int]] = {}
        """By partition and offset: generation, attempt and end of what was delivered."""
        self._refused: list[Refused] = []
        session.on_refused = self._refused.append

    def __repr__(self) -> str:
        return f"<HttpConsumer {'/'.join(self.key)} {len(self._waiters)} waiting {self.session!r}>"

    @property
    def is_in_use(self) -> bool:
        """A request waits, or messages are held."""
        return bool(self._waiters) or self.session.credit.held_messages > 0

    async def run(self) -> None:
        """Deliver until the session is over, then fail all waiters with the reason."""
        session = self.session
        while session.ending is None:
            self.serve()
            if session.ending is None:
                await session.ready()
        self.fail(session_error(session.ending, self.key.topic))

    # Waiters

    def add(self, waiter: Waiter) -> None:
        """Queue a waiter; it may be served at once. Raises why if the session is over."""
        if self.session.ending is not None:
            raise session_error(self.session.ending, self.key.topic)
        self.used_ms = self._clock.now_ms()
        self._waiters.append(waiter)
        self.serve()

    def left(self) -> None:
        """Note that a waiter does not wait any more."""
        self._dead += 1
        if self._dead > max(DEAD_MAX, len(self._waiters) // 2):
            self._waiters = deque(waiter for waiter in self._waiters if not waiter.is_over)
            self._dead = 0
        self.used_ms = self._clock.now_ms()
        self.serve()

    def fail(self, error: WaterclockError) -> None:
        """Fail all waiters."""
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.is_over:
                waiter.fail(error)
        self._set_credit()
        self._give_back_surplus()

    def serve(self) -> None:
        """Give waiters what there is, in their order, passing over those who hold enough."""
        while self.session.ending is None:
            held = self._unanswered
            waiter = self._next_waiter(held)
            if waiter is None:
                break
            messages = self._collect(min(waiter.limit, waiter.credit(held) - held))
            if not messages:
                break
            self._waiters.remove(waiter)
            if not waiter.take(messages):
                self._answer(AnswerKind.GIVE_BACK, [one.lease for one in messages])
        self._set_credit()
        if not self._waiters:
            self._give_back_surplus()

    @property
    def _unanswered(self) -> int:
        """How many messages were delivered and are not answered for."""
        session = self.session
        return session.credit.held_messages - session.unsent_messages - len(self._over)

    def _next_waiter(self, held: int) -> Waiter | None:
        """Return the first waiter that may get more."""
        waiters = self._waiters
        while waiters and waiters[0].is_over:
            waiters.popleft()
        able = (each for each in waiters if not each.is_over and each.credit(held) > held)
        return next(able, None)

    def _set_credit(self) -> None:
        session, credit = self.session, self.session.credit
        messages = size = 0
        if self._waiters:
            held = self._unanswered
            # If nobody may get more, as much as the first may have once leases end.
            waiter = self._next_waiter(held) or (self._waiters[0] if self._waiters else None)
            if waiter is not None:
                messages = waiter.credit(held)
                size = credit.held_bytes + self._taken_bytes
        if (messages, size) != (credit.messages_max, credit.bytes_max):
            session.set_credit(messages, size)

    # Messages

    def _collect(self, limit: int) -> list[DeliveredMessage]:
        found: list[DeliveredMessage] = []
        now_ms = self._clock.now_ms()
        while len(found) < limit:
            if self._over:
                delivered = self._over.popleft()
                if delivered.ends_ms > now_ms:
                    self._attempts[delivered.lease.partition, delivered.lease.offset] = (
                        delivered.lease.generation,
                        delivered.lease.attempt,
                        delivered.ends_ms,
                    )
                    found.append(delivered)
                continue
            item = self.session.take()
            if item is None:
                break
            if isinstance(item, Delivery):
                self._over.extend(_delivered(item, now_ms + item.lease_ms))
            elif isinstance(item, Lost):
                self._over = deque(h for h in self._over if h.lease.partition != item.partition)
        return found

    def _give_back_surplus(self) -> None:
        """Give back what nobody waits for, once there is no credit: else more would come for it.

        What was never sent has no lease that ends, and would be kept from others for ever.
        """
        surplus, self._over = self._over, deque()
        self._refused.clear()
        for (partition, generation), leases in _by_generation(
            delivered.lease for delivered in surplus
        ):
            ranges = _ranges([lease.offset for lease in leases])
            self.session.answer(AnswerKind.GIVE_BACK, partition, generation, ranges)
        self.session.give_back_unsent()

    # Answers

    def answer(self, kind: AnswerKind, leases: Iterable[Lease], after_ms: int = 0) -> list[Lease]:
        """Take an answer about messages; return those that are not held so any more."""
        refused = self._answer(kind, leases, after_ms)
        self.serve()
        return refused

    def _answer(self, kind: AnswerKind, leases: Iterable[Lease], after_ms: int = 0) -> list[Lease]:
        self.used_ms = self._clock.now_ms()
        refused: list[Lease] = []
        known: list[Lease] = []
        for lease in leases:
            is_known = self._is_known(lease)
            (known if is_known else refused).append(lease)
        for (partition, generation), some in _by_generation(known):
            self._refused.clear()
            ranges = _ranges([lease.offset for lease in some])
            self.session.answer(kind, partition, generation, ranges, after_ms=after_ms)
            bad = self._refused_offsets()
            for lease in some:
                is_bad = bad is None or lease.offset in bad or self.session.ending is not None
                if is_bad:
                    refused.append(lease)
                self._settle(kind, lease, after_ms, is_bad=is_bad)
        return refused

    def _is_known(self, lease: Lease) -> bool:
        found = self._attempts.get((lease.partition, lease.offset))
        return found is not None and found[:2] == (lease.generation, lease.attempt)

    def _settle(self, kind: AnswerKind, lease: Lease, after_ms: int, *, is_bad: bool) -> None:
        position = lease.partition, lease.offset
        if kind is AnswerKind.EXTEND and not is_bad:
            ends_ms = self._clock.now_ms() + after_ms
            self._attempts[position] = lease.generation, lease.attempt, ends_ms
        else:
            self._attempts.pop(position, None)

    def _refused_offsets(self) -> set[int] | None:
        """Return which offsets the node did not take an answer for; None for all of them."""
        if any(refusal.is_stale for refusal in self._refused):
            return None
        return {
            offset
            for refusal in self._refused
            for start, end in refusal.ranges
            for offset in range(start, end)
        }

    # Time

    def beat(self) -> None:
        """Send the heartbeat of the session, and forget attempts that are long over."""
        self.session.heartbeat()
        horizon_ms = self._clock.now_ms() - FORGET_MS
        old = [at for at, (_, _, ends_ms) in self._attempts.items() if ends_ms < horizon_ms]
        for at in old:
            del self._attempts[at]


def _delivered(delivery: Delivery, ends_ms: int) -> Iterator[DeliveredMessage]:
    offsets = (offset for span in delivery.messages.ranges for offset in range(*span))
    times, rows = append_times_of(delivery.messages), fields_of(delivery.messages.rows())
    for offset, row, appended_ms in zip(offsets, rows, times, strict=True):
        lease = Lease(delivery.partition, delivery.generation, offset, delivery.attempt)
        yield DeliveredMessage(lease, delivery.deadline_ms, ends_ms, row, appended_ms)


def _by_generation(leases: Iterable[Lease]) -> Iterator[tuple[tuple[int, int], list[Lease]]]:
    """Yield the leases of each partition and generation."""
    for at, some in groupby(sorted(set(leases)), key=lambda lease: lease[:2]):
        yield at, list(some)


def _ranges(offsets: Sequence[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = ranges[-1][0], offset + 1
        else:
            ranges.append((offset, offset + 1))
    return ranges
