"""Scheduled messages over HTTP: list, count, cancel and reschedule them."""

from typing import Annotated, Literal, Protocol

from msgspec import UNSET, Meta, UnsetType, field

from waterclock.model.views import CancelCount, Horizon, ScheduledMessage
from waterclock.node.node import Node
from waterclock.node.schedule.named_changes import NAMED_MAX, Changed, Named
from waterclock.node.schedule.pending import STEP_MS_MIN, STEPS_MAX, Steps
from waterclock.node.schedule.pending_filter import Filter
from waterclock.node.schedule.pending_pages import PAGE_MAX
from waterclock.node.topics import PARTITIONS_MAX
from waterclock.security.rights import Needs
from waterclock.server.cluster.calls.place import LEADERS, LEADERS_ONCE
from waterclock.server.http.input import END, body_of, matching, parameters_of
from waterclock.server.http.messages import Request, Response, json
from waterclock.server.http.operations import Operation, ResponseSpec
from waterclock.server.http.problems import BadField
from waterclock.server.rest.models import (
    TIME_MS_MAX,
    Base64,
    Delay,
    DueMs,
    MessageId,
    MessageResponse,
    Offset,
    Partition,
    RequestModel,
    ResponseModel,
    Time,
    TimeMs,
    TopicParameters,
    bytes_of,
    due_of,
    render,
    with_fields_of,
)

Outcome = Literal["unknown", "done", "alreadyFired", "cancelled", "expired"]
OUTCOMES: tuple[Outcome, ...] = ("unknown", "done", "alreadyFired", "cancelled", "expired")
_PAGE = "^([A-Za-z0-9_-]{27}=)?" + END


PageLimit = Annotated[int, Meta(ge=1, le=PAGE_MAX, description="Messages of a page.")]
WithValues = Annotated[bool, Meta(description="With their values.")]
OfKey = Annotated[str, Meta(description="Only of this key.")]
OfKeyPrefix = Annotated[str, Meta(description="Only of keys that begin so.")]
DueFromMs = Annotated[TimeMs, Meta(description="Only due from then on.")]
DueToMs = Annotated[TimeMs, Meta(description="Only due before; 0: no end.")]
CountFromMs = Annotated[TimeMs, Meta(description="Where the first step begins.")]
StepMs = Annotated[int, Meta(ge=STEP_MS_MIN, le=TIME_MS_MAX)]
StepCount = Annotated[int, Meta(ge=0, le=STEPS_MAX, description="Count by so many steps, too.")]


class ListParameters(TopicParameters):
    """Which pending messages, and how many."""

    limit: PageLimit = 100
    page: Annotated[str, matching(_PAGE, "The nextPage of an answer.")] = ""
    values: WithValues = False
    key: OfKey | None = None
    key_prefix: OfKeyPrefix | None = None
    from_ms: DueFromMs = 0
    to_ms: DueToMs = 0
    partition: Partition | None = None


class CountParameters(TopicParameters):
    """Of which topic, and by which steps beside."""

    from_ms: CountFromMs = 0
    step_ms: StepMs = 60_000
    steps: StepCount = 0


class PendingRequest(RequestModel):
    """Pending messages: all of an id, or of an id and a key; or the one at a position."""

    message_id: MessageId | UnsetType = UNSET
    message_id_base64: Annotated[Base64, Meta(min_length=4)] | UnsetType = UNSET
    key: Annotated[str, Meta(description="Only those of this key.")] | UnsetType = UNSET
    partition: Partition | UnsetType = UNSET
    offset: Offset | UnsetType = UNSET


_BY_POSITION = {
    "required": ["partition", "offset"],
    "not": {"anyOf": [{"required": ["messageId"]}, {"required": ["messageIdBase64"]}]},
}
_BY_ID = {
    "not": {"anyOf": [{"required": ["partition"]}, {"required": ["offset"]}]},
    "oneOf": [{"required": ["messageId"]}, {"required": ["messageIdBase64"]}],
}
Pending = Annotated[
    list[Annotated[PendingRequest, Meta(extra_json_schema={"oneOf": [_BY_POSITION, _BY_ID]})]],
    Meta(min_length=1, max_length=NAMED_MAX),
]


class Cancel(RequestModel):
    """Messages that are not to come."""

    messages: Pending


class Reschedule(RequestModel):
    """Messages that are to come at another time."""

    messages: Pending
    at: Time | UnsetType = UNSET
    due_ms: DueMs | UnsetType = UNSET
    delay: Delay | UnsetType = UNSET


_SOME = {
    "anyOf": [
        {"required": ["filter"]},
        {"required": ["all"], "properties": {"all": {"const": True}}},
    ]
}
_WHEN = {
    "oneOf": [{"required": ["at"]}, {"required": ["dueMs"]}, {"required": ["delay"]}],
}


class FilterRequest(RequestModel):
    """All that is given must hold."""

    key: str | UnsetType = UNSET
    key_prefix: str | UnsetType = UNSET
    headers: Annotated[dict[str, str], Meta(min_length=1)] = field(default_factory=dict)
    from_ms: Annotated[int, Meta(ge=1, le=TIME_MS_MAX)] = 0
    to_ms: Annotated[int, Meta(ge=1, le=TIME_MS_MAX)] = 0
    partitions: Annotated[tuple[Partition, ...], Meta(min_length=1, max_length=PARTITIONS_MAX)] = ()


class CancelWhere(RequestModel):
    """Cancel all that match the filter, or all there are."""

    filter: Annotated[FilterRequest, Meta(extra_json_schema={"minProperties": 1})] | UnsetType = (
        UNSET
    )
    all: Annotated[bool, Meta(description="There need be no filter.")] = False
    dry_run: Annotated[bool, Meta(description="Only count.")] = False


class Outcomes(ResponseModel):
    """What became of each that was named, in order, and how many messages it reached."""

    outcomes: list[Outcome]
    reached: list[int]


@with_fields_of(ScheduledMessage, but=("topic",))
class ScheduledResponse(MessageResponse):
    """A pending message."""


class ScheduledPage(ResponseModel):
    """Pending messages by due time."""

    scheduled: list[ScheduledResponse]
    next_page: str
    """Asks for those that follow; empty if there are none."""


class ScheduledCounts(ResponseModel):
    """How many messages are pending."""

    total: int
    horizons: list[Horizon]
    counts: list[int]
    """Due in each step that was asked for."""


class ScheduleApi:
    """Answers requests about scheduled messages."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def list_scheduled(self, request: Request) -> Response:
        """List pending messages by due time."""
        asked = parameters_of(request, ListParameters)
        if asked.to_ms and asked.to_ms <= asked.from_ms:
            self._node.topics.get(asked.topic)
            return json(200, ScheduledPage(scheduled=[], next_page=""))
        wanted = Filter(
            key=None if asked.key is None else asked.key.encode(),
            key_prefix=None if asked.key_prefix is None else asked.key_prefix.encode(),
            start_ms=asked.from_ms,
            end_ms=asked.to_ms,
            partitions=() if asked.partition is None else (asked.partition,),
        )
        page = await self._node.pending.list(
            asked.topic, wanted, limit=asked.limit, page=asked.page, with_values=asked.values
        )
        scheduled = [render(ScheduledResponse, each) for each in page.scheduled]
        return json(200, ScheduledPage(scheduled=scheduled, next_page=page.next_page))

    async def count_scheduled(self, request: Request) -> Response:
        """Count pending messages by how soon they are due."""
        asked = parameters_of(request, CountParameters)
        found = await self._node.pending.count(asked.topic, steps_of(asked))
        return json(
            200,
            ScheduledCounts(total=found.total, horizons=found.horizons, counts=found.counts),
        )

    async def cancel(self, request: Request) -> Response:
        """Cancel pending messages."""
        topic = parameters_of(request, TopicParameters).topic
        named = _named(body_of(request, Cancel).messages)
        return json(200, _outcomes(await self._node.pending.cancel(topic, named)))

    async def reschedule(self, request: Request) -> Response:
        """Give pending messages another due time."""
        topic = parameters_of(request, TopicParameters).topic
        asked = body_of(request, Reschedule)
        limits, now_ms = self._node.config.limits, self._node.clock.now_ms()
        due_ms = due_of(asked.at, asked.due_ms, asked.delay, now_ms, limits)
        if due_ms is None:
            raise BadField("at", "is missing: give one of at, dueMs and delay")
        named = _named(asked.messages)
        return json(200, _outcomes(await self._node.pending.reschedule(topic, named, [due_ms])))

    async def cancel_where(self, request: Request) -> Response:
        """Cancel all pending messages that match."""
        topic = parameters_of(request, TopicParameters).topic
        asked = body_of(request, CancelWhere)
        wanted = Filter() if asked.filter is UNSET else _filter(asked.filter)
        if wanted is None:
            self._node.topics.get(topic)
            return json(200, CancelCount(0, 0))
        if wanted.is_empty and not asked.all:
            raise BadField("filter", "an empty one cancels everything; say so with `all`")
        done = await self._node.pending.cancel_where(topic, wanted, dry_run=asked.dry_run)
        return json(200, done)

    def operations(self) -> list[Operation]:
        """Return its part of the table."""
        outcomes = {200: ResponseSpec("What became of each.", Outcomes)}
        one = [{"messageId": "reminder-7"}]
        return [
            Operation(
                "GET", "/topics/{topic}/scheduled", self.list_scheduled, "listScheduled",
                "List scheduled messages by due time.",
                {200: ResponseSpec("A page; a short one may have a next one.", ScheduledPage)},
                tag="schedule", parameters=ListParameters, problems=(404,),
                place=LEADERS,
                needs=Needs("read", topic="topic"),
            ),
            Operation(
                "GET", "/topics/{topic}/scheduled/count", self.count_scheduled, "countScheduled",
                "Count scheduled messages by how soon they are due.",
                {200: ResponseSpec("Counts.", ScheduledCounts)}, tag="schedule",
                parameters=CountParameters, problems=(404,),
                place=LEADERS,
                needs=Needs("read", topic="topic"),
            ),
            Operation(
                "POST", "/topics/{topic}/cancel", self.cancel, "cancel",
                "Cancel scheduled messages.", outcomes, tag="schedule", parameters=TopicParameters,
                body=Cancel, body_example={"messages": one}, problems=(404, 409, 507),
                place=LEADERS,
                needs=Needs("schedule", topic="topic"),
            ),
            Operation(
                "POST", "/topics/{topic}/reschedule", self.reschedule, "reschedule",
                "Give scheduled messages another due time.", outcomes, tag="schedule",
                parameters=TopicParameters,
                body=Annotated[Reschedule, Meta(extra_json_schema=_WHEN)],
                body_example={"messages": one, "delay": "1h"}, problems=(404, 409, 507),
                place=LEADERS,
                needs=Needs("schedule", topic="topic"),
            ),
            Operation(
                "POST", "/topics/{topic}/cancel-where", self.cancel_where, "cancelWhere",
                "Cancel all scheduled messages that match.",
                {200: ResponseSpec("How many.", CancelCount)}, tag="schedule",
                parameters=TopicParameters,
                body=Annotated[CancelWhere, Meta(extra_json_schema=_SOME)],
                body_example={"filter": {"key": "ada"}, "dryRun": True}, problems=(404, 409, 507),
                place=LEADERS_ONCE,
                needs=Needs("schedule", topic="topic"),
            ),
        ]  # fmt: skip


class AsksSteps(Protocol):
    """Parameters that may ask for counts by step."""

    from_ms: TimeMs
    step_ms: StepMs
    steps: StepCount


def steps_of(asked: AsksSteps) -> Steps | None:
    """Return the steps that are asked for, if any are."""
    return Steps(asked.from_ms, asked.step_ms, asked.steps) if asked.steps else None


def _outcomes(changed: Changed) -> Outcomes:
    outcomes = [OUTCOMES[one] for one in changed.outcomes.tolist()]
    return Outcomes(outcomes=outcomes, reached=changed.reached.tolist())


def _named(pending: list[PendingRequest]) -> list[Named]:
    return [_name(row, one) for row, one in enumerate(pending)]


def _name(row: int, one: PendingRequest) -> Named:
    where = f"messages[{row}]"
    message_id = bytes_of(one.message_id, one.message_id_base64, "messageId", "messageIdBase64")
    key = None if one.key is UNSET else one.key.encode()
    if one.partition is UNSET and one.offset is UNSET:
        if not message_id:
            raise BadField(where, "has neither a messageId nor a partition and offset")
        return Named(message_id, key)
    if one.partition is UNSET or one.offset is UNSET:
        raise BadField(where, "a position has a partition and an offset")
    if message_id is not None:
        raise BadField(where, "has a messageId beside its position: give one of both")
    return Named(b"", key, (one.partition, one.offset))


def _filter(given: FilterRequest) -> Filter | None:
    """Return what must hold of messages; None if it holds of none."""
    if given.to_ms and given.to_ms <= given.from_ms:
        return None
    return Filter(
        key=None if given.key is UNSET else given.key.encode(),
        key_prefix=None if given.key_prefix is UNSET else given.key_prefix.encode(),
        headers={name: value.encode() for name, value in given.headers.items()},
        start_ms=given.from_ms,
        end_ms=given.to_ms,
        partitions=given.partitions,
    )
