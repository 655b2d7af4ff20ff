"""Ten million messages pending in our node: the memory they take, starting again, and storms.

The node is killed as soon as the last one is acknowledged, and started again and again; then
messages fall due in storms while the many still wait. They are due in one to five hours, so all of
them are kept in memory.
"""

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.client import Stopwatch, run_client
from benchmarks.harness import Bar, Report, Tick, is_smoke, rounds_of, whole_batches
from benchmarks.machine import fitting
from benchmarks.node.running import running
from benchmarks.peers.server import Server, memory_mb

MESSAGES = 10_000_000
MESSAGE_BYTES = 250
"""What one takes on disk, timer and all, and a little more."""
BATCH = 1_000
WINDOW = 8
RESTARTS = 3
STORM_ROUNDS = 3
SPAN_MS = 1_000
STORMS = {
    "1k": (1_000, SPAN_MS),
    "10k": (10_000, SPAN_MS),
    "100k": (100_000, SPAN_MS),
    "100k_at_once": (100_000, 1),
}
FELT = "100k"
"""The one that is judged."""
STORM_BATCHES = 100
"""A storm is published in so many."""
POLL_S = 0.02
TICK_MS = 100

MEMORY_BAR = Bar(300, is_floor=False)
RESTART_BAR = Bar(10, is_floor=False)
LATENESS_BAR = Bar(TICK_MS + 150, is_floor=False)
STALL_BAR = Bar(50, is_floor=False)


def pending_steps() -> int:
    """Give how many steps the progress bar has."""
    return 2 + rounds_of(RESTARTS) + rounds_of(STORM_ROUNDS) * (1 + len(storms()))


class Stall(NamedTuple):
    """How long calls about other things took longer than usual, at worst."""

    look_ms: float
    publish_ms: float

    @property
    def worst_ms(self) -> float:
        return max(self)

    def __str__(self) -> str:
        return f"GetNode {self.look_ms:.1f}, Publish {self.publish_ms:.1f}"


def stall_in(feeling: Stopwatch, start_ms: float, end_ms: float) -> Stall:
    """Give the stalls in a span of time, from the calls that were made before and during it."""

    def stall(calls: list[tuple[float, float]]) -> float:
        during = [took for begun, took in calls if begun + took > start_ms and begun < end_ms]
        return max(during) - median(took for _, took in calls)

    return Stall(stall(feeling.more["look"]), stall(feeling.more["publish"]))


class Pending:
    """The cases, in the order in which the node allows them."""

    def __init__(self, report: Report, scratch: Path, tick: Tick) -> None:
        self._report = report
        self._folder = scratch / "pending"
        self._tick = tick
        wanted = whole_batches(MESSAGES)
        room = fitting(wanted, item_bytes=MESSAGE_BYTES, folder=scratch)
        self._messages = room // BATCH * BATCH
        if self._messages < wanted:
            self._report.notes.append(
                f"The disk has room for {self._messages:,} messages only, not {wanted:,}: the "
                "cases of pending messages are that much smaller."
            )

    def run(self) -> None:
        """Measure everything."""
        with running(self._folder) as server:
            self._measure_memory(server)
            server.kill()
        with ExitStack() as stack:
            self._storm(self._restart(stack))
        shutil.rmtree(self._folder)
        with running(self._folder) as server:
            self._measure_plain(server)

    def _measure_plain(self, server: Server) -> None:
        grown, _ = self._fill(server, "for now", "benchmarks.node.consuming:fill")
        note = f"the same for messages that are not scheduled; {grown['anonymous']:.0f} anonymous"
        self._report.add("unscheduled_10m_mb", [grown["total"]], "MB", note=note)

    def _measure_memory(self, server: Server) -> None:
        grown, watch = self._fill(server, "for later", "benchmarks.node.scheduling:fill")
        note = (
            f"RSS of the node, {self._messages:,} pending less none, ids and all; published at "
            f"{watch.rate / 1e3:.0f} K/s"
        )
        self._report.add("pending_10m_mb", [grown["total"]], "MB", bar=MEMORY_BAR, note=note)
        note = "of it not mapped files"
        self._report.add("pending_10m_anonymous_mb", [grown["anonymous"]], "MB", note=note)

    def _fill(self, server: Server, what: str, function: str) -> tuple[dict[str, float], Stopwatch]:
        """Publish very many; give by how much the node grew."""
        self._tick(f"publish {self._messages:,} {what}")
        before = memory_mb(server.group)
        watch = run_client(
            function, server, topic="many", batch=BATCH, messages=self._messages, window=WINDOW
        )
        after = memory_mb(server.group)
        return {kind: after[kind] - before[kind] for kind in after}, watch

    def _restart(self, stack: ExitStack) -> Server:
        """Start the node and kill it, again and again; give it as it runs last."""
        seconds: list[float] = []
        server = self._started(stack, seconds)
        while len(seconds) < rounds_of(RESTARTS):
            server.kill()
            server = self._started(stack, seconds)
        each = ", ".join(f"{s:.2f}" for s in seconds)
        note = f"SIGKILL, start, until ready; {self._messages:,} pending; in turn {each}"
        self._report.add("restart_10m_s", seconds, "s", bar=RESTART_BAR, note=note)
        size = memory_mb(server.group)
        note = f"RSS after a restart, all of the node; {size['anonymous']:.0f} anonymous"
        self._report.add("restart_10m_mb", [size["total"]], "MB", note=note)
        return server

    def _started(self, stack: ExitStack, seconds: list[float]) -> Server:
        self._tick("restart_10m_s")
        begun = time.perf_counter()
        server = stack.enter_context(running(self._folder))
        seconds.append(time.perf_counter() - begun)
        return server

    def _storm(self, server: Server) -> None:
        taken: dict[str, list[Stopwatch]] = {name: [] for name in storms()}
        felt: dict[str, list[Stall]] = {name: [] for name in ("none", *storms())}
        for _ in range(rounds_of(STORM_ROUNDS)):
            self._tick("no storm")
            with self._feeling(server) as feeling:
                start_ms = _now_ms()
                time.sleep(SPAN_MS / 1e3)
            felt["none"].append(stall_in(feeling.result(), start_ms, _now_ms()))
            for name, (messages, span_ms) in storms().items():
                self._tick(f"storm of {name}")
                batch = messages // STORM_BATCHES
                work = {"batch": batch, "messages": whole_batches(messages, batch=batch)}
                with self._feeling(server) as feeling:
                    took = run_client("benchmarks.node.storm:take", server, span_ms=span_ms, **work)
                taken[name].append(took)
                span = took.more["start_ms"], took.more["end_ms"]
                felt[name].append(stall_in(feeling.result(), *span))
        for name, watches in taken.items():
            self._add_lateness(name, watches, felt[name])
        self._add_stalls(felt)

    @contextmanager
    def _feeling(self, server: Server) -> Iterator[Future[Stopwatch]]:
        """Have a client call the node about other things meanwhile."""
        begun, enough = self._folder / "begun", self._folder / "enough"
        for file in (begun, enough):
            file.unlink(missing_ok=True)
        files = {"begun": str(begun), "enough": str(enough)}
        with ThreadPoolExecutor(1) as aside:
            feeling = aside.submit(run_client, "benchmarks.node.storm:feel", server, **files)
            try:
                while not begun.exists() and not feeling.done():
                    time.sleep(POLL_S)
                yield feeling
            finally:
                enough.touch()

    def _add_lateness(self, name: str, taken: list[Stopwatch], felt: list[Stall]) -> None:
        def middle(what: str, percentile: str) -> float:
            return median(float(watch.more[what][percentile]) for watch in taken)

        samples = [watch.more["fired_ms"]["p99"] for watch in taken]
        cpu = median(watch.server_cpu_us for watch in taken)
        note = (
            f"{taken[0].messages:,} due in {storms()[name][1]} ms: fired p50 "
            f"{middle('fired_ms', 'p50'):.0f}, delivered p50 {middle('taken_ms', 'p50'):.0f} p99 "
            f"{middle('taken_ms', 'p99'):.0f} ms late; stalls up to "
            f"{max(stall.worst_ms for stall in felt):.0f} ms; node {cpu:.0f} us each"
        )
        bar = LATENESS_BAR if name == FELT else None
        self._report.add(f"storm_{name}_lateness_p99_ms", samples, "ms", bar=bar, note=note)

    def _add_stalls(self, felt: dict[str, list[Stall]]) -> None:
        for case, storm, bar in (
            ("storm_stall_max_ms", FELT, STALL_BAR),
            ("quiet_stall_max_ms", "none", None),
        ):
            each = ", ".join(f"{stall.worst_ms:.0f}" for stall in felt[storm])
            worst = max(felt[storm], key=lambda stall: stall.worst_ms)
            note = f"slowest call less the median, by round {each}; worst: {worst}"
            self._report.add(case, [worst.worst_ms], "ms", bar=bar, note=note)


def storms() -> dict[str, tuple[int, int]]:
    """Give the storms by name: how many messages, due within how many milliseconds."""
    return {FELT: STORMS[FELT]} if is_smoke() else STORMS


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
