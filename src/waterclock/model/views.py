"""Views: what a node shows of its topics, groups, messages and streams, and of itself.

Each has one definition, from the node that fills it to the program that reads it. gRPC carries it
as the protobuf message with the same fields (`protobuf.py`), HTTP as JSON in camel case, and the
client hands it out. Fields are plain numbers, as on the wire; properties say the same for people:
times are aware datetimes in UTC.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import IntEnum

import msgspec

from waterclock.model.clock import time_of
from waterclock.model.message import Message
from waterclock.model.topics.effective_settings import EffectiveSettings


class View(msgspec.Struct, frozen=True, rename="camel"):
    """What stands at one moment."""


class Position(View, frozen=True):
    """A place in a topic."""

    partition: int
    offset: int


class TopicSettings(View, frozen=True, omit_defaults=True):
    """What can be said about a topic; None and 0 leave it to the node's configuration."""

    # A factory makes JSON always have them: only what is as configured is left out.
    partitions: int = msgspec.field(default_factory=lambda: 1)
    retention_ms: int | None = None
    """None: as configured; 0: for ever."""
    retention_bytes: int | None = None
    retention_wait_for_groups: bool | None = None
    is_compacted: bool = msgspec.field(default_factory=lambda: False)
    retries_max: int | None = None
    ack_timeout_ms: int | None = None
    replication_factor: int | None = None
    """Copies of each partition, where `cluster.etcd` is set."""


class PartitionInfo(View, frozen=True):
    """One log of a topic; of one that is not open only the problem is known."""

    partition: int
    start_offset: int = -1
    end_offset: int = -1
    """Of what can be read."""
    size_bytes: int = -1
    scheduled: int = -1
    problem: str = ""
    """Empty: healthy."""


class TopicInfo(View, frozen=True, omit_defaults=True):
    """A topic, its settings, and where its partitions stand."""

    topic: str
    settings: TopicSettings
    partitions: tuple[PartitionInfo, ...]
    effective: EffectiveSettings | None = None
    """None in lists of topics."""

    @property
    def name(self) -> str:
        return self.topic

    @property
    def retention(self) -> timedelta | None:
        """How long messages are kept; None: for ever, or as the node is configured."""
        kept_ms = self.settings.retention_ms
        return timedelta(milliseconds=kept_ms) if kept_ms else None

    @property
    def retention_bytes(self) -> int | None:
        """How much of each partition is kept; None: all, or as the node is configured."""
        return self.settings.retention_bytes or None

    @property
    def retention_wait_for_groups(self) -> bool | None:
        """Whether what some group has yet to read is kept longer; None: as configured."""
        return self.settings.retention_wait_for_groups

    @property
    def is_compacted(self) -> bool:
        """Only the latest message of each key is kept."""
        return self.settings.is_compacted

    @property
    def retries_max(self) -> int | None:
        """How often its groups try again; None: as the node is configured."""
        return self.settings.retries_max

    @property
    def ack_timeout(self) -> timedelta | None:
        """How long its groups have for a message; None: as the node is configured."""
        timeout_ms = self.settings.ack_timeout_ms
        return None if timeout_ms is None else timedelta(milliseconds=timeout_ms)

    @property
    def replication_factor(self) -> int | None:
        """How many nodes are to have each partition; None: as they are configured."""
        return self.settings.replication_factor


class GroupPartitionInfo(View, frozen=True):
    """Where a group stands in one partition."""

    partition: int
    member: str
    """The owner; empty if nobody owns it."""
    committed: int
    end_offset: int
    lag: int
    """Offsets not done, those with nothing to deliver included."""
    unacked: int
    waiting: int
    """Messages that wait for a retry or for the dead letter topic."""
    missed: int
    """Messages that retention took before they were done."""


class GroupInfo(View, frozen=True):
    """A group on one topic, its members, and where it stands."""

    topic: str
    group: str
    generation: int
    members: tuple[str, ...]
    partitions: tuple[GroupPartitionInfo, ...]

    @property
    def name(self) -> str:
        return self.group

    @property
    def lag(self) -> int:
        """Offsets not done, over all partitions."""
        return sum(each.lag for each in self.partitions)

    @property
    def missed(self) -> int:
        """Messages that retention took before they were done, over all partitions."""
        return sum(each.missed for each in self.partitions)


class _MessageView(View, frozen=True):
    """A view of a message, whose fields can be asked for without it."""

    message: Message

    @property
    def message_id(self) -> bytes:
        return self.message.message_id or b""

    @property
    def key(self) -> bytes | None:
        return self.message.key

    @property
    def value(self) -> bytes | None:
        """The body; None is a tombstone, or was not asked for."""
        return self.message.value

    @property
    def headers(self) -> Mapping[str, bytes]:
        """Small facts about the message."""
        return self.message.headers or {}


class ScheduledMessage(_MessageView, frozen=True):
    """A message that waits for its time."""

    topic: str
    partition: int
    offset: int
    timer_id: str
    """`message_id-offset`."""
    value_bytes: int
    appended_ms: int = 0
    """When it was stored; 0: the node is too old to say."""

    @property
    def due(self) -> datetime:
        """When it is due, as it stands now."""
        return time_of(self.message.due_ms or 0)

    @property
    def appended(self) -> datetime | None:
        """When it was stored; None: the node is too old to say."""
        return time_of(self.appended_ms) if self.appended_ms else None


class DeadLetter(_MessageView, frozen=True):
    """A message that failed too often, or was rejected."""

    position: Position
    """In the dead letter topic."""
    group: str
    reason: str
    attempts: int
    origin: Position
    dead_lettered_ms: int

    @property
    def partition(self) -> int:
        """Its partition in the dead letter topic."""
        return self.position.partition

    @property
    def offset(self) -> int:
        """Its offset in the dead letter topic."""
        return self.position.offset

    @property
    def origin_partition(self) -> int:
        """The partition it was delivered from."""
        return self.origin.partition

    @property
    def origin_offset(self) -> int:
        """The offset it was delivered from."""
        return self.origin.offset

    @property
    def dead_lettered(self) -> datetime:
        """When it was given up."""
        return time_of(self.dead_lettered_ms)


class CancelCount(View, frozen=True):
    """What a bulk cancel found and did."""

    matched: int
    cancelled: int


class Horizon(View, frozen=True):
    """How many messages wait for up to so long, without those of a nearer horizon."""

    within_ms: int
    """0: overdue; -1: longer than all others."""
    count: int

    @property
    def within(self) -> timedelta | None:
        """None: longer than all others. Zero: overdue."""
        return None if self.within_ms < 0 else timedelta(milliseconds=self.within_ms)


class Recurrence(View, frozen=True, kw_only=True, omit_defaults=True):
    """A message that comes again and again: by `cron` or by `every_ms`, one of both."""

    name: str
    topic: str
    message: Message
    """Without id and due time: each occurrence gets its own."""
    cron: str | None = None
    """Five fields, or six with seconds first, read in `zone`."""
    every_ms: int | None = None
    # With a factory, JSON has them always.
    zone: str = msgspec.field(default_factory=lambda: "UTC")
    jitter_ms: int = msgspec.field(default_factory=int)
    """Each occurrence comes up to so much later, always the same for the same occurrence."""
    start_ms: int | None = None
    end_ms: int | None = None
    """Within [start_ms, end_ms)."""
    expires_after_ms: int | None = None
    """Each occurrence expires so long after its time."""
    next_ms: int = msgspec.field(default_factory=int)
    """When it comes next; 0 if it does not any more."""
    made_partitions: int = 0
    """Not 0: there was no such topic; putting this made it, with so many partitions."""
    is_paused: bool = False
    """It is kept, and nothing of it comes, until it is resumed."""

    @property
    def next(self) -> datetime | None:
        """When it comes next; None if never again."""
        return time_of(self.next_ms) if self.next_ms else None


class ReplayInfo(View, frozen=True):
    """A named replay and how far it has come, in each of its partitions."""

    name: str
    topic: str
    done: tuple[Position, ...]
    ends: tuple[Position, ...]


RUN_STATES = ("running", "done", "failed")
"""What a run tells of itself. The node shows one as `silent` that tells nothing any more."""


class JobRun(View, frozen=True):
    """A run of a job of the pipeline, as it told of itself; its times are the node's."""

    name: str
    job: str
    topic: str = ""
    """The topic it is of; empty: of all, or of several."""
    state: str = "running"
    """`running`, `done`, `failed`; `silent` if it goes on, and was not heard from for long."""
    started_ms: int = 0
    heard_ms: int = 0
    """When it last told anything."""
    ended_ms: int = 0
    """0: not yet, as far as is known."""
    stage: str = ""
    """What it is doing."""
    tasks_done: int = 0
    tasks: int = 0
    """Of Spark, in the stages at work."""
    rows_read: int | None = None
    """Rows, as the counts below: None if the job does not count them."""
    rows: int | None = None
    """Written, sent or kept."""
    rejected: int | None = None
    size_bytes: int | None = None
    error: str = ""
    """Why it failed."""
    report: str = ""
    """Its summary, the JSON text that the command prints; empty until it is done."""

    @property
    def started(self) -> datetime:
        """When the node first heard of it."""
        return time_of(self.started_ms)

    @property
    def heard(self) -> datetime:
        """When the node last heard of it."""
        return time_of(self.heard_ms)

    @property
    def ended(self) -> datetime | None:
        """When it ended; None: it did not, as far as is known."""
        return time_of(self.ended_ms) if self.ended_ms else None


class SnapshotPartitionInfo(View, frozen=True):
    partition: int
    start_offset: int
    end_offset: int
    """A replay goes on with the log from here."""
    rows: int
    size_bytes: int
    files: int


class SnapshotInfo(View, frozen=True):
    """A snapshot the node knows of."""

    topic: str
    snapshot: str
    folder: str
    created_ms: int
    partitions: tuple[SnapshotPartitionInfo, ...]

    @property
    def name(self) -> str:
        return self.snapshot

    @property
    def created(self) -> datetime:
        """When it was made."""
        return time_of(self.created_ms)

    @property
    def rows(self) -> int:
        """Messages in all partitions."""
        return sum(each.rows for each in self.partitions)


class WriterInfo(View, frozen=True):
    """A writer and how far it has come."""

    writer: str
    committed: int | None
    """The last batch committed; None: none yet."""
    open_tasks: int
    """Tasks begun or done in batches that are not committed."""
    changed_ms: int

    @property
    def name(self) -> str:
        return self.writer

    @property
    def changed(self) -> datetime:
        """When it was last heard of."""
        return time_of(self.changed_ms)


class WriteState(IntEnum):
    """How far a task of a writer is. The numbers are those of the API."""

    NEW = 0
    BEGUN = 1
    DONE = 2
    COMMITTED = 3


class WriteBegun(View, frozen=True):
    """What the node knows of a task that begins."""

    state: WriteState
    positions: dict[int, int]
    """NEW and BEGUN: where each partition ended when the task first began; what the task stores, or
    has stored, lies there or behind. A partition that is not named: at its start."""
    rows: int
    """DONE: how many it stored."""


class RequestLimits(View, frozen=True):
    """What one request may ask of a node."""

    message_bytes_max: int
    batch_bytes_max: int
    batch_messages_max: int


class NodeAddress(View, frozen=True):
    """Where clients reach a node."""

    name: str
    address: str
    """`host:port` for gRPC."""
    http_address: str
    """A URL."""


class NodeInfo(View, frozen=True, omit_defaults=True):
    name: str
    version: str
    started_ms: int
    now_ms: int
    limits: RequestLimits
    auto_create: bool
    """Whether whoever uses a topic that is not there makes it."""
    data_folder: str = ""
    """With `http_address`: told over gRPC."""
    http_address: str = ""
    nodes: tuple[NodeAddress, ...] = ()
    """Those of its cluster that are there, itself among them; empty if it is alone. Told over
    gRPC."""

    @property
    def message_bytes_max(self) -> int:
        """How large a message may be."""
        return self.limits.message_bytes_max

    @property
    def batch_bytes_max(self) -> int:
        """How large a batch may be."""
        return self.limits.batch_bytes_max

    @property
    def batch_messages_max(self) -> int:
        """How many messages a batch may have."""
        return self.limits.batch_messages_max

    @property
    def started(self) -> datetime:
        """When it was started."""
        return time_of(self.started_ms)


class StreamInfo(View, frozen=True):
    """A stream in memory."""

    stream_id: str
    in_memory_stream_size: int | None
    """Messages it holds at most; None before the first was sent."""
    messages: int
    first_position: int
    last_position: int
    waiting: int
    """Senders and receivers that wait."""
    consumers: dict[str, int]
    """How far each named consumer has come."""
    waiting_senders: int = 0
    """Of those that wait, the senders."""

    @property
    def name(self) -> str:
        return self.stream_id

    @property
    def size(self) -> int | None:
        """Messages it holds at most; None before the first was sent."""
        return self.in_memory_stream_size
