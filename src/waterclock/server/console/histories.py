"""What was, over the last hour or day: here, on another node, or on all that share topics."""

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec

from waterclock.model.errors import NotFound, Unavailable
from waterclock.node.node import Node
from waterclock.server.console.merged_history import merged_history
from waterclock.server.console.models import HistoryParameters, HistoryResponse

if TYPE_CHECKING:
    from waterclock.server.cluster.cluster import Cluster
    from waterclock.server.cluster.forwarder import Forwarder

HISTORY = "/history"


class Histories:
    """Looks up what was, for HTTP and gRPC alike."""

    def __init__(self, node: Node, cluster: "Cluster | None") -> None:
        self._node = node
        self._cluster = cluster

    def elsewhere(self, asked: HistoryParameters) -> "Forwarder | None":
        """Return by what other nodes are asked, if they are to be; raises NotFound if there is no
        such node."""
        cluster = self._cluster
        if asked.node not in ("", self._node.name):
            if cluster is None or asked.node not in cluster.others:
                raise NotFound("node", asked.node)
        elif asked.node or cluster is None or cluster.places is None:
            return None
        if cluster.forwarder is None:
            raise Unavailable("the node is starting: ask again, or elsewhere")
        return cluster.forwarder

    async def get(self, asked: HistoryParameters) -> HistoryResponse:
        """Return what was, wherever it is asked of."""
        forwarder = self.elsewhere(asked)
        return self.here(asked) if forwarder is None else await self.of_nodes(asked, forwarder)

    async def of_nodes(self, asked: HistoryParameters, forwarder: "Forwarder") -> HistoryResponse:
        """Return what was on another node, or on all of them."""
        assert self._cluster is not None
        names = [asked.node] if asked.node else self._cluster.others
        parts = [] if asked.node else [self.here(asked)]
        given = {"range": asked.range, "topic": asked.topic}
        query = urlencode({name: value for name, value in given.items() if value}).encode()
        answers = await asyncio.gather(
            *(forwarder.ask_node(name, HISTORY.encode(), query) for name in names)
        )
        if asked.node and asked.topic and answers[0] is not None and answers[0].status == 404:
            raise NotFound("topic", asked.topic)
        found = {n: a.body for n, a in zip(names, answers, strict=True) if a and a.status == 200}
        parts += [msgspec.json.decode(body, type=HistoryResponse) for body in found.values()]
        if not parts:
            raise Unavailable(f"node {asked.node!r} does not answer")
        return merged_history(parts, [name for name in names if name not in found])

    def here(self, asked: HistoryParameters) -> HistoryResponse:
        """Return what was on this node."""
        history, is_day = self._node.recorder.history, asked.range == "day"
        if asked.topic is None:
            found = history.of_node(is_day=is_day)
        else:
            self._node.topics.get(asked.topic)
            found = history.of_topic(asked.topic, is_day=is_day)
        return HistoryResponse(step_ms=found.step_ms, end_ms=found.end_ms, series=found.series)
