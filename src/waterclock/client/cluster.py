"""The cluster as the node that is asked sees it: who is there, owns and leads what."""

from typing import Any

import msgspec

from waterclock.client.streams.calls import StreamCalls
from waterclock.client.streams.http_pool import HttpRequest
from waterclock.model.cluster_views import EventView, MemberView, ReplicationView, RingView


class Cluster:
    """Look at the nodes of a cluster. A node without others is a cluster of one."""

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

    async def _ask(self, path: str) -> dict[str, Any]:
        return await self._calls.call(lambda _: HttpRequest("GET", path), is_safe=True)
