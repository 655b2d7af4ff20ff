"""Recurrences over HTTP: messages that come again and again."""

from collections.abc import Callable
from typing import Annotated
from zoneinfo import available_timezones

from msgspec import UNSET, Meta, UnsetType, field

from waterclock.model.errors import BadInput, NotFound
from waterclock.model.message import Message
from waterclock.model.views import Recurrence
from waterclock.node.node import Node
from waterclock.node.schedule.recurrence_records import TIMES_DEFAULT, TIMES_MAX, times_of
from waterclock.schedule.calendar import (
    INTERVAL_MS_MAX,
    INTERVAL_MS_MIN,
    JITTER_MS_MAX,
    zone_of,
)
from waterclock.schedule.cron import TEXT_CHARS_MAX, Cron
from waterclock.schedule.duration import parse_duration
from waterclock.security.rights import Needs
from waterclock.server.cluster.calls.place import HERE, META, META_ONCE
from waterclock.server.http.input import body_of, parameters_of, text
from waterclock.server.http.messages import Later, Request, Response, json
from waterclock.server.http.operations import Operation, ResponseSpec
from waterclock.server.http.permits import Named
from waterclock.server.http.problems import BadField
from waterclock.server.rest.models import (
    Base64,
    Duration,
    Headers,
    MessageResponse,
    Name,
    RequestModel,
    ResponseModel,
    TimeMs,
    TopicName,
    bytes_of,
    exclusive,
    one_of,
    render,
    with_fields_of,
)


def _within(least_ms: int, greatest_ms: int) -> Callable[[str], None]:
    """Return the check of a length of time, by the bounds it has over gRPC too."""

    def check(given: str) -> None:
        length_ms = parse_duration(given)
        if not least_ms <= length_ms <= greatest_ms:
            raise BadInput(f"must be {least_ms} to {greatest_ms} ms long (got {length_ms})")

    return check


CRON_FIELDS_MIN = 5

CronText = Annotated[
    str,
    text(
        Cron,
        "Five fields, or six with seconds first.",
        "0 9 * * MON",
        "@daily",
        format="waterclock-cron",
        maxLength=TEXT_CHARS_MAX,
    ),
]
LongDuration = Annotated[
    str,
    text(
        _within(INTERVAL_MS_MIN, INTERVAL_MS_MAX),
        "At least 1s.",
        "90s",
        "1h30m",
        format="waterclock-interval",
    ),
]
Zone = Annotated[
    str,
    Meta(
        max_length=100,
        examples=["Europe/Berlin"],
        extra_json_schema={"enum": sorted(available_timezones())},
    ),
]


class RecurrenceParameters(RequestModel):
    name: Name


class RecurrencesParameters(RequestModel):
    topic: Annotated[TopicName, Meta(description="Only to this topic.")] | None = None


def _is_cron(rule: str) -> bool:
    """Tell a cron rule from a length of time, which has fewer words."""
    return rule.lstrip().startswith("@") or len(rule.split()) >= CRON_FIELDS_MIN


def _check_rule(rule: str) -> None:
    if _is_cron(rule):
        Cron(rule)
    else:
        _within(INTERVAL_MS_MIN, INTERVAL_MS_MAX)(rule)


class TimesParameters(RequestModel):
    """A rule, and how many of its times."""

    rule: Annotated[
        str,
        text(
            _check_rule,
            "Cron, or a length of time, which is counted from startMs.",
            "0 9 * * MON",
            "90s",
            format="waterclock-rule",
            maxLength=TEXT_CHARS_MAX,
        ),
    ]
    zone: Zone = "UTC"
    start_ms: Annotated[TimeMs, Meta(description="From then on; 0 is now.")] = 0
    count: Annotated[int, Meta(ge=1, le=TIMES_MAX)] = TIMES_DEFAULT


class TimesResponse(ResponseModel):
    times_ms: list[int]


class RecurrenceRequest(RequestModel):
    """What recurs, and when: `cron` or `every`."""

    topic: TopicName
    cron: CronText | UnsetType = UNSET
    every: LongDuration | UnsetType = UNSET
    zone: Zone = "UTC"
    jitter: Annotated[
        str,
        text(
            _within(0, JITTER_MS_MAX),
            "Each comes up to so much later.",
            "30s",
            format="waterclock-jitter",
        ),
    ] = "0s"
    start_ms: TimeMs | UnsetType = UNSET
    lasts: (
        Annotated[LongDuration, Meta(description="It ends so long after it began.")] | UnsetType
    ) = UNSET
    value: str | UnsetType = UNSET
    value_base64: Base64 | UnsetType = UNSET
    key: str | UnsetType = UNSET
    key_base64: Base64 | UnsetType = UNSET
    headers: Headers = field(default_factory=dict)
    expires_after: Duration | UnsetType = UNSET
    is_paused: Annotated[bool, Meta(description="Keep it, and let nothing of it come.")] = False


_ONE_OF_EACH = {
    "oneOf": [{"required": ["cron"]}, {"required": ["every"]}],
    "allOf": [
        *exclusive("value", "valueBase64")["allOf"],
        *exclusive("key", "keyBase64")["allOf"],
    ],
}


@with_fields_of(Recurrence)
class RecurrenceResponse(ResponseModel, omit_defaults=True):
    """A recurrence as it stands. `nextMs` is 0 if it does not come any more; `madePartitions` is
    there only if there was no such topic: putting this made it, with so many partitions."""

    message: MessageResponse


class RecurrencesResponse(ResponseModel):
    recurrences: list[RecurrenceResponse]


class RecurrencesApi:
    """Answers questions about recurrences."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def put(self, request: Request) -> Later:
        """Create a recurrence or replace the one of that name."""
        name = parameters_of(request, RecurrenceParameters).name
        recurrence = _recurrence(name, request, self._node.clock.now_ms())
        # Looked up here: nothing else has run since the caller's rights were checked.
        return self._put(recurrence, self._node.recurrences.topic_of(name))

    async def _put(self, recurrence: Recurrence, seen_topic: str) -> Response:
        put = await self._node.recurrences.put(recurrence, seen_topic=seen_topic)
        return json(200, render(RecurrenceResponse, put))

    def times(self, request: Request) -> Response:
        """Say when a rule would let a message come."""
        asked = parameters_of(request, TimesParameters)
        is_cron = _is_cron(asked.rule)
        times = times_of(
            cron=asked.rule if is_cron else None,
            every_ms=None if is_cron else parse_duration(asked.rule),
            zone=asked.zone,
            start_ms=asked.start_ms or self._node.clock.now_ms(),
            count=asked.count,
        )
        return json(200, TimesResponse(times_ms=times))

    def get(self, request: Request) -> Response:
        name = parameters_of(request, RecurrenceParameters).name
        listed = self._node.recurrences.list()
        found = next((each for each in listed if each.name == name), None)
        if found is None:
            raise NotFound("recurrence", name)
        return json(200, render(RecurrenceResponse, found))

    def delete(self, request: Request) -> Later:
        name = parameters_of(request, RecurrenceParameters).name
        return self._delete(name, self._node.recurrences.topic_of(name))

    async def _delete(self, name: str, seen_topic: str) -> Response:
        if not await self._node.recurrences.delete(name, seen_topic=seen_topic):
            raise NotFound("recurrence", name)
        return Response(204)

    def pause(self, request: Request) -> Later:
        """Keep a recurrence, and let nothing of it come."""
        return self._set_paused(request, is_paused=True)

    def resume(self, request: Request) -> Later:
        """Let a recurrence come again, from now on."""
        return self._set_paused(request, is_paused=False)

    def _set_paused(self, request: Request, *, is_paused: bool) -> Later:
        name = parameters_of(request, RecurrenceParameters).name
        seen_topic = self._node.recurrences.topic_of(name)

        async def change() -> Response:
            found = await self._node.recurrences.set_paused(
                name, is_paused=is_paused, seen_topic=seen_topic
            )
            return json(200, render(RecurrenceResponse, found))

        return change()

    def list_all(self, request: Request) -> Response:
        topic = parameters_of(request, RecurrencesParameters).topic or ""
        found, may = self._node.recurrences.list(topic), request.principal.rights.allows
        rendered = [
            render(RecurrenceResponse, each) for each in found if may("read", topic=each.topic)
        ]
        return json(200, RecurrencesResponse(recurrences=rendered))

    def _topic_of(self, name: str) -> str | None:
        return self._node.recurrences.topic_of(name) or None

    def operations(self) -> list[Operation]:
        """Return its part of the table."""
        recurrence = {200: ResponseSpec("As it stands.", RecurrenceResponse)}
        path = "/recurrences/{name}"
        named = Named("recurrence", "name", self._topic_of)
        return [
            Operation(
                "GET", "/recurrences", self.list_all, "listRecurrences", "List what recurs.",
                {200: ResponseSpec("All, by name.", RecurrencesResponse)}, tag="schedule",
                parameters=RecurrencesParameters,
                place=META,
                needs=Needs("read", topic="topic", is_list=True),
            ),
            Operation(
                "GET", "/recurrence-times", self.times, "listTimes",
                "Tell when a rule would let a message come, without making anything.",
                {200: ResponseSpec("The next times; fewer if it ends.", TimesResponse)},
                tag="schedule", parameters=TimesParameters,
                place=HERE,
                needs=Needs("read", is_list=True),
            ),
            Operation(
                "GET", path, self.get, "getRecurrence", "Show a recurrence.", recurrence,
                tag="schedule", parameters=RecurrenceParameters, problems=(404,),
                place=META,
                needs=Needs("read", topic="name"), named=named,
            ),
            Operation(
                "PUT", path, self.put, "putRecurrence", "Let a message come again and again.",
                recurrence, tag="schedule", parameters=RecurrenceParameters,
                body=Annotated[RecurrenceRequest, Meta(extra_json_schema=_ONE_OF_EACH)],
                body_example={
                    "topic": "reports", "cron": "0 9 * * MON", "zone": "Europe/Berlin",
                    "value": "weekly",
                },
                problems=(404, 409, 507),
                place=META,
                needs=Needs("schedule", topic="topic"), named=named, makes=("topic",),
                is_change=True,
            ),
            Operation(
                "DELETE", path, self.delete, "deleteRecurrence", "End a recurrence.",
                {204: ResponseSpec("It is over.")}, tag="schedule", parameters=RecurrenceParameters,
                problems=(404, 409, 507),
                place=META_ONCE,
                needs=Needs("schedule", topic="name"), named=named, is_change=True,
            ),
            self._switch(self.pause, "pause", "Keep it and let nothing of it come.", named),
            self._switch(self.resume, "resume", "Let it come again, from now on.", named),
        ]  # fmt: skip

    @staticmethod
    def _switch(
        handler: Callable[[Request], Later], verb: str, summary: str, named: Named
    ) -> Operation:
        return Operation(
            "POST", f"/recurrences/{{name}}/{verb}", handler, f"{verb}Recurrence", summary,
            {200: ResponseSpec("As it stands.", RecurrenceResponse)}, tag="schedule",
            parameters=RecurrenceParameters, problems=(404, 409, 507),
            place=META,
            needs=Needs("schedule", topic="name"), named=named, is_change=True,
        )  # fmt: skip


def _recurrence(name: str, request: Request, now_ms: int) -> Recurrence:
    given = body_of(request, RecurrenceRequest)
    begin_ms = now_ms if given.start_ms is UNSET else given.start_ms
    lasts_ms = _length(given.lasts)
    if one_of(cron=given.cron, every=given.every) is None:
        raise BadField("cron", "is missing: give cron or every")
    zone_of(given.zone)
    return Recurrence(
        name=name,
        topic=given.topic,
        message=Message(
            bytes_of(given.value, given.value_base64, "value", "valueBase64"),
            key=bytes_of(given.key, given.key_base64, "key", "keyBase64"),
            headers={key: value.encode() for key, value in given.headers.items()} or None,
        ),
        cron=None if given.cron is UNSET else given.cron,
        every_ms=_length(given.every),
        zone=given.zone,
        jitter_ms=parse_duration(given.jitter),
        start_ms=None if given.start_ms is UNSET else given.start_ms,
        end_ms=None if lasts_ms is None else begin_ms + lasts_ms,
        expires_after_ms=_length(given.expires_after),
        is_paused=given.is_paused,
    )


def _length(text: str | UnsetType) -> int | None:
    return None if text is UNSET else parse_duration(text)
