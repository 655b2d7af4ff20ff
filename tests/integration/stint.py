"""What a member of a group was told, and what it is known to have been heard to say.

An answer has no answer, so how long it takes to the node is nobody's guess: a member asks for an
echo after it, and when that comes, the node has taken the answer.
"""

import time
from dataclasses import dataclass, field

SENDING = 1 << 62
"""The echo of what has not left yet: none."""

Place = tuple[int, int]
"""Partition and offset."""


def now_ms() -> int:
    """Return the time as the node sees it."""
    return time.time_ns() // 1_000_000


@dataclass(slots=True, eq=False)
class NodeRun:
    """One run of the node's process."""

    number: int
    ready_s: float
    ended_ms: int = 0
    is_killed: bool = False
    stop_ms: int = 0
    """When it was asked to stop; 0: it was not."""


@dataclass(slots=True, eq=False)
class Stint:
    """One stream of one member."""

    group: str
    member: str
    run: NodeRun
    ended_ms: int = 0
    cut_ms: int = 0
    """When the member broke off: what was on its way then may be lost. Who leaves in good order is
    heard to the end."""
    broken_ms: int = 0
    """When the node broke off, or was killed."""
    lost_ms: dict[Place, int] = field(default_factory=dict)
    """When it heard that it lost (partition, generation)."""
    asked: int = 0
    """How often it asked for an echo: what the node is sure to answer, in its turn."""
    echoed_ms: list[int] = field(default_factory=list)
    """When each echo came. What was said before it was asked for has been heard by then."""

    def echoed(self, echo: int) -> None:
        """An echo came, and so have all before it, though the node may not have said so."""
        self.echoed_ms += [now_ms()] * (echo + 1 - len(self.echoed_ms))

    def heard_ms(self, echo: int) -> int:
        """Return when an echo came; 0: it did not."""
        return self.echoed_ms[echo] if echo < len(self.echoed_ms) else 0


@dataclass(slots=True, eq=False)
class Held:
    """The latest delivery of a message to a group, and what was answered."""

    stint: Stint
    partition: int
    generation: int
    attempt: int
    first_deadline_ms: int
    answer: str = ""
    answered_ms: int = 0
    echo: int = 0
    """The first echo that shows that the answer was heard."""
    extended_ms: int = 0
    extend_echo: int = 0
    is_refused: bool = False
    before: "Held | None" = None
    """The delivery of the same message before this one."""

    @property
    def deadline_ms(self) -> int:
        """Until when an answer counts: an extension does once it was heard in time."""
        heard_ms = self.extended_ms and self.stint.heard_ms(self.extend_echo)
        return (
            self.extended_ms if 0 < heard_ms <= self.first_deadline_ms else self.first_deadline_ms
        )

    @property
    def lost_ms(self) -> int:
        """When its member heard that the partition was lost; 0: it did not."""
        return self.stint.lost_ms.get((self.partition, self.generation), 0)

    @property
    def is_heard_in_time(self) -> bool:
        """The node took the answer while the member held the message: it cannot have been late."""
        heard_ms = self.answered_ms and self.stint.heard_ms(self.echo)
        return 0 < heard_ms <= min(self.deadline_ms, self.lost_ms or heard_ms)
