"""Our side: a dispatcher and four workers as anyone starts them, and how long a take-over takes.

A take-over is timed from `kill -9` of the leader to the first entry of a message that was published
after it: only the next leader can have handed that out.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from urllib.request import urlopen

from benchmarks import dispatch_fleet
from benchmarks.client import Stopwatch, run_client
from benchmarks.contest import Case
from benchmarks.dispatch_job import CHANNEL, STREAM
from benchmarks.dispatch_load import OUTPUT, Wire, body, number_of
from benchmarks.dispatch_peer import (
    COMMANDS_FILE,
    WARM_UP_FILE,
    WORKERS,
    fleet,
    prepare,
    redis_server,
)
from benchmarks.harness import Bar, Report, Tick, rounds_of, scaled
from benchmarks.machine import ROOT
from benchmarks.peers.server import Server, free_port

SOURCES = {"stream": STREAM, "pubsub": CHANNEL}
PREFIX = "bench"
LOCK = f"{{{PREFIX}}}:lock"
MESSAGES = 200_000
WINDOW = 20_000
"""Published and not yet written, by pub/sub: nobody keeps what a subscriber is too slow for."""
RATE_BAR = Bar(20_000)
LEASE_S = 2.0
TAKEOVER_BAR = Bar(LEASE_S + 0.5, is_floor=False)
TAKEOVERS = 5
PACE_S = 0.002
TAKEOVER_S_MAX = 30
PROGRAM = (sys.executable, "-m", "waterclock")


def _shared(port: int) -> list[str]:
    return ["--redis", f"127.0.0.1:{port}", "--prefix", PREFIX, "--output", OUTPUT, "--json"]


def dispatcher(port: int, source_kind: str, *, metrics_port: int = 0) -> list[str]:
    """Give the command line of a dispatcher."""
    args = [
        "--source-kind",
        source_kind,
        "--source",
        SOURCES[source_kind],
        "--host",
        "127.0.0.1",
        "--port",
        "0",
    ]
    args += ["--set", f"metrics_port={metrics_port}"]
    return [*PROGRAM, "dispatch", *_shared(port), *args]


def worker(port: int) -> list[str]:
    """Give the command line of a worker."""
    return [*PROGRAM, "worker", "--handler", "benchmarks.dispatch_job:handle", *_shared(port)]


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Run a Redis for our side, with the messages of both sources encoded."""
    with redis_server(folder) as server:
        for source_kind in SOURCES:
            (folder / source_kind).mkdir()
            prepare(
                server,
                f"benchmarks.dispatch_job:{source_kind}",
                scaled(MESSAGES),
                folder / source_kind,
            )
        yield server


# Rates


def cases() -> list[Case]:
    """Give the cases of messages through a dispatcher."""
    return [
        Case("end_to_end", "node", through("stream"), "stream source", RATE_BAR),
        Case("end_to_end_pubsub", "node", through("pubsub"), f"pub/sub source, window {WINDOW:,}"),
    ]


def through(source_kind: str) -> Callable[[Server], Stopwatch]:
    """Give a run of all messages through one dispatcher and its workers."""

    def run(server: Server) -> Stopwatch:
        folder, metrics_port = Path(server.client_environ["BENCH_FOLDER"]), free_port()
        leader = dispatcher(server.port, source_kind, metrics_port=metrics_port)
        command = dispatch_fleet.command(leader, *[worker(server.port)] * WORKERS)
        files = {"commands": COMMANDS_FILE, "warm_up": WARM_UP_FILE}
        work = {name: str(folder / source_kind / file) for name, file in files.items()}
        window = WINDOW if source_kind == "pubsub" else 0

        def is_ready(wire: Wire) -> bool:
            return workers_of(metrics_port) == WORKERS

        with fleet(command, server, folder, is_ready=is_ready) as processes:
            return run_client("benchmarks.dispatch_load:through", processes, **work, window=window)

    return run


def workers_of(metrics_port: int) -> int:
    """Ask a dispatcher how many workers it has."""
    try:
        with urlopen(f"http://127.0.0.1:{metrics_port}/health") as answer:
            return int(json.load(answer)["workers"])
    except OSError:
        return 0


# Take-over


class Takeovers:
    """Kills the leader again and again."""

    def __init__(self, report: Report, scratch: Path, tick: Tick) -> None:
        self._report = report
        self._folder = scratch / "takeovers"
        self._tick = tick

    def run(self) -> None:
        """Measure them."""
        with redis_server(self._folder) as server, ExitStack() as stack:
            wire = Wire(server.port)
            stack.callback(wire.close)
            command = dispatch_fleet.command(*[worker(server.port)] * WORKERS)
            stack.enter_context(fleet(command, server, self._folder, is_ready=lambda _: True))
            pair = [Standby(server.port, self._folder / f"dispatcher-{n}.log") for n in range(2)]
            for each in pair:
                stack.callback(each.kill)
                each.start()
            numbers = count()
            until_entry(wire, numbers, behind=-1)
            seconds = []
            for _ in range(rounds_of(TAKEOVERS)):
                self._tick("takeover_s")
                seconds.append(takeover(wire, pair, numbers))
            note = f"lease {LEASE_S:g} s, kill -9, one standby, stream source"
            self._report.add("takeover_s", seconds, "s", bar=TAKEOVER_BAR, note=note)


class Standby:
    """One of two dispatchers, whoever leads."""

    def __init__(self, redis_port: int, log: Path) -> None:
        self._command = dispatcher(redis_port, "stream")
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(self) -> None:
        """Start it, and wait until it listens."""
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        self.port = json.loads(self._process.stdout.readline())["port"]

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


def takeover(wire: Wire, pair: list[Standby], numbers: Iterator[int]) -> float:
    """Kill who leads, give the time until the next one's first entry, and bring back the other."""
    port = json.loads(wire.ask("GET", LOCK))["port"]
    (leader,) = [each for each in pair if each.port == port]
    leader.kill()
    killed_at, last = time.perf_counter(), next(numbers)
    until_entry(wire, numbers, behind=last)
    seconds = time.perf_counter() - killed_at
    leader.start()
    return seconds


def until_entry(wire: Wire, numbers: Iterator[int], *, behind: int) -> None:
    """Publish messages until there is an entry of one behind a number."""
    deadline = time.monotonic() + TAKEOVER_S_MAX
    while time.monotonic() < deadline:
        wire.ask("XADD", STREAM, "*", "data", body(next(numbers)))
        newest = wire.ask("XREVRANGE", OUTPUT, "+", "-", "COUNT", 20)
        if any(number_of(fields) > behind for _, fields in newest):
            return
        time.sleep(PACE_S)
    raise TimeoutError("nobody takes over")
