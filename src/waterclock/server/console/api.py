"""What the console asks of a node beyond what everyone may ask of it.

    GET /console/{file}      its files, open to all: there is nothing of the node in them
    GET /console/session     who asks, and what they may do: buttons for the rest are not shown
    GET /console/moment      when a time is that somebody types, by the clocks of their zone
    GET /console/live        what is now, every second, as server-sent events
    GET /console/counts      what this node has counted, for the consoles of others
    GET /history             what was, over the last hour or day

The page itself stands at `/`. It sends its credential with each request, in a header, as every
client does: there is no cookie, so no other page can make a browser act for who is logged in.
"""

from typing import TYPE_CHECKING, Any

import waterclock
from waterclock.model.errors import BadInput
from waterclock.node.node import Node
from waterclock.schedule.when import read_moment
from waterclock.security.audit import TOPIC
from waterclock.security.rights import OPEN, Needs
from waterclock.server.access import Access
from waterclock.server.console.assets import file_answer
from waterclock.server.console.histories import HISTORY, Histories
from waterclock.server.console.live import COUNTS, Live
from waterclock.server.console.models import (
    CountsParameters,
    FileParameters,
    HistoryParameters,
    HistoryResponse,
    LiveParameters,
    MomentParameters,
    MomentResponse,
    RightResponse,
    SessionResponse,
)
from waterclock.server.http.input import parameters_of
from waterclock.server.http.messages import (
    EVENTS,
    Answered,
    Later,
    Request,
    Response,
    Streamed,
    json,
)
from waterclock.server.http.operations import Operation, ResponseSpec

if TYPE_CHECKING:
    from waterclock.server.cluster.cluster import Cluster
    from waterclock.server.cluster.forwarder import Forwarder

MSGPACK = b"application/vnd.msgpack"


class ConsoleApi:
    """Answers the console."""

    def __init__(self, node: Node, access: Access, cluster: "Cluster | None") -> None:
        self._node = node
        self._access = access
        self._cluster = cluster
        self.grpc_port = 0
        """Where gRPC listens, once it does."""
        self.live = Live(node, cluster)
        self.histories = Histories(node, cluster)

    def file(self, request: Request) -> Response:
        return file_answer(parameters_of(request, FileParameters).file, request)

    def session(self, request: Request) -> Response:
        """Answer with who asks."""
        node, rights = self._node, request.principal.rights
        audit = node.topics.find(TOPIC)
        listed = [
            RightResponse(
                kind=each.kind, what=each.what, glob=each.glob, group_glob=each.group_glob
            )
            for each in sorted(rights.rights)
        ]
        found = SessionResponse(
            principal=request.principal.name,
            is_secure=self._access.is_secure,
            is_clustered=self._cluster is not None,
            is_admin=rights.is_admin,
            rights=listed,
            node=node.name,
            version=waterclock.__version__,
            started_ms=node.started_ms,
            now_ms=node.clock.now_ms(),
            audit_topic="" if audit is None else audit.name,
            grpc_port=self.grpc_port,
        )
        return json(200, found)

    def moment(self, request: Request) -> Response:
        """Answer with what a text means to the reader; one that means nothing is no error here, as
        most are looked at before they are typed to their end."""
        asked, now_ms = parameters_of(request, MomentParameters), self._node.clock.now_ms()
        try:
            found = read_moment(asked.text, now_ms, asked.zone, is_past=asked.is_past, field="time")
        except BadInput as error:
            return json(200, MomentResponse(wrong=str(error)))
        return json(200, MomentResponse(**found._asdict()))

    def events(self, request: Request) -> Streamed:
        """Tell what is now, again and again."""
        access, principal = self._access, request.principal
        asked = parameters_of(request, LiveParameters)
        return self.live.open(asked, lambda: access.current(principal).rights)

    async def counts(self, request: Request) -> Response:
        """Answer another node with what this one has counted."""
        asked = parameters_of(request, CountsParameters)
        return Response(200, await self.live.for_nodes(has_dead=asked.dead_letters), MSGPACK)

    def history(self, request: Request) -> Answered | Later:
        """Answer with what was, here or on all nodes; to another node, with what was here."""
        asked = parameters_of(request, HistoryParameters)
        forwarder = None if request.left_ms else self.histories.elsewhere(asked)
        if forwarder is None:
            return json(200, self.histories.here(asked))
        return self._history_of(asked, forwarder)

    async def _history_of(self, asked: HistoryParameters, forwarder: "Forwarder") -> Response:
        return json(200, await self.histories.of_nodes(asked, forwarder))

    def operations(self) -> list[Operation]:
        """Return its part of the table."""
        common: dict[str, Any] = {"tag": "node"}
        return [
            Operation(
                "GET", "/console/{file}", self.file, "consoleFile", "A file of the console.",
                {200: ResponseSpec("The file.", content_type=b"*/*")}, **common,
                parameters=FileParameters, problems=(404,), is_last_to_stop=True,
                needs=OPEN,
            ),
            Operation(
                "GET", "/console/session", self.session, "consoleSession",
                "Tell who asks, and what they may do.",
                {200: ResponseSpec("Whoever asks.", SessionResponse)}, **common,
                needs=Needs("read", is_list=True),
            ),
            Operation(
                "GET", "/console/moment", self.moment, "consoleMoment",
                "Tell when a time is that somebody writes, by the clocks of their zone.",
                {200: ResponseSpec("The time, or why it is none.", MomentResponse)}, **common,
                parameters=MomentParameters,
                needs=Needs("read", is_list=True),
            ),
            Operation(
                "GET", "/console/live", self.events, "consoleLive",
                "Tell what is now, every second, as server-sent events.",
                {200: ResponseSpec("A snapshot each.", content_type=EVENTS)}, **common,
                parameters=LiveParameters,
                needs=Needs("read", is_list=True),
            ),
            Operation(
                "GET", COUNTS, self.counts, "consoleCounts",
                "Tell what this node has counted, for the consoles of other nodes.",
                {200: ResponseSpec("Counts, as MessagePack.", content_type=MSGPACK)}, **common,
                parameters=CountsParameters,
                needs=Needs("read"),
            ),
            Operation(
                "GET", HISTORY, self.history, "getHistory",
                "Show what the nodes, or a busy topic, did over the last hour or day.",
                {200: ResponseSpec("One value for each step.", HistoryResponse)}, tag="node",
                parameters=HistoryParameters, problems=(404, 503),
                needs=Needs("read", topic="topic"),
            ),
        ]  # fmt: skip

    def of_nodes(self) -> list[Operation]:
        """Return those that other nodes ask."""
        return [each for each in self.operations() if each.name in ("consoleCounts", "getHistory")]
