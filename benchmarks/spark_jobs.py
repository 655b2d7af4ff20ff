"""Jobs of the pipeline as anyone runs them: `waterclock pipeline ...`, the start of Spark and all.

Ten million messages of a million keys are compacted, and the snapshot replayed. Ten million more
are scheduled from a Parquet file into a node that another client publishes to meanwhile, a thousand
single messages a second: each is timed from the moment it was meant to be sent, and only those
count that fell between the first and the last message scheduled. Last, a report of a small topic
shows how long Spark takes to start, with its cache of classes and without.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.client import run_client
from benchmarks.harness import Bar, Report, Tick, is_smoke, rounds_of
from benchmarks.machine import ROOT
from benchmarks.node.running import running
from benchmarks.peers.pacing import percentiles
from benchmarks.peers.server import Server
from benchmarks.rows import BATCH, Rows
from benchmarks.spark_stage import PARTITIONS, amount

MESSAGES = 10_000_000
KEYS = 1_000_000
SMALL = 100_000
TOPIC = "jobs"
SINGLES_PER_S = 1_000
QUIET_S = 3
ARCHIVE_S_MAX = 60
STILL_S = 3
POLL_S = 0.05
JOB_S_MAX = 600
REPLAY_ROUNDS = 3
START_ROUNDS = 3
HOUR_MS = 3_600_000
AHEAD_MS = (HOUR_MS, 5 * HOUR_MS)
"""When the scheduled are due: none fires meanwhile."""
GROUP_BATCHES = 128
"""Batches in a row group of the file."""
COMPACT_BAR = Bar(60, is_floor=False)
REPLAY_BAR = Bar(1_000_000)
PUBLISH_BAR = Bar(50, is_floor=False)
START_BAR = Bar(10, is_floor=False)
FIRST_START_BAR = Bar(25, is_floor=False)
"""The first start ever writes down the classes that the others find."""


def job_steps() -> int:
    """Give how many steps the progress bar has."""
    starts = 0 if is_smoke() else 2 + START_ROUNDS
    return 4 + rounds_of(REPLAY_ROUNDS) + starts


class SparkJobs:
    """These cases."""

    def __init__(self, report: Report, scratch: Path, tick: Tick) -> None:
        self._report = report
        self._folder = scratch / "jobs"
        self._tick = tick
        self._messages = amount(MESSAGES)
        self._rows = Rows(min(KEYS, self._messages // 10), PARTITIONS)

    def run(self) -> None:
        """Measure everything."""
        with running(self._folder / "compact") as server:
            self._compact(server)
        with running(self._folder / "schedule") as server:
            self._schedule(server)
        if not is_smoke():  # other tests start it often enough
            with running(self._folder / "start") as server:
                self._start(server)

    def _load(self, server: Server, messages: int) -> None:
        self._tick(f"load {messages:,} messages")
        place = {"topic": TOPIC, "partitions": PARTITIONS}
        run_client("benchmarks.node.loading:create", server, **place)
        work = {"messages": messages, "keys": self._rows.keys}
        run_client("benchmarks.node.loading:load", server, **place, **work)

    # Compaction and what it is good for

    def _compact(self, server: Server) -> None:
        self._load(server, self._messages)
        numbers = range(self._messages // BATCH)
        kept = len(np.unique(np.concatenate([self._rows.keys_of(n) for n in numbers])))
        self._tick("compact_10m_s")
        seconds, summary = pipeline(server, "compact", TOPIC)
        assert summary["rows"] == kept, summary
        note = f"{self._messages:,} messages, {kept:,} keys; the start of Spark and all"
        self._report.add("compact_10m_s", [seconds], "s", bar=COMPACT_BAR, note=note)
        watches = []
        for _ in range(rounds_of(REPLAY_ROUNDS)):
            self._tick("fast_replay")
            work = {"topic": TOPIC, "messages": kept}
            watches.append(run_client("benchmarks.node.loading:replay", server, **work))
        rates = [watch.rate for watch in watches]
        note = "the snapshot, raw batches, by one client"
        self._report.add("fast_replay", rates, "messages/s", bar=REPLAY_BAR, note=note)

    # Scheduling in bulk

    def _schedule(self, server: Server) -> None:
        run_client("benchmarks.node.loading:create", server, topic=TOPIC, partitions=PARTITIONS)
        file = self._folder / "schedule.parquet"
        self._tick("write what is to be scheduled")
        write_scheduled(file, self._rows, self._messages)
        quiet, busy = self._folder / "quiet.npy", self._folder / "busy.npy"
        with self._trickling(server, quiet):
            time.sleep(QUIET_S)
        self._tick("publish_p99_during_schedule_ms")
        with self._trickling(server, busy):
            seconds, summary = pipeline(server, "schedule", TOPIC, str(file))
        work = {"topic": TOPIC, "partitions": PARTITIONS}
        span = run_client("benchmarks.node.loading:span", server, **work).more
        before = latencies(quiet)
        during = latencies(busy, span["first_ms"], span["last_ms"])
        note = (
            f"{SINGLES_PER_S:,} singles/s while {self._messages:,} are scheduled; p50 "
            f"{during['p50']:.1f} p99.9 {during['p999']:.1f}; before: p50 {before['p50']:.1f} p99 "
            f"{before['p99']:.1f} ms"
        )
        case = "publish_p99_during_schedule_ms"
        self._report.add(case, [during["p99"]], "ms", bar=PUBLISH_BAR, note=note)
        rate = span["rows"] / max(0.001, (span["last_ms"] - span["first_ms"]) / 1e3)
        note = f"by the schedule job, while it writes; {seconds:.1f} s in all"
        self._report.add("schedule_rows", [rate], "rows/s", note=note)
        assert span["rows"] == summary["rows"] == self._messages, (span, summary)

    @contextmanager
    def _trickling(self, server: Server, samples: Path) -> Iterator[None]:
        """Have a client publish singles meanwhile, and save how long each took."""
        begun, enough = self._folder / "begun", self._folder / "enough"
        for file in (begun, enough):
            file.unlink(missing_ok=True)
        work = {"rate": SINGLES_PER_S, "begun": str(begun), "enough": str(enough)}
        work |= {"samples": str(samples)}
        with ThreadPoolExecutor(1) as aside:
            singles = aside.submit(run_client, "benchmarks.node.loading:trickle", server, **work)
            try:
                while not begun.exists() and not singles.done():
                    time.sleep(POLL_S)
                yield
            finally:
                enough.touch()
            singles.result()

    # Starting

    def _start(self, server: Server) -> None:
        self._load(server, amount(SMALL))
        cache = self._folder / "cache"
        args = ("report", TOPIC, "--out", str(self._folder / "report.html"))
        self._tick("report_first_s")
        first, _ = pipeline(server, *args, cache=cache)
        wait_for_archive(cache)
        seconds = []
        for _ in range(START_ROUNDS):
            self._tick("report_cold_s")
            seconds.append(pipeline(server, *args, cache=cache)[0])
        note = f"of a topic of {amount(SMALL):,} messages, with the cache of classes"
        self._report.add("report_cold_s", seconds, "s", bar=START_BAR, note=note)
        note = "the first ever: it also makes the cache, and goes on so when the command ended"
        self._report.add("report_first_s", [first], "s", bar=FIRST_START_BAR, note=note)


def wait_for_archive(cache: Path) -> None:
    """Return when the archive of classes is there and grows no more, or it takes too long."""
    sizes = [0]
    while len(sizes) < ARCHIVE_S_MAX and not (
        sizes[-1] and sizes[-STILL_S:] == sizes[-1:] * STILL_S
    ):
        time.sleep(1)
        sizes.append(sum(file.stat().st_size for file in cache.glob("*/classes-*")))


def pipeline(
    server: Server, job: str, *args: str, cache: Path | None = None
) -> tuple[float, dict[str, Any]]:
    """Run a job; give how long all of it took, and its summary."""
    environ = {**os.environ, "WATERCLOCK_ADDRESS": f"127.0.0.1:{server.port}"}
    if cache is not None:
        environ["XDG_CACHE_HOME"] = str(cache)
    command = [sys.executable, "-m", "waterclock", "pipeline", job, *args, "--json"]
    begun = time.perf_counter()
    run = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False,
        timeout=JOB_S_MAX,
    )  # fmt: skip
    seconds = time.perf_counter() - begun
    if run.returncode:
        raise RuntimeError(f"{job} failed: {run.stderr[-2_000:]}")
    return seconds, json.loads(run.stdout)


def latencies(samples: Path, start_ms: float = 0, end_ms: float = float("inf")) -> dict[str, float]:
    """Give the percentiles of the messages that were sent in a span of time, or waited in it."""
    meant, took = np.load(samples)
    is_in = (meant + took >= start_ms) & (meant <= end_ms)
    return percentiles(took[is_in] / 1e3)


def write_scheduled(file: Path, rows: Rows, messages: int) -> None:
    """Write messages that are due in some hours, for Spark to schedule."""
    now_ms = time.time_ns() // 1_000_000
    rng = np.random.default_rng(1)
    schema = pa.schema(
        {"key": pa.binary(), "value": pa.binary(), "due_time": pa.timestamp("ms", tz="UTC")}
    )
    with pq.ParquetWriter(file, schema) as writer:
        for first in range(0, messages // BATCH, GROUP_BATCHES):
            batches = []
            for number in range(first, min(first + GROUP_BATCHES, messages // BATCH)):
                dues = pa.array(now_ms + rng.integers(*AHEAD_MS, BATCH)).cast(schema.types[-1])
                columns = [*rows.columns_of(number), dues]
                batches.append(pa.record_batch(columns, schema=schema))
            writer.write_table(pa.Table.from_batches(batches))
