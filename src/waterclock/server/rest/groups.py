"""Groups over HTTP: how far they are, where they go on."""

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from waterclock.model.views import GroupInfo
from waterclock.node.groups.positions import Start
from waterclock.node.node import Node
from waterclock.security.rights import Needs
from waterclock.server.cluster.calls.place import OF_GROUP, OF_GROUP_ONCE, Place
from waterclock.server.http.input import body_of, parameters_of
from waterclock.server.http.messages import Request, Response, json
from waterclock.server.http.operations import Operation, ResponseSpec
from waterclock.server.rest.models import (
    AnyTopicParameters,
    Earlier,
    Group,
    Positions,
    RequestModel,
    ResponseModel,
    past_of,
)


class GroupParameters(AnyTopicParameters):
    group: Group


class SeekRequest(RequestModel):
    """Where a group goes on: `start` everywhere, a time, or some positions."""

    start: Literal["earliest", "latest"] = "earliest"
    since: Earlier | UnsetType = UNSET
    positions: Positions = ()


class GroupsResponse(ResponseModel):
    groups: list[GroupInfo]


class GroupsApi:
    """Answers administrators about groups."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def list_groups(self, request: Request) -> Response:
        """Return the groups of a topic."""
        topic = parameters_of(request, AnyTopicParameters).topic
        self._node.topics.get(topic)
        return self._listed(request, topic)

    def list_all_groups(self, request: Request) -> Response:
        return self._listed(request)

    def _listed(self, request: Request, topic: str = "") -> Response:
        sees = request.principal.rights.sees
        groups = self._node.groups.list(topic)
        seen = [each for each in groups if sees(topic=each.topic, group=each.group)]
        return json(200, GroupsResponse(groups=seen))

    def get_group(self, request: Request) -> Response:
        asked = parameters_of(request, GroupParameters)
        return json(200, self._node.groups.get(asked.topic, asked.group))

    async def delete_group(self, request: Request) -> Response:
        """Forget a group and its progress."""
        asked = parameters_of(request, GroupParameters)
        await self._node.groups.delete(asked.topic, asked.group)
        return Response(204)

    async def seek_group(self, request: Request) -> Response:
        """Set where a group goes on."""
        asked = parameters_of(request, GroupParameters)
        given = body_of(request, SeekRequest)
        start, start_ms = Start[given.start.upper()], 0
        if given.since is not UNSET:
            start, start_ms = Start.TIME, past_of(given.since, self._node.clock.now_ms())
        view = await self._node.groups.seek(
            asked.topic,
            asked.group,
            start=start,
            start_ms=start_ms,
            positions={one.partition: one.offset for one in given.positions},
        )
        return json(200, view)

    def operations(self) -> list[Operation]:
        """Return its part of the table."""
        path = "/topics/{topic}/groups"
        one = path + "/{group}"
        group = ResponseSpec("The group.", GroupInfo)
        groups = ResponseSpec("By name.", GroupsResponse)
        common: dict[str, Any] = {"tag": "groups", "parameters": GroupParameters}
        return [
            Operation(
                "GET", "/groups", self.list_all_groups, "listAllGroups", "List all groups.",
                {200: groups}, tag="groups",
                place=Place(kind="homes"),
                needs=Needs("read", is_list=True),
            ),
            Operation(
                "GET", path, self.list_groups, "listGroups", "List the groups of a topic.",
                {200: groups}, tag="groups", parameters=AnyTopicParameters, problems=(404,),
                place=Place(kind="homes", topic="topic"),
                needs=Needs("read", topic="topic", is_list=True),
            ),
            Operation(
                "GET", one, self.get_group, "getGroup", "Show a group and its lag.",
                {200: group}, **common, problems=(404,),
                place=OF_GROUP,
                needs=Needs("read", topic="topic", group="group"),
            ),
            Operation(
                "DELETE", one, self.delete_group, "deleteGroup", "Forget a group.",
                {204: ResponseSpec("It is forgotten.")}, **common, problems=(404, 409, 507),
                place=OF_GROUP_ONCE,
                needs=Needs("consume", topic="topic", group="group"), is_change=True,
            ),
            Operation(
                "POST", one + "/seek", self.seek_group, "seekGroup", "Set where a group goes on.",
                {200: group}, **common, body=SeekRequest, body_example={"start": "latest"},
                problems=(404, 409, 507),
                place=OF_GROUP,
                needs=Needs("consume", topic="topic", group="group"), is_change=True,
            ),
        ]  # fmt: skip
