"""The links of a client to nodes that offer the native protocol.

Each node says where its HTTP is, and the same port takes links. One is dialled when a node is met,
and again when it was lost and is wanted. What answers there may be another node, if the one that
was met is reached through a tunnel or at a port that was mapped; so it is asked for its name and
since when it runs, which must be the same. Where there is none, for whatever reason (an older node,
a proxy, a closed port), everything goes by gRPC, which also says what is wrong with a credential.
"""

import asyncio
import logging
import time
from typing import Final, cast

import grpc

from waterclock.client.native.channel import NativeChannel
from waterclock.client.native.link import NodeLink, dial
from waterclock.client.streams.calls import reachable
from waterclock.model.errors import Unreachable
from waterclock.security.credential import Credential
from waterclock.v1.admin_pb2 import GetNodeRequest, NodeInfo
from waterclock.v1.admin_pb2_grpc import AdminStub

DIAL_S: Final = 2.0
PAUSE_S: Final = 5.0
"""Between two attempts to dial a node: some never take links."""

_log = logging.getLogger("waterclock.client")


class NodeLinks:
    """Links by the addresses of their nodes."""

    def __init__(self, credential: Credential | None, *, is_enabled: bool) -> None:
        self._credential = credential
        self._is_enabled = is_enabled
        self._channels: dict[str, NativeChannel] = {}
        self._dialled_at: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<NodeLinks to {len(self._channels)} of {len(self._dialled_at)} nodes>"

    def find(self, address: str) -> NodeLink | None:
        """Return the link to a node, if it is up."""
        channel = self.channel(address)
        return None if channel is None else channel.link

    def channel(self, address: str) -> NativeChannel | None:
        """Return the calls over the link to a node, if it is up."""
        channel = self._channels.get(address)
        return channel if channel is not None and channel.link.is_up else None

    async def meet(self, node: NodeInfo, address: str, *, is_alone: bool) -> None:
        """Have a link to a node that was found at an address, if it offers one."""
        if not self._is_enabled or not node.http_address or self.channel(address) is not None:
            return
        scheme = "http" if self._credential is None else "https"
        url = reachable(node.http_address, address, scheme)
        self._dialled_at[address] = time.monotonic()
        try:
            async with asyncio.timeout(DIAL_S):
                link = await dial(url, address, self._credential, is_alone=is_alone)
                found = await _asked(link)
        except (Unreachable, TimeoutError, grpc.aio.AioRpcError) as error:
            _log.debug("%s takes no links at %s, gRPC will do: %s", address, url, error)
            return
        if (found.name, found.started_ms) != (node.name, node.started_ms):
            link.close(f"{node.name!r} was meant, and this is another {found.name!r}")
            return
        self.drop(address)
        self._channels[address] = NativeChannel(link)

    def is_wanted(self, address: str) -> bool:
        """Return whether a node is to be met again, as its link was lost; once in a while."""
        time_s = time.monotonic()
        dialled_at = self._dialled_at.get(address)
        if dialled_at is None or self.channel(address) is not None:
            return False
        if time_s < dialled_at + PAUSE_S:
            return False
        self._dialled_at[address] = time_s
        return True

    def drop(self, address: str) -> None:
        """Hang up; what waits for an answer of the node hears so."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            channel.link.close("the client has left")

    def close(self) -> None:
        """Hang up everywhere."""
        for address in tuple(self._channels):
            self.drop(address)


async def _asked(link: NodeLink) -> NodeInfo:
    """Return what the node at the other end says of itself."""
    admin = AdminStub(cast(grpc.aio.Channel, NativeChannel(link)))
    try:
        found: NodeInfo = await admin.GetNode(GetNodeRequest())
    except BaseException:
        link.close("the client was not told who this is")
        raise
    return found
