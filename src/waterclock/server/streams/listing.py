"""The streams in memory: one by itself, and the names of all, of this node or of all in turn."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waterclock.model.views import StreamInfo
from waterclock.node.node import Node
from waterclock.server.http.input import parameters_of
from waterclock.server.http.messages import Answered, Later, Request, Response, json, problem
from waterclock.server.rest.models import OFFSET_MAX
from waterclock.server.streams.models import StreamList

if TYPE_CHECKING:
    from waterclock.server.cluster.forwarder import Forwarder
    from waterclock.server.cluster.hot_streams import HotStreams

LIST_MAX = 1_000
NODE_STEP = 1 << 40
"""Of a list over many nodes: by how much its places differ from one node to the next."""


class Listed(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Which names are wanted."""

    start: Annotated[int, Meta(description="`next` of the answer before.", ge=0, le=OFFSET_MAX)] = 0
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100


class StreamListing:
    """Lists the streams that a principal may see."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._table = node.streams.table
        self.forwarder: Forwarder | None = None
        """Asks other nodes, if the node has a cluster."""
        self.hot_streams: HotStreams | None = None
        """Knows which streams are split over nodes, if any may be."""

    def answer(self, request: Request) -> Answered | Later:
        """Answer with the names of streams in memory."""
        asked = parameters_of(request, Listed)
        if self.forwarder is not None and not request.left_ms:
            return self._list_all(request, asked, self.forwarder)
        sees = request.principal.rights.sees
        seen = (name for name in self._names() if sees(stream=name))
        # One more tells whether there are others behind them.
        names = list(islice(seen, asked.start, asked.start + asked.limit + 1))
        following = asked.start + asked.limit if len(names) > asked.limit else 0
        return json(200, StreamList(names[: asked.limit], following))

    def known(self, name: str) -> Response:
        """Answer with what is known of a stream of this node."""
        stream = self._table.find(name)
        if stream is None:
            return problem(404, f"there is no stream {name!r} in memory", error="NotFound")
        ring = stream.ring
        facts = StreamInfo(
            name,
            None if ring is None else ring.size,
            0 if ring is None else len(ring),
            0 if ring is None else ring.first,
            0 if ring is None else ring.end,
            stream.waiting,
            {n: each.position for n, each in (stream.consumers or {}).items()},
            len(stream.senders or ()),
        )
        return json(200, facts)

    def _names(self) -> Iterator[str]:
        """Yield the streams in memory, without those that are only parts of another node's."""
        names, hot = self._table.names(), self.hot_streams
        if hot is None or not hot.partitions:
            return names
        return (name for name in names if not hot.is_part_only(name))

    async def _list_all(self, request: Request, asked: Listed, forwarder: "Forwarder") -> Response:
        """Answer with streams of all nodes, one node's after the other's."""
        nodes = [None, *sorted(self._node.ownership.others)]
        sees = request.principal.rights.sees
        number, start = divmod(asked.start, NODE_STEP)
        names: list[str] = []
        unreachable: list[str] = []
        while number < len(nodes) and len(names) < asked.limit:
            room = asked.limit - len(names)
            page = await self._page(nodes[number], request.path, start, room, forwarder)
            if page is None:
                unreachable.append(nodes[number] or "")
                page = StreamList([], 0)
            names += (name for name in page.streams if sees(stream=name))
            number, start = (number, page.next) if page.next else (number + 1, 0)
        following = number * NODE_STEP + start if number < len(nodes) else 0
        return json(200, StreamList(names, following, unreachable))

    async def _page(
        self, node: str | None, path: bytes, start: int, limit: int, forwarder: "Forwarder"
    ) -> StreamList | None:
        """Return names of one node's streams; None if it does not answer."""
        if node is None:
            names = list(islice(self._names(), start, start + limit + 1))
            return StreamList(names[:limit], start + limit if len(names) > limit else 0)
        query = b"start=%d&limit=%d" % (start, limit)
        answer = await forwarder.ask_node(node, path, query)
        if answer is None or answer.status != 200:
            return None
        return msgspec.json.decode(answer.body, type=StreamList)
