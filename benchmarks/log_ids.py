"""The index of message ids with the window full: how fast, and how much memory.

Measured in a process of its own: ids are inserted in batches, segments are sealed as the store
seals them, and what the process has grown by then is the index.
"""

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness import Bar, Report, Tick, rounds_of, run_child, scaled
from benchmarks.machine import rss_mb
from benchmarks.messages import Producer
from waterclock.log.append import find_repeats
from waterclock.log.id_index.index import IdIndex
from waterclock.model.sections import DedupConfig

WINDOW_IDS = 20_000_000
SEGMENT_IDS = 2_900_000
"""As many messages of 128 B as fit a segment of 512 MiB."""
BATCH_IDS = 1_000
ROUNDS = 3
TIMED_IDS = 1_000_000

RATE_BAR = Bar(1_000_000)
RSS_BAR = Bar(1_000, is_floor=False)


def measure_ids(report: Report, module: str, tick: Tick) -> None:
    """Measure in fresh processes."""
    answers: list[dict[str, Any]] = []
    for _ in range(rounds_of(ROUNDS)):
        tick("dedup_ids")
        answers.append(run_child(module, "ids"))
    ids = answers[0]["ids"]
    rates = [answer["rate"] for answer in answers]
    note = f"check + insert, {ids:,} ids in the window"
    report.add("dedup_ids", rates, "ids/s", bar=RATE_BAR, note=note)
    grown = [answer["rss_mb"] for answer in answers]
    note = f"growth by {ids:,} ids, all inserted by this process"
    report.add("dedup_rss_mb", grown, "MB", bar=RSS_BAR, note=note)


def child_ids() -> dict[str, float]:
    """Fill an index, then check and insert what is new to it."""
    producer = Producer(1, batch_messages=BATCH_IDS)
    window = scaled(WINDOW_IDS, least=2 * BATCH_IDS)
    segment = scaled(SEGMENT_IDS, least=BATCH_IDS)
    before = rss_mb()
    index = IdIndex(seed=12_345, ids_max=DedupConfig().ids_max)
    index.open_segment(0)
    offset = base = 0
    while offset < window:
        if offset - base >= segment:
            index.seal()
            base = offset
            index.open_segment(base)
        offset = _insert(index, producer, offset)
    grown = rss_mb() - before
    return {"ids": offset, "rss_mb": grown, "rate": _rate(index, producer, offset)}


def _insert(index: IdIndex, producer: Producer, offset: int) -> int:
    (ids,) = producer.ids(1)
    index.insert(index.fingerprints(ids), offset)
    return offset + len(ids)


def _rate(index: IdIndex, producer: Producer, offset: int) -> float:
    batches = producer.ids(scaled(TIMED_IDS // BATCH_IDS, least=2))
    start = time.perf_counter()
    for ids in batches:
        fps = index.fingerprints(ids)
        repeats = find_repeats(index, ids, fps, _other_ids, oldest_ms=0)
        assert repeats is None
        index.insert(fps, offset)
        offset += len(ids)
    return len(batches) * BATCH_IDS / (time.perf_counter() - start)


def _other_ids(offsets: npt.NDArray[np.int64]) -> list[tuple[bytes, int]]:
    """Stand in for the log where two ids share a fingerprint: every stored id is another one."""
    return [(b"", 0)] * len(offsets)
