"""Redis: streams, and the sorted set people use as a schedule.

`appendfsync always` with an append-only file is what we promise: Redis answers after an fsync that
all who wait share. Its own `redis-benchmark` sends, the best client there is, and written in C.
"""

import csv
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.client import Stopwatch
from benchmarks.peers.cache import Programs, debian
from benchmarks.peers.server import Server, free_port, started
from benchmarks.peers.wire import VALUE

NAME = "redis"
STREAM, SCHEDULE, GROUP = "stream", "schedule", "group"
SETTINGS = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "always",
    # A rewrite of the file amid a round would be measured by chance.
    "auto-aof-rewrite-percentage": "0",
}


def programs() -> Programs:
    """Find it or fetch it."""
    return debian("redis-server", ["redis-server", "redis-benchmark"])


def version() -> str:
    """Say which it is."""
    its = programs()
    command = [its.find("redis-server"), "--version"]
    run = subprocess.run(command, env=its.environ(), capture_output=True, text=True, check=True)
    found = re.search(r"v=(\S+)", run.stdout)
    return found.group(1) if found else "unknown"


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Run a server."""
    its, port = programs(), free_port()
    folder.mkdir(parents=True)
    settings = {**SETTINGS, "port": str(port), "dir": str(folder)}
    flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
    command = [its.find("redis-server"), *flags]
    with started(command, folder=folder, port=port, environ=its.environ()) as server:
        yield server


# Clients that are redis-benchmark


def publish(watch: Stopwatch, port: int, *, messages: int, clients: int, pipeline: int) -> None:
    """Add messages to the stream, each client with so many unanswered."""
    command = ["XADD", STREAM, "*", "d", VALUE.decode()]
    _benchmark(watch, port, command, requests=messages, clients=clients, pipeline=pipeline)


def schedule(watch: Stopwatch, port: int, *, messages: int, clients: int, pipeline: int) -> None:
    """Add members, each with its payload, to the sorted set."""
    # redis-benchmark writes twelve random digits in place of this, if told to by -r.
    mark = "__rand_int__"
    command = ["-r", "1000000000", "ZADD", SCHEDULE, mark, mark + VALUE.decode()[len(mark) :]]
    _benchmark(watch, port, command, requests=messages, clients=clients, pipeline=pipeline)


def _benchmark(
    watch: Stopwatch, port: int, command: list[str], *, requests: int, clients: int, pipeline: int
) -> None:
    its = programs()
    flags = {"-p": port, "-c": clients, "-P": pipeline, "-n": requests}
    words = [str(word) for flag in flags.items() for word in flag]
    program = [its.find("redis-benchmark"), *words, "--csv", *command]
    with watch.running(requests):
        run = subprocess.run(
            program, env=its.environ(), stdout=subprocess.PIPE, text=True, check=True
        )
    # Its own clock starts when it is connected.
    watch.wall_s = requests / float(list(csv.reader(run.stdout.splitlines()))[-1][1])
