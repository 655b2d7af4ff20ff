"""What a history of deliveries knows: of each message, and of each member's session."""

from dataclasses import dataclass, field

from tests.node.consuming import Member

Position = tuple[int, int]
"""(partition, offset)"""


@dataclass
class Fact:
    """What is known of one message."""

    value: bytes
    expires_ms: int | None
    failed_min: int = 0
    failed_max: int = 0
    """Failures counted against it; a crash may forget those that were not saved."""
    is_done: bool = False
    """Acked, and known to be; after a crash only if it was saved."""
    was_acked: bool = False
    is_dead: bool = False
    was_given_back: bool = False
    is_trimmed: bool = False
    """Retention took it before it was done."""
    seen_in: int = -1
    """The run of the node that delivered it last."""
    saved: tuple[int, bool] = (0, False)
    """Failures and whether it was done, when progress was last saved."""


@dataclass
class Model:
    """A session and what the history knows of it."""

    member: Member
    credit_max: int
    """The most it could hold since its queue was last empty."""
    held: dict[Position, tuple[int, int]] = field(default_factory=dict)
    """Generation of each message it holds, and when its lease ends, by the monotonic clock."""
    owned: set[tuple[int, int]] = field(default_factory=set)
    taken: int = 0
