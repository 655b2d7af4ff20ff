"""The processes of the demo. None of them outlives the block it was started in.

Redis is the one on the PATH. Dispatchers and workers are `waterclock dispatch` and `waterclock
worker`, as anyone starts them; what they print with `--json` says how they are.
"""

import asyncio
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from waterclock.cli.commands.cluster.plan import LOOPBACK, free_ports
from waterclock.model.errors import BadInput, Unavailable

ENVIRON = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
"""Workers import their handler from this folder of the clone."""
START_S_MAX = 30.0
STOP_S_MAX = 10.0
FIGURES_S = 0.2
STATES = frozenset({"epoch", "pid", "port", "workers", "queued", "pending"})
"""Of the numbers a process prints, those that are no counts."""
NO_REDIS = (
    "there is no redis-server on the PATH: install it (apt install redis-server,"
    " brew install redis) or name one that runs with --redis HOST:PORT"
)
REDIS_SETTINGS = {
    "bind": "127.0.0.1", "save": "", "appendonly": "yes", "appendfsync": "everysec",
    "loglevel": "warning",
}  # fmt: skip


class ProcessHandle:
    """A process; its stdout is read line by line, its stderr goes to a file."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.name = name
        self.status: dict[str, Any] = {}
        """What it last printed."""
        self.earlier_counts: Counter[str] = Counter()
        """Those of the processes of this name that are gone."""
        self._command = command
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ProcessHandle {self.name} {'runs' if self.is_running else 'is gone'}>"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start it, and read what it says from now on."""
        assert not self.is_running
        self.earlier_counts.update(self._counts())
        self.status = {}
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, cwd=self._folder, env=ENVIRON, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        self._reading = tasks.create_task(self._read(self._process))

    def _counts(self) -> dict[str, int]:
        return {name: n for name, n in self.status.items() if type(n) is int and name not in STATES}

    def total(self, name: str) -> int:
        """Return one of its counts, over all processes of its name."""
        return int(self.earlier_counts[name]) + int(self._counts().get(name, 0))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            with suppress(ValueError):  # a line that a kill cut off
                self.status |= json.loads(line)

    async def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None:
            if self.is_running:
                self._process.kill()
            await self._process.wait()

    async def stop(self) -> None:
        """Ask it to end; end it if it does not."""
        if self._process is not None and self.is_running:
            self._process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S_MAX):
                    await self._process.wait()
        await self.kill()
        if self._reading is not None:
            self._reading.cancel()

    def last_words(self) -> str:
        """Return the last line it wrote to stderr."""
        lines = (self._folder / f"{self.name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "without a word"


class OwnRedis:
    """A Redis of the demo's own, on a free port; use it with `async with`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._held = ExitStack()
        """Its port, until it has ended."""
        self.address = ""

    async def __aenter__(self) -> "OwnRedis":
        program = shutil.which("redis-server")
        if program is None:
            raise BadInput(NO_REDIS)
        (port,) = free_ports(LOOPBACK, 1, self._held)
        settings = {**REDIS_SETTINGS, "port": str(port), "dir": str(self._folder)}
        flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
        log = self._folder / "redis.log"
        with log.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                program, *flags, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output
            )
        self.address = f"127.0.0.1:{port}"
        deadline = time.monotonic() + START_S_MAX
        while not await _listens(port):
            if self._process.returncode is not None or time.monotonic() > deadline:
                await self._end()
                lines = log.read_text(errors="replace").strip().splitlines() or ["without a word"]
                raise Unavailable(f"redis-server does not start: {lines[-1]}")
            await asyncio.sleep(0.02)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        if self._process is not None:
            if self._process.returncode is None:
                self._process.terminate()
            await self._process.wait()
        self._held.close()


@dataclass(frozen=True, slots=True)
class Names:
    """What everything of the demo is called in Redis; all of it in one slot of a cluster."""

    prefix: str
    source_kind: str

    @property
    def source(self) -> str:
        """The stream or the channel that devices send to."""
        return f"{{{self.prefix}}}:readings"

    @property
    def output(self) -> str:
        """The stream that workers write to."""
        return f"{{{self.prefix}}}:results"


class Processes:
    """All dispatchers and workers; use it with `async with`, and start them inside."""

    def __init__(self, folder: Path, *, redis: str, names: Names, workers: int) -> None:
        shared = ["--json", "--figures", str(FIGURES_S), "--redis", redis, "--prefix", names.prefix]
        shared += ["--output", names.output]
        program = [sys.executable, "-m", "waterclock"]
        source_kind = ["--source-kind", names.source_kind, "--source", names.source]
        where = ["--host", "127.0.0.1", "--port", "0"]
        handler = ["--handler", "demos.dispatch.readings:handle"]
        self.dispatchers = [
            ProcessHandle(
                f"dispatcher-{letter}",
                [*program, "dispatch", *shared, *source_kind, *where],
                folder,
            )
            for letter in "ab"
        ]
        self.workers = [
            ProcessHandle(f"worker-{number}", [*program, "worker", *shared, *handler], folder)
            for number in range(1, workers + 1)
        ]

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start everybody, and wait until one leads and all workers are connected to it."""
        for process in (*self.dispatchers, *self.workers):
            await process.start(tasks)
        deadline = time.monotonic() + START_S_MAX
        while not self._is_ready():
            for process in (*self.dispatchers, *self.workers):
                if not process.is_running:
                    raise Unavailable(f"{process.name} ended by itself: {process.last_words()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"nobody leads after {START_S_MAX:g} s")
            await asyncio.sleep(0.02)

    def _is_ready(self) -> bool:
        leader = self.leader()
        all_listen = all("epoch" in each.status for each in self.dispatchers)
        return all_listen and leader is not None and leader.status["workers"] == len(self.workers)

    def leader(self) -> ProcessHandle | None:
        """Return the leader, as far as the dispatchers have printed it."""
        leading = [
            each for each in self.dispatchers if each.is_running and each.status.get("epoch")
        ]
        return max(leading, key=lambda each: int(each.status["epoch"]), default=None)

    async def stop(self) -> None:
        """End everybody: workers first, so that they can still acknowledge."""
        await asyncio.gather(*(process.stop() for process in self.workers))
        await asyncio.gather(*(process.stop() for process in self.dispatchers))

    async def kill(self) -> None:
        """End everybody at once."""
        await asyncio.gather(*(process.kill() for process in (*self.workers, *self.dispatchers)))


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
