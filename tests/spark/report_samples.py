"""A topic that has everything a report can show, made up: for the page, without Spark or a node."""

from dataclasses import replace
from math import exp, sin
from typing import Any

from waterclock.spark.jobs.report.advice import advise
from waterclock.spark.jobs.report.figures import (
    LINEAR_MS,
    SUB_BINS,
    DeadReason,
    Figures,
    GroupFigures,
    Growth,
    Horizon,
    HotKey,
    Lateness,
    PartitionFigures,
    Slot,
    TopicFigures,
)

MADE_MS = 1_794_766_210_123
STEP_MS = 30 * 60_000
SLOTS = 48


def bin_of(ms: int) -> int:
    """Return the bin of a lateness, as Spark computes it by `BIN_SQL`."""
    if ms < LINEAR_MS:
        return max(ms, 0)
    doublings = ms.bit_length() - LINEAR_MS.bit_length()
    return LINEAR_MS + doublings * SUB_BINS + (ms >> (doublings + 1)) - SUB_BINS


def figures(*topics: TopicFigures) -> Figures:
    """Return a report on some topics."""
    return Figures(
        node="clock-1",
        version="0.1.0",
        made_ms=MADE_MS,
        since_ms=MADE_MS - SLOTS * STEP_MS,
        until_ms=None,
        topics=topics,
    )


def busy_topic(name: str = "orders") -> TopicFigures:
    """Return a topic with messages, groups, dead letters and trouble."""
    slots, bins = _day()
    total = sum(slot.messages for slot in slots)
    topic = TopicFigures(
        topic=name,
        messages=total,
        value_bytes=total * 180,
        tombstones=1_204,
        keyless=total // 50,
        keys=412_233,
        duplicates=37,
        step_ms=STEP_MS,
        slots=tuple(slots),
        lateness=Lateness.of(bins, max_ms=2_711, early=0),
        partitions=_partitions(total),
        hot_keys=tuple(
            HotKey(
                key=f"customer-{i * 7717 % 1000:04d}", partition=1, messages=total // (3 + 9 * i)
            )
            for i in range(10)
        ),
        groups=tuple(GroupFigures(**each) for each in GROUPS),
        scheduled=tuple(Horizon(within_ms=ms, messages=count) for ms, count in SCHEDULED),
        dead=tuple(DeadReason(**each) for each in DEAD),
        growth=Growth(
            size_bytes=int(total * 231),
            bytes_per_day=total * 231.0,
            retention_ms=7 * 86_400_000,
            retention_bytes=None,
            is_compacted=False,
            settled_bytes=7 * total * 231.0,
            disk_free_bytes=212 << 30,
            disk_full_days=260.0,
        ),
    )
    return replace(topic, advice=advise(topic))


GROUPS: tuple[dict[str, Any], ...] = (
    {"group": "billing", "members": 6, "lag": 312, "unacked": 300, "waiting": 2, "behind_ms": 840},
    {
        "group": "mail", "members": 2, "lag": 182_022, "unacked": 2_000, "waiting": 14,
        "behind_ms": 1_430_000,
    },
    {
        "group": "archive", "members": 0, "lag": 2_100_000, "unacked": 0, "waiting": 0,
        "behind_ms": 40_000_000,
    },
)  # fmt: skip
SCHEDULED = (
    (0, 0),
    (60_000, 1_203),
    (3_600_000, 24_022),
    (86_400_000, 84_100),
    (30 * 86_400_000, 15_004),
    (None, 1_811),
)
DEAD: tuple[dict[str, Any], ...] = (
    {
        "group": "mail", "reason": "SMTP 550: no such mailbox", "messages": 1_822,
        "attempts_max": 4, "newest_ms": MADE_MS - 50_000,
    },
    {
        "group": "billing", "reason": "rejected: amount is not a number", "messages": 12,
        "attempts_max": 1, "newest_ms": MADE_MS - 9_000_000,
    },
)  # fmt: skip


def _day() -> tuple[list[Slot], dict[int, int]]:
    """Return a day with a morning, an evening and a storm, and how late messages fired."""
    start_ms = (MADE_MS - SLOTS * STEP_MS) // STEP_MS * STEP_MS
    slots = []
    bins: dict[int, int] = {}
    for i in range(SLOTS):
        messages = int(60_000 * (1.3 + sin(i / 7.6 - 1.5)) + 900 * (i * 7919 % 13))
        fired = messages // 3
        storm = 900 * exp(-((i - 30) ** 2) / 3)
        slots.append(
            Slot(
                start_ms=start_ms + i * STEP_MS,
                messages=messages,
                value_bytes=messages * 180,
                fired=fired,
                late_p50_ms=int(41 + i % 5),
                late_p99_ms=int(96 + i % 9 + storm),
            )
        )
        for j in range(120):
            late = bin_of(int(exp(j / 27 + 0.5)))
            share = exp(-((j - 86) ** 2) / 260) + 0.002 * (j > 100)
            bins[late] = bins.get(late, 0) + int(fired * share / 28)
    return slots, {late: count for late, count in bins.items() if count}


def _partitions(total: int) -> tuple[PartitionFigures, ...]:
    return tuple(
        PartitionFigures(
            partition=i,
            messages=int(total * share),
            keys=68_000 + i,
            size_bytes=int(total * share * 231),
            offsets=int(total * share * 1.4),
            scheduled=21_000,
        )
        for i, share in enumerate((0.14, 0.41, 0.11, 0.12, 0.11, 0.11))
    )


def quiet_topic(name: str = "quiet") -> TopicFigures:
    """Return a topic in which there is nothing at all."""
    topic = TopicFigures(
        topic=name,
        messages=0,
        value_bytes=0,
        tombstones=0,
        keyless=0,
        keys=0,
        duplicates=0,
        step_ms=1_000,
        slots=(
            Slot(
                start_ms=MADE_MS // 1_000 * 1_000,
                messages=0,
                value_bytes=0,
                fired=0,
                late_p50_ms=None,
                late_p99_ms=None,
            ),
        ),
        lateness=Lateness.of({}, max_ms=None, early=0),
        partitions=(
            PartitionFigures(partition=0, messages=0, keys=0, size_bytes=0, offsets=0, scheduled=0),
        ),
        hot_keys=(),
        groups=(),
        scheduled=(),
        dead=(),
        growth=Growth(
            size_bytes=0,
            bytes_per_day=None,
            retention_ms=None,
            retention_bytes=None,
            is_compacted=False,
            settled_bytes=None,
            disk_free_bytes=None,
            disk_full_days=None,
        ),
    )
    return replace(topic, advice=advise(topic))
