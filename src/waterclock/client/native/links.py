"""The links of a client to nodes that offer the native protocol.

Each node says where its HTTP is, and the same port takes links. One is dialled when it is wanted
for the first time, with each node that is met from then on, and again when it was lost and is
wanted. gRPC serves meanwhile: nobody waits for a port that swallows what is sent to it, and what
goes on for long moves to the link once there is one. What answers may be another node, if the one
that was met is reached through a tunnel, at a port that was mapped, or at one that processes share;
so it is asked for its name and since when it runs, which must be the same. Where there is none, for
whatever reason (an older node, a proxy, a closed port), everything goes by gRPC, which also says
what is wrong with a credential.
"""

import asyncio
import logging
import math
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Final, cast

import grpc
from google.protobuf.message import DecodeError

from waterclock.client.native.channel import NativeChannel
from waterclock.client.native.link import NodeLink, dial
from waterclock.client.streams.calls import reachable
from waterclock.cluster.peer_link.frames import BadFrame
from waterclock.model.errors import Unreachable
from waterclock.security.credential import Credential
from waterclock.v1.admin_pb2 import GetNodeRequest, NodeInfo
from waterclock.v1.admin_pb2_grpc import AdminStub

DIAL_S: Final = 2.0
PAUSE_S: Final = 5.0
"""Before a node is dialled again; twice as long each time it takes no link ..."""
PAUSE_S_MAX: Final = 300.0
"""... up to this: some never do."""
SETTLE_S: Final = 0.05
"""How long a subscription waits for a link that is being dialled. By then it stands, or something
swallows what is sent; if that ends, the subscription moves."""
CLOSE_S: Final = 0.5
"""How long a node may take to hang up, too: TLS says goodbye both ways."""
OTHERS_MAX: Final = 4
"""Dials in a row that another node may answer: processes that share a port take turns."""

_NO_LINK: Final = (
    Unreachable,
    TimeoutError,
    grpc.aio.AioRpcError,
    ValueError,  # what the node says of its HTTP is no address
    BadFrame,  # what answers there is no node of ours
    DecodeError,
)

_log = logging.getLogger("waterclock.client")


class NodeLinks:
    """Links for one use, by the addresses of their nodes."""

    def __init__(self, credential: Credential | None, *, is_enabled: bool) -> None:
        self._credential = credential
        self._is_enabled = is_enabled
        self._is_used = False
        """One was wanted: who only publishes has no link for calls, and the other way round."""
        self._tasks: asyncio.TaskGroup | None = None
        self._channels: dict[str, NativeChannel] = {}
        self._dials: dict[str, asyncio.Task[None]] = {}
        self._dialled_at: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._left: set[NodeLink] = set()
        """Those that are being closed."""

    def __repr__(self) -> str:
        return f"<NodeLinks to {len(self._channels)} of {len(self._dialled_at)} nodes>"

    def dial_in(self, tasks: asyncio.TaskGroup) -> None:
        """Dial from now on, in tasks of this group; `close` ends them."""
        self._tasks = tasks

    def find(self, address: str) -> NodeLink | None:
        """Return the link to a node, if it is up."""
        channel = self.channel(address)
        return None if channel is None else channel.link

    def channel(self, address: str) -> NativeChannel | None:
        """Return the calls over the link to a node, if it is up."""
        channel = self._channels.get(address)
        return channel if channel is not None and channel.link.is_up else None

    def meet(self, node: NodeInfo, address: str, *, is_alone: bool) -> None:
        """Have a link to a node that was found at an address, if it offers one: soon, beside; or
        once one is wanted, if none was so far."""
        if not self._is_enabled or not node.http_address or self.channel(address) is not None:
            return
        if self._is_used:
            self.run(address, self.link(node, address, is_alone=is_alone))
        else:
            self._dialled_at[address] = -math.inf

    def run(self, address: str, work: Coroutine[None, None, None]) -> None:
        """Do something that makes a link to a node, beside, unless that is being done already."""
        if self._tasks is None or address in self._dials:
            work.close()
            return
        task = self._tasks.create_task(work)
        self._dials[address] = task
        task.add_done_callback(lambda _: self._dials.pop(address, None))

    async def link(self, node: NodeInfo, address: str, *, is_alone: bool) -> None:
        """Dial a node that offers links; return when there is one, or none is to be had."""
        scheme = "http" if self._credential is None else "https"
        self._dialled_at[address] = time.monotonic()
        self._failures[address] = self._failures.get(address, -1) + 1
        for _ in range(OTHERS_MAX):
            try:
                url = reachable(node.http_address, address, scheme)
                async with asyncio.timeout(DIAL_S):
                    link = await dial(url, address, self._credential, is_alone=is_alone)
                    found = await self._asked(link)
            except _NO_LINK as error:
                _log.debug("%s takes no links, gRPC will do: %s", address, error)
                return
            if (found.name, found.started_ms) == (node.name, node.started_ms):
                self.drop(address)
                self._channels[address] = NativeChannel(link)
                del self._failures[address]
                return
            self._leave(link, f"{node.name!r} was meant, and this is another {found.name!r}")
        _log.debug("%s takes no links where it says, gRPC will do: others answer", address)

    async def _asked(self, link: NodeLink) -> NodeInfo:
        """Return what the node at the other end says of itself."""
        try:
            return await _node_at(link)
        except BaseException:
            self._leave(link, "the client was not told who this is")
            raise

    async def settled(self, address: str) -> None:
        """Return when no link to a node is being dialled any more, or in a moment."""
        if (dialling := self._dials.get(address)) is not None:
            await asyncio.wait([dialling], timeout=SETTLE_S)

    def is_wanted(self, address: str) -> bool:
        """Return whether a node is to be met again, as there is no link to it: at first, and then
        once in a while."""
        self._is_used = True
        dialled_at = self._dialled_at.get(address)
        if dialled_at is None or address in self._dials or self.channel(address) is not None:
            return False
        time_s = time.monotonic()
        pause_s = min(PAUSE_S * 2 ** min(self._failures.get(address, 0), 10), PAUSE_S_MAX)
        if time_s < dialled_at + pause_s:
            return False
        self._dialled_at[address] = time_s
        return True

    def drop(self, address: str) -> None:
        """Hang up; what waits for an answer of the node hears so."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            self._leave(channel.link, "the client has left")

    def _leave(self, link: NodeLink, why: str) -> None:
        link.close(why)
        self._left = {each for each in (*self._left, link) if not each.ended.is_set()}

    def close(self) -> None:
        """Hang up everywhere, and dial no more."""
        self._tasks = None
        for dialling in tuple(self._dials.values()):
            dialling.cancel()
        for address in tuple(self._channels):
            self.drop(address)

    async def wait_closed(self) -> None:
        """Return when all has ended after `close`, or is cut off."""
        if self._dials:  # one that was given up leaves its link as it ends
            await asyncio.wait(tuple(self._dials.values()))
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                for link in tuple(self._left):
                    await link.ended.wait()
        for link in self._left:
            link.abort()
        self._left.clear()


async def _node_at(link: NodeLink) -> NodeInfo:
    admin = AdminStub(cast(grpc.aio.Channel, NativeChannel(link)))
    found: NodeInfo = await admin.GetNode(GetNodeRequest())
    return found
