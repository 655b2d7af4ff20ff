"""The links of a client to nodes that offer the native protocol.

Each node says where its HTTP is, and the same port takes links. One is dialled when a node is met,
and again when it was lost and is wanted. Where there is none, for whatever reason (an older node, a
proxy, a closed port), everything goes by gRPC, which also says what is wrong with a credential.
"""

import asyncio
import logging
import time
from typing import Final

from waterclock.client.native.channel import NativeChannel
from waterclock.client.native.link import NodeLink, dial
from waterclock.client.streams.calls import reachable
from waterclock.model.errors import Unreachable
from waterclock.security.credential import Credential
from waterclock.v1.admin_pb2 import NodeInfo

DIAL_S: Final = 2.0
PAUSE_S: Final = 1.0
"""Between two attempts to dial a node."""

_log = logging.getLogger("waterclock.client")


class NodeLinks:
    """Links by the addresses of their nodes."""

    def __init__(self, credential: Credential | None, *, is_enabled: bool) -> None:
        self._credential = credential
        self._is_enabled = is_enabled
        self._nodes: dict[str, tuple[str, str]] = {}
        """By address: the URL of a node, and its name."""
        self._channels: dict[str, NativeChannel] = {}
        self._dialled_at: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<NodeLinks to {len(self._channels)} of {len(self._nodes)} nodes>"

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
        if not self._is_enabled or not node.http_address:
            return
        scheme = "http" if self._credential is None else "https"
        self._nodes[address] = reachable(node.http_address, address, scheme), node.name
        await self.dial(address, is_alone=is_alone)

    def is_worth_dialling(self, address: str) -> bool:
        """Return whether there is no link, and may be one: it was not tried just now."""
        if address not in self._nodes or self.channel(address) is not None:
            return False
        return time.monotonic() >= self._dialled_at.get(address, 0.0) + PAUSE_S

    async def dial(self, address: str, *, is_alone: bool) -> None:
        """Try to have a link to a node that was met."""
        if self.channel(address) is not None:
            return
        url, name = self._nodes[address]
        self._dialled_at[address] = time.monotonic()
        try:
            async with asyncio.timeout(DIAL_S):
                link = await dial(url, address, self._credential, is_alone=is_alone)
        except (Unreachable, TimeoutError) as error:
            _log.debug("%s takes no links at %s, gRPC will do: %s", address, url, error)
            return
        if link.node_name != name:
            link.close(f"{name!r} was meant, and this is {link.node_name!r}")
            return
        self.drop(address)
        self._channels[address] = NativeChannel(link)

    def drop(self, address: str) -> None:
        """Hang up; what waits for an answer of the node hears so."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            channel.link.close("the client has left")

    def close(self) -> None:
        """Hang up everywhere."""
        for address in tuple(self._channels):
            self.drop(address)
