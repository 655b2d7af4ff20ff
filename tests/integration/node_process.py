"""A node under test that a loop waits for, and what it uses."""

import asyncio
import json
import signal
import time
from pathlib import Path

from tests.kit.node import NodeEnded, RestartableNode

READY_S_MAX = 60.0


class NodeProcess(RestartableNode):
    """One node, over all its runs; tests go on while it starts and ends."""

    async def ready(self) -> None:
        """Wait until it takes requests."""
        async with asyncio.timeout(READY_S_MAX):
            await asyncio.to_thread(self.wait_ready)

    async def start(self) -> float:
        """Start it and wait until it takes requests; return how many seconds that took."""
        begun = time.monotonic()
        self.spawn()
        await self.ready()
        return time.monotonic() - begun

    async def kill(self) -> None:
        """End it at once, whatever it does."""
        if self._process is not None:
            await asyncio.to_thread(self._process.kill)

    async def ended(self) -> int:
        """Wait until it has ended; return its exit code."""
        return await asyncio.to_thread(self.wait_end)

    def resident_kib(self) -> int:
        """Return the memory it has in use, but for the files it has mapped."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1])
        raise NodeEnded("it has no memory any more")

    def open_files(self) -> int:
        """Return how many descriptors it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    async def tasks(self) -> int:
        """Return how many tasks its loop has."""
        self.process.send(signal.SIGUSR1)
        async with asyncio.timeout(READY_S_MAX):
            return int(json.loads(await asyncio.to_thread(self.process.line))["tasks"])

    def threads(self) -> int:
        """Return how many threads it has."""
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))
