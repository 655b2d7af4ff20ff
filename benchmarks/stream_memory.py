"""What in-memory streams take: memory of waiting polls, of idle streams, operations in process.

A poll is counted on top of its connection: first all connections are open and quiet, then a poll
waits on each, and what the node has grown by meanwhile is the polls. Each round has a fresh node.
"""

from pathlib import Path

from benchmarks.client import Stopwatch, run_client
from benchmarks.harness import Bar, Report, Result, Tick, rounds_of, run_child, scaled
from benchmarks.node.running import running
from benchmarks.peers import nchan
from benchmarks.peers.cache import Absent
from benchmarks.peers.lineup import is_wanted

ROUNDS = 3
CORE_ROUNDS = 5
POLLS = 9_900
"""A node takes 10,000 connections at most; some are for who sends."""
CORE = "benchmarks.stream_core"
MEMORY_BAR = Bar(2_048, is_floor=False)
IDLE_BAR = Bar(500, is_floor=False)
RING_BAR = Bar(3_000_000)


def memory_steps() -> int:
    """Give how many steps the progress bar has."""
    return 2 * rounds_of(ROUNDS) + 2 + 2 * rounds_of(CORE_ROUNDS)


class StreamMemory:
    """These cases."""

    def __init__(self, report: Report, scratch: Path, tick: Tick) -> None:
        self._report = report
        self._scratch = scratch
        self._tick = tick
        self._polls = scaled(POLLS, least=50)

    def run(self) -> None:
        """Measure everything."""
        ours, theirs = [], []
        for number in range(rounds_of(ROUNDS)):
            self._tick("bytes_per_waiter")
            with running(self._scratch / f"waiters-{number}", is_http=True) as server:
                work = {"polls": self._polls}
                ours.append(run_client("benchmarks.node.streaming:waiters", server, **work))
            self._tick("nchan_bytes_per_waiter")
            if is_wanted(nchan.NAME):
                theirs += self._their_waiters(number)
        self._report.results.append(_per_waiter("bytes_per_waiter", ours, MEMORY_BAR))
        if theirs:
            self._report.peers.append(_per_waiter("nchan_bytes_per_waiter", theirs))
        self._add_idle()
        self._add_core()

    def _their_waiters(self, number: int) -> list[Stopwatch]:
        try:
            with nchan.running(self._scratch / f"nchan-{number}") as server:
                work = {"polls": self._polls}
                return [run_client("benchmarks.peers.nchan:waiters", server, **work)]
        except Absent:  # as was noted when it was to be started first
            return []

    def _add_idle(self) -> None:
        for case, kind, bar, what in (
            ("idle_1m_streams_mb", "left", IDLE_BAR, "somebody polled and left; nothing is kept"),
            ("idle_1m_used_streams_mb", "used", None, "each keeps its last message, of 128 B"),
        ):
            self._tick(case)
            measured = run_child(CORE, "idle", kind)
            note = f"growth by {measured['streams']:,} streams, in process; {what}"
            self._report.add(case, [measured["mb"]], "MB", bar=bar, note=note)

    def _add_core(self) -> None:
        for case, kind, bar, what in (
            ("ring_ops", "ring", RING_BAR, "put one, get one; a full ring of 100"),
            ("core_ops", "core", None, "send and receive in turn, 100 streams, without HTTP"),
        ):
            rates = []
            for _ in range(rounds_of(CORE_ROUNDS)):
                self._tick(case)
                rates.append(run_child(CORE, kind)["rate"])
            self._report.add(case, rates, "operations/s", bar=bar, note=f"{what}; in process")


def _per_waiter(case: str, watches: list[Stopwatch], bar: Bar | None = None) -> Result:
    def grown(watch: Stopwatch, start: str, end: str) -> float:
        # The kernel counts in pages: of very few polls nothing may be seen.
        return max(1.0, float(watch.more[end] - watch.more[start]) * 1_024 / watch.messages)

    samples = [grown(watch, "idle_kb", "waiting_kb") for watch in watches]
    idle = grown(watches[-1], "before_kb", "idle_kb")
    note = f"RSS, {watches[0].messages:,} polls less as many quiet connections of {idle:,.0f} B"
    return Result(case, samples, "B", bar, note)
