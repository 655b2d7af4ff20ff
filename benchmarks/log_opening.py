"""Opening a partition of many messages: after a crash, without side-cars, in peace; and reading it.

A process appends and is killed; the folder it leaves is opened again and again, each time by a
fresh process that ends without closing, so that every round finds the same state. The page cache
is warm unless a case is called cold.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import (
    Bar,
    Report,
    Tick,
    child_command,
    is_smoke,
    rounds_of,
    run_child,
    scaled,
)
from benchmarks.log_append import CLOCK, create_store, publish
from benchmarks.machine import ROOT, fitting, forget_cached, rss_mb
from benchmarks.messages import Producer
from waterclock.log.segment import SUFFIX
from waterclock.log.sidecars.sidecar import SidecarKind
from waterclock.storage.flush import GroupCommit

MESSAGES = 20_000_000
BATCH_MESSAGES = 1_000
CHUNK_BATCHES = 1_000
"""Batches made, then published and timed, at a time."""
ROUNDS = 3
MESSAGE_BYTES = 200
"""What a message takes on disk, index and all, and a little more."""

READ_BAR = Bar(5_000_000)
START_BAR = Bar(10, is_floor=False)
SIDECARS_BAR = Bar(3, is_floor=False)
REBUILD_BAR = Bar(30, is_floor=False)

Small = dict[str, bytes]


def openings_steps() -> int:
    """Give how many steps the progress bar has."""
    return 3 + 4 * rounds_of(ROUNDS)


class Openings:
    """The cases, in the order in which the folder allows them."""

    def __init__(self, report: Report, scratch: Path, module: str, tick: Tick) -> None:
        self._report = report
        self._folder = scratch / "opening"
        self._module = module
        self._tick = tick
        self._end = 0
        self._wanted = scaled(MESSAGES, least=2 * BATCH_MESSAGES)
        self._messages = fitting(self._wanted, item_bytes=MESSAGE_BYTES, folder=scratch)

    def run(self) -> None:
        """Measure everything that needs a large log."""
        if self._messages < self._wanted:
            self._report.notes.append(
                f"The disk has room for {self._messages:,} messages only, not {self._wanted:,}: "
                "the cases of opening and reading are that much smaller."
            )
        self._fill()
        crashed = self._small_files()
        for case, cold in _warm_and_cold("open_sidecars"):
            answers = []
            for _ in range(rounds_of(ROUNDS)):
                self._restore(crashed)
                answers.append(self._opened(case, cold=cold))
            note = f"after SIGKILL, {answers[0]['end']:,} messages, {'cold' if cold else 'warm'}"
            self._add(case, answers, bar=None if cold else SIDECARS_BAR, note=note)
        self._read()
        self._start()
        self._rebuild()

    def _fill(self) -> None:
        """Have a process append, and kill it."""
        self._tick(f"append {self._messages:,} messages, then crash")
        command = child_command(self._module, "fill", self._folder, self._messages)
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as child:
            assert child.stdout is not None
            line = child.stdout.readline()
            child.send_signal(signal.SIGKILL)
        if not line:
            raise RuntimeError("the process that fills the log ended early")
        answer = json.loads(line)
        self._end = answer["end"]
        note = (
            f"from {answer['end'] // 2:,} to {answer['end']:,} ids in the window, side-cars saved"
        )
        note += f" meanwhile, {answer['cpu_s']:.2f} CPU s/M"
        self._report.add("append_1000_group_dedup_full", answer["rates"], "messages/s", note=note)

    def _read(self) -> None:
        self._tick("read_frames")
        answer = run_child(self._module, "read", self._folder)
        note = f"frames of 1000, checksums checked, warm, {answer['gb_s']:.1f} GB/s"
        self._report.add("read_frames", answer["rates"], "messages/s", bar=READ_BAR, note=note)

    def _start(self) -> None:
        """Open after a clean close, up to the first answer about an id."""
        run_child(self._module, "close", self._folder)
        answers = [self._opened("dedup_start_s") for _ in range(rounds_of(ROUNDS))]
        note = f"open after a clean close, {answers[0]['ids']:,} ids, first id checked"
        self._add("dedup_start_s", answers, bar=START_BAR, note=note)
        grown = [answer["rss_mb"] for answer in answers]
        self._report.add("open_rss_mb", grown, "MB", note="growth by that, mapped files included")

    def _rebuild(self) -> None:
        """Open without side-cars, so that every frame is read."""
        for case, cold in _warm_and_cold("open_rebuild"):
            answers = []
            for _ in range(1 if cold else rounds_of(ROUNDS)):
                self._remove_sidecars()
                answers.append(self._opened(case, cold=cold))
            note = f"side-cars deleted, {'cold' if cold else 'warm'}"
            self._add(case, answers, bar=None if cold else REBUILD_BAR, note=note)

    def _remove_sidecars(self) -> None:
        for kind in SidecarKind:
            for file in self._folder.glob(f"*{kind.suffix}"):
                file.unlink()

    def _opened(self, case: str, *, cold: bool = False) -> dict[str, Any]:
        self._tick(case)
        if cold:
            for file in self._folder.iterdir():
                forget_cached(file)
        answer = run_child(self._module, "open", self._folder)
        # All were acknowledged: to open fast and lose some would be no feat.
        if not answer["end"] == answer["ids"] == self._end:
            raise RuntimeError(f"{case}: of {self._end} messages there are {answer}")
        return answer

    def _add(self, case: str, answers: list[dict[str, Any]], *, bar: Bar | None, note: str) -> None:
        seconds = [answer["seconds"] for answer in answers]
        self._report.add(case, seconds, "s", bar=bar, note=note)

    def _small_files(self) -> Small:
        """Take a copy of all but the segments: opening mends what a crash left, once."""
        files = self._folder.iterdir()
        return {file.name: file.read_bytes() for file in files if file.suffix != SUFFIX}

    def _restore(self, small: Small) -> None:
        for file in self._folder.iterdir():
            if file.suffix != SUFFIX and file.name not in small:
                file.unlink()
        for name, data in small.items():
            (self._folder / name).write_bytes(data)


def _warm_and_cold(case: str) -> list[tuple[str, bool]]:
    """Give the names of a case, and which of them drops the page cache; a smoke run does not."""
    warm, cold = (f"{case}_s", False), (f"{case}_cold_s", True)
    return [warm] if is_smoke() else [warm, cold]


# What the processes do


def child_fill(folder: str, messages: str) -> None:
    """Append, tell how fast, and wait to be killed."""
    producer = Producer(1, batch_messages=BATCH_MESSAGES)
    store = create_store(Path(folder))
    commit = GroupCommit(store, CLOCK)
    batches = -(-int(messages) // BATCH_MESSAGES)
    rates, cpu_s = [], []
    for start in range(0, batches, CHUNK_BATCHES):
        bodies = producer.bodies(min(CHUNK_BATCHES, batches - start))
        count = len(bodies) * BATCH_MESSAGES
        wall, cpu = time.perf_counter(), time.process_time()
        publish(store, commit, bodies)
        rates.append(count / (time.perf_counter() - wall))
        cpu_s.append((time.process_time() - cpu) / count * 1e6)
    half = len(rates) // 2
    answer = {"rates": rates[half:], "cpu_s": median(cpu_s[half:]), "end": store.end}
    print(json.dumps(answer), flush=True)
    sys.stdin.read()


def child_open(folder: str) -> dict[str, float]:
    """Open, and check one id."""
    before = rss_mb()
    start = time.perf_counter()
    store = create_store(Path(folder))
    assert store.ids is not None
    store.ids.lookup(np.array([1], np.uint64))
    seconds = time.perf_counter() - start
    assert not store.faults
    grown = rss_mb() - before
    return {"seconds": seconds, "rss_mb": grown, "end": store.end, "ids": len(store.ids)}


def child_close(folder: str) -> dict[str, float]:
    """Open and close in peace."""
    store = create_store(Path(folder))
    store.close()
    return {"end": store.end}


def child_read(folder: str) -> dict[str, Any]:
    """Read the whole log in turns of one fetch each, as a consumer would."""
    store = create_store(Path(folder))
    rates, size = [], 0
    for _ in range(rounds_of(ROUNDS) + 1):
        offset, size = int(store.start), 0
        start = time.perf_counter()
        while offset < store.acknowledged_end:
            frames = store.read(offset)
            size += sum(frame.header.size for frame in frames)
            offset = frames[-1].header.end_offset
        seconds = time.perf_counter() - start
        rates.append((offset - store.start) / seconds)
    # The first round maps the files.
    rates = rates[1:]
    return {"rates": rates, "gb_s": size / (store.end - store.start) * max(rates) / 1e9}


def leave(answer: dict[str, Any]) -> None:
    """Print the answer and end at once, closing nothing, as in a crash."""
    print(json.dumps(answer), flush=True)
    os._exit(0)
