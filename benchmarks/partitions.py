"""A thousand partitions on one node: making them, publishing to all, starting again, open files.

    python -m benchmarks.partitions              the table, then one line of JSON
    python -m benchmarks.partitions --record     also writes RESULTS.md

Single messages, each with a key of its own, are published from many callers that share a client, to
a topic of one partition and to one of a thousand, in turn; `share` is what is left of the rate when
they are spread. 64 callers are those of the benchmark `publish`, and judged. With 1,024, one
partition has a thousand messages a batch, and each of a thousand has one. Then the node is killed
and started again.
"""

import argparse
import os
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.client import Stopwatch, run_client
from benchmarks.contest import RATE, cpu_note
from benchmarks.harness import Bar, Report, Tick, is_smoke, rounds_of, scale, scaled
from benchmarks.machine import MEMORY_FILE_SYSTEMS, facts, file_system, scratch_folder
from benchmarks.node.running import running
from benchmarks.peers.server import Server
from benchmarks.recording import options_of

ROUNDS = 3
PARTITIONS = 1_000
MESSAGES = 50_000
FEW = 64
CALLERS = (FEW, 1_024)
TOPICS = {"1p": "one", "1000p": "many"}

MADE_BAR = Bar(3, is_floor=False)
SHARE_BAR = Bar(0.5)
READY_BAR = Bar(4, is_floor=False)
DESCRIPTORS_BAR = Bar(2_500, is_floor=False)


class Partitions:
    """The cases, in the order in which a node allows them; a fresh one each round."""

    def __init__(self, report: Report, scratch: Path, tick: Tick) -> None:
        self._report = report
        self._folder = scratch / "node"
        self._tick = tick
        self._partitions = scaled(PARTITIONS, least=4)
        self._made_s: list[float] = []
        self._ready_s: list[float] = []
        self._descriptors: list[float] = []
        self._watches: dict[str, list[Stopwatch]] = {}

    def run(self) -> None:
        """Measure everything."""
        for _ in range(rounds_of(ROUNDS)):
            with running(self._folder) as server:
                self._make(server)
                for callers in CALLERS:
                    for name, topic in TOPICS.items():
                        self._publish(server, name, topic, callers)
                self._descriptors.append(descriptors(server))
                server.kill()
            with ExitStack() as stack:
                self._start(stack)
            shutil.rmtree(self._folder)
        self._add_all()

    def _make(self, server: Server) -> None:
        self._tick("made_s")
        make = "benchmarks.node.partitioning:make"
        run_client(make, server, topic=TOPICS["1p"], partitions=1)
        watch = run_client(make, server, topic=TOPICS["1000p"], partitions=self._partitions)
        self._made_s.append(watch.wall_s)

    def _publish(self, server: Server, name: str, topic: str, callers: int) -> None:
        case = f"keyed_{callers}_callers_{name}"
        self._tick(case)
        work = {"topic": topic, "callers": callers, "messages": scaled(MESSAGES, least=callers)}
        watch = run_client("benchmarks.node.partitioning:keyed", server, **work)
        self._watches.setdefault(case, []).append(watch)

    def _start(self, stack: ExitStack) -> None:
        self._tick("ready_s")
        begun = time.perf_counter()
        server = stack.enter_context(running(self._folder))
        self._ready_s.append(time.perf_counter() - begun)
        self._descriptors[-1] = max(self._descriptors[-1], descriptors(server))

    def _add_all(self) -> None:
        add = self._report.add
        what = f"{self._partitions:,} partitions"
        add("made_s", self._made_s, "s", bar=MADE_BAR, note=f"a topic of {what}")
        for callers in CALLERS:
            one, many = (self._watches[f"keyed_{callers}_callers_{name}"] for name in TOPICS)
            for name, found in zip(TOPICS, (one, many), strict=True):
                rates = [watch.rate for watch in found]
                add(f"keyed_{callers}_callers_{name}", rates, RATE, note=cpu_note(found))
            shares = [b.rate / a.rate for a, b in zip(one, many, strict=True)]
            bar = SHARE_BAR if callers == FEW else None
            add(f"share_{callers}_callers", shares, "of one partition", bar=bar)
            if not is_smoke():
                ratio = self._report.results[-1].value
                self._report.ratios[f"keyed_{callers}_callers_1000p_vs_1p"] = ratio
        note = "SIGKILL, start, until ready"
        add("ready_s", self._ready_s, "s", bar=READY_BAR, note=note)
        note = "the most, before and after the kill"
        add("descriptors", self._descriptors, "files", bar=DESCRIPTORS_BAR, note=note)


def steps() -> int:
    """Give how many steps the progress bar has."""
    return rounds_of(ROUNDS) * (2 + len(CALLERS) * len(TOPICS))


def descriptors(server: Server) -> int:
    """Give how many descriptors the node has open."""
    return len(os.listdir(f"/proc/{server.group}/fd"))


def main() -> None:
    """Run everything."""
    # Not above: the processes this one starts would load it in vain.
    from benchmarks.display import progress

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.partitions", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    options = options_of(parser)
    with scratch_folder() as scratch:
        report = Report("partitions", facts(scratch, scale=scale()))
        if file_system(scratch) in MEMORY_FILE_SYSTEMS:
            report.notes.append("The scratch folder is in memory: fsync costs nothing there.")
        with progress("partitions", steps=steps()) as tick:
            Partitions(report, scratch, tick).run()
    report.finish()
    if options.record:
        report.record("python -m benchmarks.partitions --record")
    report.publish()


if __name__ == "__main__":
    main()
