"""A node in a process of its own, as a stranger would start it: `waterclock up`.

It keeps its ports over a kill and a new start, so that clients find it again, and does not outlive
the block it was started in.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from waterclock.model.errors import StorageFailed

Result = TypeVar("Result")

START_S_MAX = 30.0
STOP_S_MAX = 30.0


class NodeProcess:
    """A node of ours; use it with `async with`, and start it inside."""

    def __init__(self, data: Path, log: Path, settings: Sequence[str]) -> None:
        self.data = data
        self.address = ""
        self.http_address = ""
        self._ports = (0, 0)
        self._log = log
        """Where it complains."""
        self._settings = [word for text in settings for word in ("--set", text)]
        self._process: asyncio.subprocess.Process | None = None

    def __repr__(self) -> str:
        return f"<NodeProcess {self.address or 'not started'}>"

    async def __aenter__(self) -> "NodeProcess":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.kill()

    async def start(self) -> float:
        """Start it; return how many milliseconds it took until it could be reached."""
        assert self._process is None
        started = time.perf_counter()
        grpc_port, http_port = map(str, self._ports)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "waterclock", "up", "--json", "--data", str(self.data)),
                *("--grpc-port", grpc_port, "--http-port", http_port, *self._settings),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        line = await _within(START_S_MAX, self._process.stdout.readline(), "start")
        if not line:
            await self._process.wait()
            raise StorageFailed(f"the node ended by itself: {self._last_words()}")
        ready = json.loads(line)
        self.address, self.http_address = ready["grpc_address"], ready["http_address"]
        self._ports = (ready["grpc_port"], ready["http_port"])
        return 1_000 * (time.perf_counter() - started)

    async def kill(self) -> None:
        """End it with SIGKILL, at once and whatever it does."""
        if self._process is not None:
            process, self._process = self._process, None
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def stop(self) -> tuple[int, float]:
        """Ask it to stop; return its exit code, and how many milliseconds it took."""
        assert self._process is not None
        started = time.perf_counter()
        self._process.terminate()
        exit_code = await _within(STOP_S_MAX, self._process.wait(), "stop")
        self._process = None
        return exit_code, 1_000 * (time.perf_counter() - started)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "without a word"


async def _within(seconds: float, step: Awaitable[Result], what: str) -> Result:
    try:
        async with asyncio.timeout(seconds):
            return await step
    except TimeoutError as error:
        raise StorageFailed(f"the node did not {what} within {seconds:g} s") from error
