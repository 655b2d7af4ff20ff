"""The cluster over HTTP, as the node that is asked sees it.

GET /cluster/members        all members it knows of, and in which state they are
GET /cluster/ring           who owns how much of the streams
GET /cluster/replication    who leads which partition, and how far the other replicas are
GET /cluster/events         who came and went
GET /cluster/placement      what people want moved, and how much of it is left

POST /cluster/drain         have a node lead and keep nothing, or let it again
POST /cluster/replace       have the replicas of a node that is gone made anew on another
POST /cluster/move          have a replica of a partition, or its leader, elsewhere

A node without others is a cluster of one: itself.
"""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from waterclock.model.cluster_views import (
    EventView,
    MemberView,
    PlacementView,
    ReplicationView,
    RingShare,
    RingView,
)
from waterclock.node.node import Node
from waterclock.node.topics import PARTITIONS_MAX
from waterclock.security.rights import Needs
from waterclock.server.cluster.replication_status import ReplicationStatus, led, of_topic, whole
from waterclock.server.cluster.single_node import orders_of
from waterclock.server.http.input import body_of, parameters_of
from waterclock.server.http.messages import Answered, Later, Request, Response, json
from waterclock.server.http.operations import Operation, ResponseSpec
from waterclock.server.rest.models import AnyTopicName, RequestModel

if TYPE_CHECKING:
    from waterclock.server.cluster.cluster import Cluster

RING = "/cluster/ring"
REPLICATION = "/cluster/replication"

NodeName = Annotated[str, Meta(min_length=1, max_length=255, description="Of a node.")]


class Members(msgspec.Struct):
    """All that are known, the node that is asked first."""

    members: list[MemberView]


class Replication(msgspec.Struct):
    """By topic and partition; nothing where topics are not replicated."""

    partitions: list[ReplicationView]


class ReplicationParameters(RequestModel):
    """Of which topic."""

    topic: Annotated[AnyTopicName, Meta(description="Only of this topic.")] | None = None


class Events(msgspec.Struct):
    """The oldest that the node remembers first."""

    events: list[EventView]


class DrainRequest(RequestModel):
    """A node that is to have nothing."""

    node: NodeName
    undo: Annotated[bool, Meta(description="It may have replicas again.")] = False


class ReplaceRequest(RequestModel):
    """A node that will not come back, and the one that has its replicas instead."""

    node: NodeName
    target: NodeName


class MoveRequest(RequestModel):
    """A partition, and the node that is to have a replica of it, or to lead it."""

    topic: AnyTopicName
    partition: Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)]
    target: Annotated[str, Meta(max_length=255, description="The node; of no use with `undo`.")] = (
        ""
    )
    source: Annotated[
        str, Meta(max_length=255, description="Whose replica goes; empty: any may.")
    ] = ""
    is_leader_only: Annotated[
        bool, Meta(description="The target has a replica, and is to lead.")
    ] = False
    undo: Annotated[bool, Meta(description="Move it no further.")] = False


class ClusterApi:
    """Answers questions about the nodes."""

    def __init__(self, node: Node, cluster: "Cluster | None") -> None:
        self._node = node
        self._cluster = cluster
        self.http_address = ""
        """Where clients reach this node, once it listens."""

    def members(self, _: Request) -> Response:
        """Answer with all members."""
        membership = None if self._cluster is None else self._cluster.membership
        if membership is None or self._node.is_joining:  # it does not gossip yet
            return json(200, Members([self._alone()]))
        return json(200, Members(membership.members()))

    def _alone(self) -> MemberView:
        return MemberView(
            self._node.name,
            address="",
            state="alive",
            http=self.http_address,
            peer="",
            zone="",
            level=1,
            is_self=True,
            is_linked=False,
        )

    def ring(self, request: Request) -> Answered | Later:
        """Answer with what each node owns; to another node, with what is this one's alone."""
        streams = len(self._node.streams.table)
        if self._cluster is None:
            return json(200, RingView(0, [RingShare(self._node.name, 1.0, streams)]))
        ring = self._cluster.ownership.ring
        if request.left_ms:
            own = RingShare(self._node.name, ring.shares().get(self._node.name, 0.0), streams)
            return json(200, RingView(ring.version, [own]))
        return self._whole_ring(self._cluster)

    async def _whole_ring(self, cluster: "Cluster") -> Response:
        ring = cluster.ownership.ring
        counts = await asyncio.gather(*(self._streams_of(name, cluster) for name in ring.nodes))
        shares = ring.shares()
        nodes = [
            RingShare(name, shares[name], count)
            for name, count in zip(ring.nodes, counts, strict=True)
        ]
        return json(200, RingView(ring.version, nodes))

    async def _streams_of(self, name: str, cluster: "Cluster") -> int:
        """Return how many streams a node has in memory; -1 if it does not say."""
        if name == self._node.name:
            return len(self._node.streams.table)
        if cluster.forwarder is None:
            return -1
        answer = await cluster.forwarder.ask_node(name, RING.encode(), b"")
        if answer is None or answer.status != 200:
            return -1
        (own,) = msgspec.json.decode(answer.body, type=RingView).nodes
        return own.streams

    def replication(self, request: Request) -> Answered | Later:
        """Answer with all partitions; to another node, with those that this one leads."""
        topic = parameters_of(request, ReplicationParameters).topic
        status = None if self._cluster is None else self._cluster.replication
        if self._cluster is None or status is None:
            return json(200, Replication([]))
        if request.left_ms:
            return json(200, Replication(led(status.views(), self._node.name)))
        return self._whole_replication(self._cluster, status, topic)

    async def _whole_replication(
        self, cluster: "Cluster", status: ReplicationStatus, topic: str | None
    ) -> Response:
        others = [self._led_by(name, cluster) for name in cluster.peers.linked]
        answers = await asyncio.gather(*others)
        # Here, and not where they come from: a node of an older release knows no such parameter.
        views = of_topic(whole(status.views(), answers), topic)
        return json(200, Replication(views))

    async def _led_by(self, name: str, cluster: "Cluster") -> list[ReplicationView]:
        """Return what another node leads; nothing if it does not say."""
        assert cluster.forwarder is not None
        answer = await cluster.forwarder.ask_node(name, REPLICATION.encode(), b"")
        if answer is None or answer.status != 200:
            return []
        return msgspec.json.decode(answer.body, type=Replication).partitions

    def events(self, _: Request) -> Response:
        """Answer with what happened to members."""
        if self._cluster is None or self._cluster.membership is None:
            return json(200, Events([]))
        return json(200, Events(list(self._cluster.membership.events)))

    # What people want moved

    def placement(self, _: Request) -> Response:
        """Answer with what people want moved, as far as it is not done."""
        orders = None if self._cluster is None else self._cluster.orders
        return json(200, PlacementView() if orders is None else orders.placement())

    async def drain(self, request: Request) -> Response:
        """Have a node lead and keep nothing, or let it again."""
        asked, orders = body_of(request, DrainRequest), orders_of(self._cluster)
        return json(200, await (orders.undrain if asked.undo else orders.drain)(asked.node))

    async def replace(self, request: Request) -> Response:
        """Have the replicas of a node made anew on another."""
        asked = body_of(request, ReplaceRequest)
        return json(200, await orders_of(self._cluster).replace(asked.node, asked.target))

    async def move(self, request: Request) -> Response:
        """Have a replica, or the leader, elsewhere, or go no further with that."""
        asked, orders = body_of(request, MoveRequest), orders_of(self._cluster)
        if asked.undo:
            return json(200, await orders.undo_move(asked.topic, asked.partition))
        view = await orders.move(
            asked.topic,
            asked.partition,
            target=asked.target,
            source=asked.source,
            is_leader_only=asked.is_leader_only,
        )
        return json(200, view)

    def operations(self) -> list[Operation]:
        """Return its part of the table."""
        return [*self._looks(), *self._changes()]

    def _changes(self) -> list[Operation]:
        common: dict[str, Any] = {
            "tag": "cluster", "problems": (404, 409, 501),
            "responses": {200: ResponseSpec("What is not done, this included.", PlacementView)},
        }  # fmt: skip
        return [
            Operation(
                "POST", "/cluster/drain", self.drain, "drainNode",
                "Have a node lead and keep nothing, so that it can be taken away.",
                body=DrainRequest, body_example={"node": "n3"}, **common,
                needs=Needs("admin"),
            ),
            Operation(
                "POST", "/cluster/replace", self.replace, "replaceNode",
                "Have the replicas of a node that will not come back made anew on another.",
                body=ReplaceRequest, body_example={"node": "n3", "target": "n4"}, **common,
                needs=Needs("admin"),
            ),
            Operation(
                "POST", "/cluster/move", self.move, "movePartition",
                "Have a node get a replica of a partition, in the place of another, or lead it.",
                body=MoveRequest, **common,
                body_example={"topic": "orders", "partition": 0, "target": "n4"},
                needs=Needs("admin"),
            ),
        ]  # fmt: skip

    def _looks(self) -> list[Operation]:
        common: dict[str, Any] = {"tag": "cluster"}
        return [
            Operation(
                "GET", "/cluster/placement", self.placement, "getPlacement",
                "Show what people want moved, and how much of it is left.",
                {200: ResponseSpec("Nothing where topics are not replicated.", PlacementView)},
                **common,
                needs=Needs("read"),
            ),
            Operation(
                "GET", "/cluster/members", self.members, "listMembers",
                "List the nodes of the cluster, as this one sees them.",
                {200: ResponseSpec("This node first.", Members)}, **common,
                needs=Needs("read"),
            ),
            Operation(
                "GET", RING, self.ring, "getRing", "Show who owns how much of the streams.",
                {200: ResponseSpec("By name.", RingView)}, **common,
                needs=Needs("read"),
            ),
            Operation(
                "GET", REPLICATION, self.replication, "listReplication",
                "Show who leads which partition, and how far the other replicas are.",
                {200: ResponseSpec("By topic and partition.", Replication)}, **common,
                parameters=ReplicationParameters,
                needs=Needs("read", topic="topic"),
            ),
            Operation(
                "GET", "/cluster/events", self.events, "listEvents",
                "List who came and went, as this node saw it.",
                {200: ResponseSpec("The last 1,000, the oldest first.", Events)}, **common,
                needs=Needs("read"),
            ),
        ]  # fmt: skip
