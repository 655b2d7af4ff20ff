"""Real Serf agents, Debian's, on loopback: what our nodes are to be understood by.

An agent tells in its log whom it sees join, leave and fail; tests wait for these lines.
"""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.peers.cache import Programs, debian
from benchmarks.peers.server import free_port
from tests.kit.needs import claim
from waterclock.cluster.gossip.messages import Address

_EVENT = re.compile(r"serf: EventMember(\w+): (\S+)")


def programs() -> Programs:
    """Find Serf or fetch it."""
    return debian("serf", ["serf"])


class SerfAgent:
    """A running agent."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, *, rpc: str) -> None:
        self.name = name
        self.address: Address = ("127.0.0.1", 0)
        self.events: list[tuple[str, str]] = []
        """As in its log: ("Join", name), ("Leave", name), ("Failed", name), ("Update", name)."""
        self.lines: list[str] = []
        self._process = process
        self._rpc = rpc

    @property
    def seed(self) -> str:
        """Where others join it."""
        return f"{self.address[0]}:{self.address[1]}"

    async def until_line(self, text: str) -> None:
        """Read the log until a line has the text."""
        while not any(text in line for line in self.lines):
            await self._read_line()

    async def until_event(self, kind: str, name: str) -> None:
        """Read the log until the agent has seen that of a member."""
        while (kind, name) not in self.events:
            await self._read_line()

    async def members(self) -> dict[str, dict[str, Any]]:
        """Ask it for all members it knows, by name."""
        listed = json.loads(await self.ask("members", "-format=json"))
        return {member["name"]: member for member in listed["members"]}

    async def ask(self, *words: str) -> str:
        """Run a command of Serf on this agent."""
        command = [programs().find("serf"), words[0], f"-rpc-addr={self._rpc}", *words[1:]]
        pipe = asyncio.subprocess.PIPE
        asked = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        out, error = await asked.communicate()
        assert asked.returncode == 0, error.decode()
        return out.decode()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its process."""
        self._process.send_signal(number)

    async def _read_line(self) -> None:
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode()
        assert line, "\n".join(["the agent ended:", *self.lines[-10:]])
        self.lines.append(line.rstrip())
        if found := _EVENT.search(line):
            self.events.append((found[1], found[2]))


@asynccontextmanager
async def serf_agent(name: str, *flags: str) -> AsyncIterator[SerfAgent]:
    """Run an agent; it is killed after the block."""
    claim("serf")
    port, rpc = free_port(), f"127.0.0.1:{free_port()}"
    command = [programs().find("serf"), "agent", f"-node={name}", f"-bind=127.0.0.1:{port}"]
    command += [f"-rpc-addr={rpc}", "-profile=local", *flags]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        agent = SerfAgent(name, process, rpc=rpc)
        agent.address = ("127.0.0.1", port)
        await agent.until_line("Serf agent starting")
        await agent.until_event("Join", name)
        yield agent
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
