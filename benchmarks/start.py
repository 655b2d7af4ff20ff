"""Starting: how long one command takes, and a node until it is ready, in an empty folder.

    python -m benchmarks.start              the table, then one line of JSON
    python -m benchmarks.start --record     also writes RESULTS.md

Each command is a process of its own, as a shell starts it, on a node that runs. The package has
been compiled before, as by `pip install`: with `PYTHONDONTWRITEBYTECODE` each start would do it
again. Times are those of processors (user and system), which a busy machine changes least, and by
the clock. A node is ready when it says so, and both of its doors have answered by then. `redis-cli`
and Redis stand beside it.
"""

import argparse
import compileall
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import waterclock
from benchmarks.harness import Bar, Report, Result, Tick, rounds_of, scale
from benchmarks.machine import facts, scratch_folder
from benchmarks.peers import redis
from benchmarks.peers.cache import Absent, debian
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


class Start:
    """Measures, round by round."""

    def __init__(self, report: Report, folder: Path, tick: Tick) -> None:
        self._report = report
        self._folder = folder
        self._tick = tick
        self._samples: dict[str, list[float]] = {}

    def run(self) -> None:
        """Start nodes and commands, in turns, and add what came of it."""
        compileall.compile_dir(Path(waterclock.__file__).parent, quiet=1)
        for number in range(rounds_of(ROUNDS)):
            self._round(self._folder / f"node{number}")
        for name in COMMANDS:
            bar = COMMAND_BAR if name == "publish" else None
            self._add(f"{name}_cpu_s", bar=bar)
            self._add(f"{name}_s")
        self._add("ready_cpu_s")
        self._add("ready_s", bar=READY_BAR)
        if is_wanted("redis"):
            self.run_beside()

    def run_beside(self) -> None:
        """Start Redis and its command as often, or note why they cannot be had."""
        try:
            self._beside()
        except Absent as reason:
            self._report.notes.append(f"Absent: redis, because {reason}.")

    def _round(self, folder: Path) -> None:
        self._tick("ready_s")
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
                self._samples.setdefault("ready_s", []).append(time.perf_counter() - begun)
                self._samples.setdefault("ready_cpu_s", []).append(_cpu_s(node.pid))
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
        self._samples.setdefault(f"{name}_s", []).append(took)
        self._samples.setdefault(f"{name}_cpu_s", []).append(cpu)

    def _beside(self) -> None:
        its = debian("redis-tools", ["redis-cli"])
        ready: list[float] = []
        for number in range(rounds_of(ROUNDS)):
            begun = time.perf_counter()
            with redis.running(self._folder / f"redis{number}") as server:
                ready.append(time.perf_counter() - begun)
                words = [its.find("redis-cli"), "-p", str(server.port), "XADD", "s", "*", "v", "1"]
                try:
                    self._measure("redis_cli", words, its.environ())
                except (OSError, subprocess.CalledProcessError) as error:
                    raise Absent(f"redis-cli does not run: {error}") from error
        peers = self._report.peers
        peers.append(Result("redis_ready_s", ready, "s", note="asked every 20 ms"))
        for name in ("redis_cli_cpu_s", "redis_cli_s"):
            peers.append(Result(name, self._samples[name], "s"))

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
        prog="python -m benchmarks.start", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    options = options_of(parser)
    with scratch_folder() as scratch:
        report = Report("start", facts(scratch, scale=scale()))
        with progress("start", steps=rounds_of(ROUNDS) * (1 + len(COMMANDS))) as tick:
            Start(report, scratch, tick).run()
    report.finish()
    if options.record:
        report.record("python -m benchmarks.start --record")
    report.publish()


if __name__ == "__main__":
    main()
