"""What is known of every message of a topic: what may have become of it, and so what may be said.

Of each message the model keeps the *outcomes* that are possible after all that was seen. Mostly
that is one. While a message is due and nobody has looked, it may be pending or fired; a
request that a kill has cut short may have been done or not. Every answer and every delivery must
fit one of the outcomes, and leaves only those that it fits.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from waterclock.log.partitioner import partition_of_key

PARTITIONS = 4
SETTLED_MS = 1_300
"""The node looks at the wall clock each second: what has been due for so long has fired."""


SAME_MS = 5
"""Messages published within so short a time may be written in any order."""


class Outcome(Enum):
    """What has become of a message; the values are what the API says of it."""

    ABSENT = "unknown"
    PENDING = "done"
    FIRED = "alreadyFired"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(eq=False)
class Known:
    """One message that was published, or that may have been."""

    number: int
    """Its value: no two messages have the same."""
    message_id: str
    key: str | None
    due_ms: int
    """By the wall clock; when it was published if it had no time of its own."""
    lasts_ms: int | None
    """How long after that it is of use."""
    published_ms: int
    outcomes: set[Outcome]
    is_tracked: bool = True
    """It was published without `allowDuplicate`."""
    offset: int | None = None
    """None until somebody told."""
    earlier_due_ms: set[int] = field(default_factory=set)
    """Times it had before, with which it may have fired for all that is known."""
    maybe_due_ms: int | None = None
    """The time it has if a reschedule that was not answered was done."""
    settled_ms: int = 0
    """For how long it has been due, without a break, while the node ran."""
    was_late: bool = False
    """At some time it was of no use any more: who had not got it by then need not get it."""

    @property
    def partition(self) -> int:
        """Where it was published to."""
        routed = self.message_id if self.key is None else self.key
        return partition_of_key(routed.encode(), PARTITIONS)

    @property
    def expires_ms(self) -> int | None:
        """Until when it is of use, by the wall clock."""
        return None if self.lasts_ms is None else self.due_ms + self.lasts_ms

    @property
    def may_be_pending(self) -> bool:
        return Outcome.PENDING in self.outcomes

    @property
    def is_pending(self) -> bool:
        return self.outcomes == {Outcome.PENDING}

    def move_to(self, due_ms: int, now_ms: int) -> None:
        """Have another due time; how long it is of use counts from there."""
        if not self.is_pending:
            self.earlier_due_ms.add(self.due_ms)
        self.due_ms = due_ms
        self.settled_ms = 0
        self.was_late = False
        if self.may_be_pending and due_ms <= now_ms:
            self.outcomes.add(Outcome.FIRED)
            if self.expires_ms is not None and self.expires_ms <= now_ms:
                self.outcomes.add(Outcome.EXPIRED)

    def is_now(self, *outcomes: Outcome, why: str) -> None:
        """Leave only some outcomes; one of them must have been possible."""
        assert self.outcomes & set(outcomes), f"{why}: {self}"
        self.outcomes &= set(outcomes)

    def is_not(self, outcome: Outcome, why: str) -> None:
        """Leave out an outcome; it must not have been certain."""
        assert self.outcomes != {outcome}, f"{why}: {self}"
        self.outcomes.discard(outcome)


class Meant(list[Known]):
    """The messages that a name stands for, in the order in which they were published."""

    def __init__(self, messages: Iterable[Known], of_id: list[Known] | None = None) -> None:
        super().__init__(messages)
        self.of_id = list(self) if of_id is None else of_id
        """All of the same id, if only those of a key are meant."""


class Messages:
    """All messages of one topic, in the order in which they were published."""

    def __init__(self) -> None:
        self.all: list[Known] = []
        self.was_set_back = False
        """The wall clock was, at some time."""
        self.was_compacted = False
        """Of what is gone from the log, only ids are known: by key it cannot be told apart."""

    def add(self, message: Known) -> None:
        """Take note of a message that is being published."""
        assert message.number == len(self.all)
        self.all.append(message)

    def named(self, message_id: str, key: str | None = None) -> Meant:
        """Return the messages that are meant by an id and perhaps a key."""
        of_id = [m for m in self.all if m.message_id == message_id]
        return Meant((m for m in of_id if key in (None, m.key)), of_id)

    # Time

    def time_passed(self, start_ms: int, end_ms: int, *, has_run: bool) -> None:
        """Take note that the wall clock showed all times in between; of a step, only its end."""
        for message in self.all:
            self._pass(message, start_ms, end_ms, has_run=has_run)

    def _pass(self, message: Known, start_ms: int, end_ms: int, *, has_run: bool) -> None:
        expires_ms = message.expires_ms
        is_late = expires_ms is not None and end_ms >= expires_ms
        message.was_late |= is_late
        if not message.may_be_pending:
            return
        if end_ms < message.due_ms:
            message.settled_ms = 0
            return
        first_ms = max(start_ms, message.due_ms)
        if expires_ms is None or first_ms < expires_ms:
            message.outcomes.add(Outcome.FIRED)
        if is_late:
            message.outcomes.add(Outcome.EXPIRED)
        if has_run:
            message.settled_ms += end_ms - first_ms
        if message.settled_ms >= SETTLED_MS:
            message.outcomes.discard(Outcome.PENDING)

    # Publishing

    def _others(self, message: Known) -> list[Known]:
        """Return the messages of which this may be a repeat: same id, same partition."""
        if not message.is_tracked:
            return []
        others = [m for m in self.named(message.message_id) if m is not message and m.is_tracked]
        return [m for m in others if m.partition == message.partition]

    def published(self, message: Known, offset: int, *, is_new: bool) -> None:
        """Take the answer to a publish."""
        others = self._others(message)
        if is_new:
            message.offset = offset
            message.is_not(Outcome.ABSENT, "published")
            for other in others:
                other.is_now(Outcome.ABSENT, why="its id was stored once more")
            return
        message.is_now(Outcome.ABSENT, why="told that it was published before")
        possible = [
            m for m in others if m.outcomes != {Outcome.ABSENT} and m.offset in (None, offset)
        ]
        assert possible, f"a repeat of nothing, at {offset}: {message}"
        if len(possible) == 1:
            possible[0].offset = offset
            possible[0].outcomes.discard(Outcome.ABSENT)

    def maybe_published(self, messages: list[Known]) -> None:
        """Take note that a publish was not answered; a repeat is not stored in any case."""
        for message in messages:
            if any(Outcome.ABSENT not in m.outcomes for m in self._others(message)):
                message.outcomes = {Outcome.ABSENT}

    # Cancelling and moving

    def cancelled(self, meant: Meant, outcome: str, reached: int | None) -> None:
        """Take the answer to a cancel of all messages that were meant."""
        self._changed(meant, outcome, reached, _cancel, "cancelled")

    def cancelled_where(self, meant: list[Known], matched: int, cancelled: int) -> None:
        """Take the answer to a cancel of all messages that match a filter."""
        targets = [m for m in meant if m.may_be_pending]
        sure = sum(m.is_pending for m in targets)
        assert sure <= cancelled <= matched <= len(targets), (matched, cancelled, targets)
        for target in targets:
            _cancel(target)

    def moved(
        self, meant: Meant, outcome: str, reached: int | None, *, due_ms: int, now_ms: int
    ) -> None:
        """Take the answer to a reschedule of all messages that were meant."""

        def move(target: Known) -> None:
            target.move_to(due_ms, now_ms)

        self._changed(meant, outcome, reached, move, "rescheduled")

    def maybe_cancelled(self, meant: list[Known]) -> None:
        """Take note that a cancel was not answered."""
        for message in meant:
            if message.may_be_pending:
                message.outcomes.add(Outcome.CANCELLED)

    def maybe_moved(self, meant: list[Known], due_ms: int, now_ms: int) -> None:
        """Take note that a reschedule was not answered; `listed` will tell."""
        for message in meant:
            if message.may_be_pending:
                message.maybe_due_ms = due_ms
                if due_ms <= now_ms:
                    message.outcomes.add(Outcome.FIRED)
                    message.earlier_due_ms.add(due_ms)

    def _changed(
        self,
        meant: Meant,
        outcome: str,
        reached: int | None,
        change: Callable[[Known], None],
        verb: str,
    ) -> None:
        targets = [m for m in meant if m.may_be_pending]
        why = f"{verb} with the answer {outcome}, {reached}"
        if outcome != Outcome.PENDING.value:
            self._not_changed(meant, Outcome(outcome), why)
            return
        assert targets, f"{why}, though none of these was pending: {meant}"
        if reached is not None:
            sure = sum(m.is_pending for m in targets)
            assert max(1, sure) <= reached <= len(targets), f"{why}: {targets}"
        if reached == len(targets) or len(targets) == 1:
            for target in targets:
                target.is_now(Outcome.PENDING, why=why)
        for target in targets:
            change(target)

    def _not_changed(self, meant: Meant, outcome: Outcome, why: str) -> None:
        for target in meant:
            if target.may_be_pending:
                target.is_not(Outcome.PENDING, why)
        if outcome is Outcome.ABSENT:
            for message in meant:
                message.is_now(Outcome.ABSENT, why=why)
            return
        newest = self._newest(meant)
        if self.was_compacted and len(meant.of_id) > len(meant):
            newest = meant.of_id
        if len(newest) == 1:
            newest[0].is_now(outcome, why=why)
        else:
            assert any(outcome in m.outcomes for m in newest), f"{why}: {newest}"

    def _newest(self, meant: list[Known]) -> list[Known]:
        """Return the messages of which one was published last, for all the node can know.

        Partitions know only the time at which each was written. So those of about the same time
        are equally new, and after the clock was set back, the last ones of each partition are.
        """
        there = [m for m in meant if m.outcomes != {Outcome.ABSENT}]
        if any(Outcome.ABSENT in m.outcomes for m in there):
            return there
        by_offset = sorted(there, key=lambda m: -1 if m.offset is None else m.offset)
        last = list({m.partition: m for m in by_offset}.values())
        if self.was_set_back or not last:
            return last
        newest_ms = max(m.published_ms for m in last)
        return [m for m in last if m.published_ms >= newest_ms - SAME_MS]

    # Looking

    def listed(self, found: dict[int, tuple[int, int, int]], now_ms: int) -> None:
        """Take a list of all pending messages: partition, offset and due time by number."""
        for number, (partition, offset, due_ms) in found.items():
            message = self.all[number]
            assert message.may_be_pending, f"listed as pending: {message}"
            if message.maybe_due_ms == due_ms:
                message.move_to(due_ms, now_ms)
            assert (message.partition, message.due_ms) == (partition, due_ms), (message, found)
            assert message.offset in (None, offset), (message, offset)
            message.offset = offset
            if due_ms > now_ms:
                message.outcomes = {Outcome.PENDING}
            else:
                message.outcomes -= {Outcome.ABSENT, Outcome.CANCELLED}
        for message in self.all:
            message.maybe_due_ms = None
            if message.number not in found:
                message.is_not(Outcome.PENDING, "not listed as pending")


def _cancel(target: Known) -> None:
    target.outcomes.discard(Outcome.PENDING)
    target.outcomes.add(Outcome.CANCELLED)
