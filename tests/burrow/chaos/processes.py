"""Programs of a test as processes, each ended at the end of a block, whatever happened in it."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]


class Processes:
    """Starts modules with what they are told, as JSON; their output is kept in files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self.all: list[subprocess.Popen[bytes]] = []

    def start(self, module: str, said: Mapping[str, object]) -> "subprocess.Popen[bytes]":
        """Start one."""
        self._count += 1
        with (self._folder / f"{module}-{self._count}.output").open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(said)],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            )  # fmt: skip
        self.all.append(process)
        return process

    def output(self, process: "subprocess.Popen[bytes]") -> str:
        """Return what a process has printed."""
        at = self.all.index(process)
        (path,) = self._folder.glob(f"*-{at + 1}.output")
        return path.read_text(errors="replace")


@contextmanager
def running(folder: Path) -> Iterator[Processes]:
    """Have processes; none is left after the block."""
    folder.mkdir(parents=True, exist_ok=True)
    processes = Processes(folder)
    try:
        yield processes
    finally:
        for process in processes.all:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
