"""One partition in a node: its log, its flush queue and its timers.

Appending is one synchronous step (decide, write, note what is scheduled), then a wait for the disk.
A partition that cannot be opened stands here too, with its problem: the others go on.

A node that is alone has all of it open from the start. Of several nodes some have a replica of the
partition, and one of these leads it; whoever replicates it moves the host from one role to another:

    closed      no replica is open here; `leader` tells who to ask
    follower    the log is open and takes the frames of the leader: no publishes, no timers
    leader      it takes publishes; once `is_led`, its epoch is committed and its timers run

What is published on a node that does not lead goes on to the leader, through `remote`.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from waterclock.log.append import Appended
from waterclock.log.batch import Batch
from waterclock.model.clock import Clock
from waterclock.model.errors import (
    Closed,
    Fenced,
    NotLeader,
    PartitionFaulty,
    StorageError,
    Unavailable,
)
from waterclock.model.ids import Epoch, Offset
from waterclock.model.message import Acks
from waterclock.model.views import PartitionInfo
from waterclock.node.counters import PartitionCounters
from waterclock.node.partition.tracing import partition_spans
from waterclock.node.schedule.cold_segments import LogTimers
from waterclock.node.schedule.scheduler import Scheduler
from waterclock.storage.flush import FlushQueue
from waterclock.storage.lone_append import write_lone
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.replica_log import ReplicaLog

if TYPE_CHECKING:
    from waterclock.node.partition.remote_log import RemoteReads

T = TypeVar("T")
Int64s = npt.NDArray[np.int64]
Parts = tuple[PartitionStore, FlushQueue]
Role = Literal["alone", "leader", "follower", "closed"]
Notified = Callable[[Exception | None], None]
"""Called when something may be answered for, or with why it may not."""

log = logging.getLogger(__name__)


class RemotePublish(Protocol):
    """Asks the leader of a partition to publish."""

    async def publish(
        self, host: "PartitionHost", batch: Batch, *, allow_duplicate: bool, acks: Acks
    ) -> Appended:
        """Return what the leader answered. Raises NotLeader or Fenced if it does not lead."""
        ...


class LogOpening(Protocol):
    """Opens the log of a replica; blocks, on any thread. One that `was_here` and is gone is faulty,
    and empty."""

    def __call__(self, *, was_here: bool) -> tuple[Parts, ReplicaLog]: ...


class TimersOpening(Protocol):
    """Loads the timers of a log that was opened; blocks, on any thread."""

    def __call__(
        self, store: PartitionStore, flush_queue: FlushQueue, found: LogTimers
    ) -> Scheduler: ...


class PartitionHost:
    """A partition of a topic. Make one with `open_host` or `replica_host` of `opening`."""

    def __init__(
        self,
        topic: str,
        partition: int,
        clock: Clock,
        *,
        opening: LogOpening | None = None,
        loading: TimersOpening | None = None,
    ) -> None:
        """One with an `opening` is a replica's, closed at first; `loading` is for its timers."""
        self.topic = topic
        self.partition = partition
        self.clock = clock
        self.counters = PartitionCounters()
        self.problem: str | None = None
        """Why it could not be opened."""
        self.spans = partition_spans(topic, partition)
        self.role: Role = "alone" if opening is None else "closed"
        self.epoch = Epoch(0)
        """Under which this node leads, or last led."""
        self.leader = ""
        """The node that leads it, empty if nobody is known to."""
        self.is_led = False
        """This node leads, and what was there before is committed: readers and timers may go."""
        self.paused = ""
        """Why a leader takes no publishes at the moment."""
        self.is_handing_over = False
        """It is paused until another replica leads, or it is clear that none will."""
        self.remote: RemotePublish | None = None
        self.reads: RemoteReads | None = None
        """Reads the copy of another node, where none is open here."""
        self.replica: ReplicaLog | None = None
        """The log as one of several copies, while it is open."""
        self.on_role: list[Callable[[PartitionHost], None]] = []
        """Called when `role`, `is_led` or `leader` has changed, or the log was opened anew, or a
        reader has met damage that other copies may not have."""
        self.removal: Callable[[], bool] = lambda: False
        """Removes the files of a replica that is closed; blocks, and says if there were any."""
        self.rewriting = asyncio.Lock()
        """Held while a segment is rewritten: nobody may close the log then."""
        self.has_others: Callable[[], bool] = lambda: False
        """Set by whoever replicates it: says if other replicas count, which have what is lost here
        when the log is damaged."""
        self.notify_flushed_by_all: Callable[[int, Notified], None] | None = None
        """Set by whoever replicates it: calls when all replicas have flushed up to an offset."""
        self._opening = opening
        self._loading = loading
        self._opened: Parts | None = None
        self._scheduler: Scheduler | None = None
        self._unloaded: list[tuple[Int64s, Int64s]] | None = None
        """What was scheduled while the timers are loaded."""

    def __repr__(self) -> str:
        state = self.role if self.problem is None else self.problem
        return f"<PartitionHost {self.topic}/{self.partition} {state} {self._opened}>"

    @property
    def store(self) -> PartitionStore:
        """The log; raises PartitionFaulty if it could not be opened, NotLeader if none is here."""
        return self._parts()[0]

    @property
    def flush_queue(self) -> FlushQueue:
        """Makes what is written durable, and wakes the tasks that wait for it."""
        return self._parts()[1]

    @property
    def scheduler(self) -> Scheduler:
        """The timers; raises NotLeader where they do not run: on a follower, or not yet."""
        self._parts()
        if self._scheduler is None or self._scheduler.is_over:
            raise NotLeader(f"the timers of {self.topic}/{self.partition}", leader=self.leader)
        return self._scheduler

    @property
    def is_open(self) -> bool:
        """It can be read and, unless it is faulty or followed, written."""
        return self._opened is not None

    def met_damage(self) -> bool:
        """Note that a reader has met damage in the log; say if others have what is lost here."""
        has_others = self.has_others()
        if has_others:
            # Its readers go on elsewhere; not in the midst of their reading.
            asyncio.get_running_loop().call_soon(self._tell)
        return has_others

    def view(self) -> PartitionInfo:
        """Return the partition as it is now."""
        if not self.is_open:
            return PartitionInfo(self.partition, problem=self.problem or "is not open")
        store = self.store
        return PartitionInfo(
            self.partition,
            start_offset=store.start,
            end_offset=store.acknowledged_end,
            size_bytes=sum(segment.end_position for segment in store.segments),
            scheduled=0 if self._scheduler is None else len(self._scheduler),
            problem=f"damaged, takes no publishes: {store.faults[0]}" if store.faults else "",
        )

    def take(self, parts: Parts, scheduler: Scheduler) -> None:
        """Take up what was opened for a node that is alone."""
        self._opened, self._scheduler = parts, scheduler

    def drop(self, error: StorageError) -> None:
        """Let go of a log that opened but could not be made durable; it is not open, then."""
        self.store.fail(error)
        self.close()
        self._opened = None
        self.problem = str(error)

    # Publishing

    async def publish(
        self, batch: Batch, *, allow_duplicate: bool = False, acks: Acks = "quorum"
    ) -> Appended:
        """Append a batch; it is durable on return, and with replicas on as many as `acks` says."""
        if self.is_elsewhere:
            assert self.remote is not None
            return await self.remote.publish(
                self, batch, allow_duplicate=allow_duplicate, acks=acks
            )
        begun = time.perf_counter()
        appended = self.append(batch, allow_duplicate=allow_duplicate)
        await self.wait_durable(batch, appended, begun=begun, acks=acks)
        return appended

    @property
    def is_elsewhere(self) -> bool:
        """Another node is to be asked to take what is published."""
        return self.remote is not None and (not self.is_here or self.is_handing_over)

    @property
    def is_here(self) -> bool:
        """This node takes its publishes, and no other."""
        return self.role in ("alone", "leader")

    async def wait_durable(
        self, batch: Batch, appended: Appended, *, begun: float, acks: Acks = "quorum"
    ) -> None:
        """Return when what was appended, at the time `begun`, may be answered for."""
        end = appended.durable_at
        if acks == "quorum" or self.role == "alone":
            await self.flush_queue.wait_flushed(end)
        else:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.notify_acks(end, partial(_settle, future), acks=acks)
            await future
        self.note_durable(batch, begun=begun)

    def notify_acks(self, end: Offset, call: Notified, *, acks: Acks) -> None:
        """Call, perhaps at once, when everything below `end` is as durable as `acks` says, or with
        why it will not be. The call must not raise."""
        queue = self.flush_queue
        if acks == "quorum" or self.role == "alone":
            queue.notify_flushed(end, call)
        elif acks == "leader":
            queue.notify_flushed_here(end, call)
        else:
            # First a majority: what all have flushed could still be cut, before it is committed.
            queue.notify_flushed(end, partial(self._committed, end, call))

    def _committed(self, end: Offset, call: Notified, error: Exception | None) -> None:
        if error is not None or self.notify_flushed_by_all is None:
            call(error)
        else:
            self.notify_flushed_by_all(end, call)

    def note_durable(self, batch: Batch, *, begun: float) -> None:
        """Note that what was appended at the time `begun` may be answered for."""
        took_ms = (time.perf_counter() - begun) * 1_000
        self.counters.publish_ms.observe(took_ms)
        if self.spans is not None:
            self.spans.appended(batch.rows, took_ms)

    @property
    def id_seed(self) -> int:
        """Under which its log has the fingerprints of ids; 0 where there are none."""
        ids = None if self._opened is None else self._opened[0].ids
        return 0 if ids is None else ids.seed

    def append_lone(
        self, message_id: bytes, body: bytes, *, fp: int, now_ms: int, flags: int
    ) -> tuple[Offset, bool]:
        """Append one message that is due now, as `write_lone` does; only where nobody else has a
        copy of the log. You must wait until its offset is flushed before you answer for it."""
        assert self.role == "alone", self.role
        store, flush_queue = self._parts()
        if self.paused:
            raise self._asked_too_soon()
        try:
            store.check_appendable()
            offset, is_new = write_lone(store, message_id, body, fp=fp, now_ms=now_ms, flags=flags)
        finally:
            flush_queue.request_flush()
        counters = self.counters
        counters.batches += 1
        counters.published_bytes += len(body)
        if is_new:
            counters.published += 1
        else:
            counters.duplicates += 1
        return offset, is_new

    def append(self, batch: Batch, *, allow_duplicate: bool = False) -> Appended:
        """Append a batch; you must wait until `durable_at` is flushed before you answer for it.

        Raises NotLeader on a node that does not lead.
        """
        store, flush_queue = self._parts()
        if not self.is_here:
            raise NotLeader(f"{self.topic}/{self.partition}", leader=self.leader)
        if self.paused:
            raise self._asked_too_soon()
        try:
            appended = store.append(
                batch, now_ms=self.clock.now_ms(), allow_duplicate=allow_duplicate
            )
        finally:
            flush_queue.request_flush()
        if appended.scheduled is not None:
            self._schedule(*appended.scheduled)
        counters, new = self.counters, appended.new_count
        counters.batches += 1
        counters.published += new
        counters.published_bytes += len(batch.body)
        counters.duplicates += batch.count - new
        return appended

    def _asked_too_soon(self) -> Unavailable:
        return Unavailable(f"{self.topic}/{self.partition}: {self.paused}: ask again")

    def _schedule(self, offsets: Int64s, due_ms: Int64s) -> None:
        if self._scheduler is not None:
            self._scheduler.add(offsets, due_ms)
        elif self._unloaded is not None:
            self._unloaded.append((offsets, due_ms))
        # Else the log has it, and the timers are loaded from there once it is led.

    # Roles: called by whoever replicates the partition, in its loop

    async def open_replica(self, *, was_here: bool = False) -> ReplicaLog | None:
        """Open the log as a follower's; None if it cannot be, with the problem. An empty one in the
        place of one that `was_here` is faulty."""
        assert self._opening is not None, "no replica"
        assert self._opened is None, "open already"
        try:
            opened = await _on_thread(partial(self._opening, was_here=was_here), undo=_close_opened)
        except StorageError as error:
            self.problem = str(error)
            log.error("replica_closed topic=%s/%d reason=%s", self.topic, self.partition, error)
            self._tell()
            return None
        self._opened, self.replica = opened
        self.problem = None
        self._become("follower")
        return self.replica

    def follow(self, leader: str) -> None:
        """Know who leads, if anyone does."""
        if leader != self.leader:
            self.leader = leader
            self._tell()

    def admit(self, epoch: Epoch, *, leader: str) -> None:
        """Take publishes, as the leader of an epoch, or again after a pause."""
        self.epoch, self.leader, self.paused = epoch, leader, ""
        self.is_handing_over = False
        self._become("leader")

    def lead(self) -> None:
        """All that was there is committed: readers may go. You must load and run the timers."""
        assert self.role == "leader", self.role
        self.is_led = True
        self._tell()

    async def load_timers(self) -> Scheduler | None:
        """Load the timers of a log that takes publishes meanwhile; None where there are none."""
        store, flush_queue = self._parts()
        if self._loading is None:
            return None
        self._unloaded = []
        found = LogTimers.of(store)
        try:
            scheduler = await _on_thread(
                partial(self._loading, store, flush_queue, found), undo=Scheduler.close
            )
            for offsets, due_ms in self._unloaded:
                scheduler.add(offsets, due_ms)
        finally:
            self._unloaded = None
        self._scheduler = scheduler
        scheduler.firing.spans = self.spans
        self._tell()
        return scheduler

    def unload_timers(self) -> None:
        """Let go of the timers. Nothing may run them any more."""
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            scheduler.close()

    def pause(self, why: str, *, fails_waiting: bool) -> None:
        """Take no publishes for now; it still leads. Unless it `fails_waiting`, another is to."""
        self.paused, self.is_handing_over = why, not fails_waiting
        if fails_waiting:
            self._fail_waiting(why)

    def step_down(self, why: str) -> None:
        """Take no more publishes; who waits for one learns that it may have happened or not.

        Nothing is written by the timers any more; you must end them.
        """
        self.is_led, self.paused, self.is_handing_over = False, "", False
        if self._scheduler is not None:
            self._scheduler.give_up()
        self._fail_waiting(why)
        if self.role == "leader":
            self.leader = ""
            self._become("follower")

    def close_replica(self, why: str) -> None:
        """Let go of the log: it is opened anew later, or is no longer kept here."""
        self.step_down(why)
        self.unload_timers()
        self.replica = None
        opened, self._opened = self._opened, None
        self._become("closed")
        if opened is not None:
            opened[1].close()

    async def remove_files(self) -> None:
        """Remove what this node has of the partition, for others have it now: it must be closed.

        What cannot be removed stays, and is tried again when the node next starts.
        """
        assert self._opened is None, "it is open"
        try:
            is_removed = await asyncio.to_thread(self.removal)
        except OSError as error:
            log.warning("replica_not_removed topic=%s/%d: %s", self.topic, self.partition, error)
            return
        if is_removed:
            log.info("replica_removed topic=%s/%d", self.topic, self.partition)

    def unknown(self, why: str) -> Fenced:
        """Return what a publish is told that may have happened, or not."""
        return Fenced(f"{self.topic}/{self.partition}: {why}: it may have been stored; ask again")

    def _fail_waiting(self, why: str) -> None:
        if self._opened is not None:
            self._opened[1].fail_waiting(self.unknown(why))

    def _become(self, role: Role) -> None:
        self.role = role
        self._tell()

    def _tell(self) -> None:
        for callback in tuple(self.on_role):
            callback(self)

    # Ending

    def close(self) -> None:
        """Flush the log, save the timers, let go of the files."""
        if self._opened is not None:
            store, flush_queue = self._opened
            with ExitStack() as rest:
                rest.callback(flush_queue.close)
                rest.callback(self.unload_timers)
                # First, so that the timers can be saved as they are; after a failure they cannot.
                with suppress(StorageError, Closed):
                    store.sync()

    def _parts(self) -> Parts:
        if self._opened is None:
            if self.problem is None and self.role == "closed":
                raise NotLeader(f"{self.topic}/{self.partition}", leader=self.leader)
            raise PartitionFaulty(f"{self.topic}/{self.partition} is not open: {self.problem}")
        return self._opened


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return  # whoever waited is gone
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _close_opened(opened: tuple[Parts, ReplicaLog]) -> None:
    (_, flush_queue), _ = opened
    flush_queue.close()


async def _on_thread(work: Callable[[], T], *, undo: Callable[[T], None]) -> T:
    """Return what is made on a thread; one that nobody waits for any more is undone."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        if future.exception() is None:
            undo(future.result())
        raise
