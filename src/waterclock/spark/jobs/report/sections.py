"""The cards of a topic: each one question, answered by a plot or a table. Pure.

A card that has nothing to show is left out: a topic without dead letters has no card about them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from math import log10

from waterclock.spark.jobs.report import plots
from waterclock.spark.jobs.report.figures import TopicFigures
from waterclock.spark.jobs.report.number_text import (
    NONE_TEXT,
    count_text,
    day_text,
    rate_text,
    share_text,
    size_text,
    span_text,
    time_text,
)

PARTITIONS_SHOWN_MAX = 64


@dataclass(frozen=True, slots=True)
class Section:
    """One card; `body` is markup."""

    title: str
    words: str
    body: str
    is_full: bool = False


def sections(topic: TopicFigures) -> list[Section]:
    """Return the cards of a topic. They stand in two columns: one that were alone gets both."""
    made = list(_sections(topic))
    if sum(not each.is_full for each in made) % 2:
        made[-1] = replace(made[-1], is_full=True)
    return made


def _sections(topic: TopicFigures) -> Iterator[Section]:
    if topic.messages:
        yield _rates(topic)
    if topic.lateness.messages:
        yield _lateness(topic)
        yield _lateness_over_time(topic)
    if topic.groups:
        yield _groups(topic)
    if topic.scheduled_messages:
        yield _scheduled(topic)
    if topic.messages:
        yield _partitions(topic)
        yield _keys(topic)
    if topic.dead:
        yield _dead(topic)
    yield _sizes(topic)


def _rates(topic: TopicFigures) -> Section:
    seconds = topic.step_ms / 1_000
    starts = [slot.start_ms for slot in topic.slots]
    series = [
        plots.Series(
            "all messages", [slot.messages / seconds for slot in topic.slots], 1, shape="area"
        )
    ]
    if topic.lateness.messages:
        fired = [slot.fired / seconds for slot in topic.slots]
        series.append(plots.Series("of them fired by the clock", fired, 2))
    busiest = max(topic.slots, key=lambda slot: slot.messages)
    words = (
        f"Messages a second that became deliverable, over spans of {span_text(topic.step_ms)}. "
        f"Busiest: {rate_text(busiest.messages / seconds)} at {time_text(busiest.start_ms)}."
    )
    drawn = plots.over_time(
        starts,
        topic.step_ms,
        series,
        show=rate_text,
        label=f"Messages a second over time. {words}",
        full=True,
    )
    keys = plots.legend(series) if len(series) > 1 else ""
    return Section("Rate over time", words, keys + drawn, is_full=True)


_EDGES_MS = (
    *(1, 2, 3, 4, 5, 6, 8),
    *(n * 10**power for power in range(9) for n in (10, 12, 15, 20, 25, 30, 40, 50, 60, 80)),
)
"""A histogram for people has round edges: ten for each power of ten."""


def _lateness(topic: TopicFigures) -> Section:
    late = topic.lateness
    counts: dict[int, int] = {}
    for low, _, messages in late.bins:
        counts[_edge_index(low)] = counts.get(_edge_index(low), 0) + messages
    first, last = min(counts), max(counts)
    bars = [
        plots.Bar(
            _edge_label(i),
            counts.get(i, 0),
            f"{_edge_range(i)}: {counts.get(i, 0):,} messages "
            f"({share_text(counts.get(i, 0) / late.messages)})",
        )
        for i in range(first, last + 1)
    ]
    marks = [
        plots.Mark(f"{name} {span_text(at)}", _edge_place(at) - first)
        for name, at in (("p50", late.p50_ms), ("p99", late.p99_ms), ("p99.9", late.p999_ms))
        if at is not None
    ]
    words = (
        f"Firing time minus due time of {count_text(late.messages)} messages that were for later. "
        f"The latest: {span_text(late.max_ms or 0)}."
    )
    drawn = plots.columns(
        bars, show=count_text, marks=marks, label=f"Histogram of lateness. {words}"
    )
    return Section("How late messages fire", words, drawn)


def _edge_index(ms: int) -> int:
    """Return which column a lateness is in: 0 is below 1 ms, then 1, 2, 3, …"""
    return sum(1 for edge in _EDGES_MS if edge <= ms)


def _edge_label(i: int) -> str:
    return "< 1 ms" if i == 0 else span_text(_EDGES_MS[i - 1])


def _edge_range(i: int) -> str:
    if i == 0:
        return "below 1 ms"
    low = span_text(_EDGES_MS[i - 1])
    return f"{low} and more" if i == len(_EDGES_MS) else f"{low} to {span_text(_EDGES_MS[i])}"


def _edge_place(ms: int) -> float:
    """Return where a lateness is among the columns, between its column's edges by logarithm."""
    i = _edge_index(ms)
    if i in (0, len(_EDGES_MS)):
        return i + 0.5
    low, high = _EDGES_MS[i - 1], _EDGES_MS[i]
    return i + (log10(ms + 0.5) - log10(low)) / (log10(high + 0.5) - log10(low))


def _lateness_over_time(topic: TopicFigures) -> Section:
    series = [
        plots.Series("p99", [slot.late_p99_ms for slot in topic.slots], 2),
        plots.Series("p50", [slot.late_p50_ms for slot in topic.slots], 1),
    ]
    words = f"Of the messages that fired within each span of {span_text(topic.step_ms)}."
    drawn = plots.over_time(
        [slot.start_ms for slot in topic.slots],
        topic.step_ms,
        series,
        show=span_text,
        label=f"Lateness over time. {words}",
    )
    return Section("Lateness over time", words, plots.legend(series) + drawn)


def _groups(topic: TopicFigures) -> Section:
    most = max((group.lag for group in topic.groups), default=0) or 1
    rows = [
        (
            escape(group.group),
            str(group.members),
            count_text(group.lag),
            span_text(group.behind_ms) if group.behind_ms else NONE_TEXT,
            count_text(group.unacked),
            count_text(group.waiting),
            plots.share_bar(group.lag / most, 2) if group.lag else "",
        )
        for group in sorted(topic.groups, key=lambda group: (-group.behind_ms, group.group))
    ]
    words = (
        "Offsets not done yet, and how long the oldest message waits. Handed out: sent to a member "
        "and not answered. Again: waiting for another attempt."
    )
    heads = ("group", "members", "lag", "behind", "handed out", "again", "")
    return Section("Groups", words, _table(heads, rows, bar=True))


def _scheduled(topic: TopicFigures) -> Section:
    bars = []
    before = 0
    for each in topic.scheduled:
        if each.within_ms is None:
            label = f"> {span_text(before)}"
        elif each.within_ms == 0:
            label = "overdue"
        else:
            label = f"≤ {span_text(each.within_ms)}"
            before = each.within_ms
        bars.append(plots.Bar(label, each.messages, f"{label}: {each.messages:,} messages"))
    words = f"{count_text(topic.scheduled_messages)} messages wait for their time, by how soon."
    drawn = plots.columns(bars, show=count_text, tone=3, label=f"Scheduled messages. {words}")
    return Section("Still to come", words, drawn)


def _partitions(topic: TopicFigures) -> Section:
    shown = topic.partitions[:PARTITIONS_SHOWN_MAX]
    bars = [
        plots.Bar(
            str(each.partition),
            each.messages,
            f"partition {each.partition}: {each.messages:,} messages "
            f"({share_text(each.messages / topic.messages)}), {each.keys:,} keys, "
            f"{size_text(each.size_bytes)}",
        )
        for each in shown
    ]
    most = max(each.messages for each in topic.partitions)
    fair = topic.messages / len(topic.partitions)
    words = f"Messages by partition. The fullest has {most / fair:.2f} times its fair share."
    if len(shown) < len(topic.partitions):
        words += f" Shown: the first {len(shown)} of {len(topic.partitions)}."
    drawn = plots.columns(bars, show=count_text, label=f"Messages by partition. {words}")
    return Section("Partitions", words, drawn)


def _keys(topic: TopicFigures) -> Section:
    if not topic.hot_keys:
        return Section("Keys", "No message has a key, so any member may get any of them.", "")
    top = topic.hot_keys[0].messages
    rows = [
        (
            f"<code>{escape(key.key)}</code>" if key.key else '<span class="soft">(empty)</span>',
            str(key.partition),
            count_text(key.messages),
            share_text(key.messages / topic.messages),
            plots.share_bar(key.messages / top),
        )
        for key in topic.hot_keys
    ]
    words = f"{count_text(topic.keys)} keys; the {len(rows)} with most messages:"
    if topic.keyless:
        words = f"{share_text(topic.keyless / topic.messages)} of messages have no key. " + words
    heads = ("key", "partition", "messages", "share", "")
    return Section("Hot keys", words, _table(heads, rows, bar=True))


def _dead(topic: TopicFigures) -> Section:
    rows = [
        (
            f"{escape(each.reason) or '(none)'}<small>group {escape(each.group)}</small>",
            count_text(each.messages),
            str(each.attempts_max),
            day_text(each.newest_ms),
        )
        for each in topic.dead
    ]
    words = f"{count_text(topic.dead_messages)} messages that failed too often or were rejected."
    heads = ("reason", "messages", "attempts", "newest")
    return Section("Dead letters", words, _table(heads, rows))


def _sizes(topic: TopicFigures) -> Section:
    growth = topic.growth
    offsets = sum(each.offsets for each in topic.partitions)
    facts = [("On disk", size_text(growth.size_bytes))]
    if topic.messages:
        facts.append(("Values", f"{size_text(topic.value_bytes / topic.messages)} on average"))
    if offsets:
        per = size_text(growth.size_bytes / offsets)
        facts.append(("Log", f"{per} for each offset, {count_text(offsets)} offsets"))
    if topic.tombstones:
        facts.append(("Tombstones", count_text(topic.tombstones)))
    facts.append(("Repeated ids", count_text(topic.duplicates)))
    kept = []
    if growth.retention_ms:
        kept.append(span_text(growth.retention_ms))
    if growth.retention_bytes:
        kept.append(size_text(growth.retention_bytes))
    is_kept = "the latest of each key" if growth.is_compacted else "for ever"
    facts.append(("Retention", " or ".join(kept) or is_kept))
    if growth.bytes_per_day is None:
        facts.append(("Growth", "too short a time to tell"))
    else:
        facts.append(("Growth", f"{size_text(growth.bytes_per_day)} a day"))
    if growth.settled_bytes is not None:
        facts.append(("Comes to rest at", size_text(growth.settled_bytes)))
    if growth.disk_free_bytes is not None:
        facts.append(("Free on its disk", size_text(growth.disk_free_bytes)))
    if growth.disk_full_days is not None and growth.settled_bytes is None:
        facts.append(("Disk full in", span_text(growth.disk_full_days * 86_400_000)))
    body = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in facts
    )
    words = "What is kept, and where that leads if things go on as they did."
    return Section("Size and retention", words, f'<dl class="facts">{body}</dl>')


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, bar: bool = False) -> str:
    """Return a table; cells are markup. With `bar` the last column is a drawing."""
    kinds = [""] * len(heads)
    if bar:
        kinds[-1] = ' class="wide-bar"'
    head = "".join(
        f'<th scope="col"{kind}>{escape(each)}</th>'
        for kind, each in zip(kinds, heads, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
