"""What came of each step, in numbers; `broken` names the guarantees that a step did not keep."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from waterclock.log.recovery import Damage


@dataclass(frozen=True, slots=True)
class Started:
    """A node was started."""

    address: str
    http_address: str
    ready_ms: float

    def broken(self) -> Iterator[str]:
        return iter(())


@dataclass(frozen=True, slots=True)
class Pending:
    """A message that waits for its time."""

    due_ms: int
    key: str
    message_id: str


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Messages were published for later."""

    messages: int
    publish_ms: float
    cancelled: int
    moved: int
    """From hours away to seconds."""
    scheduled: int
    """What the node then counted, all that is to come."""
    listed: int
    """What it then listed."""
    soonest: list[Pending]
    per_hour: list[int]

    def broken(self) -> Iterator[str]:
        if not self.scheduled == self.listed == self.messages - self.cancelled:
            yield "a message for later is missing from the schedule"


@dataclass(frozen=True, slots=True)
class Fired:
    """Those due within seconds came."""

    expected: int
    came: int
    early: int
    cancelled_came: int
    late_ms: dict[str, float]
    """How late, as quantiles."""
    late_counts: list[tuple[str, int]]
    tick_ms: int

    def broken(self) -> Iterator[str]:
        if self.came != self.expected:
            yield "a scheduled message did not come"
        if self.early:
            yield "a message came early"
        if self.cancelled_came:
            yield "a cancelled message came"


@dataclass(frozen=True, slots=True)
class Retried:
    """Some messages failed."""

    messages: int
    done_at_once: int
    done_later: int
    """After a failure."""
    dead: int
    failing: int
    """Made to fail every time."""
    attempts: int
    """Of those, each."""
    wait_ms: list[float]
    """Before the second attempt, the third, ...: the shortest."""
    delay_ms: int
    """What the node was configured to wait before the second; it doubles."""

    def broken(self) -> Iterator[str]:
        if self.done_at_once + self.done_later + self.dead != self.messages:
            yield "a failing message was lost"
        if self.dead != self.failing:
            yield "a message that always fails is no dead letter"
        if any(ms < self.delay_ms << at for at, ms in enumerate(self.wait_ms)):
            yield "a message was tried again too soon"


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """A dead letter, as it was listed."""

    position: str
    key: str
    value: str
    reason: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Redriven:
    """The dead letters were published again."""

    dead_letters: list[DeadLetterRow]
    redriven: int
    done: int
    """Of them, those that came again as they had been, and succeeded."""
    left: int

    def broken(self) -> Iterator[str]:
        if not len(self.dead_letters) == self.redriven == self.done:
            yield "a redriven message did not come"
        if self.left:
            yield "a redriven message is still a dead letter"


@dataclass(frozen=True, slots=True)
class Crashed:
    """The node was killed at work, and started again."""

    acknowledged: int
    acknowledged_before: int
    """Of them, before the kill."""
    scheduled: int
    """Of them, those that were for later."""
    delivered: int
    """Acknowledged messages that came, each counted once."""
    again: int
    """How often one came again."""
    early: int
    refused: int
    """Publishes that failed, though the node came back."""
    silence_ms: float
    """From the kill to the next acknowledgement."""
    ready_ms: float
    """How long the new start took."""

    @property
    def lost(self) -> int:
        """Messages acknowledged that never came: the number this is all about."""
        return self.acknowledged - self.delivered

    def broken(self) -> Iterator[str]:
        if self.lost:
            yield "an acknowledged message was lost"
        if self.early:
            yield "a message came early after the kill"
        if self.refused:
            yield "a publish failed for good, though the node came back"


@dataclass(frozen=True, slots=True)
class Replayed:
    """All of it was read once more."""

    expected: int
    found: int
    """Of those expected."""
    stored_twice: int
    broken_off_at: int
    """Messages read when the replay was broken off."""
    again: int
    """Read a second time when it went on."""
    seconds: float

    def broken(self) -> Iterator[str]:
        if self.found != self.expected:
            yield "a replay left a message out"
        if self.stored_twice:
            yield "a message was stored twice"


@dataclass(frozen=True, slots=True)
class Stopped:
    """The node was stopped in good order."""

    exit_code: int
    stop_ms: float

    def broken(self) -> Iterator[str]:
        if self.exit_code:
            yield "the node did not stop well"


@dataclass(frozen=True, slots=True)
class FailedOver:
    """Of three nodes, one that led was killed at work, and stayed away."""

    leader: str = ""
    successor: str = ""
    epoch: int = 0
    orders: Crashed | None = None
    missing: str = ""
    """What it takes to see this, if that is not there."""

    def broken(self) -> Iterator[str]:
        if self.orders is not None:
            yield from self.orders.broken()
            if self.leader == self.successor:
                yield "nobody leads in the stead of a node that is gone"


@dataclass(frozen=True, slots=True)
class Damaged:
    """One bit was flipped in a copy of the log."""

    copy: str
    file: str
    position: int
    found: list[Damage]
    is_found: bool
    """The damage is named, by exactly the offsets that were hit."""
    served: int
    refused: int
    wrong: int
    is_unchanged: bool
    """Reading around the damage left every segment file as it was, the damage included."""

    def broken(self) -> Iterator[str]:
        if not self.is_found:
            yield "damage was not found"
        if self.wrong:
            yield "a wrong message was served"
        if not self.is_unchanged:
            yield "bytes were changed around damage"


Step = (
    Started
    | Scheduled
    | Fired
    | Retried
    | Redriven
    | Crashed
    | Replayed
    | Stopped
    | Damaged
    | FailedOver
)


@dataclass(frozen=True, slots=True)
class Steps:
    """All that was done, in order."""

    started: Started
    scheduled: Scheduled
    fired: Fired
    retried: Retried
    redriven: Redriven
    crashed: Crashed
    replayed: Replayed
    stopped: Stopped
    damaged: Damaged
    failed_over: FailedOver

    def broken(self) -> list[str]:
        """Return the guarantees that were not kept."""
        steps: list[Step] = [getattr(self, field.name) for field in fields(self)]
        return [what for step in steps for what in step.broken()]
