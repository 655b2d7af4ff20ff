"""What the client answers with: receipts of publishes, and what is there on the node.

Times are aware datetimes in UTC, for people; offsets and counts are plain integers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from waterclock.model.errors import WaterclockError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(ms: int) -> datetime:
    """Return the UTC time so many milliseconds after 1970."""
    return _EPOCH + timedelta(milliseconds=ms)


class Outcome(str):
    """What became of a wish to cancel or move: a word, such as "cancelled" or "already fired"."""

    __slots__ = ("reached",)

    reached: int
    """How many pending messages it reached: an id may have several."""

    def __new__(cls, word: str, reached: int = 0) -> "Outcome":
        """Make an outcome that equals its word."""
        outcome = super().__new__(cls, word)
        outcome.reached = reached
        return outcome


class Receipt:
    """Where a published message is. It is durable, as the node's `log.fsync` says."""

    __slots__ = ("is_new", "made_partitions", "message_id", "offset", "partition", "topic")

    def __init__(
        self, topic: str, partition: int, offset: int, message_id: bytes, is_new: bool
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.message_id = message_id
        self.is_new = is_new
        """False: the id was published before, nothing was written, and this is the first one."""
        self.made_partitions = 0
        """Not 0: there was no such topic; publishing this made it, with so many partitions."""

    def __repr__(self) -> str:
        what = "" if self.is_new else ", published before"
        id_ = self.message_id.hex()
        return f"<Receipt {self.topic}/{self.partition} offset {self.offset}, id {id_}{what}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Receipt):
            return NotImplemented
        return self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self._facts())

    def _facts(self) -> tuple[object, ...]:
        return self.topic, self.partition, self.offset, self.message_id, self.is_new


class SomeFailed(WaterclockError):
    """Some messages of a call were published and others were not; `results` has one for each."""

    def __init__(self, results: Sequence[Receipt | Exception]) -> None:
        failed = [result for result in results if isinstance(result, Exception)]
        super().__init__(
            f"{len(failed)} of {len(results)} messages were not published; the first: {failed[0]}"
        )
        self.results = list(results)


class Recurrence(Receipt):
    """A message that is published again and again. Its occurrences get offsets as they come, so
    its own partition and offset are -1."""

    __slots__ = ("every_ms", "cron", "name", "next_ms", "zone")  # noqa: RUF023

    def __init__(
        self, name: str, topic: str, *, cron: str, every_ms: int, zone: str, next_ms: int
    ) -> None:
        super().__init__(topic, -1, -1, f"{name}@{next_ms}".encode(), True)
        self.name = name
        self.cron = cron
        self.every_ms = every_ms
        self.zone = zone
        self.next_ms = next_ms

    def __repr__(self) -> str:
        rule = self.cron or f"every {self.every_ms} ms"
        following = f"next {self.next:%Y-%m-%d %H:%M:%S}" if self.next else "over"
        return f"<Recurrence {self.name} on {self.topic}: {rule} {self.zone}, {following}>"

    @property
    def next(self) -> datetime | None:
        """When it comes next; None if never again."""
        return time_of(self.next_ms) if self.next_ms else None


@dataclass(frozen=True, slots=True)
class ScheduledMessage:
    """A message that waits for its time."""

    topic: str
    partition: int
    offset: int
    message_id: bytes
    key: bytes | None
    headers: Mapping[str, bytes]
    due: datetime
    value: bytes | None
    """None unless asked for, and for a tombstone."""
    value_bytes: int
    timer_id: str


@dataclass(frozen=True, slots=True)
class Horizon:
    """How many messages wait for up to so long."""

    within: timedelta | None
    """None: longer than all others. Zero: overdue."""
    count: int


@dataclass(frozen=True, slots=True)
class CancelCount:
    """What a bulk cancel found and did."""

    matched: int
    cancelled: int


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One log of a topic."""

    partition: int
    start_offset: int
    end_offset: int
    size_bytes: int
    scheduled: int
    problem: str
    """Empty: healthy."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic, its settings, and where its partitions stand."""

    name: str
    retention: timedelta | None
    retention_bytes: int | None
    retention_wait_for_groups: bool | None
    """None: as the node is configured."""
    is_compacted: bool
    retries_max: int | None
    ack_timeout: timedelta | None
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True, slots=True)
class GroupPartitionInfo:
    """Where a group stands in one partition."""

    partition: int
    member: str
    """Empty: nobody's."""
    committed: int
    end_offset: int
    lag: int
    unacked: int
    waiting: int
    missed: int
    """Messages that retention took before they were done."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group, its members, and where it stands."""

    topic: str
    name: str
    generation: int
    members: tuple[str, ...]
    partitions: tuple[GroupPartitionInfo, ...]

    @property
    def lag(self) -> int:
        """Offsets not done, over all partitions."""
        return sum(place.lag for place in self.partitions)

    @property
    def missed(self) -> int:
        """Messages that retention took before they were done, over all partitions."""
        return sum(place.missed for place in self.partitions)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that failed too often, or was rejected."""

    partition: int
    """With `offset`: its place in the dead letter topic."""
    offset: int
    message_id: bytes
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes]
    group: str
    reason: str
    attempts: int
    origin_partition: int
    origin_offset: int
    dead_lettered: datetime


@dataclass(frozen=True, slots=True)
class ReplayInfo:
    """A named replay and how far it has come, by partition."""

    name: str
    topic: str
    done: Mapping[int, int]
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The node at the other end."""

    name: str
    version: str
    started: datetime
    data_folder: str
    http_address: str
    message_bytes_max: int
    batch_bytes_max: int
    batch_messages_max: int
    auto_create: bool
    """Whether whoever uses a topic that is not there makes it."""
