"""What a round left behind, for the oracle: what was sent, what came of it, who was there when."""

from dataclasses import dataclass, field
from enum import Enum

from tests.cluster.chaos.plan import Plan, Step


class Outcome(Enum):
    """How a request ended."""

    DONE = "done"
    NOT = "not done"
    """The cluster says that nothing was done, or there was nobody to ask."""
    UNSURE = "unsure"
    """The connection broke, or the answer says that nobody knows."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was sent once, to a stream in memory; or stored, however often it took."""

    n: int
    stream: str
    node: str
    from_s: float
    to_s: float
    outcome: Outcome
    position: int = 0


@dataclass(frozen=True, slots=True)
class Poll:
    """A receiver's request; one that is done has a message, one that is not has none."""

    stream: str
    node: str
    from_s: float
    to_s: float
    timeout_s: float
    outcome: Outcome
    n: int | None = None
    answer: str = ""
    """How it was answered, for people."""


@dataclass(frozen=True, slots=True)
class Performed:
    """A fault, from when to when it really was."""

    step: Step
    node: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Era:
    """Nodes that some node may have taken for all there were, from when to when."""

    from_s: float
    to_s: float
    nodes: frozenset[str]


@dataclass(slots=True)
class History:
    """All of a round."""

    plan: Plan
    sent: list[Sent] = field(default_factory=list)
    """To streams with competing receivers."""
    polls: list[Poll] = field(default_factory=list)
    kept_sent: list[Sent] = field(default_factory=list)
    """To streams in memory that are read at the end."""
    kept: dict[str, list[int]] = field(default_factory=dict)
    """By stream: the messages there were at the end."""
    stored_sent: list[Sent] = field(default_factory=list)
    stored: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """By stream: position and message, as they were read at the end."""
    performed: list[Performed] = field(default_factory=list)
    eras: list[Era] = field(default_factory=list)
    heal_s: float | None = None
    """From when all nodes ran and reached each other again until they agreed; None: never."""
    views: str = ""
    """What each node took for the ring when patience ended."""
    lag_s: float = 0.0
    """The longest time in which this side itself did not run."""
    seconds: float = 0.0
