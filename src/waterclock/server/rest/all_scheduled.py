"""Scheduled messages of all topics over HTTP: one list by due time, and how many there are where.

It is of the topics that one may read; a partition that is not open, or that nobody leads at the
moment, is missing, and the list of topics says why.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

from waterclock.model.views import Horizon, ScheduledMessage
from waterclock.node.node import Node
from waterclock.node.schedule.pending import AllCounts
from waterclock.node.schedule.pending_filter import Filter
from waterclock.security.rights import Needs
from waterclock.server.cluster.calls.place import Place
from waterclock.server.http.input import END, matching, parameters_of
from waterclock.server.http.messages import Request, Response, json
from waterclock.server.http.operations import Operation, ResponseSpec
from waterclock.server.rest.models import (
    MessageResponse,
    RequestModel,
    ResponseModel,
    render,
    with_fields_of,
)
from waterclock.server.rest.schedule import (
    CountFromMs,
    DueFromMs,
    DueToMs,
    OfKey,
    OfKeyPrefix,
    PageLimit,
    StepCount,
    StepMs,
    WithValues,
    steps_of,
)

_PAGE = "^([A-Za-z0-9_-]{27}=[A-Za-z0-9._-]*)?" + END


class ListAllParameters(RequestModel):
    """Which pending messages, and how many."""

    limit: PageLimit = 100
    page: Annotated[str, matching(_PAGE, "The nextPage of an answer.")] = ""
    values: WithValues = False
    key: OfKey | None = None
    key_prefix: OfKeyPrefix | None = None
    from_ms: DueFromMs = 0
    to_ms: DueToMs = 0


class CountAllParameters(RequestModel):
    """By which steps beside."""

    from_ms: CountFromMs = 0
    step_ms: StepMs = 60_000
    steps: StepCount = 0


@with_fields_of(ScheduledMessage)
class AnyScheduledResponse(MessageResponse):
    """A pending message, and its topic."""


class AllScheduledPage(ResponseModel):
    """Pending messages by due time, topic, partition and offset."""

    scheduled: list[AnyScheduledResponse]
    next_page: str
    """Asks for those that follow; empty if there are none."""


class TopicScheduledCount(ResponseModel):
    """How many messages of a topic are pending."""

    topic: str
    count: int
    next_due_ms: int


class AllScheduledCounts(ResponseModel):
    """How many messages are pending, and when the next one is due."""

    total: int
    next_due_ms: int
    """0: none is pending."""
    topics: list[TopicScheduledCount]
    """Those with pending messages, by name."""
    horizons: list[Horizon]
    counts: list[int]
    """Due in each step that was asked for."""


class AllScheduledApi:
    """Answers requests about the scheduled messages of all topics."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def list_all(self, request: Request) -> Response:
        """List pending messages of all topics by due time."""
        asked = parameters_of(request, ListAllParameters)
        if asked.to_ms and asked.to_ms <= asked.from_ms:
            return json(200, AllScheduledPage(scheduled=[], next_page=""))
        wanted = Filter(
            key=None if asked.key is None else asked.key.encode(),
            key_prefix=None if asked.key_prefix is None else asked.key_prefix.encode(),
            start_ms=asked.from_ms,
            end_ms=asked.to_ms,
        )
        page = await self._node.pending.list_all(
            _may_read(request),
            wanted,
            limit=asked.limit,
            page=asked.page,
            with_values=asked.values,
        )
        scheduled = [render(AnyScheduledResponse, each) for each in page.scheduled]
        return json(200, AllScheduledPage(scheduled=scheduled, next_page=page.next_page))

    async def count_all(self, request: Request) -> Response:
        """Count pending messages by topic and by how soon they are due."""
        steps = steps_of(parameters_of(request, CountAllParameters))
        return json(200, counts_of(await self._node.pending.count_all(_may_read(request), steps)))

    def operations(self) -> list[Operation]:
        """Return its part of the table."""
        return [
            Operation(
                "GET", "/scheduled", self.list_all, "listAllScheduled",
                "List scheduled messages of all topics by due time.",
                {200: ResponseSpec("A page; a short one may have a next one.", AllScheduledPage)},
                tag="schedule", parameters=ListAllParameters,
                place=Place(kind="leaders"),
                needs=Needs("read", is_list=True),
            ),
            Operation(
                "GET", "/scheduled/count", self.count_all, "countAllScheduled",
                "Count scheduled messages by topic and by how soon they are due.",
                {200: ResponseSpec("Counts.", AllScheduledCounts)}, tag="schedule",
                parameters=CountAllParameters,
                place=Place(kind="leaders"),
                needs=Needs("read", is_list=True),
            ),
        ]  # fmt: skip


def counts_of(found: AllCounts) -> AllScheduledCounts:
    """Return counts of topics, and what they are together."""
    return AllScheduledCounts(
        total=sum(each.count for each in found.topics),
        next_due_ms=min((each.next_due_ms for each in found.topics), default=0),
        topics=[TopicScheduledCount(**asdict(each)) for each in found.topics],
        horizons=found.by_due.horizons,
        counts=found.by_due.counts,
    )


def _may_read(request: Request) -> Callable[[str], bool]:
    """Return what says if one may read a topic. A list of names shows those on which one has any
    right; this one shows what is in the messages."""
    rights = request.principal.rights
    return lambda topic: rights.allows("read", topic=topic)
