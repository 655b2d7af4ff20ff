"""What the console asks of a node beyond what everyone may ask of it.

    GET /console/{file}      its files, open to all: there is nothing of the node in them
    GET /console/session     who asks, and what they may do: buttons for the rest are not shown
    GET /console/live        what is now, every second, as server-sent events
    GET /history             what was, over the last hour or day

The page itself stands at `/`. It sends its credential with each request, in a header, as every
client does: there is no cookie, so no other page can make a browser act for who is logged in.
"""

from typing import TYPE_CHECKING, Any

import waterclock
from waterclock.node.node import Node
from waterclock.security.audit import TOPIC
from waterclock.security.rights import OPEN, Needs
from waterclock.server.access import Access
from waterclock.server.console.assets import file_answer
from waterclock.server.console.live import Live
from waterclock.server.console.models import (
    FileParameters,
    HistoryParameters,
    HistoryResponse,
    LiveParameters,
    RightResponse,
    SessionResponse,
)
from waterclock.server.http.input import parameters_of
from waterclock.server.http.messages import EVENTS, Request, Response, Streamed, json
from waterclock.server.http.operations import Operation, ResponseSpec

if TYPE_CHECKING:
    from waterclock.server.cluster.cluster import Cluster


class ConsoleApi:
    """Answers the console."""

    def __init__(self, node: Node, access: Access, cluster: "Cluster | None") -> None:
        self._node = node
        self._access = access
        self._is_clustered = cluster is not None
        self.live = Live(node, cluster)

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
            is_clustered=self._is_clustered,
            is_admin=rights.is_admin,
            rights=listed,
            node=node.name,
            version=waterclock.__version__,
            started_ms=node.started_ms,
            now_ms=node.clock.now_ms(),
            audit_topic="" if audit is None else audit.name,
        )
        return json(200, found)

    def events(self, request: Request) -> Streamed:
        """Tell what is now, again and again."""
        return self.live.open(parameters_of(request, LiveParameters), request.principal.rights)

    def history(self, request: Request) -> Response:
        """Answer with what was."""
        asked, history = parameters_of(request, HistoryParameters), self._node.recorder.history
        is_day = asked.range == "day"
        if asked.topic is None:
            found = history.of_node(is_day=is_day)
        else:
            self._node.topics.get(asked.topic)
            found = history.of_topic(asked.topic, is_day=is_day)
        return json(
            200, HistoryResponse(step_ms=found.step_ms, end_ms=found.end_ms, series=found.series)
        )

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
                "GET", "/console/live", self.events, "consoleLive",
                "Tell what is now, every second, as server-sent events.",
                {200: ResponseSpec("A snapshot each.", content_type=EVENTS)}, **common,
                parameters=LiveParameters,
                needs=Needs("read", is_list=True),
            ),
            Operation(
                "GET", "/history", self.history, "getHistory",
                "Show what the node, or a busy topic, did over the last hour or day.",
                {200: ResponseSpec("One value for each step.", HistoryResponse)}, tag="node",
                parameters=HistoryParameters, problems=(404,),
                needs=Needs("read", topic="topic"),
            ),
        ]  # fmt: skip
