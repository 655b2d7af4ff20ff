"""The events a cursor handles, and the effects it returns: past tense in, imperative out.

All of them hold ranges. Effects stand in the order they must be performed.
"""

from dataclasses import dataclass
from enum import IntEnum

from waterclock.delivery.credits import Credit
from waterclock.delivery.spans import Range


class Reason(IntEnum):
    """Why a message is dead. The numbers are persisted: never reuse one."""

    NACKED = 1
    TIMED_OUT = 2
    OWNER_LOST = 3
    """Its member died, or lost touch, while it held the message."""
    REJECTED = 4


# From the log


@dataclass(frozen=True, slots=True)
class RangeReadable:
    """Deliverable messages follow where the last range ended. `size_bytes` is of all together:
    credit counts each with the mean, so report messages of very different sizes apart."""

    start: int
    end: int
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RangeSkipped:
    """Offsets with nothing to deliver: they count as done. Usually what follows the last range;
    below it, messages that are gone from the log, whatever became of them here."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LogRead:
    """The log was read on: its ranges, in order and without gaps, from `Cursor.read_from`."""

    ranges: tuple[RangeReadable | RangeSkipped, ...]


@dataclass(frozen=True, slots=True)
class LogTrimmed:
    """Retention takes everything below `start`. What the owner has been handed it may finish; all
    else below counts as done."""

    start: int


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """The dead letters are durable in their topic."""

    ranges: tuple[Range, ...]


# From the group


@dataclass(frozen=True, slots=True)
class PartitionAssigned:
    """A member owns the partition from now on; `generation` is above all that were before."""

    generation: int
    credit: Credit


@dataclass(frozen=True, slots=True)
class PartitionRevoked:
    """The owner gets nothing more; what it has it may finish."""

    generation: int


@dataclass(frozen=True, slots=True)
class RevocationCancelled:
    """The owner keeps the partition after all."""

    generation: int


@dataclass(frozen=True, slots=True)
class PartitionReleased:
    """Nobody owns the partition. What the owner still held is handed out again. The first of it
    counts as a failure if the owner died of it, for all we know (`is_counted`), and lost owners
    are to be counted at all (`delivery.count_lost_owners`)."""

    generation: int
    is_counted: bool


# From the member


@dataclass(frozen=True, slots=True)
class Acked:
    """The member has finished these."""

    generation: int
    ranges: tuple[Range, ...] | list[Range]


@dataclass(frozen=True, slots=True)
class Nacked:
    """The member failed at these, or (not `is_counted`) merely gives them back."""

    generation: int
    ranges: tuple[Range, ...] | list[Range]
    retry_at_ms: int | None = None
    is_counted: bool = True


@dataclass(frozen=True, slots=True)
class Rejected:
    """The member says that these can never succeed."""

    generation: int
    ranges: tuple[Range, ...] | list[Range]


@dataclass(frozen=True, slots=True)
class Extended:
    """The member needs these for longer."""

    generation: int
    ranges: tuple[Range, ...] | list[Range]
    deadline_ms: int


MemberEvent = Acked | Nacked | Rejected | Extended
GroupEvent = PartitionAssigned | PartitionRevoked | RevocationCancelled | PartitionReleased
Event = LogRead | LogTrimmed | DeadLettered | GroupEvent | MemberEvent


# Answers


@dataclass(frozen=True, slots=True)
class StaleGeneration:
    """The sender does not own the partition, or no more: nothing was changed."""

    generation: int
    current: int | None
    """Of the owner; None if there is none."""


@dataclass(frozen=True, slots=True)
class UnknownLease:
    """Nobody holds these: acked before, timed out, or never handed out. The rest was accepted."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Send the member a refusal."""

    problem: StaleGeneration | UnknownLease


@dataclass(frozen=True, slots=True)
class WriteDeadLetters:
    """Write these to the dead letter topic, and report `DeadLettered` once they are durable."""

    ranges: tuple[Range, ...]
    reason: Reason
    attempts: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Send these to the owner."""

    generation: int
    ranges: tuple[Range, ...]
    attempt: int
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class ReportDrained:
    """Tell the group that the owner of the revoked partition holds nothing more."""

    generation: int


Effect = Refuse | WriteDeadLetters | Deliver | ReportDrained
