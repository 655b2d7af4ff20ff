"""What is worked on: a record, where it comes from, and the place that is committed for it.

A `Record` is the only object made for a message, and the user is handed this very object. It is
mutable in one thing a user sees, `attempt`; its last three fields belong to the core, which threads
its queues through the records themselves and so needs no entry of its own for each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from waterclock.model.errors import BadInput

if TYPE_CHECKING:
    from waterclock.burrow.core.partition import PartitionState

Header = tuple[str, bytes | None]
Run = tuple[int, int]
"""A half-open range of offsets."""


class TopicPartition(NamedTuple):
    """The name of a partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


class Record:
    """One message, as it was read. Compared by identity: the same message read twice is two."""

    __slots__ = (
        "attempt",
        "epoch",
        "headers",
        "home",
        "key",
        "next",
        "offset",
        "partition",
        "size",
        "timestamp_ms",
        "topic",
        "value",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        timestamp_ms: int = 0,
        epoch: int = 0,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp_ms = timestamp_ms
        self.epoch = epoch
        """The assignment it was read under; the source counts them up."""
        self.attempt = 1
        """1 when it is handed out first, one more after each failure."""
        self.home: PartitionState | None = None
        """The core's own: what it counts for; None while it is not held."""
        self.next: Record | None = None
        """The core's own: the record that waits behind it for the same key."""
        self.size = 0
        """The core's own: the bytes it counts for while it is held. Not reckoned again, for the
        user may have put something else in the place of the value."""

    def __repr__(self) -> str:
        again = f", attempt {self.attempt}" if self.attempt > 1 else ""
        return f"<Record {self.topic}[{self.partition}]@{self.offset}{again}>"


def by_name(records: Iterable[Record]) -> Iterable[tuple[TopicPartition, list[Record]]]:
    """Group records by their partition; each group keeps its order."""
    groups: dict[tuple[str, int], list[Record]] = {}
    topic, partition = "", -1
    group: list[Record] = []
    for record in records:
        # Mostly one comes after another of its partition.
        if record.partition != partition or record.topic is not topic:
            topic, partition = record.topic, record.partition
            group = groups.setdefault((topic, partition), [])
        group.append(record)
    # A plain tuple is made much faster, and it finds the same.
    return [(TopicPartition(*name), group) for name, group in groups.items()]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A partition that is ours from now on, and how far it was when its last owner committed."""

    name: TopicPartition
    epoch: int
    """Greater than that of any earlier assignment of the partition to this process."""
    committed: int | None = None
    """The committed offset: where reading begins. None if there is none."""
    metadata: str = ""
    """What was committed with it: our offset map, or anything else."""
    log_end: int | None = None
    """Nothing at or above this can be finished. If nobody knows, the offset map is not believed."""

    def __post_init__(self) -> None:
        if self.committed is not None and self.committed < 0:
            raise BadInput(f"{self.name}: {self.committed} is no committed offset; none is None")


@dataclass(frozen=True, slots=True)
class Commit:
    """What to commit for one partition: one value, so that offset and map cannot disagree."""

    offset: int
    """Everything below is finished."""
    metadata: str = ""
    """The offset map: what is finished beyond `offset`."""
    runs: tuple[Run, ...] = ()
    """The same as ranges, for a source that keeps ranges itself."""
    is_whole: bool = True
    """Whether the map holds all that is finished. If not, the rest is redone after a restart: do
    not commit such a place in a transaction, wait for the gap to close."""
