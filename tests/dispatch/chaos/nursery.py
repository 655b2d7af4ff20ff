"""Processes that start in milliseconds: one that has imported everything forks the others.

A round of a few seconds needs half a dozen processes, and each would import for half a second.
They are real processes all the same: killed, paused and counted one by one. They end with the
nursery, and the nursery with whoever started it.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


class Child:
    """A process of the nursery."""

    def __init__(self, pid: int, name: str) -> None:
        self.pid = pid
        self.name = name
        self.is_paused = False

    def __repr__(self) -> str:
        return f"<Child {self.name} {self.pid}>"

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self.send(0)

    def send(self, number: int) -> bool:
        """Send a signal; return False if nobody is there."""
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


class Nursery:
    """Starts children. Use it in a `with` block."""

    def __enter__(self) -> "Nursery":
        command = [sys.executable, "-m", "tests.dispatch.chaos.nursery"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._asking = threading.Lock()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def start(self, name: str, **spec: Any) -> Child:
        """Fork a process that runs `program.run(spec)`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(json.dumps({"name": name, **spec}).encode() + b"\n")
            self._process.stdin.flush()
            return Child(int(self._process.stdout.readline()), name)


def serve() -> None:
    """Fork a child for every line, and tell its id."""
    # Imported once, here: that is what the nursery is for.
    from tests.dispatch.chaos.program import run

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: the kernel reaps them
    pids: list[int] = []
    while line := sys.stdin.buffer.readline():
        pid = os.fork()
        if pid == 0:
            _be_child(line, run)
        pids.append(pid)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _be_child(line: bytes, run: Any) -> None:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        run(json.loads(line))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    serve()
