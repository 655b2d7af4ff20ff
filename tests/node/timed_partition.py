"""A partition with its scheduler on simulated disks, a clock turned by hand, and no task at all.

Each step that a node would do by itself (fire, flush, save) is called for.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tests.kit.clock import ManualClock
from tests.kit.disk import Choose, SimulatedFolder, lose_all
from tests.storage.stores import DEDUP, LOG, batch_of, open_store, stored
from waterclock.log.frame import Frame
from waterclock.log.schema import decode
from waterclock.model.message import Message
from waterclock.model.sections import ScheduleConfig
from waterclock.node.counters import PartitionCounters
from waterclock.node.schedule.scheduler import Scheduler
from waterclock.storage.flush import FlushQueue
from waterclock.storage.partition_store import PartitionStore

T = TypeVar("T")
Int64s = npt.NDArray[np.int64]

SCHEDULE = ScheduleConfig()


def int64s(values: list[int]) -> Int64s:
    """Return offsets or times as an array."""
    return np.array(values, np.int64)


def ran(awaitable: Awaitable[T]) -> T:
    """Run something that waits for nothing but what is done already."""

    async def main() -> T:
        return await awaitable

    return asyncio.run(main())


class InlineFlushes(FlushQueue):
    """Flushes when somebody waits; a queue of its own does so in a node."""

    def __init__(self, partition: "TimedPartition") -> None:
        self._partition = partition

    def request_flush(self) -> None:
        """Leave it to who waits."""

    async def wait_flushed(self, end: int) -> None:
        self._partition.flush()
        assert self._partition.store.acknowledged_end >= end


class TimedPartition:
    """One store, its scheduler, their disks and their clock."""

    def __init__(self, schedule: ScheduleConfig = SCHEDULE, **log: object) -> None:
        self.log = replace(LOG, **log)  # type: ignore[arg-type]
        self.schedule = schedule
        self.clock = ManualClock()
        self.log_folder = SimulatedFolder()
        self.timer_folder = SimulatedFolder()
        self.counters = PartitionCounters()
        self.store: PartitionStore
        self.scheduler: Scheduler
        self.open()

    def open(self) -> None:
        """Open what is on the disks."""
        self.store = open_store(
            self.log_folder, log=self.log, dedup=DEDUP, now_ms=self.clock.now_ms()
        )
        self.scheduler = Scheduler.open(
            self.store,
            self.timer_folder,
            self.schedule,
            self.clock,
            self.counters,
            InlineFlushes(self),
        )

    def flush(self) -> None:
        """Run one fsync, if one is due."""
        sync = self.store.begin_sync(self.clock.monotonic_ms())
        if sync is not None:
            sync.run()
            self.store.finish_sync(sync)

    def append(self, *messages: Message) -> list[int]:
        """Publish without flushing; return the offsets."""
        now = self.clock.now_ms()
        batch = batch_of(messages, now)
        appended = self.store.append(batch, now_ms=now)
        if appended.scheduled is not None:
            self.scheduler.add(*appended.scheduled)
        return [int(offset) for offset in appended.offsets]

    def publish(self, *messages: Message) -> list[int]:
        """Publish durably; return the offsets."""
        offsets = self.append(*messages)
        self.flush()
        return offsets

    def cancel(self, *offsets: int) -> list[int]:
        """Cancel; return the outcomes."""
        outcomes: list[int] = ran(self.scheduler.cancel(int64s(list(offsets)))).tolist()
        return outcomes

    def reschedule(self, *moves: tuple[int, int]) -> list[int]:
        """Move (offset, due time); return the outcomes."""
        offsets, due = (int64s(list(column)) for column in zip(*moves, strict=True))
        outcomes: list[int] = ran(self.scheduler.reschedule(offsets, due)).tolist()
        return outcomes

    def fire(self) -> list[int]:
        """Fire all that is due; return the offsets of the scheduled messages, in the order
        written."""
        start = self.store.end
        ran(self.scheduler.tend())
        for _ in range(10_000):
            if not self.scheduler.firing.fire_slice():
                break
        else:
            raise AssertionError("firing does not end")
        self.flush()
        return self.fired_from(start)

    def fired_from(self, start: int) -> list[int]:
        """Return the scheduled messages that the log says have fired from an offset on."""
        fired: list[int] = []
        for frame in self.store.frames(start):
            if frame.header.type.name == "FIRED":
                fired += self.scheduled_in(frame)
        return fired

    @staticmethod
    def scheduled_in(frame: Frame) -> list[int]:
        """Return which scheduled messages a `fired` frame speaks of."""
        rows = decode(frame.header, frame.body)
        return [int(offset) for offset in rows.column("scheduled_offset").to_pylist()]

    def values(self) -> list[bytes | None]:
        """Return the values of all deliverable messages, in log order."""
        rows = [
            row
            for frame in self.store.frames(self.store.start)
            for _, row in sorted(stored(frame).items())
        ]
        return [row.value for row in rows if row.kind in ("DATA", "FIRED")]

    def save(self) -> None:
        """Save the timers."""
        ran(self.scheduler.tend())
        ran(self.scheduler.save())

    def pending(self) -> dict[int, int]:
        """Return offset and due time of each open scheduled message, as the scheduler has them."""
        offsets, due = ran(self.scheduler.upcoming(0, 1 << 62, 1_000_000))
        return dict(zip(offsets.tolist(), due.tolist(), strict=True))

    def scheduled(self) -> dict[int, int]:
        """Return offset and due time of each open scheduled message, as the log has them."""
        offsets, due = self.store.open_scheduled()
        return dict(zip(offsets.tolist(), due.tolist(), strict=True))

    # Ends and beginnings

    def restart(self) -> None:
        """Stop cleanly and open again."""
        self.scheduler.close()
        self.store.close()
        self.log_folder = self.log_folder.reopen()
        self.timer_folder = self.timer_folder.reopen()
        self.open()

    def kill(self) -> None:
        """End the process without a word and open again; the page cache stays."""
        self.log_folder.close()
        self.timer_folder.close()
        self.log_folder = self.log_folder.reopen()
        self.timer_folder = self.timer_folder.reopen()
        self.open()

    def cut_power(self, choose: Choose = lose_all) -> None:
        """End the machine and open again; what was not synced goes, as `choose` decides."""
        self.log_folder = self.log_folder.crash(choose)
        self.timer_folder = self.timer_folder.crash(choose)
        self.open()
