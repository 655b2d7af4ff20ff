"""Dispatchers and workers as processes that can be killed, paused and asked how they are."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.kit.processes import Process

WAIT_S_MAX = 60.0
POLL_S = 0.01


class Program(Process):
    """A process, and the last it said."""

    def __init__(self, kind: str, log: Path, **config: Any) -> None:
        super().__init__("tests.dispatch.program", kind, config, log=log, has_output=True)
        self.kind = kind
        self.said: dict[str, Any] = {"counts": {}, "epoch": 0}
        self.said_at = 0.0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __repr__(self) -> str:
        return f"<Program {self.kind} {self.pid}, {self.said}>"

    def _read(self) -> None:
        while line := self.line():
            self.said = json.loads(line)
            self.said_at = time.monotonic()

    def count(self, name: str) -> int:
        """Return what it counted, when it last said it."""
        value: int = self.said["counts"].get(name, 0)
        return value

    def stop(self) -> int:
        """Ask it to end; return how it did."""
        if self.is_running:
            self.resume()
            self.terminate()
            try:
                self.wait(WAIT_S_MAX / 2)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.wait()

    def wait(self, seconds: float | None = None) -> int:
        """Wait until it has ended, and all it said is read."""
        self._process.wait(seconds)
        self._reader.join()
        return super().wait()


class Fleet:
    """The programs of a test: all of them have ended when it has."""

    def __init__(self, folder: Path, until_end: ExitStack, **config: Any) -> None:
        self._folder = folder
        self._until_end = until_end
        self._config = config

    def start(self, kind: str, **config: Any) -> Program:
        """Start one; what is told here goes before what is told for all."""
        common = dict(self._config)
        if kind == "dispatcher":
            common |= {"host": "127.0.0.1", "port": 0}
        else:
            for name in DISPATCHER_ONLY:
                common.pop(name, None)
        program = Program(kind, self._folder / "programs.log", **{**common, **config})
        self._until_end.callback(program.stop)
        return program


DISPATCHER_ONLY = (
    "source_kind", "source", "lease_ms", "deadline_ms", "deliveries_max", "silence_ms_max",
    "heartbeat_ms", "retry_ms", "group", "is_source_trimmed", "workers", "legacy_credit",
)  # fmt: skip


@contextmanager
def fleet(folder: Path, **config: Any) -> Iterator[Fleet]:
    """Give what programs are started with."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as until_end:
        yield Fleet(folder, until_end, **config)


def wait(check: Callable[[], Any], *, what: str) -> None:
    """Return once the check holds: processes of others give no event to wait for."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not check():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(POLL_S)
