"""Topics and the node over HTTP, for administrators."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from waterclock.model.errors import Busy
from waterclock.model.topics.effective_settings import effective_settings
from waterclock.model.units import HOUR_MS
from waterclock.model.views import NodeInfo, Position, TopicInfo, TopicSettings
from waterclock.node.node import Node
from waterclock.node.topics import (
    PARTITIONS_MAX,
    RETENTION_BYTES_MAX,
    RETENTION_MS_MAX,
    Topic,
)
from waterclock.security.rights import Needs
from waterclock.server.cluster.calls.place import HERE, LEADERS, META, META_ONCE, Place
from waterclock.server.http.input import body_of, parameters_of
from waterclock.server.http.messages import Request, Response, json
from waterclock.server.http.operations import Operation, ResponseSpec
from waterclock.server.rest.models import (
    AnyTopicName,
    AnyTopicParameters,
    RequestModel,
    ResponseModel,
    TimeMs,
    TopicName,
    TopicParameters,
)


class SettingsRequest(RequestModel):
    """What can be said about a topic; what is not given stays as it is, or as configured."""

    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] | UnsetType = UNSET
    retention_ms: (
        Annotated[int, Meta(ge=0, le=RETENTION_MS_MAX, description="0: for ever.")] | UnsetType
    ) = UNSET
    retention_bytes: (
        Annotated[int, Meta(ge=0, le=RETENTION_BYTES_MAX, description="0: no bound.")] | UnsetType
    ) = UNSET
    retention_wait_for_groups: (
        Annotated[bool, Meta(description="Keep what some group has yet to read for longer.")]
        | UnsetType
    ) = UNSET
    is_compacted: bool | UnsetType = UNSET
    retries_max: Annotated[int, Meta(ge=1, le=10)] | UnsetType = UNSET
    ack_timeout_ms: Annotated[int, Meta(ge=100, le=12 * HOUR_MS)] | UnsetType = UNSET
    replication_factor: (
        Annotated[int, Meta(ge=1, le=5, description="Copies of each partition, in a cluster.")]
        | UnsetType
    ) = UNSET


class CreateTopic(SettingsRequest, kw_only=True):
    topic: TopicName
    if_absent: Annotated[bool, Meta(description="One that exists is returned as it is.")] = False


class TopicsResponse(ResponseModel):
    topics: list[TopicInfo]


class OffsetsParameters(RequestModel):
    """Where was which topic when."""

    topic: AnyTopicName
    time_ms: Annotated[TimeMs, Meta(examples=[0])]


class PositionsResponse(ResponseModel):
    """A position in each partition."""

    positions: list[Position]


class TopicsApi:
    """Answers administrators about topics."""

    def __init__(self, node: Node) -> None:
        self._node = node

    # Topics

    def list_topics(self, request: Request) -> Response:
        sees = request.principal.rights.sees
        seen = [topic.view() for topic in self._node.topics.all() if sees(topic=topic.name)]
        return json(200, TopicsResponse(topics=seen))

    async def create_topic(self, request: Request) -> Response:
        given = body_of(request, CreateTopic)
        topics = self._node.topics
        existed = topics.find(given.topic) is not None
        settings = _changed(topics.default_settings(), given)
        made = await topics.create(given.topic, settings, if_absent=given.if_absent)
        return json(200 if existed else 201, self._shown(made))

    def get_topic(self, request: Request) -> Response:
        name = parameters_of(request, AnyTopicParameters).topic
        return json(200, self._shown(self._node.topics.get(name)))

    async def update_topic(self, request: Request) -> Response:
        """Give a topic other settings, or more partitions."""
        name = parameters_of(request, TopicParameters).topic
        topics = self._node.topics
        given = body_of(request, SettingsRequest)
        topic = topics.get(name)
        if given.partitions is not UNSET and given.partitions < len(topic.partitions):
            raise Busy(
                f"partitions: {name} has {len(topic.partitions)}, and none can be taken away"
            )
        settings = _changed(topic.settings, given)
        return json(200, self._shown(await topics.update(name, settings)))

    async def delete_topic(self, request: Request) -> Response:
        """Delete a topic and its messages."""
        await self._node.topics.delete(parameters_of(request, TopicParameters).topic)
        return Response(204)

    def find_offsets(self, request: Request) -> Response:
        """Return where each partition stood at a time."""
        asked = parameters_of(request, OffsetsParameters)
        topic = self._node.topics.get(asked.topic)
        return json(200, PositionsResponse(positions=topic.positions_at(asked.time_ms)))

    def _shown(self, topic: Topic) -> TopicInfo:
        """Return a topic as it is now, with what holds for it."""
        return topic.view(effective_settings(topic.settings, self._node.config))

    # The node

    def get_node(self, _: Request) -> Response:
        return json(200, self._node.view())

    def operations(self) -> list[Operation]:
        """Return its part of the table."""
        path = "/topics/{topic}"
        common: dict[str, Any] = {"tag": "topics", "parameters": TopicParameters}
        topic = ResponseSpec("The topic.", TopicInfo)
        topics = ResponseSpec("All, by name.", TopicsResponse)
        positions = ResponseSpec("An offset for each partition.", PositionsResponse)
        return [
            Operation(
                "GET", "/topics", self.list_topics, "listTopics", "List topics.", {200: topics},
                tag="topics",
                place=Place(kind="leaders"),
                needs=Needs("read", is_list=True),
            ),
            Operation(
                "POST", "/topics", self.create_topic, "createTopic", "Make a topic.",
                {200: ResponseSpec("It existed.", TopicInfo), 201: topic}, tag="topics",
                body=CreateTopic, body_example={"topic": "orders", "partitions": 4},
                problems=(409, 507),
                place=Place(kind="meta", is_repeatable=False, repeatable_if="if_absent"),
                needs=Needs("publish", topic="topic"), makes=("topic",), is_change=True,
            ),
            Operation(
                "GET", path, self.get_topic, "getTopic", "Show a topic.", {200: topic},
                tag="topics", parameters=AnyTopicParameters, problems=(404,),
                place=LEADERS,
                needs=Needs("read", topic="topic"),
            ),
            Operation(
                "PATCH", path, self.update_topic, "updateTopic",
                "Change settings; add partitions.", {200: topic}, **common, body=SettingsRequest,
                body_example={"retentionMs": 86_400_000}, problems=(404, 409, 507),
                place=META,
                needs=Needs("admin", topic="topic"),
            ),
            Operation(
                "DELETE", path, self.delete_topic, "deleteTopic",
                "Delete a topic, with messages.", {204: ResponseSpec("It is gone.")}, **common,
                problems=(404, 507),
                place=META_ONCE,
                needs=Needs("admin", topic="topic"),
            ),
            Operation(
                "GET", path + "/offsets", self.find_offsets, "findOffsets",
                "Find where it stood.", {200: positions}, tag="topics",
                parameters=OffsetsParameters, problems=(404, 409),
                place=LEADERS,
                needs=Needs("read", topic="topic"),
            ),
            Operation(
                "GET", "/node", self.get_node, "getNode", "Show the node.",
                {200: ResponseSpec("The node.", NodeInfo)}, tag="node",
                place=HERE,
                needs=Needs("read"),
            ),
        ]  # fmt: skip


def _changed(settings: TopicSettings, given: SettingsRequest) -> TopicSettings:
    changes = {
        name: getattr(given, name)
        for name in SettingsRequest.__struct_fields__
        if getattr(given, name) is not UNSET
    }
    return msgspec.structs.replace(settings, **changes)
