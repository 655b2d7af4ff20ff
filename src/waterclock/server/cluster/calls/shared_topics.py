"""Topics that several nodes share, as one of them serves them: what it asks of others, and answers.

The parts know each other only here: a router that finds nodes, the routing of gRPC and that of
HTTP, which use it, and the answers to what other nodes ask.
"""

import asyncio
from collections.abc import Sequence

from waterclock.node.node import Node
from waterclock.node.partition.host import PartitionHost
from waterclock.node.places import Places
from waterclock.node.streams.requests import METHOD as STREAMS
from waterclock.node.topics import Topic
from waterclock.server.calls import Calls
from waterclock.server.cluster.calls.answering import CallAnswering
from waterclock.server.cluster.calls.forwarding import Forwarding, remote_methods
from waterclock.server.cluster.calls.http_routing import HttpRouting
from waterclock.server.cluster.calls.publish_answering import PublishAnswering
from waterclock.server.cluster.calls.remote_calls import RemoteCalls
from waterclock.server.cluster.calls.remote_cancels import RemoteCancels
from waterclock.server.cluster.calls.remote_publish import RemotePublishes
from waterclock.server.cluster.calls.remote_reads import READ_LOG, RemoteLogs, reading_of
from waterclock.server.cluster.calls.remote_rights import SHARE_RIGHTS, RemoteRights, sharing_of
from waterclock.server.cluster.calls.remote_topics import (
    OWN_TOPIC,
    RemoteTopics,
    own_topics_of,
)
from waterclock.server.cluster.calls.router import Router
from waterclock.server.cluster.cluster import Cluster
from waterclock.server.grpc.guard import topics_of
from waterclock.server.grpc.server import Service


class SharedTopics:
    """Routes all calls about topics. Nothing is answered to other nodes before `begin`."""

    def __init__(self, node: Node, cluster: Cluster, places: Places) -> None:
        self._node = node
        self._cluster = cluster
        self._places = places
        remote, router = RemoteCalls(cluster.peers), Router(node.topics, places)
        self.grpc = Forwarding(router, remote, topics_of(node))
        self.http = HttpRouting(router)
        self.topics = RemoteTopics(remote, places)
        self.rights = RemoteRights(remote, places, node.rights)
        self.publishes = RemotePublishes(cluster.peers, places, node.spawn)
        self.logs = RemoteLogs(remote, places)
        node.pending.elsewhere = RemoteCancels(remote, places, node.pending)
        for topic in node.topics.all():
            for host in topic.partitions:
                self._opened(topic, host)
        node.topics.on_opened.append(self._opened)
        node.topics.on_deleted.append(self._deleted)

    def begin(self, services: Sequence[Service], calls: Calls, tasks: asyncio.TaskGroup) -> None:
        """Answer other nodes by services: straight, for a call goes one hop."""
        self.grpc.calls = calls
        cluster, node = self._cluster, self._node
        assert cluster.forwarder is not None, "the cluster has not begun"
        self.http.forwarder = cluster.forwarder
        of_nodes = {
            OWN_TOPIC: own_topics_of(node, self._places),
            READ_LOG: reading_of(node.topics, calls),
            SHARE_RIGHTS: sharing_of(node.rights),
        }
        if node.replicated_streams is not None:
            of_nodes[STREAMS] = node.replicated_streams.answer
        cluster.calls = CallAnswering(
            remote_methods(services),
            self.grpc.check,
            self.grpc.check_still,
            self.grpc.permit,
            tasks,
            of_nodes=of_nodes,
        )
        cluster.publishes = PublishAnswering(node, self._places, tasks)

    def _opened(self, topic: Topic, host: PartitionHost) -> None:
        host.remote, host.reads = self.publishes, self.logs

    def _deleted(self, topic: Topic) -> None:
        for host in topic.partitions:
            self.publishes.forget(host)


def shared_topics(node: Node, cluster: Cluster | None) -> SharedTopics | None:
    """Return what routes calls about topics; None if they are this node's alone."""
    if cluster is None or cluster.places is None:
        return None
    return SharedTopics(node, cluster, cluster.places)
