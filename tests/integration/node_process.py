"""A node as a process under test: started, killed, told to stop, started again in its folder."""

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from tests.kit.processes import ROOT, bugs_in, last_words

HOST = "127.0.0.1"
READY_S_MAX = 60.0
END_S_MAX = 60.0


class NodeEnded(Exception):
    """The process ended without being told to."""


class NodeProcess:
    """One node, over all its runs. `folder` holds its data and its log."""

    def __init__(
        self,
        folder: Path,
        settings: dict[str, dict[str, Any]],
        *,
        prefix: tuple[str, ...] = (),
        data_folder: str | None = None,
        **options: Any,
    ) -> None:
        self.folder = folder
        self.log_file = folder / "node.log"
        self.grpc_port = self.http_port = 0
        own = {
            "node": {"name": "crash", "data_folder": data_folder or str(folder / "data")},
            "cluster": {"grpc_port": 0, "http_port": 0},
        }
        self._prefix = prefix
        self._options = {"settings": {**own, **settings}, **options}
        self._process: Popen[bytes] | None = None
        self._words: asyncio.StreamReader
        self._pipe: asyncio.BaseTransport | None = None

    @property
    def address(self) -> str:
        """Where gRPC is."""
        return f"{HOST}:{self.grpc_port}"

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """It was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    async def spawn(self) -> None:
        """Start it; it takes no requests yet."""
        assert not self.is_running
        command = [sys.executable, "-m", "tests.integration.node_main", json.dumps(self._options)]
        # Not by the loop, which would fork: gRPC minds that, in a process that uses it.
        with open(self.log_file, "ab") as log:  # noqa: ASYNC230  at once
            self._process = Popen(  # noqa: ASYNC220
                [*self._prefix, *command], cwd=ROOT, stdout=PIPE, stderr=log, bufsize=0
            )
        self._words = asyncio.StreamReader()
        self._pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._words), self._process.stdout
        )

    async def ready(self) -> None:
        """Wait until it takes requests."""
        async with asyncio.timeout(READY_S_MAX):
            line = await self._words.readline()
        if not line:
            raise NodeEnded(f"it ended with {await self.ended()}: {self.last_words()}")
        ports = json.loads(line)
        self.grpc_port, self.http_port = ports["grpc_port"], ports["http_port"]

    async def start(self) -> float:
        """Start it and wait until it takes requests; return how many seconds that took."""
        begun = time.monotonic()
        await self.spawn()
        await self.ready()
        return time.monotonic() - begun

    async def kill(self) -> None:
        """End it at once, whatever it does."""
        if self._process is not None:
            self._process.kill()
            await self.ended()

    def terminate(self) -> None:
        """Tell it to stop."""
        assert self._process is not None
        self._process.terminate()

    async def ended(self) -> int:
        """Wait until it has ended; return its exit code."""
        assert self._process is not None
        async with asyncio.timeout(END_S_MAX):
            # It says nothing more once it has ended.
            await self._words.read()
            code = await asyncio.to_thread(self._process.wait)
        if self._pipe is not None:
            self._pipe.close()
        return code

    def bugs(self) -> list[str]:
        """Return what its log says of things that nobody planned."""
        return bugs_in(self.log_file)

    def last_words(self, lines: int = 12) -> str:
        """Return the end of its log."""
        return last_words(self.log_file, lines)

    # What it uses

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
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR1)
        async with asyncio.timeout(READY_S_MAX):
            return int(json.loads(await self._words.readline())["tasks"])

    def threads(self) -> int:
        """Return how many threads it has."""
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))
