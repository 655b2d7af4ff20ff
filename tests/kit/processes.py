"""Programs of a test as processes: killed, paused, told to stop, and ended with the test.

What they say to nobody is in a log; a line there that shows a bug is a finding of its own.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUGS = re.compile(r"unforeseen error_id|Traceback|Task exception was never retrieved")
"""What a log line says when a program did not plan for what happened."""


def bugs_in(log: Path) -> list[str]:
    """Return what a log says of things that nobody planned."""
    return [line for line in _lines(log) if BUGS.search(line)]


def last_words(log: Path, lines: int) -> str:
    """Return the end of a log."""
    return "\n".join(_lines(log)[-lines:])


def _lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()


class Signalled:
    """A process that is sent signals, whoever started it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.is_paused = False

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.send(0)

    def send(self, number: int) -> bool:
        """Send a signal; return False if it has ended."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        """End it as a crash would."""
        self.send(signal.SIGKILL)

    def pause(self) -> None:
        """Let it hang."""
        self.is_paused = self.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.is_paused = False
        self.send(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send(signal.SIGTERM)


class Process(Signalled):
    """A module that runs, told what to do by JSON arguments."""

    def __init__(
        self,
        module: str,
        *words: object,
        log: Path,
        has_output: bool = False,
        prefix: Sequence[str] = (),
    ) -> None:
        """With `has_output` what it prints is read by whoever started it; else it is in the log.

        `prefix` is a command that runs the module's.
        """
        command = [*prefix, sys.executable, "-m", module]
        command += [word if isinstance(word, str) else json.dumps(word) for word in words]
        self.log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if has_output else file, stderr=file, start_new_session=True,
            )  # fmt: skip
        super().__init__(self._process.pid)

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    @property
    def is_running(self) -> bool:
        return self.code is None

    def send(self, number: int) -> bool:
        # Once its end was heard of, its id may be another's.
        return self.is_running and super().send(number)

    def kill(self) -> None:
        """End it as a crash would, and wait until it has ended."""
        super().kill()
        self.wait()

    def wait(self, seconds: float | None = None) -> int:
        """Wait until it has ended; return how."""
        code = self._process.wait(seconds)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def line(self) -> bytes:
        """Wait for the next line it prints; return nothing once it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def output(self) -> str:
        """Return what is in its log."""
        return self.log.read_text(errors="replace")


class Processes:
    """Starts modules; each has a log of its own in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.all: list[Process] = []

    def start(self, module: str, said: Mapping[str, object]) -> Process:
        """Start one."""
        log = self._folder / f"{module}-{len(self.all) + 1}.output"
        self.all.append(Process(module, dict(said), log=log))
        return self.all[-1]


@contextmanager
def running(folder: Path) -> Iterator[Processes]:
    """Have processes; none is left after the block."""
    folder.mkdir(parents=True, exist_ok=True)
    processes = Processes(folder)
    try:
        yield processes
    finally:
        for process in processes.all:
            process.kill()
