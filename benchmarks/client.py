"""A client in a process of its own: it prepares, then works with the clock running, then tells.

A client is a function `f(watch, port, **arguments)`; what it does inside `watch.running(messages)`
is measured: the wall, its own processor time and that of the server. `run_client` starts one, which
loads nothing it does not need; so all clients, ours and the peers', cost and share the same.
"""

import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.peers.server import Server, cpu_seconds

CLIENT_S_MAX = 600


@dataclass(slots=True)
class Stopwatch:
    """What was done, and what it took."""

    group: int
    """The process group of the server."""
    messages: int = 0
    wall_s: float = 0
    client_cpu_s: float = 0
    server_cpu_s: float = 0
    more: dict[str, Any] = field(default_factory=dict)
    """Whatever else this client has to tell."""

    @contextmanager
    def running(self, messages: int) -> Iterator[None]:
        """Measure what is done in the block, to so many messages."""
        own, server, wall = _own_cpu(), cpu_seconds(self.group), time.perf_counter()
        yield
        self.wall_s += time.perf_counter() - wall
        self.client_cpu_s += _own_cpu() - own
        self.server_cpu_s += cpu_seconds(self.group) - server
        self.messages += messages

    @property
    def rate(self) -> float:
        """Messages per second of the wall."""
        return self.messages / self.wall_s

    @property
    def server_cpu_us(self) -> float:
        """The server's processor time for a message, which is seconds for a million."""
        return self.server_cpu_s / self.messages * 1e6

    @property
    def client_cpu_us(self) -> float:
        """The client's processor time for a message."""
        return self.client_cpu_s / self.messages * 1e6


def run_client(function: str, server: Server, **arguments: object) -> Stopwatch:
    """Run `module:function` in a fresh process, against a server; give its stopwatch."""
    task = {"group": server.group, "port": server.port, **arguments}
    command = [sys.executable, "-m", "benchmarks.client", function, json.dumps(task)]
    environ = {**os.environ, **server.client_environ}
    run = subprocess.run(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, check=True,
        timeout=CLIENT_S_MAX,
    )  # fmt: skip
    return Stopwatch(**json.loads(run.stdout.splitlines()[-1]))


def main() -> None:
    """Be that process."""
    module, _, name = sys.argv[1].partition(":")
    arguments = json.loads(sys.argv[2])
    watch = Stopwatch(arguments.pop("group"))
    getattr(importlib.import_module(module), name)(watch, **arguments)
    os.set_blocking(sys.stdout.fileno(), True)
    sys.stdout.write(json.dumps(asdict(watch)) + "\n")
    sys.stdout.flush()


def _own_cpu() -> float:
    """Give the processor time of this process and of the programs it ran."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


if __name__ == "__main__":
    main()
