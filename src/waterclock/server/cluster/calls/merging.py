"""What several nodes answer, put together as one would have answered that has everything.

Each node was asked for the partitions that it leads, so of those its word counts. Lists that come
in pages are cut where the first node knows no more: what another one has behind that may come after
something that nobody has told yet.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from waterclock.model.errors import NotSupported
from waterclock.model.names import is_own
from waterclock.model.protobuf import from_proto, to_proto
from waterclock.model.topics.topic_pending import TopicPending, merged_topics
from waterclock.node.schedule.pending_pages import (
    PAGE_DEFAULT,
    PagePosition,
    page_position,
    page_text,
)
from waterclock.node.schedule.scheduler import DONE, UNKNOWN
from waterclock.v1 import admin_pb2, scheduler_pb2


class Answer(NamedTuple):
    """What one node said."""

    node: str
    partitions: tuple[int, ...]
    """Those it was asked for; none: all that it has."""
    response: Any


Merge = Callable[[Any, Sequence[Answer], str], Any]
"""Takes the request, the answers, and the name of this node."""


class Page(NamedTuple):
    """Things in order, each with its position, and where the list goes on."""

    listed: list[tuple[PagePosition, Any]]
    next_page: str


def merged_page(pages: Iterable[Page], limit: int) -> Page:
    """Return the first of all, in order."""
    pages = list(pages)
    ends = [page_position(page.next_page) for page in pages if page.next_page]
    known = min(ends, default=None)
    # By the position alone: what is listed need not be comparable.
    listed = sorted((each for page in pages for each in page.listed), key=lambda each: each[0])
    sure = [each for each in listed if known is None or each[0] <= known]
    chosen = sure[:limit]
    if len(sure) > limit:
        return Page(chosen, page_text(chosen[-1][0]))
    return Page(chosen, "" if known is None else page_text(known))


def merged_outcomes(
    answers: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> tuple[list[int], list[int]]:
    """Return what became of each name, and how many it reached, in all partitions together."""
    reached = [sum(counts) for counts in zip(*(counts for _, counts in answers), strict=True)]
    outcomes = []
    for count, said in zip(reached, zip(*(each for each, _ in answers), strict=True), strict=True):
        known = [outcome for outcome in said if outcome != UNKNOWN]
        outcomes.append(DONE if count else known[-1] if known else UNKNOWN)
    return outcomes, reached


def merged_steps(answers: Iterable[Sequence[int]]) -> list[int]:
    """Return the counts of each step, of all nodes together. A node of a release that does not know
    of steps tells none: better no count than one without what it has."""
    found = list(answers)
    if len({len(counts) for counts in found}) > 1:
        raise NotSupported("a node of an older release does not count by steps: update it first")
    return [sum(same) for same in zip(*found, strict=True)]


def by_partition(answers: Sequence[tuple[tuple[int, ...], Mapping[int, Any]]]) -> list[Any]:
    """Return something of each partition, as its leader has it; what it names no partitions for, it
    tells of all."""
    found: dict[int, Any] = {}
    for partitions, parts in answers:
        for number in partitions or parts:
            if number in parts:
                found[number] = parts[number]
    return [found[number] for number in sorted(found)]


# Of gRPC


def _changed(kind: Callable[..., Any]) -> Merge:
    def merge(request: Any, answers: Sequence[Answer], me: str) -> Any:  # noqa: ANN401 - messages
        parts = [(each.response.outcomes, each.response.reached) for each in answers]
        outcomes, reached = merged_outcomes(parts)
        return kind(outcomes=outcomes, reached=reached)

    return merge


def _cancel_where(request: Any, answers: Sequence[Answer], me: str) -> Any:  # noqa: ANN401
    return scheduler_pb2.CancelWhereResponse(
        matched=sum(each.response.matched for each in answers),
        cancelled=sum(each.response.cancelled for each in answers),
    )


def _scheduled(request: Any, answers: Sequence[Answer], me: str) -> Any:  # noqa: ANN401
    pages = [
        Page(
            [
                (_position(one, is_of_one=bool(request.topic)), one)
                for one in each.response.scheduled
            ],
            each.response.next_page,
        )
        for each in answers
    ]
    page = merged_page(pages, request.limit or PAGE_DEFAULT)
    return scheduler_pb2.ListScheduledResponse(
        scheduled=[one for _, one in page.listed], next_page=page.next_page
    )


def _position(one: Any, *, is_of_one: bool) -> PagePosition:  # noqa: ANN401 - a message
    """Return the place of a scheduled message in a list of one topic, or of all."""
    topic = "" if is_of_one else one.topic
    return PagePosition(one.message.due_ms, topic, one.partition, one.offset)


def _counted(request: Any, answers: Sequence[Answer], me: str) -> Any:  # noqa: ANN401
    counts = merged_steps(each.response.counts for each in answers)
    topics = merged_topics(
        from_proto(one, TopicPending) for each in answers for one in each.response.topics
    )
    first, *others = (each.response for each in answers)
    first.counts[:] = counts
    del first.topics[:]
    first.topics.extend(to_proto(each, type(first).Topic) for each in topics)
    for other in others:
        first.total += other.total
        for mine, theirs in zip(first.horizons, other.horizons, strict=True):
            mine.count += theirs.count
    return first


def _topic(request: Any, answers: Sequence[Answer], me: str) -> Any:  # noqa: ANN401
    parts = [
        (each.partitions, {one.partition: one for one in each.response.partitions})
        for each in answers
    ]
    first = answers[0].response
    return admin_pb2.Topic(
        topic=first.topic,
        settings=first.settings,
        partitions=by_partition(parts),
        effective=first.effective if first.HasField("effective") else None,
    )


def _topics(request: Any, answers: Sequence[Answer], me: str) -> Any:  # noqa: ANN401
    """Every topic as the nodes tell it that lead its partitions: the others know less of it. The
    nodes' own are those of this one."""
    found: dict[str, Any] = {}
    for each in answers:
        for topic in each.response.topics:
            if is_own(topic.topic) and each.node != me:
                continue
            known = found.setdefault(topic.topic, topic)
            if known is not topic:
                for mine, theirs in zip(known.partitions, topic.partitions, strict=False):
                    if _knows_more(theirs, mine):
                        mine.CopyFrom(theirs)
    return admin_pb2.ListTopicsResponse(topics=[found[name] for name in sorted(found)])


def _knows_more(theirs: Any, mine: Any) -> bool:  # noqa: ANN401 - partitions
    """Say if another node's word of a partition counts: it has a copy, leads it, for only a leader
    has the count of what is scheduled, or its copy reaches further."""
    return _how_far(theirs) > _how_far(mine)


def _how_far(partition: Any) -> tuple[bool, int, int]:  # noqa: ANN401 - a partition
    return not partition.problem, partition.end_offset, partition.scheduled


def _offsets(request: Any, answers: Sequence[Answer], me: str) -> Any:  # noqa: ANN401
    parts = [
        (each.partitions, {one.partition: one for one in each.response.positions})
        for each in answers
    ]
    return admin_pb2.FindOffsetsResponse(positions=by_partition(parts))


def _groups(request: Any, answers: Sequence[Answer], me: str) -> Any:  # noqa: ANN401
    groups = [group for each in answers for group in each.response.groups]
    return admin_pb2.ListGroupsResponse(
        groups=sorted(groups, key=lambda each: (each.topic, each.group))
    )


MERGES: Mapping[str, Merge] = {
    "Scheduler/Cancel": _changed(scheduler_pb2.CancelResponse),
    "Scheduler/Reschedule": _changed(scheduler_pb2.RescheduleResponse),
    "Scheduler/CancelWhere": _cancel_where,
    "Scheduler/ListScheduled": _scheduled,
    "Scheduler/CountScheduled": _counted,
    "Admin/GetTopic": _topic,
    "Admin/ListTopics": _topics,
    "Admin/FindOffsets": _offsets,
    "Admin/ListGroups": _groups,
}
"""By method: those whose place is several nodes."""
