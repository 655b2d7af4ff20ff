"""One partition on one simulated node: the real core and the real log, and what a shell does.

The core decides; here its effects are performed on the log, the network and the coordinator, each
with the delays and failures of the world. Publishes wait here for their commit, and timers fire
here while the replica leads.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, assert_never

import numpy as np

from tests.cluster.history.events import Copied, Dropped, Led
from tests.cluster.simulation.topics.frames import Frozen, frozen
from tests.cluster.simulation.topics.installs import Installing
from tests.cluster.simulation.topics.machine import BEGUN_MS
from tests.cluster.simulation.topics.session import KEYS
from waterclock.cluster.coordinator.questions import Outcome as Heard
from waterclock.cluster.coordinator.questions import Read
from waterclock.cluster.coordinator.records import PartitionRecord, decode_record, encode_record
from waterclock.cluster.coordinator.requests import (
    Get,
    KeyValue,
    Put,
    RangeResult,
    Revision,
    Txn,
    TxnResult,
    Unchanged,
    one_key,
)
from waterclock.cluster.replication import effects as do
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.messages import Frames, Message
from waterclock.cluster.replication.replica import Replica
from waterclock.log.batch import encode_batch
from waterclock.model.errors import FrameDamaged, StorageFull
from waterclock.model.ids import Epoch, Millis, Offset
from waterclock.model.limits import Limits
from waterclock.model.message import Acks
from waterclock.model.message import Message as Sent
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.model.units import KIB
from waterclock.storage.fsyncs import Sync
from waterclock.storage.installation import lost_log
from waterclock.storage.opening import open_partition
from waterclock.storage.promises import KeptPromise
from waterclock.storage.replica_log import ReplicaLog
from waterclock.storage.rewrite import Wanted, rewrites

if TYPE_CHECKING:
    from tests.cluster.simulation.topics.process import Process

LOG = LogConfig(
    segment_bytes=8 * KIB,
    preallocate_bytes=1 * KIB,
    index_every_bytes=1 * KIB,
    checkpoint_every_bytes=4 * KIB,
)
DEDUP = DedupConfig()
LIMITS = Limits()
FIRED_MAX = 5
"""Timers that are fired with one frame."""
Answer = Literal["acked", "refused", "unknown", "ended"]
"""`refused`: not here, or not now; `ended`: the scheduled message is not pending any more."""
Answered = Callable[[Answer, int | None], None]


class Waiting(NamedTuple):
    """A request that is answered once the log is committed up to an offset, or what `acks` says."""

    durable_at: Offset
    offset: int | None
    answered: Answered
    acks: Acks


class Hosted:
    """A replica on a process that runs."""

    def __init__(self, process: "Process", log_id: bytes, *, votes: bool) -> None:
        self.process = process
        self.log_id = log_id
        self.me = ReplicaId(f"{process.name}:{process.disk_id}")
        self.partition = process.world.partition_names[log_id]
        self.is_open = False
        """It takes publishes."""
        self.is_led = False
        """Its timers run."""
        self.waiting: list[Waiting] = []
        self._todo: deque[do.Effect] = deque()
        self._is_at_work = False
        self._is_cut = False
        self._is_damaged = False
        self._copied_end = 0
        self.installing: Installing | None = None
        self._timers_at: tuple[int, int] = (-1, 0)
        self._woken_ms: int | None = None
        kept = process.promises.get(log_id)
        if votes and kept.epoch > 0:
            lost_log.note_if_lost(process.machine.folder(log_id))
        self.log = self._opened()
        self.core = Replica(
            self.me, log_id, self.log, promised=kept.epoch, candidate=kept.candidate
        )

    def __repr__(self) -> str:
        return f"<Hosted {self.partition} on {self.me}, {self.log.store!r}, {self.core!r}>"

    def _opened(self) -> ReplicaLog:
        machine = self.process.machine
        store = open_partition(
            machine.folder(self.log_id),
            log=LOG,
            dedup=DEDUP,
            now_ms=machine.wall_ms(),
            new_log_id=self.log_id,
        )
        if store.faults:
            self.process.world.faulty(self.process.name, str(store.faults[0]))
        return ReplicaLog(store)

    @property
    def now_ms(self) -> int:
        return self.process.now_ms

    # Events in, effects out

    def tell(self, effects: list[do.Effect]) -> None:
        """Perform what the core answered, in order, and what it answers to that."""
        self._todo.extend(effects)
        if self._is_at_work:
            return
        self._is_at_work = True
        try:
            while self._todo and not self.process.is_gone:
                self._perform(self._todo.popleft())
        finally:
            self._is_at_work = False
        self._wake()

    def _wake(self) -> None:
        """Tick the core when it wants to."""
        due_ms = self.core.next_deadline()
        if due_ms is None or (self._woken_ms is not None and self._woken_ms <= due_ms):
            return
        self._woken_ms = max(due_ms, self.now_ms)
        self.process.soon(self._woken_ms - self.now_ms, self._tick)

    def _tick(self) -> None:
        self._woken_ms = None
        due_ms = self.core.next_deadline()
        if due_ms is not None and due_ms <= self.now_ms:
            self.tell(self.core.tick(self.now_ms))
        else:
            self._wake()

    def _perform(self, effect: do.Effect) -> None:
        match effect:
            case do.Send(to, message):
                self.process.send(to, message)
            case do.Stream():
                self._stream(effect)
            case do.SavePromise(epoch, candidate):
                self.process.save_promise(self, KeptPromise(epoch, candidate))
            case do.Swap(record, revision):
                self._swap(record, revision)
            case do.ReadRecord():
                self._read_record()
            case do.Append(data, leader_epoch):
                self._write(
                    lambda: self.log.append_frames(
                        memoryview(data),
                        leader_epoch=leader_epoch,
                        now_ms=self.process.machine.wall_ms(),
                    )
                )
            case do.BeginEpoch(epoch):
                self._write(
                    lambda: self.log.begin_epoch(epoch, now_ms=self.process.machine.wall_ms())
                )
            case do.Truncate(end):
                self._truncate(end)
            case do.Install(source):
                self.installing = Installing(self, source)
            case do.Replace():
                self._replace()
            case do.CommitTo(end):
                self.log.commit(end)
                self._committed()
            case _:
                self._role(effect)

    def _role(self, effect: do.Opened | do.Paused | do.Led | do.SteppedDown | do.Problem) -> None:
        world = self.process.world
        world.tell(f"{self.me} {self.partition}: {effect}")
        match effect:
            case do.Opened(epoch):
                self.is_open = True
                world.note(Led(self.me, self.partition, int(epoch), self.now_ms))
            case do.Led(epoch):
                self.is_led = True
            case do.Paused(_, fails_waiting):
                self.is_open = False
                if fails_waiting:
                    self.fail_waiting()
            case do.SteppedDown(_):
                self.is_open = self.is_led = False
                self.fail_waiting()
            case do.Problem(text):
                # People must be told of disks that are full or rot; all else is no fault of ours.
                is_full, is_rotten = "bytes wanted" in text, self.me == world.faults.rotten_replica
                if is_full or is_rotten:
                    world.counts["problems told of disks"] += 1
                else:
                    world.problems.append(f"{self.me} {self.partition}: {text}")
            case _:
                assert_never(effect)

    # The log

    def _write(self, write: Callable[[], Offset]) -> None:
        try:
            write()
        except StorageFull as error:
            self.tell(self.core.append_failed(str(error), self.now_ms))
            self.request_flush()
            return
        self.appended()

    def appended(self) -> None:
        """The log grew."""
        self.tell(self.core.appended(self.now_ms))
        self.request_flush()

    def request_flush(self) -> None:
        """Begin an fsync, if one is due and none is under way."""
        sync = self.log.store.begin_sync(self.now_ms)
        if sync is not None:
            delay_ms = self.process.flush_delay_ms()
            self.process.soon(delay_ms, partial(self._flush, self.log, sync))

    def _flush(self, log: ReplicaLog, sync: Sync) -> None:
        if log is not self.log:
            return  # it was cut meanwhile, and flushed before that
        sync.run()
        log.store.finish_sync(sync)
        log.store.run_jobs()
        self.tell(self.core.flushed(self.now_ms))
        self._committed()
        self.request_flush()

    def _truncate(self, end: Offset) -> None:
        self.process.world.counts["truncations"] += 1
        self.log.truncate(end)
        self.log.store.close()
        self._is_cut = True
        self._copied_end = min(self._copied_end, end)
        self.process.soon(self.process.flush_delay_ms(), self._reopen)

    def _reopen(self) -> None:
        committed_end = self.core.committed_end
        self.log = self._opened()
        self._is_cut = False
        self.log.commit(committed_end)
        self.tell(self.core.reopened(self.log, self.now_ms))

    def _replace(self) -> None:
        """Put the copy of the leader's segments in the place of the log."""
        installing, self.installing = self.installing, None
        assert installing is not None
        assert installing.intent is not None
        self.process.world.counts["installs"] += 1
        self.log.install(installing.intent)
        self.log.store.close()
        self._is_cut, self._is_damaged = True, False
        self.process.soon(self.process.flush_delay_ms(), self._reopen)

    def clean(self) -> None:
        """Have retention take what is old, of what is committed; each replica has its own pass."""
        store, world = self.log.store, self.process.world
        if self._is_cut or store.faults or store.acknowledged_end < store.end:
            return
        keep_from = Offset(world.rng.randint(0, store.acknowledged_end))
        world.note(Dropped(self.partition, keep_from))
        wanted = Wanted(keep_from=keep_from)
        try:
            for job in rewrites(store, wanted, now_ms=self.process.machine.wall_ms()):
                job.run()
                job.finish()
                world.counts["segments rewritten"] += job.is_changed
        except StorageFull:
            return

    def _stream(self, stream: do.Stream) -> None:
        to, offset, bytes_max = stream
        if offset < self.log.stream_start:
            self.process.world.counts["streams overtaken"] += 1
            self.tell(self.core.overtaken(stream, self.now_ms))
            return
        parts: list[bytes] = []
        size, next_offset = 0, offset
        frames_max = self.process.world.shape.frames_max
        for frame in self.log.store.reader.frames(offset):
            is_full = size + len(frame.raw) > bytes_max or len(parts) >= frames_max
            if parts and is_full:
                break
            parts.append(bytes(frame.raw))
            size += len(frame.raw)
            next_offset = frame.header.end_offset
        message = Frames(
            self.log_id, self.core.epoch, offset, self.core.committed_end, b"".join(parts)
        )
        self.process.send(to, message)
        self.tell(self.core.streamed(stream, next_offset, size, self.now_ms))

    # The coordinator

    def _swap(self, record: PartitionRecord, revision: Revision) -> None:
        key = KEYS.partition(self.log_id)
        txn = Txn(
            (Unchanged(key, revision),), (Put(key, encode_record(record)),), (Get(one_key(key)),)
        )

        def heard(answer: Heard) -> None:
            outcome: do.Swapped = do.Unknown()
            if isinstance(answer, TxnResult):
                if answer.succeeded:
                    outcome = do.Succeeded(answer.revision)
                else:
                    outcome = do.Lost(*self._record(answer.reads[0], answer.revision))
            self.tell(self.core.swapped(outcome, self.now_ms))

        self.process.session.ask(txn, heard)

    def _read_record(self) -> None:
        def heard(answer: Heard) -> None:
            if isinstance(answer, RangeResult):
                record, revision = self._record(answer.items, answer.revision)
                self.tell(self.core.record_read(record, revision, self.now_ms))
            else:
                self.process.soon(200, self._read_record)

        self.process.session.ask(Read(one_key(KEYS.partition(self.log_id))), heard)

    def _record(
        self, items: tuple[KeyValue, ...], revision: Revision
    ) -> tuple[PartitionRecord | None, Revision]:
        if not items:
            return None, revision
        item = items[0]
        return decode_record(PartitionRecord, item.value, key=item.key), item.mod_revision

    # Requests

    def publish(
        self, message: str, due_ms: int | None, answered: Answered, *, acks: Acks = "quorum"
    ) -> None:
        """Append a message, and answer when it is as durable as asked; due on the run's clock."""
        if not self.is_open:
            answered("refused", None)
            return
        now_ms = self.process.machine.wall_ms()
        due = None if due_ms is None else Millis(BEGUN_MS + due_ms)
        sent = Sent(message.encode() * 3, message_id=message.encode(), due_ms=due)
        try:
            batch = encode_batch([sent], LIMITS, now_ms=now_ms)
            appended = self.log.store.append(batch, now_ms=now_ms)
        except StorageFull:
            answered("refused", None)
            return
        self._await(appended.durable_at, int(appended.offsets[0]), answered, acks)

    def change(self, offset: int, due_ms: int | None, answered: Answered) -> None:
        """Cancel a scheduled message, or give it another due time."""
        store = self.log.store
        if not (self.is_open and self.is_led):
            answered("refused", None)
            return
        if offset not in store.open_scheduled()[0]:
            answered("ended", None)
            return
        chosen, now_ms = np.array([offset]), self.process.machine.wall_ms()
        try:
            if due_ms is None:
                durable_at = store.cancel(chosen, now_ms=now_ms)
            else:
                due = np.array([BEGUN_MS + due_ms])
                durable_at = store.reschedule(chosen, due, now_ms=now_ms)
        except StorageFull:
            answered("refused", None)
            return
        self._await(durable_at, offset, answered)

    def fire_due(self) -> None:
        """Fire timers that are due by this machine's clock, if this replica leads."""
        store = self.log.store
        if not (self.is_led and self.is_open):
            return
        now_ms = self.process.machine.wall_ms()
        end, due_first_ms = self._timers_at
        if end == store.end and now_ms < due_first_ms:
            return
        offsets, due_ms = store.open_scheduled()
        if not len(offsets):
            self._timers_at = store.end, now_ms + 3_600_000
            return
        order = np.lexsort((offsets, due_ms))
        chosen = offsets[order][due_ms[order] <= now_ms][:FIRED_MAX]
        if len(chosen):
            try:
                store.fire(chosen, now_ms=now_ms)
            except StorageFull:
                return
            self.appended()
        else:
            self._timers_at = store.end, int(due_ms.min())

    @property
    def is_readable(self) -> bool:
        """The log is open: it is not being cut."""
        return not self._is_cut

    def read(self, offset: int) -> list[Frozen]:
        """Return what is committed from an offset on."""
        store = self.log.store
        if offset >= store.acknowledged_end:
            return []
        try:
            return [frozen(frame) for frame in store.frames(offset)]
        except FrameDamaged as error:
            # Whoever reads asks another; whoever runs the node replaces the replica.
            self.process.world.faulty(self.process.name, str(error))
            self.process.handle(self.tell_faults)
            return []

    def tell_faults(self) -> None:
        """Tell the core that the log was found damaged."""
        if self.log.is_faulty and not self._is_damaged:
            self._is_damaged = True
            self.tell(self.core.faulted(self.now_ms))

    @property
    def committed_end(self) -> int:
        """What readers see here ends here."""
        return int(self.log.store.acknowledged_end)

    def _await(
        self,
        durable_at: Offset,
        offset: int | None,
        answered: Answered,
        acks: Acks = "quorum",
    ) -> None:
        self.waiting.append(Waiting(durable_at, offset, answered, acks))
        self.appended()
        self._committed()

    def _committed(self) -> None:
        """Answer those whose offset is committed now, and note the frames for the checkers."""
        end = self.log.store.acknowledged_end
        ready = [each for each in self.waiting if self._is_ready(each)]
        self.waiting = [each for each in self.waiting if each not in ready]
        for each in ready:
            if each.acks == "all":
                self.process.world.check_on_all(self, each.durable_at)
            each.answered("acked", each.offset)
        start = max(self._copied_end, self.log.stream_start)
        if end > start:
            frames = [frozen(frame) for frame in self.log.store.frames(start)]
            self._copied_end = end
            copies = tuple((each.base, each.digest) for each in frames)
            self.process.world.note(Copied(self.me, self.partition, copies))

    def _is_ready(self, waiting: Waiting) -> bool:
        store, end = self.log.store, waiting.durable_at
        if waiting.acks == "leader":
            return end <= store.flushed_end
        is_on_all = waiting.acks != "all" or self.core.flushed_by_all >= end
        return is_on_all and end <= store.acknowledged_end

    def fail_waiting(self) -> None:
        """Tell those who wait that nobody knows."""
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each.answered("unknown", None)

    # What the node hears

    def received(self, sender: ReplicaId, message: Message) -> None:
        self.tell(self.core.received(sender, message, self.now_ms))
        if self.waiting:
            self._committed()  # all may have flushed by now what a majority had

    def promise_saved(self, epoch: Epoch) -> None:
        self.tell(self.core.promise_saved(epoch, self.now_ms))
