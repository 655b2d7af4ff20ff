"""Whether a pool does its work, in one object: for a probe, or a person."""

from dataclasses import dataclass, field
from typing import Literal

from waterclock.burrow.core.records import TopicPartition

State = Literal["new", "running", "stopping", "stopped", "halted", "failed"]


@dataclass(frozen=True, slots=True)
class Health:
    """How a pool is, when it last looked: about once a second."""

    state: State
    workers: int
    workers_busy: float
    """How many were busy, on average of late."""
    partitions: int
    offset_lag: dict[TopicPartition, int] = field(default_factory=dict)
    error_rate: float = 0.0
    """The share of attempts that failed, of late."""
    errors_in_a_row: int = 0
    """Records given up with no success between them."""
    attempts: int = 0
    """How often the function has been done with a record since the start, whatever came of it."""
    failures: int = 0
    """How many of these failed."""
    last_error: str = ""
    """The last failure, and the line it came from."""
    stuck_seconds: float = 0.0
    """How long the partition that has been stuck for longest could not commit any further."""
    problems: tuple[str, ...] = ()
    """What is wrong, each in a sentence."""

    @property
    def is_healthy(self) -> bool:
        """Whether the pool runs and nothing is wrong with it. One without partitions is healthy:
        there may be more members than partitions."""
        return self.state == "running" and not self.problems
