"""The figures of a report: plain, so they are JSON as they are, and a page is drawn from them.

How late messages fired is kept as a histogram with narrow bins: exact below 64 ms, and from there
32 bins for each doubling, so a percentile read from it is at most 3 % too high. Bins of different
tasks add up, which percentiles do not: so Spark counts bins, and nothing else comes to the driver.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

LINEAR_MS = 64
SUB_BINS = 32
_SUB_BITS = 5
_LINEAR_BITS = 6

STEPS_MS = (
    *(n * 1_000 for n in (1, 2, 5, 10, 30)),
    *(n * 60_000 for n in (1, 2, 5, 10, 30)),
    *(n * 3_600_000 for n in (1, 2, 6, 12)),
    *(n * 86_400_000 for n in (1, 2, 7, 14, 30, 90, 365, 3_650)),
)
SLOTS_MAX = 96
"""Spans of time into which a report is cut at most."""

Level = Literal["good", "note", "warn", "bad"]


def step_of(span_ms: int) -> int:
    """Return a round span so that a report has at most `SLOTS_MAX` of them."""
    return next((step for step in STEPS_MS if span_ms <= step * (SLOTS_MAX - 1)), STEPS_MS[-1])


# Half a millisecond more is never a power of two, so no rounding of the logarithm can hurt.
_POWER_SQL = "cast(floor(log2(ms + 0.5D)) as int)"
BIN_SQL = (
    f"case when ms < {LINEAR_MS} then cast(greatest(ms, 0L) as int) else cast("
    f"{LINEAR_MS} + ({_POWER_SQL} - {_LINEAR_BITS}) * {SUB_BINS}"
    f" + shiftright(ms, {_POWER_SQL} - {_SUB_BITS}) - {SUB_BINS} as int) end"
)
"""The bin of a lateness, of a column `ms`, bigint."""


def bin_edges(number: int) -> tuple[int, int]:
    """Return the latenesses [low, high) of a bin."""
    if number < LINEAR_MS:
        return number, number + 1
    power, sub = divmod(number - LINEAR_MS, SUB_BINS)
    width = 1 << (power + _LINEAR_BITS - _SUB_BITS)
    low = (SUB_BINS + sub) * width
    return low, low + width


def percentile(bins: Mapping[int, int], share: float) -> int | None:
    """Return the lateness that so large a share does not exceed; None if there are none."""
    total = sum(bins.values())
    seen = 0
    for number in sorted(bins):
        seen += bins[number]
        if seen >= share * total and seen:
            return bin_edges(number)[1] - 1
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """How long after its due time a message fired, in milliseconds."""

    messages: int
    p50_ms: int | None
    p90_ms: int | None
    p99_ms: int | None
    p999_ms: int | None
    max_ms: int | None
    early: int
    """Fired before its time by the wall clock: only if that was set back."""
    bins: tuple[tuple[int, int, int], ...]
    """(low, high, messages), those that are not empty."""

    @classmethod
    def of(cls, bins: Mapping[int, int], *, max_ms: int | None, early: int) -> "Lateness":
        """Return the figures of a histogram."""

        def at(share: float) -> int | None:
            found = percentile(bins, share)
            return found if found is None or max_ms is None else min(found, max_ms)

        return cls(
            messages=sum(bins.values()),
            p50_ms=at(0.5),
            p90_ms=at(0.9),
            p99_ms=at(0.99),
            p999_ms=at(0.999),
            max_ms=max_ms,
            early=early,
            bins=tuple((*bin_edges(number), bins[number]) for number in sorted(bins)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What happened in one span of time."""

    start_ms: int
    messages: int
    value_bytes: int
    fired: int
    late_p50_ms: int | None
    late_p99_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFigures:
    partition: int
    messages: int
    """In the time that is looked at; so are all counts, unless it says otherwise."""
    keys: int
    size_bytes: int
    """Of all its log."""
    offsets: int
    """From its first to its last."""
    scheduled: int
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKey:
    """A key with many messages."""

    key: str
    """As text, or as hex if it is none."""
    partition: int
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """How far a group is behind."""

    group: str
    members: int
    lag: int
    """Offsets not done, undeliverable ones included."""
    unacked: int
    waiting: int
    behind_ms: int
    """Age of the oldest message that is not done; 0: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """Messages that wait for their time."""

    within_ms: int | None
    """Due within so long, and later than the horizon before; 0: overdue; None: later than all."""
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadReason:
    """Dead letters with one reason."""

    group: str
    reason: str
    messages: int
    attempts_max: int
    newest_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How the log grows, and when retention or the disk ends it."""

    size_bytes: int
    bytes_per_day: float | None
    """None: the time looked at is too short to tell."""
    retention_ms: int | None
    retention_bytes: int | None
    """Of all partitions together."""
    is_compacted: bool
    settled_bytes: float | None
    """What it comes to rest at, if anything makes it."""
    disk_free_bytes: int | None
    disk_full_days: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Something a person may want to do."""

    level: Level
    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFigures:
    topic: str
    messages: int
    value_bytes: int
    tombstones: int
    keyless: int
    keys: int
    duplicates: int
    """Messages whose id another message of the partition had before."""
    step_ms: int
    slots: tuple[Slot, ...]
    lateness: Lateness
    partitions: tuple[PartitionFigures, ...]
    hot_keys: tuple[HotKey, ...]
    groups: tuple[GroupFigures, ...]
    scheduled: tuple[Horizon, ...]
    dead: tuple[DeadReason, ...]
    growth: Growth
    advice: tuple[Advice, ...] = field(default=())

    @property
    def rate(self) -> float:
        """Messages a second, over all the time that is looked at."""
        return self.messages / (len(self.slots) * self.step_ms / 1_000) if self.slots else 0.0

    @property
    def dead_messages(self) -> int:
        """Dead letters, all."""
        return sum(each.messages for each in self.dead)

    @property
    def scheduled_messages(self) -> int:
        """Messages that wait for their time, all."""
        return sum(each.messages for each in self.scheduled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A whole report."""

    node: str
    version: str
    made_ms: int
    since_ms: int | None
    """None: from the beginning."""
    until_ms: int | None
    topics: tuple[TopicFigures, ...]


SpreadRow = tuple[int, int, int | None, int, int, int, int, int | None]
"""partition, slot, bin (None: not fired), messages, value bytes, tombstones, early, latest ms."""


def slots_of(
    rows: Iterable[SpreadRow], *, start_ms: int, step_ms: int, count: int
) -> tuple[Slot, ...]:
    """Return what happened over time, from what Spark counted."""
    messages, size = [0] * count, [0] * count
    late: list[dict[int, int]] = [{} for _ in range(count)]
    for _, slot, number, seen, value_bytes, *_ in rows:
        at = min(max(slot, 0), count - 1)
        messages[at] += seen
        size[at] += value_bytes
        if number is not None:
            late[at][number] = late[at].get(number, 0) + seen
    return tuple(
        Slot(
            start_ms=start_ms + i * step_ms,
            messages=messages[i],
            value_bytes=size[i],
            fired=sum(late[i].values()),
            late_p50_ms=percentile(late[i], 0.5),
            late_p99_ms=percentile(late[i], 0.99),
        )
        for i in range(count)
    )


def lateness_of(rows: Sequence[SpreadRow]) -> Lateness:
    """Return how late messages fired, from what Spark counted."""
    bins: dict[int, int] = {}
    for _, _, number, seen, *_ in rows:
        if number is not None:
            bins[number] = bins.get(number, 0) + seen
    early = sum(row[6] for row in rows)
    latest = max((row[7] for row in rows if row[7] is not None), default=None)
    return Lateness.of(bins, max_ms=None if latest is None else max(latest, 0), early=early)
