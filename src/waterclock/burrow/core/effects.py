"""What the engine asks of its shell. Perform them in the order they are returned."""

from collections.abc import Mapping
from dataclasses import dataclass

from waterclock.burrow.core.records import Commit, Record, TopicPartition


@dataclass(frozen=True, slots=True)
class Pause:
    """Fetch no more of these; go on polling."""

    names: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Resume:
    """Fetch these again."""

    names: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Commit these, synchronously, then call `Engine.committed` with the same number.

    Final ones come out of `revoked`: they must be done before the partitions are given back.
    """

    number: int
    commits: Mapping[TopicPartition, Commit]
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class WriteDeadLetters:
    """Write these to the dead letter topic, then call `Engine.dead_lettered`, or
    `Engine.dead_letters_failed`."""

    records: tuple[Record, ...]
    error: BaseException


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop the pool with an error that says `reason`; nothing is handed out any more.

    Do as for a stop: let what is in flight end, `revoking`, `revoked`, commit, close."""

    reason: str
    error: BaseException | None = None


Effect = Pause | Resume | CommitOffsets | WriteDeadLetters | Halt
