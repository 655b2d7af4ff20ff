"""Where records come from: what a pool asks of a source, and what a source tells its pool.

A source may read on a thread of its own, but it talks to its owner on the loop the pool runs on.
It counts epochs: each assignment of a partition has a greater one, and records bear that of the
assignment they were read under. A partition is begun unpaused.
"""

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from waterclock.burrow.core.config import MapText
from waterclock.burrow.core.records import Assignment, Commit, Header, Record, TopicPartition
from waterclock.model.errors import BadInput, WaterclockError

RETRY_CODES = frozenset({7, 14, 15, 16, 22, 27, 113, -185, -195, -189, -180})
"""Answers to a commit that a short wait mends: REQUEST_TIMED_OUT, COORDINATOR_LOAD_IN_PROGRESS,
COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS,
STALE_MEMBER_EPOCH, _TIMED_OUT, _TRANSPORT, _TIMED_OUT_QUEUE, _WAIT_COORD. The generation is illegal
if the commit stood behind our own request to join again, and the group went on with that."""
NOT_OURS = -174
"""librdkafka's "revoke partitions": the answer for a partition that went before its commit was
made. No broker gives it, and nothing mends it."""


class SourceFailed(WaterclockError):
    """The source cannot go on: its client met an error that no retry mends."""


class PoolHalted(WaterclockError):
    """The pool stopped itself; what was finished is committed. The text says why."""


class Owner(Protocol):
    """The pool that works on what a source reads. Called on the owner's loop only."""

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        """Begin with partitions."""
        ...

    async def revoke(self, names: Sequence[TopicPartition]) -> None:
        """End with partitions; when this returns, their last commit was made."""
        ...

    def lost(self, names: Sequence[TopicPartition]) -> None:
        """End with partitions that another member may have already: no commit."""
        ...


class Source(Protocol):
    """Reads records, and keeps how far they are done."""

    @property
    def map_units_max(self) -> int:
        """UTF-16 units of text that can be committed with an offset; 0 if `Commit.runs` are kept
        as they are."""
        ...

    @property
    def map_text(self) -> MapText:
        """How that text is counted."""
        ...

    async def open(self, owner: Owner) -> None:
        """Join; partitions are told to the owner during `poll`, or at once."""
        ...

    async def poll(self, count: int, timeout_s: float) -> list[Record]:
        """Return up to about so many records, as soon as there are any; none after the timeout."""
        ...

    def pause(self, names: Sequence[TopicPartition]) -> None:
        """Return no more of these; what `poll` has in hand may still come."""
        ...

    def resume(self, names: Sequence[TopicPartition]) -> None:
        """Return these again."""
        ...

    def commit(
        self, commits: Mapping[TopicPartition, Commit]
    ) -> Awaitable[Mapping[TopicPartition, int]]:
        """Save how far partitions are; answer with Kafka's code for each, 0 if it is done.

        Commits are made in the order of the calls. One for an assignment that has ended since is
        not made at all.
        """
        ...

    async def log_ends(self) -> Mapping[TopicPartition, int]:
        """Return where the partitions end, as far as that is known without asking."""
        ...

    async def close(self) -> None:
        """Leave. The owner has given up everything before, or is beyond caring."""
        ...


@dataclass(frozen=True, slots=True)
class Output:
    """A message to be produced: what a function returns to a source with transactions."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = field(default=())

    def __post_init__(self) -> None:
        # Here it fails the call that made it; in the client it would fail a transaction.
        if not isinstance(self.topic, str) or not self.topic:
            raise BadInput(f"an output's topic must be a text, not {self.topic!r}")
        for name, value in (("value", self.value), ("key", self.key)):
            if value is not None and not isinstance(value, bytes):
                raise BadInput(f"an output's {name} must be bytes or None, not {type(value)!r}")


@runtime_checkable
class Outlet(Protocol):
    """A source whose commits carry the output of what they commit, all or nothing."""

    @property
    def commit_s_max(self) -> float:
        """How long after an output its commit may come at the latest."""
        ...

    @property
    def is_sealed(self) -> bool:
        """Whether a commit is under way: nothing may be added to it now."""
        ...

    def check(self, outputs: Sequence[Output]) -> None:
        """Raise if any of these can never be produced: the call that returned it failed then."""
        ...

    def emit(self, outputs: Sequence[Output]) -> None:
        """Add messages to the commit that comes next."""
        ...


@runtime_checkable
class LagTeller(Protocol):
    """A source that knows what is left by itself, as it numbers records otherwise than its log."""

    async def lags(self) -> Mapping[TopicPartition, int]:
        """Return how many messages of each of our partitions are stored and not finished."""
        ...


def outputs_of(returned: object) -> list[Output]:
    """Return what a function returned as messages to produce."""
    found: list[Output] = []
    for each in returned if isinstance(returned, Iterable) else [returned]:
        if not isinstance(each, Output):
            raise BadInput(f"a function returned {each!r}: it must be Output, a list of it or None")
        found.append(each)
    return found
