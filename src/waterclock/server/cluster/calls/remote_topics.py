"""Has the node that makes topics make them, for whatever in this node needs one.

A publish to a topic that is not there makes it; so does a group, and the first dead letter. Where
this node does not write the records, it asks the one that does.
"""

import msgspec

from waterclock.cluster.remote_calls import BadCall
from waterclock.model.errors import NotLeader, Unreachable
from waterclock.model.protobuf import to_proto
from waterclock.model.views import TopicSettings
from waterclock.node.node import Node
from waterclock.node.places import Places
from waterclock.server.cluster.calls.answering import NodesMethod
from waterclock.server.cluster.calls.forwarding import Trying
from waterclock.server.cluster.calls.remote_calls import RemoteCalls
from waterclock.server.cluster.calls.whole_answer import Lost
from waterclock.v1 import admin_pb2 as pb

OWN_TOPIC = "Nodes/EnsureOwnTopic"
"""Of nodes only: a topic of their own, in JSON as HTTP has it."""


class OwnTopic(msgspec.Struct, frozen=True):
    """A topic of the nodes' own, and how it is to be."""

    topic: str
    settings: TopicSettings


class RemoteTopics:
    """Asks for topics. What is asked again does no harm: it makes what is missing."""

    def __init__(self, remote: RemoteCalls, places: Places) -> None:
        self._remote = remote
        self._places = places

    async def create_topic(self, name: str, settings: TopicSettings) -> None:
        """Have a topic made, unless there is one of that name."""
        asked = pb.CreateTopicRequest(
            topic=name, settings=to_proto(settings, pb.TopicSettings), if_absent=True
        )
        await self._ask("Admin/CreateTopic", asked.SerializeToString())

    async def add_partitions(self, name: str, partitions: int) -> None:
        """Have a topic given so many partitions; its other settings may be others there by now."""
        asked = pb.UpdateTopicRequest(topic=name, settings=pb.TopicSettings(partitions=partitions))
        await self._ask("Admin/UpdateTopic", asked.SerializeToString())

    async def ensure_own_topic(self, name: str, settings: TopicSettings) -> None:
        """Have a topic of the nodes' own made, or given these settings."""
        await self._ask(OWN_TOPIC, msgspec.json.encode(OwnTopic(name, settings)))

    async def _ask(self, method: str, request: bytes) -> None:
        await ask_leader(self._remote, self._places, method, request)


async def ask_leader(remote: RemoteCalls, places: Places, method: str, request: bytes) -> bytes:
    """Return what the leader of the records answers, if that is another node. It may be asked
    twice; raises Unavailable if none is found that answers."""
    trying = Trying()
    while True:
        node = places.meta_leader()
        try:
            if node is None or node == places.me:
                raise NotLeader("the metadata", leader=node or "")
            return await remote.unary(node, method, request)
        except (NotLeader, Unreachable, Lost) as error:
            await trying.pause(error)


def own_topics_of(node: Node, places: Places) -> NodesMethod:
    """Return what answers other nodes that need a topic of the nodes' own."""

    async def ensure(request: bytes) -> bytes:
        try:
            asked = msgspec.json.decode(request, type=OwnTopic)
        except msgspec.MsgspecError as error:
            raise BadCall(f"{OWN_TOPIC}: {error}") from None
        leader = places.meta_leader()
        if leader != places.me:
            raise NotLeader("the metadata", leader=leader or "")
        await node.topics.ensure_own(asked.topic, asked.settings)
        return b""

    return ensure
