"""Ten million messages pending in our node: the memory they take, starting again, and storms.

The node is killed as soon as the last one is acknowledged, and started again and again; then
messages fall due in storms while the many still wait. They are due in one to five hours, so all of
them are kept in memory.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.client import Stopwatch, run_client
from benchmarks.harness import Bar, Report, Tick, rounds_of, whole_batches
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
LEAD_MS = 5_000
"""Time to start the clients of a storm and to publish it."""
SPAN_MS = 1_000
STORMS = {"1k": 1_000, "10k": 10_000, "100k": 100_000}
AT_ONCE = "100k_at_once"
"""The largest again, all due in the same millisecond."""
FELT = "100k"
TICK_MS = 100

MEMORY_BAR = Bar(400, is_floor=False)
RESTART_BAR = Bar(10, is_floor=False)
LATENESS_BAR = Bar(TICK_MS + 150, is_floor=False)
STALL_BAR = Bar(50, is_floor=False)


def pending_steps() -> int:
    """Give how often progress is told."""
    return 1 + rounds_of(RESTARTS) + rounds_of(STORM_ROUNDS) * (len(STORMS) + 2)


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
            self._fill(server)
            server.kill()
        with ExitStack() as stack:
            self._storm(self._restart(stack))

    def _fill(self, server: Server) -> None:
        self._tick(f"publish {self._messages:,} for later")
        before = memory_mb(server.group)
        work = {"topic": "pending", "batch": BATCH, "messages": self._messages, "window": WINDOW}
        watch = run_client("benchmarks.node.scheduling:fill", server, **work)
        after = memory_mb(server.group)
        grown = {kind: after[kind] - before[kind] for kind in after}
        note = (
            f"RSS of the node, {self._messages:,} pending less none, ids and all; of it "
            f"{grown['anonymous']:.0f} anonymous; published at {watch.rate / 1e3:.0f} K/s"
        )
        self._report.add("pending_10m_mb", [grown["total"]], "MB", bar=MEMORY_BAR, note=note)

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
        taken: dict[str, list[Stopwatch]] = {}
        felt: dict[str, list[Stopwatch]] = {}
        for _ in range(rounds_of(STORM_ROUNDS)):
            self._tick("no storm")
            felt.setdefault("none", []).append(self._feel(server))
            for name, rate in (*STORMS.items(), (AT_ONCE, STORMS[FELT])):
                self._tick(f"storm of {name}")
                span_ms = 1 if name == AT_ONCE else SPAN_MS
                took, feeling = self._both(server, rate, span_ms)
                taken.setdefault(name, []).append(took)
                felt.setdefault(name, []).append(feeling)
        for name, watches in taken.items():
            self._add_lateness(name, watches, felt[name])
        self._add_stalls(felt)

    def _both(self, server: Server, messages: int, span_ms: int) -> tuple[Stopwatch, Stopwatch]:
        """Have one client take a storm while another one feels it."""
        start_ms = _now_ms() + LEAD_MS
        count = whole_batches(messages) if messages > BATCH else BATCH
        storm = {"start_ms": start_ms, "span_ms": span_ms}
        work = {**storm, "batch": BATCH, "messages": count, "window": WINDOW}
        with ThreadPoolExecutor(1) as aside:
            feeling = aside.submit(run_client, "benchmarks.node.storm:feel", server, **storm)
            taken = run_client("benchmarks.node.storm:take", server, **work)
            return taken, feeling.result()

    def _feel(self, server: Server) -> Stopwatch:
        start_ms = _now_ms() + LEAD_MS
        return run_client("benchmarks.node.storm:feel", server, start_ms=start_ms, span_ms=SPAN_MS)

    def _add_lateness(self, name: str, taken: list[Stopwatch], felt: list[Stopwatch]) -> None:
        def middle(what: str, percentile: str) -> float:
            return median(float(watch.more[what][percentile]) for watch in taken)

        samples = [watch.more["fired_ms"]["p99"] for watch in taken]
        cpu = median(watch.server_cpu_us for watch in taken)
        stall = max(_stall_ms(watch) for watch in felt)
        note = (
            f"{taken[0].messages:,} due in {1 if name == AT_ONCE else SPAN_MS} ms: fired p50 "
            f"{middle('fired_ms', 'p50'):.0f}; delivered p50 {middle('taken_ms', 'p50'):.0f} p99 "
            f"{middle('taken_ms', 'p99'):.0f} ms late; stall {stall:.0f} ms; node {cpu:.0f} us each"
        )
        bar = LATENESS_BAR if name == FELT else None
        self._report.add(f"storm_{name}_lateness_p99_ms", samples, "ms", bar=bar, note=note)

    def _add_stalls(self, felt: dict[str, list[Stopwatch]]) -> None:
        samples = [_stall_ms(watch) for watch in felt[FELT]]
        kinds = ("look", "publish")
        worst = {kind: max(w.more[kind]["stall_ms"] for w in felt[FELT]) for kind in kinds}
        usual = {kind: median(w.more[kind]["p50_ms"] for w in felt[FELT]) for kind in kinds}
        note = (
            f"slowest call less the median, worst storm: GetNode {worst['look']:.1f} "
            f"(median {usual['look']:.1f}), Publish {worst['publish']:.1f} "
            f"(median {usual['publish']:.1f})"
        )
        self._report.add("storm_stall_max_ms", [max(samples)], "ms", bar=STALL_BAR, note=note)
        quiet = [_stall_ms(watch) for watch in felt["none"]]
        self._report.add("quiet_stall_max_ms", [max(quiet)], "ms", note="the same without a storm")


def _stall_ms(watch: Stopwatch) -> float:
    return max(float(watch.more[kind]["stall_ms"]) for kind in ("look", "publish"))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
