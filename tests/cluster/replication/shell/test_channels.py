"""Replicas on two nodes speak to each other over loopback, in order, until their link breaks."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.replication.shell.live_coordinator import until
from waterclock.cluster.peer_link.channels import Channel
from waterclock.cluster.peer_link.frames import Hello
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.messages import Flushed, Frames, Message
from waterclock.cluster.replication.pieces import Unpacker, pack
from waterclock.model.errors import Unreachable
from waterclock.model.ids import Epoch, Offset
from waterclock.server.cluster.peers import Peers, PeerSecurity
from waterclock.server.cluster.replication.channels import FRAMES_BYTES, ReplicaChannels

LOG = b"l" * 16


def flushed(end: int) -> Flushed:
    return Flushed(LOG, Epoch(1), Offset(end))


def frames(size: int) -> Frames:
    return Frames(LOG, Epoch(1), Offset(0), Offset(0), bytes(size))


class Node:
    """A node that notes what its replicas hear."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heard: list[Message] = []
        self.events: list[str] = []
        self.drained = 0
        self.peers = Peers(
            Hello(name, "test", heartbeat_ms=200, silence_ms=5_000),
            PeerSecurity(),
            on_request=self._requested,
            on_up=lambda node: self.channels.linked(node),
            on_down=lambda node, why: None,
            on_gone=lambda node: self.channels.gone(node),
            on_moved=lambda node: self.channels.linked(node),
            random=Random(name),
        )
        self.channels = ReplicaChannels(
            self.peers,
            self.replica,
            on_up=lambda peer: self.events.append(f"up {peer}"),
            on_down=lambda peer: self.events.append(f"down {peer}"),
            on_gone=lambda peer: self.events.append(f"gone {peer}"),
            on_message=lambda peer, message: self.heard.append(message),
            on_drained=self._drained,
        )

    @property
    def replica(self) -> ReplicaId:
        return ReplicaId(f"{self.name}:disk")

    def _requested(
        self, node: str, channel: Channel, method: int, body: bytes, is_last: bool
    ) -> None:
        self.channels.requested(node, channel, body)

    def _drained(self, peer: ReplicaId) -> None:
        self.drained += 1

    def cut(self) -> None:
        for link in [*self.peers._links.values(), *self.peers._strangers]:
            link.abort()


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes that both dial, as nodes do."""
    one, other = Node("a"), Node("b")
    async with AsyncExitStack() as stack:
        for node in (one, other):
            await stack.enter_async_context(node.peers.listening("127.0.0.1", 0))
        one.peers.meet("b", *other.peers.address)
        other.peers.meet("a", *one.peers.address)
        await until(lambda: one.channels.up and other.channels.up)
        yield one, other
        one.channels.close()
        other.channels.close()


async def test_each_hears_what_the_other_says_in_order():
    async with linked() as (one, other):
        said: list[Message] = [flushed(end) for end in range(100)]
        for message in said:
            one.channels.send(other.replica, message)
            other.channels.send(one.replica, message)

        await until(lambda: one.heard == said == other.heard)


async def test_more_than_the_window_waits_until_it_is_dealt_with():
    async with linked() as (one, other):
        for _ in range(3):
            one.channels.send(other.replica, frames(FRAMES_BYTES))
        await until(lambda: one.channels.is_blocked(other.replica))
        await until(lambda: len(other.heard) == 3)

        assert one.drained
        assert not one.channels.is_blocked(other.replica)


async def test_when_the_link_breaks_both_hear_of_it_and_begin_anew():
    async with linked() as (one, other):
        one.channels.send(other.replica, flushed(1))
        await until(lambda: other.heard)
        one.events.clear()
        other.events.clear()
        other.cut()

        # Both may dial again and meet over two connections at first, of which one is kept.
        await until(lambda: "down b:disk" in one.events and one.channels.up)
        await until(lambda: "down a:disk" in other.events and other.channels.up)

        one.channels.send(other.replica, flushed(2))
        await until(lambda: flushed(2) in other.heard)


async def test_a_replica_with_another_disk_is_told_nothing():
    async with linked() as (one, other):
        one.channels.send(ReplicaId("b:another"), flushed(1))
        one.channels.send(other.replica, flushed(2))

        await until(lambda: other.heard)

        assert other.heard == [flushed(2)]


class Connection:
    """One of several between two nodes."""

    def open(self) -> Any:
        channel = SimpleNamespace(connection=self, listener=None)
        channel.is_beside = lambda other: other.connection is self
        channel.grant = channel.cancel = lambda *_: None
        return channel


def test_what_comes_late_over_a_connection_that_is_not_used_ends_nothing():
    events: list[str] = []
    used, other = Connection(), Connection()
    peers: Any = SimpleNamespace(ask=lambda *_, **__: used.open(), linked=["b"])
    channels = ReplicaChannels(
        peers,
        ReplicaId("a:disk"),
        on_up=lambda peer: events.append(f"up {peer}"),
        on_down=lambda peer: events.append(f"down {peer}"),
        on_gone=lambda peer: None,
        on_message=lambda peer, message: events.append("heard"),
        on_drained=lambda peer: None,
    )
    channels.linked("b")
    over_used, over_other = used.open(), other.open()
    channels.requested("b", over_used, b"b:disk")

    channels.requested("b", over_other, b"b:disk")
    over_other.listener.failed(Unreachable("there is another link"))
    over_used.listener.piece(pack([flushed(1)]), is_last=False)

    assert events == ["up b:disk", "heard"]


@given(st.lists(st.integers(0, 300).map(frames), max_size=6), st.lists(st.integers(1, 50)))
def test_messages_are_put_together_however_they_were_cut(messages, cuts):
    data, unpacker = pack(messages), Unpacker()
    found: list[Message] = []
    for size in cuts:
        found += unpacker.feed(data[:size]) if data else []
        data = data[size:]
    if data:
        found += unpacker.feed(data)

    assert found == messages
