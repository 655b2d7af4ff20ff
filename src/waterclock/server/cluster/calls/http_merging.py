"""What several nodes answer over HTTP, put together; the same as `merging.py`, of JSON."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from waterclock.model.names import is_own
from waterclock.model.topics.topic_pending import TopicPending, merged_topics
from waterclock.model.views import Horizon
from waterclock.node.schedule.pending import AllCounts, Counts
from waterclock.node.schedule.pending_pages import PagePosition
from waterclock.server.cluster.calls.merging import (
    Page,
    by_partition,
    merged_outcomes,
    merged_page,
    merged_steps,
)
from waterclock.server.http.messages import Request
from waterclock.server.rest.all_scheduled import counts_of
from waterclock.server.rest.schedule import OUTCOMES


class HttpAnswer(NamedTuple):
    """What one node said."""

    node: str
    partitions: tuple[int, ...]
    """Those it was asked for; none: all that it has."""
    body: dict[str, Any]


HttpMerge = Callable[[Request, Sequence[HttpAnswer], str], dict[str, Any]]
"""Takes the request, the answers, and the name of this node."""


def _outcomes(request: Request, answers: Sequence[HttpAnswer], me: str) -> dict[str, Any]:
    parts = [
        ([OUTCOMES.index(one) for one in each.body["outcomes"]], each.body["reached"])
        for each in answers
    ]
    outcomes, reached = merged_outcomes(parts)
    return {"outcomes": [OUTCOMES[one] for one in outcomes], "reached": reached}


def _cancel_where(request: Request, answers: Sequence[HttpAnswer], me: str) -> dict[str, Any]:
    return {name: sum(each.body[name] for each in answers) for name in ("matched", "cancelled")}


def _scheduled(request: Request, answers: Sequence[HttpAnswer], me: str) -> dict[str, Any]:
    pages = [
        Page(
            [(_position(one), one) for one in each.body["scheduled"]],
            each.body["nextPage"],
        )
        for each in answers
    ]
    page = merged_page(pages, request.parameters.limit)
    return {"scheduled": [one for _, one in page.listed], "nextPage": page.next_page}


def _position(one: dict[str, Any]) -> PagePosition:
    """Return the place of a scheduled message; the list of one topic names none."""
    return PagePosition(one["dueMs"], one.get("topic", ""), one["partition"], one["offset"])


def _all_counted(request: Request, answers: Sequence[HttpAnswer], me: str) -> dict[str, Any]:
    topics = merged_topics(
        TopicPending(one["topic"], one["count"], one["nextDueMs"])
        for each in answers
        for one in each.body["topics"]
    )
    by_due = _by_due(answers)
    horizons = [msgspec.convert(each, Horizon) for each in by_due["horizons"]]
    counts = counts_of(AllCounts(topics, Counts(horizons, by_due["counts"])))
    return cast("dict[str, Any]", msgspec.to_builtins(counts))


def _counted(request: Request, answers: Sequence[HttpAnswer], me: str) -> dict[str, Any]:
    total = sum(each.body["total"] for each in answers)
    return {"total": total, **_by_due(answers)}


def _by_due(answers: Sequence[HttpAnswer]) -> dict[str, Any]:
    horizons = [
        {**same[0], "count": sum(each["count"] for each in same)}
        for same in zip(*(each.body["horizons"] for each in answers), strict=True)
    ]
    counts = merged_steps(each.body.get("counts", ()) for each in answers)
    return {"horizons": horizons, "counts": counts}


def _listed(field: str) -> HttpMerge:
    """Return what puts lists of partitions together."""

    def merge(request: Request, answers: Sequence[HttpAnswer], me: str) -> dict[str, Any]:
        parts = [
            (each.partitions, {one["partition"]: one for one in each.body[field]})
            for each in answers
        ]
        return {**answers[0].body, field: by_partition(parts)}

    return merge


def _topics(request: Request, answers: Sequence[HttpAnswer], me: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in answers:
        for topic in each.body["topics"]:
            if is_own(topic["topic"]) and each.node != me:
                continue
            known = found.setdefault(topic["topic"], topic)
            if known is not topic:
                pairs = zip(known["partitions"], topic["partitions"], strict=False)
                merged = [max(pair, key=_how_far) for pair in pairs]
                known["partitions"][: len(merged)] = merged
    return {"topics": [found[name] for name in sorted(found)]}


def _how_far(partition: dict[str, Any]) -> tuple[bool, int, int]:
    return not partition.get("problem"), partition["endOffset"], partition["scheduled"]


def _groups(request: Request, answers: Sequence[HttpAnswer], me: str) -> dict[str, Any]:
    groups = [group for each in answers for group in each.body["groups"]]
    return {"groups": sorted(groups, key=lambda each: (each["topic"], each["group"]))}


HTTP_MERGES: Mapping[str, HttpMerge] = {
    "cancel": _outcomes,
    "reschedule": _outcomes,
    "cancelWhere": _cancel_where,
    "listScheduled": _scheduled,
    "countScheduled": _counted,
    "getTopic": _listed("partitions"),
    "findOffsets": _listed("positions"),
    "listAllScheduled": _scheduled,
    "countAllScheduled": _all_counted,
    "listTopics": _topics,
    "listGroups": _groups,
    "listAllGroups": _groups,
}
"""By operation: those whose place is several nodes."""
