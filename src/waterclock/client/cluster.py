"""The cluster as the node that is asked sees it: who is there, owns and leads what, and should."""

from typing import Any

import msgspec

from waterclock.client.streams.calls import StreamCalls
from waterclock.client.streams.http_request import HttpRequest
from waterclock.model.cluster_views import (
    EventView,
    MemberView,
    PlacementView,
    ReplicationView,
    RingView,
)


class Cluster:
    """Look at the nodes of a cluster, and move what is on them. A node without others is a cluster
    of one.

    What changes something says what is wanted; the nodes do it, and go on with it after restarts.
    `placement` tells how far they are. To want the same again changes nothing.
    """

    def __init__(self, calls: StreamCalls) -> None:
        self._calls = calls

    async def members(self) -> list[MemberView]:
        """Return all members that the node knows, itself first; the dead until it forgets them."""
        found = await self._ask("/cluster/members")
        with self._calls.reading():
            return msgspec.convert(found["members"], list[MemberView])

    async def ring(self) -> RingView:
        """Return who owns how much of the streams."""
        found = await self._ask("/cluster/ring")
        with self._calls.reading():
            return msgspec.convert(found, RingView)

    async def replication(self) -> list[ReplicationView]:
        """Return who leads which partition, and how far its replicas are, by topic and partition.

        Where topics are not replicated there is nothing to return.
        """
        found = await self._ask("/cluster/replication")
        with self._calls.reading():
            return msgspec.convert(found["partitions"], list[ReplicationView])

    async def events(self) -> list[EventView]:
        """Return what has happened to members, the oldest that the node remembers first."""
        found = await self._ask("/cluster/events")
        with self._calls.reading():
            return msgspec.convert(found["events"], list[EventView])

    async def placement(self) -> PlacementView:
        """Return what people want moved, as far as it is not done."""
        return self._placement(await self._ask("/cluster/placement"))

    async def drain(self, node: str) -> PlacementView:
        """Have a node lead and keep nothing, so that it can be taken away."""
        return await self._order("/cluster/drain", {"node": node})

    async def undrain(self, node: str) -> PlacementView:
        """Let a node have replicas again; also one that is being replaced."""
        return await self._order("/cluster/drain", {"node": node, "undo": True})

    async def replace(self, node: str, target: str) -> PlacementView:
        """Have the replicas of a node that will not come back made anew on another, at once."""
        return await self._order("/cluster/replace", {"node": node, "target": target})

    async def move(
        self, topic: str, partition: int, *, target: str, source: str = ""
    ) -> PlacementView:
        """Have a node get a replica of a partition, in the place of the one on `source`, or of
        whichever can best be spared."""
        asked = {"topic": topic, "partition": partition, "target": target, "source": source}
        return await self._order("/cluster/move", asked)

    async def move_leader(self, topic: str, partition: int, *, target: str) -> PlacementView:
        """Have a node lead a partition that it has a replica of, and be preferred to."""
        asked = {"topic": topic, "partition": partition, "target": target, "isLeaderOnly": True}
        return await self._order("/cluster/move", asked)

    async def undo_move(self, topic: str, partition: int) -> PlacementView:
        """Move a partition no further."""
        asked = {"topic": topic, "partition": partition, "undo": True}
        return await self._order("/cluster/move", asked)

    async def _order(self, path: str, asked: dict[str, Any]) -> PlacementView:
        body = msgspec.json.encode(asked)
        made = HttpRequest("POST", path, body=body)
        return self._placement(await self._calls.call(lambda _: made, is_safe=True))

    def _placement(self, found: dict[str, Any]) -> PlacementView:
        with self._calls.reading():
            return msgspec.convert(found, PlacementView)

    async def _ask(self, path: str) -> dict[str, Any]:
        return await self._calls.call(lambda _: HttpRequest("GET", path), is_safe=True)
