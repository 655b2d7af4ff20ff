"""Processes that start in milliseconds: one that has imported everything forks the others.

A round of a few seconds needs half a dozen processes, and each would import for half a second.
They are real processes all the same: killed, paused and counted one by one. They end with the
fork server, and the fork server with the process that started it.

    python -m tests.kit.fork_server MODULE    each line on stdin is what one child is told
"""

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from importlib import import_module
from typing import Any

from tests.kit.processes import ROOT, Signalled


class ForkServer:
    """Starts processes that run `module.run(spec)`. Use it in a `with` block."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __enter__(self) -> "ForkServer":
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, self._module],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self._asking = threading.Lock()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def start(self, **spec: Any) -> Signalled:
        """Fork a process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(json.dumps(spec).encode() + b"\n")
            self._process.stdin.flush()
            return Signalled(int(self._process.stdout.readline()))


def serve(module: str) -> None:
    """Fork a child for every line, and tell its id."""
    run = import_module(module).run
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: the kernel reaps them
    children = []
    while line := sys.stdin.buffer.readline():
        pid = os.fork()
        if pid == 0:
            _be_child(line, run)
        children.append(Signalled(pid))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
    for child in children:
        child.kill()


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
    serve(sys.argv[1])
