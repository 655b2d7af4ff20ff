"""What the figures of a topic ask a person to do. Pure rules, each with its threshold named.

A rule speaks only if it has a reason, and says what to do: a report in which everything is marked
is a report that nobody reads.
"""

from collections.abc import Iterator

from waterclock.spark.jobs.report.figures import Advice, GroupFigures, HotKey, TopicFigures
from waterclock.spark.jobs.report.number_text import count_text, share_text, size_text, span_text

ENOUGH_MESSAGES = 1_000
"""Fewer say nothing about shares."""
LATE_P99_MS = 1_000
SKEW_FACTOR = 2.0
"""A partition with so many times its fair share is skewed."""
HOT_SHARE = 0.1
"""A key with so large a share of all messages is hot."""
BEHIND_MS = 5 * 60_000
BEHIND_BAD_MS = 60 * 60_000
DISK_DAYS_BAD, DISK_DAYS_WARN = 7.0, 30.0
COMPACT_KEEPS = 0.2
"""A topic is worth compacting if so small a share of it would be left."""
COMPACT_MESSAGES_MIN = 100_000


def advise(figures: TopicFigures) -> tuple[Advice, ...]:
    """Return what to do about a topic, the worst first."""
    found = [
        *_partitions(figures),
        *_lateness(figures),
        *_groups(figures),
        *_dead(figures),
        *_keys(figures),
        *_duplicates(figures),
        *_growth(figures),
        *_compaction(figures),
    ]
    worst_first = ("bad", "warn", "note", "good")
    return tuple(sorted(found, key=lambda advice: worst_first.index(advice.level)))


def _partitions(figures: TopicFigures) -> Iterator[Advice]:
    for each in figures.partitions:
        if each.problem:
            yield Advice(
                level="bad",
                title=f"Partition {each.partition} is not whole",
                text=f"{each.problem}. See the node's log, and `waterclock log check`.",
            )


def _lateness(figures: TopicFigures) -> Iterator[Advice]:
    late = figures.lateness
    if late.p99_ms is not None and late.p99_ms > LATE_P99_MS:
        yield Advice(
            level="warn",
            title=f"1 in 100 messages fires more than {span_text(late.p99_ms)} late",
            text="The node was down or too busy when they were due: the plot over time shows when. "
            "More partitions spread the firing; `schedule.fire_messages_max` lets a storm through "
            "in larger slices.",
        )
    if late.early:
        yield Advice(
            level="warn",
            title=f"{count_text(late.early)} messages fired early by the wall clock",
            text="The clock of the node was set back: look at its time synchronisation.",
        )
    overdue = sum(each.messages for each in figures.scheduled if each.within_ms == 0)
    if overdue >= ENOUGH_MESSAGES:
        yield Advice(
            level="warn",
            title=f"{count_text(overdue)} messages are overdue",
            text="Their time has come and they are not fired yet: the node is behind.",
        )


def _groups(figures: TopicFigures) -> Iterator[Advice]:
    for group in figures.groups:
        yield from _group(group, partitions=len(figures.partitions))


def _group(group: GroupFigures, *, partitions: int) -> Iterator[Advice]:
    behind = span_text(group.behind_ms)
    if group.lag and not group.members:
        yield Advice(
            level="bad" if group.behind_ms >= BEHIND_BAD_MS else "warn",
            title=f"Nobody reads for group {group.group}",
            text=f"It has no member, and {count_text(group.lag)} offsets to go; the oldest message "
            f"waits for {behind}. Start a member, or delete the group: unread messages go in time.",
        )
    elif group.behind_ms >= BEHIND_MS:
        more = (
            f"up to {partitions} members share the work"
            if group.members < partitions
            else "it has a member for each partition: add partitions, or make the work quicker"
        )
        yield Advice(
            level="bad" if group.behind_ms >= BEHIND_BAD_MS else "warn",
            title=f"Group {group.group} is {behind} behind",
            text=f"{count_text(group.lag)} offsets to go with {group.members} member(s): {more}.",
        )
    if group.members > partitions:
        yield Advice(
            level="note",
            title=f"Group {group.group} has members without work",
            text=f"{group.members} members share {partitions} partition(s): add partitions "
            "(`waterclock topics update --partitions`), or run fewer.",
        )


def _dead(figures: TopicFigures) -> Iterator[Advice]:
    if figures.dead:
        most = max(figures.dead, key=lambda reason: reason.messages)
        yield Advice(
            level="warn",
            title=f"{count_text(figures.dead_messages)} dead letters",
            text=f"Most often: {most.reason} (group {most.group}, {count_text(most.messages)}). "
            "Once the cause is gone, `waterclock pipeline redrive` sends them again.",
        )


def _keys(figures: TopicFigures) -> Iterator[Advice]:
    if figures.messages < ENOUGH_MESSAGES:
        return
    hottest = max(figures.hot_keys, key=lambda key: key.messages, default=None)
    if hottest is not None and hottest.messages >= HOT_SHARE * figures.messages:
        yield Advice(
            level="warn" if len(figures.partitions) > 1 else "note",
            title=f"Key {hottest.key} has {share_text(hottest.messages / figures.messages)} of "
            "all messages",
            text="Messages of a key stay in order, so they are one member's work, whatever the "
            "number of partitions. A finer key (with a part that varies) would spread them.",
        )
    most = max(figures.partitions, key=lambda each: each.messages)
    fair = figures.messages / len(figures.partitions)
    if len(figures.partitions) > 1 and most.messages >= SKEW_FACTOR * fair:
        yield Advice(
            level="warn",
            title=f"Partition {most.partition} has {most.messages / fair:.1f} times its fair share",
            text=_skew_words(most.partition, most.messages, hottest),
        )


def _skew_words(partition: int, messages: int, hottest: HotKey | None) -> str:
    if hottest is None:
        return "Its messages have no key: somebody publishes to this partition by number."
    if hottest.partition == partition and hottest.messages >= messages / 2:
        share = share_text(hottest.messages / messages)
        return f"{share} of it is the key {hottest.key}: more partitions would not help."
    return "No single key is to blame: more partitions spread keys more evenly."


def _duplicates(figures: TopicFigures) -> Iterator[Advice]:
    if figures.duplicates:
        share = share_text(figures.duplicates / figures.messages)
        yield Advice(
            level="note",
            title=f"{count_text(figures.duplicates)} messages repeat an id ({share})",
            text="They were published with `allow_duplicate`, or longer after the first than "
            "`dedup.window`. Consumers get them twice.",
        )


def _growth(figures: TopicFigures) -> Iterator[Advice]:
    growth = figures.growth
    days = growth.disk_full_days
    grows = "" if growth.bytes_per_day is None else f"{size_text(growth.bytes_per_day)} a day"
    if days is not None and days < DISK_DAYS_WARN and growth.settled_bytes is None:
        yield Advice(
            level="bad" if days < DISK_DAYS_BAD else "warn",
            title=f"The disk is full in {span_text(days * 86_400_000)} at this rate",
            text=f"The topic grows by {grows} and nothing ends it: set a retention "
            "(`waterclock topics update --retention`), or compact it.",
        )
    elif growth.settled_bytes is None and grows and not growth.is_compacted:
        yield Advice(
            level="note",
            title="No retention: the topic grows for ever",
            text=f"It grows by {grows} now. A retention lets old messages go.",
        )


def _compaction(figures: TopicFigures) -> Iterator[Advice]:
    left = figures.keys + figures.keyless
    if figures.messages < COMPACT_MESSAGES_MIN or left > COMPACT_KEEPS * figures.messages:
        return
    yield Advice(
        level="note",
        title=f"A snapshot would have {share_text(left / figures.messages)} of the messages",
        text="If only the latest of each key counts, `waterclock pipeline compact` makes replays "
        f"{count_text(figures.messages / max(left, 1))} times shorter.",
    )
