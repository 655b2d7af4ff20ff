"""The timers of one partition, driven: what is due is written to the log as fired.

The log decides everything; timers are a cache of it. A scheduled message is retired here only after
the frame that ends it is in the log, and both happen in one synchronous step, so nothing can come
between. Whatever becomes of the process after that, the log tells the next one.

Never early: `tick` compares with the wall clock as it is when it is called. The clock may be set at
any time, so the task never sleeps for more than a second without looking at it again. A storm is
fired in slices, and everyone else gets a turn between two of them.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from waterclock.log.frame import OFFSET_MAX
from waterclock.log.sidecars.endings import Ending
from waterclock.model.clock import Clock
from waterclock.model.errors import Closed, NotLeader, StorageError
from waterclock.model.sections import ScheduleConfig
from waterclock.node.counters import PartitionCounters
from waterclock.node.schedule.cold_segments import ColdSegments, LogTimers
from waterclock.node.schedule.firing import Firing
from waterclock.schedule.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from waterclock.schedule.hot_timers import HORIZONS_MS
from waterclock.schedule.ready import due_order
from waterclock.schedule.timer_index import TimerIndex
from waterclock.storage.flush import FlushQueue
from waterclock.storage.folders import memory
from waterclock.storage.folders.folder import Folder, write_whole
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.partition_store import PartitionStore

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Outcomes = npt.NDArray[np.uint8]

UNKNOWN: Final = 0
DONE: Final = 1
ALREADY_FIRED: Final = 2
CANCELLED: Final = 3
EXPIRED: Final = 4
"""What became of a wish to cancel or move: the numbers of `Outcome` in scheduler.proto."""

CHECKPOINT_NAME = "timers"
SLEEP_MS_MAX = 1_000
SCAN_ROWS = 65_536
LARGE = 1_000_000
"""So many scheduled messages move enough memory about for what is freed to be worth giving back
..."""
TRIM_MS = 2_000
"""... so often."""

log = logging.getLogger(__name__)


class TimerFiles:
    """The checkpoint of a partition's timers on disk. Nothing is lost with it but time.

    Its folder is open only while it is read or written: a node may have thousands of them.
    """

    def __init__(self, folder: Path | Folder) -> None:
        self._folder = folder
        self._mutex = threading.Lock()
        self._is_closed = False

    @contextmanager
    def _opened(self) -> Iterator[Folder]:
        """Have the folder for oneself."""
        if not isinstance(self._folder, Path):
            self._folder.lock()
            yield self._folder
            return
        # A power cut that takes the folder costs only time.
        folder = OsFolder(self._folder, is_durable=True)
        try:
            folder.lock()
            yield folder
        finally:
            folder.close()

    def save(self, checkpoint: Checkpoint) -> bool:
        """Write a checkpoint; tell whether that could be done. May run on a thread."""
        data = encode_checkpoint(checkpoint)
        try:
            with self._mutex:
                if self._is_closed:
                    return False  # its topic may be deleted, and must not come back
                with self._opened() as folder:
                    write_whole(folder, CHECKPOINT_NAME, [data])
                    folder.sync()
        except StorageError as error:
            log.warning("timers_not_saved reason=%s", error)
            return False
        return True

    def load(self) -> Checkpoint | None:
        """Return the checkpoint, or None if there is no whole one that can be read.

        Raises StorageError if the folder cannot be had.
        """
        if isinstance(self._folder, Path) and not self._folder.exists():
            return None  # to make it, and have it for oneself, is half of what a new log takes
        with self._mutex, self._opened() as folder:
            try:
                if CHECKPOINT_NAME not in folder.names():
                    return None
                file = folder.open(CHECKPOINT_NAME)
                checkpoint = decode_checkpoint(file.view(0, file.size()))
            except StorageError as error:
                log.warning("timers_not_read reason=%s", error)
                return None
            file.close()
            return checkpoint

    def close(self) -> None:
        """Write nothing more, once nobody does."""
        with self._mutex:
            self._is_closed = True
            if not isinstance(self._folder, Path):
                self._folder.close()


class Scheduler:
    """Fires the scheduled messages of one partition. Belongs to the loop that owns the store."""

    def __init__(
        self,
        store: PartitionStore,
        files: TimerFiles,
        config: ScheduleConfig,
        clock: Clock,
        counters: PartitionCounters,
        flush_queue: FlushQueue,
        found: LogTimers | None = None,
    ) -> None:
        self._store = store
        self._files = files
        self._config = config
        self._clock = clock
        self._counters = counters
        self._flush_queue = flush_queue
        self._segments = ColdSegments(store)
        self._segments.open(files.load(), found or LogTimers.of(store))
        now_ms = clock.now_ms()
        self.timers = TimerIndex(
            self._segments.cold,
            now_ms=now_ms,
            hot_window_ms=config.hot_window_ms,
            tick_ms=config.tick_ms,
        )
        for _ in self.timers.load(now_ms):
            pass
        if found is None:  # else the log may change under this
            self._segments.release_pages()
        if len(self.timers) >= LARGE:
            memory.trim()
        self.firing = Firing(
            store,
            self.timers,
            clock,
            counters,
            flush_queue.request_flush,
            rows_max=config.fire_messages_max,
        )
        self._alarm = asyncio.Event()
        self._chores = asyncio.Event()
        """There may be something to load, to read ahead or to save."""
        self._wakes_at = 0
        """When the sleeping task looks at the clock again."""

    @classmethod
    def open(
        cls,
        store: PartitionStore,
        folder: Path | Folder,
        config: ScheduleConfig,
        clock: Clock,
        counters: PartitionCounters,
        flush_queue: FlushQueue,
        found: LogTimers | None = None,
    ) -> "Scheduler":
        """Find the open scheduled messages of a store. Blocks; `folder` is for saved timers
        alone. While a log grows, do this on a thread with what was `found` in it before, and `add`
        what came since."""
        files = TimerFiles(folder)
        try:
            return cls(store, files, config, clock, counters, flush_queue, found)
        except BaseException:
            files.close()
            raise

    def __len__(self) -> int:
        """How many scheduled messages are open."""
        return len(self.timers)

    def __repr__(self) -> str:
        return f"<Scheduler {self.timers!r}>"

    # What happened

    def add(self, offsets: Int64s, due_ms: Int64s) -> None:
        """Take messages just appended for later; their offsets ascend."""
        self.timers.open(offsets, due_ms)
        self._expect(due_ms)

    def give_up(self) -> None:
        """Write nothing from now on: another node may lead, and do what these timers know not of.

        Whoever runs them still ends and closes them.
        """
        self.firing.is_over = True

    @property
    def is_over(self) -> bool:
        """They were given up."""
        return self.firing.is_over

    async def cancel(self, offsets: Int64s) -> Outcomes:
        """Let scheduled messages not fire; say of each what became of it. Durable on return."""
        self._check_running()
        outcomes, is_open = self._standing(offsets)
        chosen = np.unique(offsets[is_open])
        if len(chosen):
            try:
                self._store.cancel(chosen, now_ms=self._clock.now_ms())
                self.timers.retire(chosen)
            finally:
                self._flush_queue.request_flush()
            self._counters.cancelled += len(chosen)
        return await self._answered(outcomes)

    async def reschedule(self, offsets: Int64s, due_ms: Int64s) -> Outcomes:
        """Give scheduled messages new due times; say of each what became of it. Durable on return.

        Of several times for one scheduled message the last holds. You must have checked them.
        """
        self._check_running()
        outcomes, is_open = self._standing(offsets)
        chosen, last = np.unique(offsets[is_open][::-1], return_index=True)
        if len(chosen):
            due = due_ms[is_open][::-1][last]
            try:
                self._store.reschedule(chosen, due, now_ms=self._clock.now_ms())
                self.timers.move(chosen, due)
            finally:
                self._flush_queue.request_flush()
            self._counters.rescheduled += len(chosen)
            self._expect(due)
        return await self._answered(outcomes)

    async def outcomes(self, offsets: Int64s) -> Outcomes:
        """Tell what became of messages that are pending no more. Durable on return."""
        return await self._answered(self._ended(offsets))

    def _check_running(self) -> None:
        """Raise NotLeader if they were given up, which a caller may learn last."""
        if self.is_over:
            raise NotLeader("the timers of a partition")

    def _standing(self, offsets: Int64s) -> tuple[Outcomes, Bools]:
        """Return the outcome for each, taking those that are open as done, and which these are."""
        is_open = self.timers.is_open(offsets)
        outcomes = np.full(len(offsets), DONE, np.uint8)
        if not is_open.all():
            outcomes[~is_open] = self._ended(offsets[~is_open])
        return outcomes, is_open

    def _ended(self, offsets: Int64s) -> Outcomes:
        endings = self._store.endings(offsets)
        outcomes = np.where(self._store.reader.holds(offsets), ALREADY_FIRED, UNKNOWN)
        outcomes[endings == Ending.CANCELLED] = CANCELLED
        outcomes[endings == Ending.EXPIRED] = EXPIRED
        return outcomes.astype(np.uint8)

    async def _answered(self, outcomes: Outcomes) -> Outcomes:
        # Also for what happened before: it may not be durable yet.
        if (outcomes != UNKNOWN).any():
            await self._flush_queue.wait_flushed(self._store.end)
        return outcomes

    # What is there

    async def scan(self, start_ms: int, end_ms: int) -> AsyncIterator[tuple[Int64s, Int64s]]:
        """Yield (offsets, due times) of all scheduled messages due in [start_ms, end_ms), by
        offset.

        In slices, with a turn for others between two: what changes meanwhile is seen, or is not.
        """
        cursor = 0
        while True:
            offsets, due = self.timers.open_from(cursor, SCAN_ROWS)
            if not len(offsets):
                return
            cursor = int(offsets[-1]) + 1
            is_meant = (due >= start_ms) & (due < end_ms)
            yield offsets[is_meant], due[is_meant]
            await asyncio.sleep(0)

    async def upcoming(
        self, start_ms: int, end_ms: int, limit: int, *, after: int = -1
    ) -> tuple[Int64s, Int64s]:
        """Return (offsets, due times) of the first scheduled messages due in [start_ms, end_ms), in
        order.

        Of those due at `start_ms`, only those behind the offset `after`.
        """
        offsets: Int64s = np.empty(0, np.int64)
        due: Int64s = np.empty(0, np.int64)
        async for more, more_due in self.scan(start_ms, end_ms):
            is_next = (more_due > start_ms) | (more > after)
            if len(due) == limit:
                is_next &= more_due < due[-1]  # of the same time, those found before come first
            offsets = np.concatenate([offsets, more[is_next]])
            due = np.concatenate([due, more_due[is_next]])
            order = due_order(due, offsets)[:limit]
            offsets, due = offsets[order], due[order]
        return offsets, due

    async def horizons(self, now_ms: int) -> Int64s:
        """Count scheduled messages by how soon they are due: see `schedule.hot_timers.HORIZONS_MS`,
        and later."""
        edges = now_ms + np.array(HORIZONS_MS, np.int64)
        counts = np.zeros(len(edges) + 1, np.int64)
        async for _, due in self.scan(0, OFFSET_MAX):
            counts += np.bincount(edges.searchsorted(due), minlength=len(counts))
        return counts

    # Firing

    async def run(self) -> None:
        """Fire what is due, until cancelled; load, read ahead and save now and then."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._fire_for_ever())
            tasks.create_task(self._tend_for_ever())

    def wake(self) -> None:
        """Look at the clock now: it may have been set."""
        self._alarm.set()

    async def _fire_for_ever(self) -> None:
        while True:
            self._chores.set()
            if self.firing.is_surprised:
                await self.firing.read_ahead()
            if self.firing.fire_slice():
                await asyncio.sleep(0)
            else:
                await self._sleep()

    async def _sleep(self) -> None:
        now_ms = self._clock.now_ms()
        if self.firing.problem is None and self.timers.is_due(now_ms):
            # The moment has come since `fire_slice` looked at the clock.
            await asyncio.sleep(0)
            return
        self._alarm.clear()
        if not len(self.timers):
            self._wakes_at = OFFSET_MAX
            await self._alarm.wait()
            return
        deadline = self.timers.next_deadline()
        sleep_ms = SLEEP_MS_MAX
        # One that has passed waits for what comes before it to be loaded, or for room on the disk.
        if deadline is not None and deadline > now_ms and self.firing.problem is None:
            sleep_ms = min(sleep_ms, deadline - now_ms)
        self._wakes_at = now_ms + sleep_ms
        try:
            async with asyncio.timeout(sleep_ms / 1_000):
                await self._alarm.wait()
        except TimeoutError:
            return

    def _expect(self, due_ms: Int64s) -> None:
        self.firing.expect(due_ms)
        if len(due_ms) and int(due_ms.min()) < self._wakes_at:
            self._alarm.set()

    # Cold timers, and what is saved of them

    async def _tend_for_ever(self) -> None:
        """Do the chores, each second as long as something is pending."""
        saved_ms = trimmed_ms = self._clock.monotonic_ms()
        while True:
            await self._chores.wait()
            self._chores.clear()
            await self.firing.read_ahead()
            await self.tend()
            now_ms = self._clock.monotonic_ms()
            if now_ms - saved_ms >= self._config.checkpoint_ms:
                await self.save()
                saved_ms = now_ms
            if len(self) >= LARGE:
                self._segments.release_pages()
            if now_ms - trimmed_ms >= TRIM_MS and len(self) >= LARGE:
                await self._give_back_memory()
                trimmed_ms = now_ms
            await asyncio.sleep(SLEEP_MS_MAX / 1_000)

    async def tend(self) -> None:
        """Load what is hot now, and take in what has become of the segments."""
        now_ms = self._clock.now_ms()
        if self.timers.must_load(now_ms):
            for _ in self.timers.load(now_ms):
                await asyncio.sleep(0)
            self._alarm.set()
            await self._give_back_memory()
        if self._segments.is_behind:
            for _ in self._segments.follow():
                await asyncio.sleep(0)
            await self._give_back_memory()

    async def _give_back_memory(self) -> None:
        self._segments.release_pages()
        await asyncio.to_thread(memory.trim)

    async def save(self) -> None:
        """Save which scheduled messages of sealed segments are open, if that has changed."""
        if not self._segments.is_saved and not self._segments.is_behind:
            checkpoint = self._segments.checkpoint()
            # Before the wait: what changes meanwhile is to be saved again.
            self._segments.is_saved = True
            if not await asyncio.to_thread(self._files.save, checkpoint):
                self._segments.is_saved = False

    def close(self) -> None:
        """Save which scheduled messages are open, and let go of the files."""
        # What is not saved is in the log: the next opening only takes longer.
        try:
            if self._segments.is_torn:
                log.info("timers_not_saved reason=stopped while a segment was taken in")
            else:
                self._save_now()
        except (StorageError, Closed) as error:
            log.warning("timers_not_saved reason=%s", error)
        finally:
            self._files.close()

    def _save_now(self) -> None:
        for _ in self._segments.follow():
            pass
        if not self._segments.is_saved:
            self._files.save(self._segments.checkpoint())
