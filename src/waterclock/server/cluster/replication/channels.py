"""What replicas on two nodes say to each other: one channel each way, over one connection.

Each node opens a channel to each other one and says over it what its replicas have to say, all
partitions together, once in a turn of the loop. The two nodes are linked when both channels stand
on the same connection: then both begin anew, and nothing of before is on its way. When it breaks,
all that was under way is lost, in both directions.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from waterclock.cluster.peer_link.channels import WINDOW_BYTES, Channel
from waterclock.cluster.replication.cluster_view import node_of
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.messages import BadMessage, Message
from waterclock.cluster.replication.pieces import REPLICATE, Unpacker, pack
from waterclock.model.errors import Unreachable
from waterclock.server.cluster.peers import Peers

FRAMES_BYTES: Final = 4 << 20
"""What may be under way to a replica that has not dealt with it."""
GRANT_BYTES: Final = FRAMES_BYTES // 8
RETRY_S: Final = 0.2
"""Before a channel is opened again that the other node refused: it may be starting."""

_log = logging.getLogger(__name__)


class _Outbound:
    """Listens on the channel that this node opened."""

    def __init__(self, node: "_Node") -> None:
        self._node = node

    def answered(self, status: int, body: bytes, *, is_last: bool) -> None:
        """Nobody answers here."""

    def piece(self, body: bytes, *, is_last: bool) -> None:
        """Nobody answers here."""

    def failed(self, error: Exception) -> None:
        self._node.outbound_failed(self, error)

    def drained(self) -> None:
        self._node.channels.on_drained(self._node.peer)


class _Inbound:
    """Listens on the channel that the other node opened."""

    def __init__(self, node: "_Node", channel: Channel, peer: ReplicaId) -> None:
        self.channel = channel
        self.peer = peer
        self._node = node
        self._unpacker = Unpacker()
        self._handled = 0

    def answered(self, status: int, body: bytes, *, is_last: bool) -> None:
        raise AssertionError("we were asked")

    def piece(self, body: bytes, *, is_last: bool) -> None:
        try:
            for message in self._unpacker.feed(body):
                self._node.received(self, message)
        except BadMessage as error:
            _log.error("replica_message_refused node=%s: %s", self._node.name, error)
            self.channel.cancel(str(error))
            self._node.inbound_failed(self)
            return
        self._handled += len(body)
        if self._handled >= GRANT_BYTES:
            self.channel.grant(self._handled)
            self._handled = 0

    def failed(self, error: Exception) -> None:
        self._node.inbound_failed(self)

    def drained(self) -> None:
        """Nothing is said over this one."""


class _Node:
    """Both channels to and from one other node."""

    def __init__(self, channels: "ReplicaChannels", name: str) -> None:
        self.channels = channels
        self.name = name
        self.peer = ReplicaId("")
        """Which replica is there, as it said itself."""
        self.is_up = False
        self.unsent: list[Message] = []
        self.channel: Channel | None = None
        self._outbound: _Outbound | None = None
        self._inbound: _Inbound | None = None
        """The one that is heeded, while it is up."""
        self._inbounds: list[_Inbound] = []
        """All that the other node has opened and not ended, the latest last. While there are two
        connections what came over them comes in any order: so the last need not be the one that
        counts."""

    def open(self) -> None:
        """Open a channel on the link that is used now."""
        if self.channel is not None:
            self.channel.cancel("there is another link")
            self._end("there is another link")
        self._outbound = _Outbound(self)
        try:
            self.channel = self.channels.peers.ask(
                self.name,
                REPLICATE,
                self.channels.me.encode(),
                self._outbound,
                is_last=False,
            )
        except Unreachable:
            self.channel = self._outbound = None  # told again once it is linked
            return
        self._look()

    def requested(self, channel: Channel, body: bytes) -> None:
        """The other node opened its channel."""
        peer = ReplicaId(body.decode(errors="replace"))
        if node_of(peer) != self.name:
            channel.cancel(f"{self.name!r} is not {peer!r}")
            return
        if self.channel is not None and self.channel.is_beside(channel):
            self._end("the other node began anew")
        if not self.is_up:
            self.peer = peer
        inbound = channel.listener = _Inbound(self, channel, peer)
        self._inbounds.append(inbound)
        channel.grant(FRAMES_BYTES - WINDOW_BYTES)
        self._look()

    def received(self, inbound: _Inbound, message: Message) -> None:
        if inbound is self._inbound:
            self.channels.on_message(self.peer, message)

    def outbound_failed(self, outbound: _Outbound, error: Exception) -> None:
        if outbound is self._outbound:
            self._end(str(error))
            self.channel = self._outbound = None
            self.channels.open_later(self.name)

    def inbound_failed(self, inbound: _Inbound) -> None:
        if inbound in self._inbounds:
            self._inbounds.remove(inbound)
        if inbound is self._inbound:
            self._end("the other node ended it")

    def _look(self) -> None:
        if self.channel is None or self.is_up:
            return
        for inbound in reversed(self._inbounds):
            if self.channel.is_beside(inbound.channel):
                self._inbound, self.peer, self.is_up = inbound, inbound.peer, True
                self.channels.on_up(self.peer)
                return

    def _end(self, why: str) -> None:
        self.unsent.clear()
        self._inbound = None
        if self.is_up:
            self.is_up = False
            _log.info("replica_unlinked replica=%s: %s", self.peer, why)
            self.channels.on_down(self.peer)


class ReplicaChannels:
    """All channels of a node's replicas. Set what is to be called; told of links by `Cluster`."""

    def __init__(
        self,
        peers: Peers,
        me: ReplicaId,
        *,
        on_up: Callable[[ReplicaId], None],
        on_down: Callable[[ReplicaId], None],
        on_gone: Callable[[ReplicaId], None],
        on_message: Callable[[ReplicaId, Message], None],
        on_drained: Callable[[ReplicaId], None],
    ) -> None:
        self.peers = peers
        self.me = me
        self.on_up = on_up
        self.on_down = on_down
        self.on_message = on_message
        self.on_drained = on_drained
        self._on_gone = on_gone
        self._nodes: dict[str, _Node] = {}
        self._unsent: set[str] = set()
        self._is_sending_soon = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<ReplicaChannels {len(self.up)} of {len(self._nodes)} up>"

    @property
    def up(self) -> list[ReplicaId]:
        """The replicas that can be told something."""
        return [node.peer for node in self._nodes.values() if node.is_up]

    def begin(self) -> None:
        """Speak to all nodes that are linked already."""
        for name in self.peers.linked:
            self.linked(name)

    def close(self) -> None:
        """Open nothing any more."""
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()

    def send(self, to: ReplicaId, message: Message) -> None:
        """Say something at the end of this turn of the loop, to one that is linked by then."""
        node = self._nodes.get(node_of(to))
        if node is None or not node.is_up or node.peer != to:
            return
        node.unsent.append(message)
        self._unsent.add(node.name)
        if not self._is_sending_soon:
            self._is_sending_soon = True
            asyncio.get_running_loop().call_soon(self._send)

    def is_blocked(self, to: ReplicaId) -> bool:
        """Whether what was said still waits for room; `on_drained` tells when it does not."""
        node = self._nodes.get(node_of(to))
        return node is not None and node.channel is not None and node.channel.is_blocked

    def _send(self) -> None:
        self._is_sending_soon = False
        names, self._unsent = self._unsent, set()
        for name in names:
            node = self._nodes[name]
            messages, node.unsent = node.unsent, []
            if messages and node.channel is not None:
                node.channel.send(pack(messages))

    # What the links tell

    def linked(self, name: str) -> None:
        """A node can be asked, over a new connection or another than before."""
        if not self._is_closed:
            self._node(name).open()

    def gone(self, name: str) -> None:
        """A node's process is gone."""
        node = self._nodes.get(name)
        if node is not None and node.peer:
            self._on_gone(node.peer)

    def requested(self, name: str, channel: Channel, body: bytes) -> None:
        """Another node opens its channel."""
        if self._is_closed:
            channel.cancel("the node stops")
        else:
            self._node(name).requested(channel, body)

    def open_later(self, name: str) -> None:
        """Open a channel anew, if there still is a link by then."""
        if not self._is_closed and name not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[name] = loop.call_later(RETRY_S, self._open_again, name)

    def _open_again(self, name: str) -> None:
        del self._timers[name]
        node = self._node(name)
        if node.channel is None and name in self.peers.linked:
            node.open()

    def _node(self, name: str) -> _Node:
        if name not in self._nodes:
            self._nodes[name] = _Node(self, name)
        return self._nodes[name]
