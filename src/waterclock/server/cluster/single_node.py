"""What a node has for itself alone: topics, groups and schedules, and streams stored on its disk.

Nodes of a cluster share streams. Topics are shared through etcd; without it they would be others on
each node, whoever is asked: so they are refused, over HTTP and gRPC, in words that say what to do.
The node's own topics, such as its audit, are its own anyway, and can be read.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from google.protobuf.message import Message

from waterclock.model.config import Config
from waterclock.model.errors import NotSupported
from waterclock.server.grpc.needs import METHODS
from waterclock.server.http.messages import Answered, Later, Request
from waterclock.server.http.operations import Operation
from waterclock.server.http.permits import field_reader

if TYPE_CHECKING:
    from waterclock.server.cluster.cluster import Cluster
    from waterclock.server.cluster.replication.orders import Orders

NO_TOPICS: Final = "topics on several nodes need etcd: set cluster.etcd"
NO_STORE: Final = (
    "stored streams on several nodes need a store that all of them reach: set streams.store to a "
    "database, as in postgresql://user:password@host/name, or cluster.etcd"
)
LOCAL_STORES: Final = ("log", "sqlite")
"""Schemes of `streams.store` that are files of one machine."""
_OWN: Final = "__"
_ALLOWED: Final = frozenset(
    {
        "Admin/GetNode",
        "Backups/TakeBackup",
        "Health/Check",
        "Health/List",
        "Health/Watch",
        "ServerReflection/ServerReflectionInfo",
    }
)
"""Methods of gRPC that are about the node, and not about topics."""


def refusal_of_store(config: Config) -> str:
    """Return why a node cannot store streams; nothing if it can."""
    url, cluster = config.streams.store, config.cluster
    if url.partition(":")[0] not in LOCAL_STORES or not cluster.is_clustered:
        return ""
    return "" if url == "log:" and cluster.is_replicated else NO_STORE


def of_single_nodes(config: Config, operations: Iterable[Operation]) -> list[Operation]:
    """Return operations on topics as this node offers them: as they are, or refused."""
    if not config.cluster.is_clustered:
        return list(operations)
    return [one if one.tag == "node" else _refusing(one) for one in operations]


def check_request(method: str, request: Message) -> None:
    """Raise NotSupported if a request of gRPC is about topics that are not the node's own."""
    if method in _ALLOWED:
        return
    field = METHODS[method].needs.topic
    if field is None:
        raise NotSupported(NO_TOPICS)
    part, _, name = field.rpartition(".")
    if part and not request.HasField(part):  # a later request of a stream, or one that is wrong
        return
    if not getattr(getattr(request, part) if part else request, name).startswith(_OWN):
        raise NotSupported(NO_TOPICS)


def _refusing(operation: Operation) -> Operation:
    topic_of = field_reader(operation, operation.needs.topic)

    def handle(request: Request) -> Answered | Later:
        topic = None if topic_of is None else topic_of(request)
        if topic is None or not topic.startswith(_OWN):
            raise NotSupported(NO_TOPICS)
        return operation.handler(request)

    return replace(operation, handler=handle)


def orders_of(cluster: "Cluster | None") -> "Orders":
    """Return what takes orders of people; raises NotSupported where there is nothing to move."""
    if cluster is None or cluster.orders is None:
        raise NotSupported("replicas are moved where there are some: set cluster.etcd")
    return cluster.orders
