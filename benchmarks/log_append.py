"""Appending to one partition's log, from the bytes a producer sent to the acknowledgement.

A round publishes batches, at most `WINDOW` of them unacknowledged, and ends when the last one is
acknowledged: under `group` that is when an fsync has covered it. Parsing is part of it, making the
bytes is not. The bodies of a round lie cold in memory, as they would after a network card's DMA.
"""

import os
import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from benchmarks.harness import Bar, Report, Tick, alternate, rounds_of, scaled
from benchmarks.messages import Producer
from waterclock.log.batch import parse_batch
from waterclock.model.limits import Limits
from waterclock.model.sections import DedupConfig, Fsync, LogConfig
from waterclock.runtime.clock import SystemClock
from waterclock.storage.flush import GroupCommit
from waterclock.storage.folders import os_folder
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.opening import open_partition
from waterclock.storage.partition_store import PartitionStore

WINDOW = 64
"""Unacknowledged batches at any time, as of 64 callers or of one with 64 in flight."""
ROUNDS = 5
BATCHES = {1: 3_000, 100: 2_000, 1_000: 1_000, 4_000: 400}
"""How many batches of each size make a round: half a second or so."""
ALWAYS_BATCHES = 100
"""Under `always` each takes an fsync, so they are fewer."""
CPU_BATCHES = 20_000
WARM_UP_BATCHES = 200

BARS = {"append_1000_group_dedup": Bar(600_000), "append_1000_interval": Bar(1_500_000)}
CPU_BAR = Bar(60, is_floor=False)

LIMITS = Limits()
CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Setup:
    """One cell of the matrix."""

    batch_messages: int
    fsync: Fsync
    dedup: bool

    @property
    def case(self) -> str:
        """Its name. Dedup is on by default, and `append_1000_interval` is a fixed name."""
        words = ["append", str(self.batch_messages), self.fsync]
        if not self.dedup:
            words.append("nodedup")
        elif self.fsync != "interval":
            words.append("dedup")
        return "_".join(words)

    @property
    def batches(self) -> int:
        wanted = ALWAYS_BATCHES if self.fsync == "always" else BATCHES[self.batch_messages]
        return scaled(wanted, least=4)


@dataclass(frozen=True, slots=True)
class Round:
    """What one round took."""

    messages: int
    wall_s: float
    cpu_s: float
    sync_s: list[float]

    @property
    def rate(self) -> float:
        return self.messages / self.wall_s


def measure_appends(report: Report, scratch: Path, tick: Tick) -> None:
    """Measure the whole matrix."""
    runs = {setup.case: _Case(setup, scratch).run for setup in setups()}
    for case, rounds in alternate(runs, rounds=rounds_of(ROUNDS), tick=tick).items():
        cpu = median(r.cpu_s / r.messages for r in rounds) * 1e6
        syncs = [seconds for r in rounds for seconds in r.sync_s]
        note = f"{cpu:.2f} CPU s/M, {_about(syncs)}"
        rates = [r.rate for r in rounds]
        report.add(case, rates, "messages/s", bar=BARS.get(case), note=note)


def measure_append_cpu(report: Report, scratch: Path, tick: Tick) -> None:
    """Measure the processor time of a batch of one, without any fsync."""
    for case, dedup in (("append_1_cpu_us", True), ("append_1_nodedup_cpu_us", False)):
        tick(case)
        samples = [_cpu_us_of_one(scratch / case, dedup=dedup) for _ in range(rounds_of(ROUNDS))]
        bar = CPU_BAR if dedup else None
        report.add(case, samples, "us", bar=bar, note="CPU per batch of 1, no fsync")


def setups() -> list[Setup]:
    """Give every cell of the matrix."""
    policies: tuple[Fsync, ...] = ("group", "interval", "always")
    return [
        Setup(size, fsync, dedup)
        for size in BATCHES
        for fsync in policies
        for dedup in (True, False)
    ]


def create_store(folder: Path, *, fsync: Fsync = "group", dedup: bool = True) -> PartitionStore:
    """Open the partition in a folder, or begin one."""
    return open_partition(
        OsFolder(folder),
        log=LogConfig(fsync=fsync),
        dedup=DedupConfig(enabled=dedup),
        now_ms=CLOCK.now_ms(),
        new_log_id=os.urandom(16),
    )


def publish(store: PartitionStore, commit: GroupCommit, bodies: Sequence[bytes]) -> None:
    """Append all batches and wait until the last one is acknowledged."""
    waiting: deque[int] = deque()
    for body in bodies:
        now_ms = CLOCK.now_ms()
        appended = store.append(parse_batch(body, LIMITS, now_ms=now_ms), now_ms=now_ms)
        waiting.append(appended.durable_at)
        commit.step()
        if len(waiting) >= WINDOW:
            commit.wait_for(waiting[0])
        acknowledged_end = store.acknowledged_end
        while waiting and waiting[0] <= acknowledged_end:
            waiting.popleft()
    commit.wait_for(store.end)


class _Case:
    """Runs rounds of one setup, each on a partition of its own."""

    def __init__(self, setup: Setup, scratch: Path) -> None:
        self._setup = setup
        self._folder = scratch / setup.case
        self._producer = Producer(1, batch_messages=setup.batch_messages)

    def run(self) -> Round:
        setup = self._setup
        bodies = self._producer.bodies(setup.batches)
        store = create_store(self._folder, fsync=setup.fsync, dedup=setup.dedup)
        commit = GroupCommit(store, CLOCK)
        with _timed_syncs() as sync_s:
            wall, cpu = time.perf_counter(), time.process_time()
            publish(store, commit, bodies)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert store.acknowledged_end == len(bodies) * setup.batch_messages
        commit.close()
        shutil.rmtree(self._folder)
        return Round(len(bodies) * setup.batch_messages, wall, cpu, sync_s)


def _cpu_us_of_one(folder: Path, *, dedup: bool) -> float:
    store = create_store(folder, fsync="interval", dedup=dedup)
    producer = Producer(1, batch_messages=1)
    _append(store, producer.bodies(WARM_UP_BATCHES))
    bodies = producer.bodies(scaled(CPU_BATCHES, least=100))
    start = time.process_time()
    _append(store, bodies)
    seconds = time.process_time() - start
    store.close()
    shutil.rmtree(folder)
    return seconds / len(bodies) * 1e6


def _append(store: PartitionStore, bodies: Sequence[bytes]) -> None:
    for body in bodies:
        now_ms = CLOCK.now_ms()
        store.append(parse_batch(body, LIMITS, now_ms=now_ms), now_ms=now_ms)


@contextmanager
def _timed_syncs() -> Iterator[list[float]]:
    """Note how long each fsync took, while this is open."""
    seen: list[float] = []
    sync = os_folder.sync_descriptor

    def timed(number: int) -> None:
        start = time.perf_counter()
        sync(number)
        seen.append(time.perf_counter() - start)

    os_folder.sync_descriptor = timed
    try:
        yield seen
    finally:
        os_folder.sync_descriptor = sync


def _about(syncs: list[float]) -> str:
    if len(syncs) < 2:
        return f"{len(syncs)} fsyncs"
    cuts = quantiles(syncs, n=100)
    p50, p99 = cuts[49] * 1e3, cuts[98] * 1e3
    return f"{len(syncs) / rounds_of(ROUNDS):.0f} fsyncs a round, p50 {p50:.2f} p99 {p99:.2f} ms"
