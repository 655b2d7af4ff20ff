"""What a node has counted, as rows; those of several nodes put together; what a page shows of them.

Of a partition the word of the node that leads it counts, of a group that of its home: so what two
nodes tell of one topic is added up. Rates are made by the node that counted, from two counts of its
own: a partition that moves takes no number with it that would look like a burst.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TypeVar

from waterclock.model.names import is_own
from waterclock.node.history.counting import GroupCounts, NodeCounts, TopicCounts
from waterclock.security.rights import Rights
from waterclock.server.console.models import (
    Counts,
    DeadLettersRow,
    GroupRow,
    LiveParameters,
    NodeNow,
    NodeRow,
    Snapshot,
    TopicRow,
)

SUMMED = (
    "in_rate", "out_rate", "acked_rate", "fired_rate", "dead_lettered_rate", "stream_in_rate",
    "stream_out_rate", "pending", "lag", "unacked", "streams", "waiting", "size_bytes",
    "redelivered_rate", "under_replicated",
)  # fmt: skip
"""Of all nodes, what is the sum of theirs."""
FIELDS = {"name": "topic", "in": "in_rate", "out": "out_rate", "size": "size_bytes"}
"""By what rows are sorted, where it has another name."""


# One node


def topic_rows(before: NodeCounts, after: NodeCounts, seconds: float) -> list[TopicRow]:
    """Return a row of each topic, with its rates since the count before."""
    return [_topic_row(each, before.topics.get(name, each), seconds) for name, each in
            after.topics.items()]  # fmt: skip


def _topic_row(each: TopicCounts, then: TopicCounts, seconds: float) -> TopicRow:
    return TopicRow(
        topic=each.topic,
        partitions=each.partitions,
        led=each.led,
        in_rate=max(0, each.published - then.published) / seconds,
        out_rate=max(0, each.delivered - then.delivered) / seconds,
        messages=each.messages,
        size_bytes=each.size_bytes,
        pending=each.pending,
        groups=each.groups,
        lag=each.lag,
        problems=each.problems,
    )


def group_rows(before: NodeCounts, after: NodeCounts, seconds: float) -> list[GroupRow]:
    """Return a row of each group, with its rates since the count before."""
    known = before.by_group
    return [_group_row(each, known.get(each.key, each), seconds) for each in after.groups]


def _group_row(each: GroupCounts, then: GroupCounts, seconds: float) -> GroupRow:
    return GroupRow(
        topic=each.topic,
        group=each.group,
        members=each.members,
        partitions=each.partitions,
        out_rate=max(0, each.delivered - then.delivered) / seconds,
        acked_rate=max(0, each.acked - then.acked) / seconds,
        lag=each.lag,
        unacked=each.unacked,
        waiting=each.waiting,
    )


# Several nodes


def part_of(counts: Counts) -> Counts:
    """Return what other nodes need of it: topics of which this one has something to say."""
    topics = [
        each
        for each in counts.topics
        if (each.led or each.groups or each.problems) and not is_own(each.topic)
    ]
    return Counts(
        name=counts.name,
        node=counts.node,
        topics=topics,
        groups=counts.groups,
        dead_letters=counts.dead_letters,
    )


def merged(own: Counts, others: Sequence[Counts], away: Sequence[str]) -> Counts:
    """Return what several nodes have counted as if one had; `away` have not told in time."""
    topics = {each.topic: each for each in own.topics}
    groups = {(each.topic, each.group): each for each in own.groups}
    dead = dict(own.dead_letters or {})
    for other in others:
        for topic in other.topics:
            known = topics.get(topic.topic)
            topics[topic.topic] = topic if known is None else _added(known, topic)
        for group in other.groups:
            there = groups.get((group.topic, group.group))
            if there is None or there.members < group.members:
                groups[group.topic, group.group] = group
        for name, count in (other.dead_letters or {}).items():
            dead[name] = dead.get(name, 0) + count
    node = _merged_node([own, *others], topics=len(topics), groups=len(groups))
    node.nodes += [NodeRow(name=name) for name in away]
    return Counts(
        name=own.name,
        node=node,
        topics=list(topics.values()),
        groups=list(groups.values()),
        dead_letters=None if own.dead_letters is None else dead,
    )


def _added(one: TopicRow, other: TopicRow) -> TopicRow:
    """Return a row of a topic for both; those of a count are shared, and stay as they are."""
    return TopicRow(
        topic=one.topic,
        partitions=max(one.partitions, other.partitions),
        led=one.led + other.led,
        in_rate=one.in_rate + other.in_rate,
        out_rate=(one.out_rate or 0) + (other.out_rate or 0),
        messages=one.messages + other.messages,
        size_bytes=one.size_bytes + other.size_bytes,
        pending=one.pending + other.pending,
        groups=(one.groups or 0) + (other.groups or 0),
        lag=max(one.lag or 0, other.lag or 0),
        problems=one.problems + other.problems,
    )


def _merged_node(all_: Sequence[Counts], *, topics: int, groups: int) -> NodeNow:
    nodes = [each.node for each in all_]
    late = [each.lateness_p99_ms for each in nodes if each.lateness_p99_ms is not None]
    # The disk that fills up first is the one to look at.
    disks = [each for each in nodes if each.disk_bytes]
    fullest = min(disks, key=lambda n: (n.disk_free_bytes or 0) / (n.disk_bytes or 1), default=None)
    sums = {name: sum(getattr(each, name) for each in nodes) for name in SUMMED}
    return NodeNow(
        **sums,
        lateness_p99_ms=max(late, default=None),
        topics=topics,
        groups=groups,
        disk_bytes=None if fullest is None else fullest.disk_bytes,
        disk_free_bytes=None if fullest is None else fullest.disk_free_bytes,
        is_ready=nodes[0].is_ready,
        problems=list(nodes[0].problems),
        members=nodes[0].members,
        nodes=[node_row(each) for each in all_],
    )


def node_row(counts: Counts) -> NodeRow:
    """Return a line about a node."""
    node = counts.node
    return NodeRow(
        name=counts.name,
        is_heard=True,
        is_ready=node.is_ready,
        in_rate=node.in_rate,
        out_rate=node.out_rate,
        pending=node.pending,
        leads=sum(each.led for each in counts.topics),
        disk_bytes=node.disk_bytes,
        disk_free_bytes=node.disk_free_bytes,
        problems=node.problems,
    )


# A page


def snapshot_of(now_ms: int, counts: Counts, asked: LiveParameters, rights: Rights) -> Snapshot:
    """Return what a page is told: what its principal may see of what was counted."""
    node = counts.node if rights.allows("read") else None
    found = Snapshot(now_ms=now_ms, node=node, total=0)
    wanted = asked.filter.casefold()
    match asked.view:
        case "topics":
            topics = [
                each
                for each in counts.topics
                if wanted in each.topic.casefold() and rights.sees(topic=each.topic)
            ]
            found.topics = [_seen(each, rights) for each in _page(topics, asked)]
            found.total = len(topics)
        case "groups":
            groups = [
                each
                for each in counts.groups
                if wanted in f"{each.topic}/{each.group}".casefold()
                and rights.sees(topic=each.topic, group=each.group)
            ]
            found.groups = _page(groups, asked)
            found.total = len(groups)
        case "deadLetters":
            dead = [
                DeadLettersRow(topic=topic, count=count)
                for topic, count in (counts.dead_letters or {}).items()
                if wanted in topic.casefold() and rights.allows("read", topic=topic)
            ]
            found.dead_letters = _page(dead, asked)
            found.total = len(dead)
        case "overview":
            pass
    return found


def _seen(row: TopicRow, rights: Rights) -> TopicRow:
    """Return a row as a principal may see it: who publishes to a topic sees it in lists, and
    nothing of who consumes it."""
    if rights.allows("read", topic=row.topic):
        return row
    return TopicRow(
        topic=row.topic,
        partitions=row.partitions,
        led=row.led,
        in_rate=row.in_rate,
        out_rate=None,
        messages=row.messages,
        size_bytes=row.size_bytes,
        pending=row.pending,
        groups=None,
        lag=None,
        problems=row.problems,
    )


Row = TypeVar("Row", TopicRow, GroupRow, DeadLettersRow)


def _page(rows: Iterable[Row], asked: LiveParameters) -> list[Row]:
    """Return those of a page, sorted; of those that are equal, by name."""
    found = sorted(rows, key=lambda each: (getattr(each, "group", ""), each.topic))
    field = FIELDS.get(asked.sort, asked.sort)
    if asked.sort == "name" and asked.descending:
        found.reverse()
    elif asked.sort != "name" and found and hasattr(found[0], field):
        found.sort(key=attrgetter(field), reverse=asked.descending)
    return found[asked.start : asked.start + asked.limit]
