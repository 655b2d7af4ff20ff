"""What the plan moves: loads that come in, batches it holds, and what it asks of the shell.

Messages are moved as parallel lists, by the hundred; nothing here exists once for each message.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from waterclock.dispatch.core.stored_batches import StoredBatch


@dataclass(frozen=True, slots=True)
class Load:
    """Messages that a source brings, as parallel lists.

    `stored_id` says in which batch they are stored, all of it in this load; or `entries` which
    entry of the source's stream each of them is.
    """

    uuids: list[bytes]
    births_ms: list[int]
    bodies: Sequence[bytes]
    stored_id: bytes | None = None
    entries: list[bytes] | None = None
    deliveries: int = 0
    """How often each was handed out by leaders before this one, as far as is known."""
    contexts: Mapping[bytes, bytes] = field(default_factory=dict)
    """Which traces messages belong to, by uuid, as frames carry it: of those that say so."""

    @classmethod
    def of_stored_batch(cls, stored: StoredBatch) -> "Load":
        count = len(stored.bodies)
        return cls(stored.uuids(), [stored.birth_ms] * count, stored.bodies, stored.stored_id)


@dataclass(frozen=True, slots=True)
class HandOut:
    """Send these to this worker, as one frame, or one by one if it said no hello."""

    worker: int
    deliveries: int
    """This time included."""
    uuids: list[bytes]
    births_ms: list[int]
    bodies: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that is given up."""

    uuid: bytes
    body: bytes
    birth_ms: int
    deliveries: int
    reason: str
    stored_id: bytes | None
    entry: bytes | None


@dataclass(frozen=True, slots=True)
class Settle:
    """These are done: remove the stored batches, acknowledge the entries. May be collected and made
    later; what is not settled when a leader goes is handed out again by the next."""

    stored_batches: list[bytes] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WriteDeadLetters:
    """Write these to the dead stream, and acknowledge their entries in the same step; then say
    `Plan.dead_lettered`. Until then the plan holds them."""

    dead_letters: list[DeadLetter]


Effect: TypeAlias = Settle | WriteDeadLetters


class Home:
    """The batch that messages are stored in, until all of them are done."""

    __slots__ = ("left", "stored_id")

    def __init__(self, stored_id: bytes, left: int) -> None:
        self.stored_id = stored_id
        self.left = left


_Lists: TypeAlias = tuple[list[bytes], list[int], Sequence[bytes], list[bytes] | None]


class BatchState(Enum):
    """Where a batch is."""

    WAITING = "waits for a worker"
    OUT = "is with a worker"
    RESTING = "waits for its time to be tried again"
    DEAD = "is being dead-lettered"


class Batch:
    """Messages that wait together, or were handed out together and share a deadline.

    A message belongs to the batch that the plan's index names for it; those of the lists that the
    index names elsewhere, or not at all, are gone from here. `left` counts the others.
    """

    __slots__ = (
        "_entry_of",
        "births_ms",
        "bodies",
        "bytes",
        "crashes",
        "deadline_ms",
        "deliveries",
        "entries",
        "home",
        "left",
        "shunned",
        "state",
        "uuids",
        "worker",
    )

    def __init__(
        self,
        uuids: list[bytes],
        births_ms: list[int],
        bodies: Sequence[bytes],
        entries: list[bytes] | None,
        deliveries: int,
    ) -> None:
        self.uuids = uuids
        self.births_ms = births_ms
        self.bodies = bodies
        self.entries = entries
        self.left = len(uuids)
        self.bytes = sum(map(len, bodies))
        self._entry_of: dict[bytes, bytes] | None = None
        self.home: Home | None = None
        self.deliveries = deliveries
        self.crashes = 0
        """How many workers went away while they held these."""
        self.shunned = -1
        """The worker that had them last and failed: another one is better."""
        self.state = BatchState.WAITING
        self.worker = -1
        """The worker that has them, while they are out."""
        self.deadline_ms = 0

    def __repr__(self) -> str:
        return f"<Batch {self.left} of {len(self.uuids)} {self.state.value}>"

    def first(self, count: int) -> "Batch":
        """Take the first messages out, as a batch with the same history."""
        part = self._like(
            self.uuids[:count],
            self.births_ms[:count],
            self.bodies[:count],
            self.entries[:count] if self.entries is not None else None,
        )
        self._set(
            self.uuids[count:],
            self.births_ms[count:],
            self.bodies[count:],
            self.entries[count:] if self.entries is not None else None,
        )
        return part

    def pick(self, chosen: Sequence[int]) -> "Batch":
        """Return a batch of the messages at these places, with the same history."""
        return self._like(*self._picked(chosen))

    def keep(self, chosen: Sequence[int]) -> None:
        """Let go of all messages but those at these places."""
        self._set(*self._picked(chosen))

    def entries_of(self, uuids: Sequence[bytes]) -> list[bytes]:
        """Return the stream entries of some of its messages."""
        assert self.entries is not None
        if self._entry_of is None:
            self._entry_of = dict(zip(self.uuids, self.entries, strict=True))
        return [self._entry_of[uuid] for uuid in uuids]

    def empty(self) -> None:
        """Let go of the bodies; the batch itself may stand in a queue a little longer."""
        self.uuids, self.births_ms, self.bodies, self.entries = [], [], [], None
        self.left = self.bytes = 0
        self._entry_of = None

    def _picked(self, chosen: Sequence[int]) -> _Lists:
        return (
            [self.uuids[at] for at in chosen],
            [self.births_ms[at] for at in chosen],
            [self.bodies[at] for at in chosen],
            [self.entries[at] for at in chosen] if self.entries is not None else None,
        )

    def _like(
        self,
        uuids: list[bytes],
        births_ms: list[int],
        bodies: Sequence[bytes],
        entries: list[bytes] | None,
    ) -> "Batch":
        part = Batch(uuids, births_ms, bodies, entries, self.deliveries)
        part.home, part.crashes, part.shunned = self.home, self.crashes, self.shunned
        part.state, part.worker, part.deadline_ms = self.state, self.worker, self.deadline_ms
        return part

    def _set(
        self,
        uuids: list[bytes],
        births_ms: list[int],
        bodies: Sequence[bytes],
        entries: list[bytes] | None,
    ) -> None:
        self.uuids, self.births_ms, self.bodies, self.entries = uuids, births_ms, bodies, entries
        self.left = len(uuids)
        self.bytes = sum(map(len, bodies))
        self._entry_of = None
