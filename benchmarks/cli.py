"""The command line: how long one command takes, and `up` in an empty folder until it is ready.

    python -m benchmarks.cli              the table, then one line of JSON
    python -m benchmarks.cli --record     also writes RESULTS.md

Each command is a process of its own, as a shell starts it, on a node that runs. The package has
been compiled before, as by `pip install`: with `PYTHONDONTWRITEBYTECODE` each start would do it
again. Times are those of processors (user and system), which a busy machine changes least, and by
the clock. A node is ready when it says so, and both of its doors have answered by then. In turn
with it, in the same rounds, start Redis with `redis-cli`, and JetStream with an empty stream, which
has no command of its own.
"""

import argparse
import compileall
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import waterclock
from benchmarks.contest import compare
from benchmarks.harness import Bar, Report, Result, Tick, rounds_of, scale
from benchmarks.machine import facts, scratch_folder
from benchmarks.peers import nats, redis
from benchmarks.peers.cache import Absent
from benchmarks.peers.lineup import is_wanted
from benchmarks.recording import options_of

ROUNDS = 10
COMMAND_BAR = Bar(0.4, is_floor=False)
READY_BAR = Bar(1.2, is_floor=False)
WATERCLOCK = (sys.executable, "-m", "waterclock")
COMMANDS = {
    "publish": ["publish", "orders", "hello"],
    "send": ["send", "chat", "hello"],
    "topics": ["topics", "list"],
    "help": ["--help"],
}


PEERS = ("redis", "jetstream")


class CommandLine:
    """Measures, round by round."""

    def __init__(self, report: Report, folder: Path, tick: Tick) -> None:
        self._report = report
        self._folder = folder
        self._tick = tick
        self._samples: dict[str, list[float]] = {}
        starts: dict[str, Callable[[Path], None]] = {
            "redis": self._redis,
            "jetstream": self._jetstream,
        }
        self._peers = {peer: start for peer, start in starts.items() if is_wanted(peer)}

    def run(self) -> None:
        """Start nodes, commands and peers, in turns, and add what came of it."""
        compileall.compile_dir(Path(waterclock.__file__).parent, quiet=1)
        for number in range(rounds_of(ROUNDS)):
            self._round(self._folder / f"node{number}")
            self.run_beside(number)
        for name in COMMANDS:
            bar = COMMAND_BAR if name == "publish" else None
            self._add(f"{name}_s")
            self._add(f"{name}_cpu_s", bar=bar)
        self._add("up_ready_s", bar=READY_BAR)
        self._add("up_ready_cpu_s")
        self.add_peers()
        compare(self._report, "publish_s", {"redis": "redis_publish_s"})
        compare(self._report, "up_ready_s", {peer: f"{peer}_up_ready_s" for peer in PEERS})

    def run_beside(self, number: int) -> None:
        """Start the peers once; one that cannot be had is noted, and left out from here on."""
        for peer, start in list(self._peers.items()):
            self._tick(peer)
            try:
                start(self._folder / f"{peer}{number}")
            except Absent as reason:
                self._report.notes.append(f"Absent: {peer}, because {reason}.")
                del self._peers[peer]

    def add_peers(self) -> None:
        """Add what came of the peers that were there in every round."""
        for case, samples in self._samples.items():
            if case.partition("_")[0] in self._peers:
                note = "asked every 20 ms, then for its version" if "ready" in case else ""
                self._report.peers.append(Result(case, samples, "s", note=note))

    def _round(self, folder: Path) -> None:
        self._tick("up_ready_s")
        begun = time.perf_counter()
        ports = ("--grpc-port", "0", "--http-port", "0")
        with subprocess.Popen(
            [*WATERCLOCK, "up", "--json", "--data", folder, *ports],
            stdout=subprocess.PIPE,
            text=True,
        ) as node:
            try:
                assert node.stdout is not None
                said = json.loads(node.stdout.readline())
                self._take("up_ready_s", time.perf_counter() - begun)
                self._take("up_ready_cpu_s", _cpu_s(node.pid))
                with urllib.request.urlopen(f"{said['http_address']}/health/ready") as answer:
                    assert answer.status == 200
                for name, words in COMMANDS.items():
                    self._tick(name)
                    self._measure(
                        name,
                        [*WATERCLOCK, *words],
                        {**os.environ, "WATERCLOCK_ADDRESS": said["grpc_address"]},
                    )
            finally:
                node.kill()

    def _measure(self, name: str, command: Sequence[str], environ: Mapping[str, str]) -> None:
        before, begun = os.times(), time.perf_counter()
        subprocess.run(command, env=environ, check=True, capture_output=True)
        took, after = time.perf_counter() - begun, os.times()
        cpu = sum(after[2:4]) - sum(before[2:4])
        self._take(f"{name}_s", took)
        self._take(f"{name}_cpu_s", cpu)

    def _redis(self, folder: Path) -> None:
        its = redis.programs()  # with what it depends on: its command
        begun = time.perf_counter()
        with redis.running(folder) as server:
            self._take("redis_up_ready_s", time.perf_counter() - begun)
            self._report.machine["redis"] = server.version
            words = [its.find("redis-cli"), "-p", str(server.port), "XADD", "s", "*", "v", "1"]
            try:
                self._measure("redis_publish", words, its.environ())
            except (OSError, subprocess.CalledProcessError) as error:
                raise Absent(f"redis-cli does not run: {error}") from error

    def _jetstream(self, folder: Path) -> None:
        nats.programs()  # built, if it must be, before the clock runs
        begun = time.perf_counter()
        with nats.running(folder) as server:
            self._take("jetstream_up_ready_s", time.perf_counter() - begun)
            self._report.machine["jetstream"] = server.version

    def _take(self, case: str, sample: float) -> None:
        self._samples.setdefault(case, []).append(sample)

    def _add(self, case: str, *, bar: Bar | None = None) -> None:
        self._report.add(case, self._samples[case], "s", bar=bar)


def _cpu_s(process: int) -> float:
    """Give the time of processors that a process has had."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run everything."""
    # Not above: the processes this one starts would load it in vain.
    from benchmarks.display import progress

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cli", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    options = options_of(parser)
    with scratch_folder() as scratch:
        report = Report("cli", facts(scratch, scale=scale()))
        steps = rounds_of(ROUNDS) * (1 + len(COMMANDS) + len(PEERS))
        with progress("cli", steps=steps) as tick:
            CommandLine(report, scratch, tick).run()
    report.finish()
    if options.record:
        report.record("python -m benchmarks.cli --record")
    report.publish()


if __name__ == "__main__":
    main()
