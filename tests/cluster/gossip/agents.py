"""Agents on loopback, and a wait until they have seen what they should."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from waterclock.cluster.gossip import MemberEvent, MergeRefused
from waterclock.cluster.gossip.agent import Agent, AgentSettings, running_agent
from waterclock.cluster.gossip.discovery import Seeds


class WatchedAgent:
    """An agent and what it has told of members."""

    def __init__(self) -> None:
        self.agent: Agent
        self.events: list[MemberEvent] = []
        self._changed = asyncio.Event()

    @property
    def seed(self) -> str:
        """Where others join it."""
        return f"{self.agent.address[0]}:{self.agent.address[1]}"

    def on_event(self, event: MemberEvent) -> None:
        """Note it."""
        self.events.append(event)
        self._changed.set()

    async def until(self, kind: type, name: str) -> None:
        """Wait for an event of that kind about a member."""
        while (kind, name) not in self.seen():
            self._changed.clear()
            await self._changed.wait()

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Let nothing reach the agent, nor anything leave it, as if its network were away."""
        agent = self.agent
        ways: dict[str, Any] = {
            "datagram_received": lambda data, addr: None,
            "_send": lambda address, payload: None,
            "_open": lambda address, exchange: None,
            "_serve": _hang,
        }
        for name, way in ways.items():
            setattr(agent, name, way)
        try:
            yield
        finally:
            for name in ways:
                delattr(agent, name)

    def seen(self) -> list[tuple[type, str]]:
        """Return what happened to whom."""
        return [
            (type(each), each.member.name)
            for each in self.events
            if not isinstance(each, MergeRefused)
        ]


async def _hang(_reader: object, _writer: object) -> None:
    """Be a connection of which nothing comes."""


@asynccontextmanager
async def watched_agent(name: str, *seeds: str, **settings: Any) -> AsyncIterator[WatchedAgent]:
    """Run an agent that joins by seeds."""
    watched = WatchedAgent()
    chosen = AgentSettings(name=name, bind=("127.0.0.1", 0), seeds=Seeds(seeds), **settings)
    async with running_agent(chosen, watched.on_event) as running:
        watched.agent = running
        yield watched
