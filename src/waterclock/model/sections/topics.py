"""Topics and those who read them: timers, delivery, groups."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from waterclock.model.errors import (
    BadConfig,
)
from waterclock.model.limits import (
    RUNS_MAX,
)
from waterclock.model.settings import (
    Maybe,
    Section,
    Toggle,
    count,
    duration,
    size,
)
from waterclock.model.units import (
    DAY_MS,
    GIB,
    HOUR_MS,
    MIB,
    MINUTE_MS,
    SECOND_MS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig(Section):
    """How messages for later are kept and fired."""

    section: ClassVar[str] = "schedule"

    tick_ms: Annotated[int, duration(10, 1 * SECOND_MS)] = 100
    """How exact firing is: a due time is rounded up to this. Shorter fires closer to the moment and
    wakes the node more often."""

    hot_window_ms: Annotated[int, duration(1 * SECOND_MS, 3_650 * DAY_MS)] = 6 * HOUR_MS
    """What is due sooner is kept in memory, the rest in files until its time nears. Longer loads
    less often; each pending message in memory takes about 13 bytes."""

    fire_messages_max: Annotated[int, count(1, 100_000)] = 2_000
    """Most messages fired at once. More fires a storm sooner; everyone else waits for the whole
    of it."""

    checkpoint_ms: Annotated[int, duration(1 * SECOND_MS, 1 * DAY_MS)] = 1 * MINUTE_MS
    """Time between saves of the timers. Longer reads more of the log again after a crash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsConfig(Section):
    """Topics that nobody configured."""

    section: ClassVar[str] = "topics"

    auto_create: Annotated[bool, Toggle()] = True
    """Whether publishing, scheduling or subscribing to a topic that does not exist creates it,
    which the answer then says. Off turns a mistyped name into an error."""

    partitions: Annotated[int, count(1, 1_024)] = 1
    """Of a topic created without a number. More lets more members of a group work at once, and
    keeps order only among messages of one key."""

    replication_factor: Annotated[int, count(1, 5)] = 3
    """Copies of each partition of a topic created without a number, on as many nodes, where
    `cluster.etcd` is set. A majority of them must have flushed a message: three outlive one node,
    five two, at the price of more disk and network; two keep a copy, and stop with either node.
    Fewer are made while there are fewer nodes."""

    topics_max: Annotated[int, count(1, 100_000)] = 1_000
    """Most topics of a node, so that clients who invent names cannot fill the disk with folders."""

    partitions_max: Annotated[int, count(1, 1_000_000)] = 4_096
    """Most partitions of a node, over all topics. Each needs a few open files, and up to 48 KiB of
    disk while it is empty: 192 MiB for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryConfig(Section):
    """How a group is served."""

    section: ClassVar[str] = "delivery"

    ack_timeout_ms: Annotated[int, duration(100, 12 * HOUR_MS)] = 30 * SECOND_MS
    """How long a member may keep a message before it is taken to have failed. Lower finds a stuck
    member sooner; a member that is merely slow gets everything twice, unless it extends."""

    lease_ms_max: Annotated[int, duration(100, 7 * DAY_MS)] = 12 * HOUR_MS
    """How far ahead a member may extend. Higher allows longer work; a lease pins progress."""

    max_retries: Annotated[int, count(1, 10)] = 3
    """Failures that are followed by another attempt; the next one leads to the dead letter topic.
    Higher rides out longer outages; a message that can never succeed is in the way for longer."""

    count_lost_owners: Annotated[bool, Toggle()] = False
    """Whether the first message a member held of each partition has failed when the member died or
    lost touch. On, a message that kills its consumer each time ends as a dead letter; so does one
    whose consumers merely lost their connections, one time too often. Off, it comes again for
    ever."""

    retry_delay_ms: Annotated[int, duration(100, 10 * SECOND_MS)] = 1 * SECOND_MS
    """The wait after the first failure; doubles with each. Lower recovers sooner from a hiccup and
    beats harder on whatever is down."""

    retry_delay_ms_max: Annotated[int, duration(100, DAY_MS)] = 5 * MINUTE_MS
    """The longest wait between attempts, jitter aside."""

    retry_jitter_percent: Annotated[int, count(0, 100)] = 20
    """How much longer than that a wait may be. Higher spreads a burst of failures farther."""

    retry_ahead_ms_max: Annotated[int, duration(100, 366 * DAY_MS)] = 7 * DAY_MS
    """How far ahead a consumer may name a retry; later is made this. Higher keeps a hole in the
    group's progress open for longer; retention may take the message meanwhile."""

    credit_messages: Annotated[int, count(1, 10_000_000)] = 1_000
    """What a member can hold until it says otherwise. Higher hides more of the round trip and
    gives more back when the member dies."""

    credit_bytes: Annotated[int, size(1, 16 * GIB)] = 64 * MIB
    """The same in bytes."""

    unacked_max: Annotated[int, count(1, 10_000_000)] = 10_000
    """Messages of a partition handed out and not acked, whatever the credit: the server's own
    brake. Higher lets a fast member run farther; it is what a crash delivers again."""

    runs_max: Annotated[int, count(1, 10_000_000)] = RUNS_MAX
    """Messages of a partition handed out and not done, those waiting for a retry or for the dead
    letter topic included. Progress has at most as many runs. At the limit nothing new is handed
    out until something is done. Higher skips past more failing messages and persists more."""

    def __post_init__(self) -> None:
        # `super()` without arguments does not survive slots=True (the class is made twice).
        Section.__post_init__(self)
        if self.retry_delay_ms_max < self.retry_delay_ms:
            raise BadConfig("delivery.retry_delay_max", "is below delivery.retry_delay")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig(Section):
    """How groups watch their members."""

    section: ClassVar[str] = "groups"

    session_timeout_ms: Annotated[int, duration(100, 30 * MINUTE_MS)] = 10 * SECOND_MS
    """How long a member may be silent. Lower moves its partitions sooner after it died; a pause of
    its process is more often taken for its death. Members should beat three times within it."""

    revoke_grace_ms: Annotated[int, duration(0, 10 * MINUTE_MS)] = 10 * SECOND_MS
    """How long a partition that moves waits for its owner to finish. Higher delivers less twice;
    lower balances sooner."""

    members_max: Annotated[int, count(1, 100_000)] = 1_000
    """Most members of a group. Members beyond the number of partitions get nothing to do."""

    expire_ms: Annotated[int | None, Maybe(duration(1 * SECOND_MS, 36_500 * DAY_MS))] = 30 * DAY_MS
    """A group without members that nobody has used for so long is forgotten, and begins anew if it
    is used again. None keeps groups for ever. Longer waits for consumers that seldom come."""

    expire_unused_ms: Annotated[int | None, Maybe(duration(1 * SECOND_MS, 36_500 * DAY_MS))] = (
        1 * HOUR_MS
    )
    """The same for a group that never answered a message, was never moved, and never had members
    for so long: anybody makes one by asking once. None treats it as all others."""

    groups_max: Annotated[int, count(1, 1_000_000)] = 10_000
    """Most groups of a node, over all topics. Each is a record, and a cursor for each partition,
    also without members."""
