"""What happened in a round, as far as it can be seen from outside: all the oracle is told."""

from dataclasses import dataclass, field

from tests.burrow.chaos.journal import Entry, Position
from tests.burrow.chaos.plan import Plan, StepKind

NEVER = 1 << 62


@dataclass
class ProcessRun:
    """A consumer process from its start to its end."""

    name: str
    begun_ns: int
    entries: list[Entry] = field(default_factory=list)
    killed_ns: int = NEVER
    paused_ns: list[int] = field(default_factory=list)
    """When it was paused, each time for longer than its session."""
    asked_ns: int = NEVER
    """When it was asked to end."""
    ended_ns: int = NEVER
    code: int | None = None
    output: str = ""
    """What it printed, if it ended badly."""

    @property
    def troubled_ns(self) -> int:
        """Since when it cannot be held to having committed what it did."""
        return min([self.killed_ns, *self.paused_ns])


@dataclass(frozen=True, slots=True)
class CommitSeen:
    """A commit that the broker has accepted."""

    partition: int
    offset: int
    metadata: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class Fault:
    """An act, from its beginning to the moment it was over."""

    act: StepKind
    name: str
    begun_ns: int
    over_ns: int


@dataclass
class History:
    """A round."""

    plan: Plan
    log: dict[Position, int] = field(default_factory=dict)
    """The number of the message at each place of the topic: all that was acknowledged."""
    runs: dict[str, ProcessRun] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    commits: list[CommitSeen] = field(default_factory=list)
    """In the order the broker took them; all of them, or samples."""
    final: dict[int, CommitSeen] = field(default_factory=dict)
    """What is committed for each partition after everybody has ended."""
    dead_letters: list[int] = field(default_factory=list)
    """The numbers in the dead letter topic."""
    is_drained: bool = True
    """Whether everything was finished before patience ended."""
    seconds: float = 0.0
