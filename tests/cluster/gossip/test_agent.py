"""Agents on real sockets: they join, see each other leave, and bear nonsense."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from waterclock.cluster.gossip import (
    GossipConfig,
    Joined,
    Keyring,
    Left,
    MemberEvent,
    MergeRefused,
    Updated,
)
from waterclock.cluster.gossip.agent import Agent, AgentSettings, running_agent
from waterclock.cluster.gossip.discovery import Seeds
from waterclock.cluster.gossip.messages import Ack, Ping
from waterclock.cluster.gossip.streams import StreamReader, encode_stream

QUICK = GossipConfig(
    probe_interval_ms=100, probe_timeout_ms=50, gossip_interval_ms=10, suspicion_mult=30
)


class Watched:
    """An agent, and a wait until what it knows is as it should be."""

    def __init__(self) -> None:
        self.agent: Agent
        self.events: list[MemberEvent] = []
        self._changed = asyncio.Event()

    def on_event(self, event: MemberEvent) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, holds: Callable[[list[tuple[type, str]]], bool]) -> None:
        while not holds(self.seen()):
            self._changed.clear()
            await self._changed.wait()

    def seen(self) -> list[tuple[type, str]]:
        return [
            (type(each), each.member.name)
            for each in self.events
            if not isinstance(each, MergeRefused)
        ]


@asynccontextmanager
async def agent(name: str, *seeds: Agent, **settings: Any) -> AsyncIterator[Watched]:
    watched = Watched()
    texts = [f"{host}:{port}" for host, port in (each.address for each in seeds)]
    chosen = AgentSettings(
        name=name, bind=("127.0.0.1", 0), gossip=QUICK, seeds=Seeds(texts), **settings
    )
    async with running_agent(chosen, watched.on_event) as running:
        watched.agent = running
        yield watched


async def test_agents_join_change_their_tags_and_leave():
    async with agent("a", tags={"zone": "x"}) as first:
        async with agent("b", first.agent) as second:
            await first.until(lambda seen: (Joined, "b") in seen)
            await second.until(lambda seen: (Joined, "a") in seen)
            assert {each.name: each.tags for each in second.agent.members()} == {
                "a": {"zone": "x"}, "b": {},
            }  # fmt: skip

            second.agent.set_tags({"zone": "y"})
            await first.until(lambda seen: (Updated, "b") in seen)

            await second.agent.leave()
        await first.until(lambda seen: (Left, "b") in seen)
        assert first.agent.counts.packets_refused == 0


async def test_agents_with_a_key_join_and_refuse_what_is_not_sealed():
    old, new = bytes(range(16)), bytes(range(32))
    async with (
        agent("a", keyring=Keyring([old, new])) as first,
        agent("b", first.agent, keyring=Keyring([new, old])) as second,
        agent("stranger", first.agent) as stranger,
    ):
        await first.until(lambda seen: (Joined, "b") in seen)
        await second.until(lambda seen: (Joined, "a") in seen)

        assert [each.name for each in stranger.agent.members()] == ["stranger"]
        assert "stranger" not in [each.name for each in first.agent.members()]


async def test_a_ping_over_tcp_is_answered():
    async with agent("a") as first:
        reader, writer = await asyncio.open_connection(*first.agent.address)
        writer.write(encode_stream(Ping(5, "a")))

        assert StreamReader().feed(await reader.read(100)) == Ack(5)
        writer.close()


async def test_nonsense_is_counted_and_costs_nobody_else():
    async with agent("a") as first:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for nonsense in (b"", b"\xff" * 100, b"\x07\xff", b"\x00\xc1"):
                stranger.sendto(nonsense, first.agent.address)
        reader, writer = await asyncio.open_connection(*first.agent.address)
        writer.write(b"\xff" * 100)
        assert await reader.read() == b""
        writer.close()

        async with agent("b", first.agent) as second:
            await second.until(lambda seen: (Joined, "a") in seen)
            await first.until(lambda seen: (Joined, "b") in seen)

        assert first.agent.counts.packets_refused == 4
        assert first.agent.counts.exchanges_failed == 1
