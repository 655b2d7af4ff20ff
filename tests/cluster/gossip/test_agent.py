"""Agents on real sockets: they join, see each other leave, and bear nonsense."""

import asyncio
import socket
from typing import Any

from tests.cluster.gossip.agents import WatchedAgent, watched_agent
from waterclock.cluster.gossip import GossipConfig, Joined, Keyring, Left, Updated
from waterclock.cluster.gossip.agent import EXCHANGES_MAX
from waterclock.cluster.gossip.messages import Ack, Ping
from waterclock.cluster.gossip.streams import StreamReader, encode_stream

QUICK = GossipConfig(
    probe_interval_ms=100, probe_timeout_ms=50, gossip_interval_ms=10, suspicion_mult=30
)


def agent(name: str, *seeds: WatchedAgent, **settings: Any) -> Any:
    return watched_agent(name, *(each.seed for each in seeds), gossip=QUICK, **settings)


async def test_agents_join_change_their_tags_and_leave():
    async with agent("a", tags={"zone": "x"}) as first:
        async with agent("b", first) as second:
            await first.until(Joined, "b")
            await second.until(Joined, "a")
            assert {each.name: each.tags for each in second.agent.members()} == {
                "a": {"zone": "x"}, "b": {},
            }  # fmt: skip

            second.agent.set_tags({"zone": "y"})
            await first.until(Updated, "b")

            await second.agent.leave()
        await first.until(Left, "b")
        assert first.agent.counts.packets_refused == 0


async def test_an_agent_says_when_it_has_asked_all_seeds():
    async with agent("a") as first:
        await first.agent.tried.wait()
        async with watched_agent("b", first.seed, "127.0.0.1:9", gossip=QUICK) as second:
            await second.agent.tried.wait()

            assert [each.name for each in second.agent.members()] == ["b", "a"]


async def test_agents_with_a_key_join_and_refuse_what_is_not_sealed():
    old, new = bytes(range(16)), bytes(range(32))
    async with (
        agent("a", keyring=Keyring([old, new])) as first,
        agent("b", first, keyring=Keyring([new, old])) as second,
        agent("stranger", first) as stranger,
    ):
        await first.until(Joined, "b")
        await second.until(Joined, "a")

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

        async with agent("b", first) as second:
            await second.until(Joined, "a")
            await first.until(Joined, "b")

        assert first.agent.counts.packets_refused == 4
        assert first.agent.counts.bytes_received >= 104
        assert first.agent.counts.exchanges_failed == 1


async def test_those_who_connect_and_hang_are_bounded_and_hold_up_no_exchange_of_ours():
    async with agent("a") as first, agent("b") as second:
        address = first.agent.address
        hanging = [await asyncio.open_connection(*address) for _ in range(EXCHANGES_MAX)]
        try:
            reader, writer = await asyncio.open_connection(*address)
            assert await reader.read() == b""
            writer.close()

            first.agent._perform(
                first.agent._gossip.join([second.agent.address], first.agent._now_ms())
            )
            await second.until(Joined, "a")
        finally:
            for _, each in hanging:
                each.close()
