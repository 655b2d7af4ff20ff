"""A node among others: its links, what it owns, and who answers for what it does not."""

import asyncio
from random import Random

from waterclock.cluster.forwarded import FORWARD
from waterclock.cluster.handed_over import HANDOVER
from waterclock.cluster.hash_ring import POINTS
from waterclock.cluster.hot_streams.frames import PARTITION
from waterclock.cluster.peer_link.channels import Channel
from waterclock.cluster.peer_link.frames import Hello
from waterclock.cluster.remote_calls import CALL
from waterclock.cluster.remote_publishes import PUBLISH
from waterclock.cluster.replication.copies import INSTALL
from waterclock.cluster.replication.pieces import REPLICATE
from waterclock.node.node import Node
from waterclock.node.places import Places
from waterclock.node.streams.host import StreamHost
from waterclock.server.cluster.answering import Answering
from waterclock.server.cluster.calls.answering import CallAnswering
from waterclock.server.cluster.calls.publish_answering import PublishAnswering
from waterclock.server.cluster.forwarder import Forwarder
from waterclock.server.cluster.handover import Handover
from waterclock.server.cluster.hot_streams import HotStreams
from waterclock.server.cluster.membership import Membership
from waterclock.server.cluster.ownership import RingOwnership
from waterclock.server.cluster.peers import Peers, PeerSecurity
from waterclock.server.cluster.replication.orders import Orders
from waterclock.server.cluster.replication.replicator import Replicator
from waterclock.server.cluster.replication_status import ReplicationStatus
from waterclock.server.http.messages import Handler


class Cluster:
    """What a node knows of the others. Nothing is answered before `begin`."""

    def __init__(
        self, hello: Hello, security: PeerSecurity, random: Random, *, points: int = POINTS
    ) -> None:
        self.ownership = RingOwnership(hello.node_id, points=points)
        self.peers = Peers(
            hello,
            security,
            on_request=self._requested,
            on_up=self._up,
            on_down=self._down,
            on_gone=self._gone,
            on_moved=self._moved,
            random=random,
        )
        self.membership: Membership | None = None
        """Who there is, once the node has joined the others."""
        self.forwarder: Forwarder | None = None
        """Asks the others, once the node is served."""
        self.handover: Handover | None = None
        """Moves streams to and from the others, once the node is served."""
        self.hot_streams: HotStreams | None = None
        """Splits busy streams, if that is wanted, once the node is served."""
        self.replication: ReplicationStatus | None = None
        """Tells of replicated topics, if there are any."""
        self.orders: Orders | None = None
        """Takes what people want moved, if there are any."""
        self.replicator: Replicator | None = None
        """Has partitions copied, if topics are shared."""
        self.places: Places | None = None
        """Who leads which partition, if topics are shared: set it before the node is served."""
        self.calls: CallAnswering | None = None
        """Answers calls of gRPC, if topics are shared, once the node is served."""
        self.publishes: PublishAnswering | None = None
        """Publishes for other nodes, if topics are shared, once the node is served."""
        self._answering: Answering | None = None

    def begin(
        self, handler: Handler, node: Node, tasks: asyncio.TaskGroup, *, body_bytes_max: int
    ) -> Forwarder:
        """Answer other nodes with `handler`, and move the streams of a node; return what asks."""
        self.handover = Handover(
            self.peers,
            self.ownership,
            node.streams,
            run_id=node.clock.now_ms(),
            gone=self._linked_and_gone,
        )
        for node_id in self.peers.linked:  # since before, where topics are replicated
            self.handover.linked(node_id)
        self._answering = Answering(handler, tasks, body_bytes_max=body_bytes_max)
        self.forwarder = Forwarder(self.peers, self.ownership, handler, tasks)
        return self.forwarder

    @property
    def members(self) -> int:
        """How many nodes there are, this one included."""
        return 1 if self.membership is None else len(self.membership)

    @property
    def others(self) -> list[str]:
        """The nodes beside this one that are known to be there, by name."""
        return sorted({*self.ownership.others, *self.peers.linked})

    def split_busy(self, host: StreamHost) -> HotStreams:
        """Split streams that are too busy for one node."""
        assert self.handover is not None
        self.hot_streams = HotStreams(self.peers, self.ownership, host, self.handover.stray)
        return self.hot_streams

    def end(self) -> None:
        """Answer other nodes no more, nor what they go on with over channels that are open."""
        if self._answering is not None:
            self._answering.end()
        if self.publishes is not None:
            self.publishes.end()
        self._answering = self.calls = self.publishes = None

    def _requested(
        self, node_id: str, channel: Channel, method: int, body: bytes, is_last: bool
    ) -> None:
        if method == REPLICATE and self.replicator is not None:
            # Also before the node is served: it starts by reading the records of the others.
            self.replicator.requested(node_id, channel, body)
        elif method == INSTALL and self.replicator is not None:
            self.replicator.asked_for_segments(channel, body)
        elif self._answering is None or self.handover is None:
            channel.cancel("the node is starting, or stopping")
        elif method == FORWARD:
            self._answering.requested(channel, body, is_last=is_last)
        elif method == HANDOVER:
            self.handover.requested(node_id, channel, body, is_last=is_last)
        elif method == CALL and self.calls is not None:
            self.calls.requested(channel, body, is_last=is_last)
        elif method == PUBLISH and self.publishes is not None:
            self.publishes.requested(channel, body, is_last=is_last)
        elif method == PARTITION and self.hot_streams is not None:
            self.hot_streams.requested(node_id, channel, body, is_last=is_last)
        else:
            channel.cancel(f"method {method} is unknown here")

    def _linked_and_gone(self) -> list[str]:
        """Return nodes that members have lost, while the links to them stand."""
        members = self.membership
        return (
            [] if members is None else [name for name in self.peers.linked if name not in members]
        )

    def _up(self, node_id: str) -> None:
        if self.replicator is not None:
            self.replicator.linked(node_id)
        if self.handover is not None:
            self.handover.linked(node_id)
        if self.membership is not None:
            self.membership.linked(node_id)

    def _down(self, node_id: str, why: str) -> None:
        if self.handover is not None:
            self.handover.unlinked(node_id)
        if self.membership is not None:
            self.membership.unlinked(node_id, why)

    def _moved(self, node_id: str) -> None:
        if self.replicator is not None:
            self.replicator.linked(node_id)

    def _gone(self, node_id: str) -> None:
        if self.replicator is not None:
            self.replicator.process_gone(node_id)
        if self.membership is not None:
            self.membership.process_gone(node_id)
