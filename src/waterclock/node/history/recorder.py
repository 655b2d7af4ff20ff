"""Samples the node every five seconds, for as long as it runs, and keeps its history in a file.

The file is written every few minutes and when the node stops; a node that is killed has lost what
came after. It is no part of the log: if it cannot be read or written, nothing else is the matter.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from waterclock.history.codec import FILE_BYTES_MAX, decode, encode
from waterclock.history.history import STEP_MS, History, Sample
from waterclock.model.clock import Clock
from waterclock.model.errors import StorageError
from waterclock.node.disk_watch import DiskWatch
from waterclock.node.groups.groups import Groups
from waterclock.node.history.counting import (
    GroupCounts,
    NodeCounts,
    TopicCounts,
    count_all,
    lateness_of,
)
from waterclock.node.streams.host import StreamHost
from waterclock.node.topics import Topics
from waterclock.storage.folders.folder import write_whole
from waterclock.storage.folders.os_folder import OsFolder

FOLDER = "history"
NAME = "samples"
SAVE_MS = 300_000
"""How often it is written: as much is lost if the node is killed."""
EARLY_MS = 100
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

log = logging.getLogger(__name__)


class Recorder:
    """The history of a node. `run` must be running."""

    def __init__(
        self,
        folder: Path,
        topics: Topics,
        groups: Groups,
        streams: StreamHost,
        disk: DiskWatch,
        clock: Clock,
    ) -> None:
        self._folder = folder / FOLDER
        self._topics = topics
        self._groups = groups
        self._streams = streams
        self._disk = disk
        self._clock = clock
        self.counts: NodeCounts | None = None
        """Of the last sample."""
        self._before_cpu_s = 0.0
        self._before_streams = (0, 0)
        self._saved_ms = clock.monotonic_ms()
        self._writing = threading.Lock()
        self.history = History()

    def __repr__(self) -> str:
        return f"<Recorder {self.history!r}>"

    async def run(self) -> None:
        """Sample right after the end of each slot, until cancelled."""
        found = await asyncio.to_thread(self._load)
        if found is not None:
            self.history = found
        while True:
            await self.sample()
            if self._clock.monotonic_ms() - self._saved_ms >= SAVE_MS:
                await self.save()
            left_ms = STEP_MS - self._clock.now_ms() % STEP_MS
            # A timer may go off a moment early: that slot has its sample.
            await asyncio.sleep((left_ms if left_ms >= EARLY_MS else left_ms + STEP_MS) / 1_000)

    async def sample(self) -> None:
        """Note what happened since the last sample; the first has nothing to compare with."""
        counts = await count_all(
            self._topics.all(), self._groups.hosts(), self._clock.monotonic_ms()
        )
        space = await self._disk.space()
        free = float("nan") if space is None else float(space.free_bytes)
        cpu_s, streams = time.process_time(), self._streams.table.counters
        moved = (streams.sent, streams.received)
        before, self.counts = self.counts, counts
        if before is not None and counts.steady_ms > before.steady_ms:
            seconds = (counts.steady_ms - before.steady_ms) / 1_000
            around = [
                max(0, now - then) / seconds
                for now, then in zip(moved, self._before_streams, strict=True)
            ]
            cpu = (cpu_s - self._before_cpu_s) / seconds
            taken = _sample(before, counts, around, (free, _memory_bytes(), cpu))
            self.history.take(taken, self._clock.now_ms() - STEP_MS // 2)
        self._before_cpu_s, self._before_streams = cpu_s, moved

    async def save(self) -> None:
        """Write the file. Nothing is noted meanwhile."""
        self._saved_ms = self._clock.monotonic_ms()
        # To pack it takes longer than anybody should wait for the loop.
        await asyncio.to_thread(self._write)

    def save_at_stop(self) -> None:
        """Write the file, on the way out. Blocks."""
        if self.history.hour.newest:
            self._write()

    def _write(self) -> None:
        # Who was cancelled while it saved has left that to its thread.
        with self._writing:
            try:
                folder = OsFolder(self._folder)
                try:
                    write_whole(folder, NAME, [encode(self.history)])
                finally:
                    folder.close()
            except StorageError as error:
                log.warning("history_not_saved reason=%s", error)

    def _load(self) -> History | None:
        try:
            with open(self._folder / NAME, "rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("history_not_read reason=%s", error)
            return None
        found = decode(data)
        if found is None:
            log.warning("history_not_read reason=it is damaged, or of another version")
        return found


def _sample(
    before: NodeCounts,
    after: NodeCounts,
    streams: list[float],
    machine: tuple[float, float, float],
) -> Sample:
    """Return the row of a slot, in the order of `history.series.NODE`."""
    seconds = (after.steady_ms - before.steady_ms) / 1_000
    topics: dict[str, tuple[float, ...]] = {}
    late_before, late_after = list(_NO_TOPIC.lateness), list(_NO_TOPIC.lateness)
    fired = published = 0.0
    for name, now in after.topics.items():
        then = before.topics.get(name, _NO_TOPIC)
        came = max(0, now.published - then.published) / seconds
        went = max(0, now.delivered - then.delivered) / seconds
        went_off = max(0, now.fired - then.fired) / seconds
        late = lateness_of(then.lateness, now.lateness, 1.0) if went_off else float("nan")
        topics[name] = (came, went, float(now.lag), float(now.pending), went_off, late)
        published += came
        fired += went_off
        if went_off:
            late_before = [a + b for a, b in zip(late_before, then.lateness, strict=True)]
            late_after = [a + b for a, b in zip(late_after, now.lateness, strict=True)]
    rate = partial(_rate, before.groups, after.groups, seconds)
    node = [
        published,
        rate(lambda each: each.delivered),
        rate(lambda each: each.acked),
        fired,
        rate(lambda each: each.dead_lettered),
        rate(lambda each: each.redelivered),
        *streams,
        lateness_of(late_before, late_after, 0.99),
        lateness_of(late_before, late_after, 1.0),
        sum(each.pending for each in after.topics.values()),
        sum(each.lag for each in after.groups),
        sum(each.unacked for each in after.groups),
        sum(each.size_bytes + each.copied_bytes for each in after.topics.values()),
        *machine,
    ]
    return Sample(node, topics)


def _rate(
    before: Iterable[GroupCounts],
    after: Iterable[GroupCounts],
    seconds: float,
    count: Callable[[GroupCounts], int],
) -> float:
    """Return how many a second, over all groups; one that began anew counts from nothing."""
    known = {(each.topic, each.group): count(each) for each in before}
    return sum(max(0, count(e) - known.get((e.topic, e.group), 0)) for e in after) / seconds


def _memory_bytes() -> float:
    """Return the resident memory of the process."""
    with open("/proc/self/statm", "rb") as file:
        return float(int(file.read().split()[1]) * _PAGE_BYTES)


_NO_TOPIC = TopicCounts("", 0)
