"""Dead letters over HTTP: what failed for good, to be looked at, tried again, or dropped."""

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from waterclock.model.errors import NotFound
from waterclock.model.names import DEAD_LETTERS
from waterclock.model.views import DeadLetter
from waterclock.node.dead_letters.redrive import Edit, edit_of
from waterclock.node.node import Node
from waterclock.security.rights import Needs
from waterclock.server.cluster.calls.place import META, META_ONCE
from waterclock.server.http.input import END, body_of, matching, parameters_of
from waterclock.server.http.messages import Request, Response, json
from waterclock.server.http.operations import Operation, ResponseSpec
from waterclock.server.rest.models import (
    AnyTopicParameters,
    Base64,
    Headers,
    MessageResponse,
    Positions,
    RequestModel,
    ResponseModel,
    TopicParameters,
    bytes_of,
    exclusive,
    render,
    with_fields_of,
)

_EDITS = [{"required": [name]} for name in ("value", "valueBase64", "headers")]
_ONE = {"required": ["positions"], "properties": {"positions": {"minItems": 1, "maxItems": 1}}}
_EDITED = {
    "allOf": [
        *exclusive("value", "valueBase64")["allOf"],
        {"anyOf": [{"not": {"anyOf": _EDITS}}, _ONE]},
    ]
}
"""What is edited is one that is named."""


class DeadLettersParameters(AnyTopicParameters):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    page: Annotated[
        str,
        matching(r"^([0-9]{1,9}:[0-9]{1,15})?" + END, "The nextPage of an answer."),
    ] = ""


@with_fields_of(DeadLetter)
class DeadLetterResponse(MessageResponse):
    """A message that failed for good."""


class DeadLettersResponse(ResponseModel):
    dead_letters: list[DeadLetterResponse]
    next_page: str
    total: int


class DeadLettersRequest(RequestModel):
    """Which dead letters; none named: all there are."""

    positions: Positions = ()


class RedriveRequest(DeadLettersRequest):
    """Which dead letters; none named: all there are, or so many. One that is named alone may be
    published with another value, or other headers."""

    limit: Annotated[int, Meta(ge=0, le=10_000_000, description="0 is all.")] = 0
    value: str | UnsetType = UNSET
    value_base64: Base64 | UnsetType = UNSET
    headers: Headers | UnsetType = UNSET


class CountResponse(ResponseModel):
    """How many."""

    count: int


class DeadLettersApi:
    """Answers requests about dead letters."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def list_dead_letters(self, request: Request) -> Response:
        asked = parameters_of(request, DeadLettersParameters)
        page = await self._node.dead_letters.list(asked.topic, limit=asked.limit, page=asked.page)
        found = [render(DeadLetterResponse, each) for each in page.dead_letters]
        return json(
            200,
            DeadLettersResponse(dead_letters=found, next_page=page.next_page, total=page.total),
        )

    async def redrive(self, request: Request) -> Response:
        """Publish dead letters again where they came from."""
        topic = parameters_of(request, TopicParameters).topic
        given = body_of(request, RedriveRequest)
        count = await self._node.dead_letters.redrive(
            topic, self._named(topic, given), limit=given.limit, edit=self._edit(given)
        )
        return json(200, CountResponse(count=count))

    def _edit(self, given: RedriveRequest) -> Edit | None:
        value = bytes_of(given.value, given.value_base64, "value", "valueBase64")
        headers = None
        if given.headers is not UNSET:
            headers = {name: text.encode() for name, text in given.headers.items()}
        return edit_of(value, headers, self._node.config.limits)

    async def purge(self, request: Request) -> Response:
        """Take dead letters off the list."""
        topic = parameters_of(request, TopicParameters).topic
        given = body_of(request, DeadLettersRequest)
        count = await self._node.dead_letters.purge(topic, self._named(topic, given))
        return json(200, CountResponse(count=count))

    def _named(self, topic: str, given: DeadLettersRequest) -> list[tuple[int, int]] | None:
        dead = self._node.topics.find(topic + DEAD_LETTERS)
        count = 0 if dead is None else len(dead.partitions)
        for one in given.positions:
            if one.partition >= count:
                raise NotFound("dead letter", f"{topic}/{one.partition}/{one.offset}")
        return [(one.partition, one.offset) for one in given.positions] or None

    def operations(self) -> list[Operation]:
        """Return its part of the table."""
        path = "/topics/{topic}/dead-letters"
        count = {200: ResponseSpec("How many.", CountResponse)}
        return [
            Operation(
                "GET", path, self.list_dead_letters, "listDeadLetters",
                "List messages that failed for good.",
                {200: ResponseSpec("A page.", DeadLettersResponse)}, tag="past",
                parameters=DeadLettersParameters, problems=(404,),
                place=META,
                needs=Needs("read", topic="topic"),
            ),
            Operation(
                "POST", path + "/redrive", self.redrive, "redrive",
                "Publish dead letters again where they came from.", count, tag="past",
                parameters=TopicParameters, body_example={"limit": 100},
                body=Annotated[RedriveRequest, Meta(extra_json_schema=_EDITED)],
                problems=(404, 409, 507),
                place=META_ONCE,
                needs=Needs("publish", topic="topic"), is_change=True,
            ),
            Operation(
                "POST", path + "/purge", self.purge, "purgeDeadLetters",
                "Take dead letters off the list.", count, tag="past", parameters=TopicParameters,
                body=DeadLettersRequest, body_example={}, problems=(404, 507),
                place=META_ONCE,
                needs=Needs("admin", topic="topic"),
            ),
        ]  # fmt: skip
