"""One partition of this node: its host, the core that decides on it, and what the core wants done.

Effects are performed in their order, at once where that is possible; what an effect leads to is
told to the core only when all of them are performed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, assert_never

from waterclock.cluster.coordinator.records import PartitionRecord
from waterclock.cluster.replication import effects as do
from waterclock.cluster.replication.cluster_view import Placed, node_of
from waterclock.cluster.replication.effects import Effect
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.messages import Frames, Message
from waterclock.cluster.replication.replica import Replica
from waterclock.model.errors import (
    BadInput,
    FrameDamaged,
    NotEnoughReplicas,
    StorageError,
    StorageFailed,
)
from waterclock.model.ids import Epoch, Offset
from waterclock.node.partition.host import Notified, PartitionHost
from waterclock.server.cluster.replication.frame_tail import FrameTail, Tail
from waterclock.storage.installation.intent import Intent
from waterclock.storage.replica_log import ReplicaLog
from waterclock.storage.waiters import Waiters

if TYPE_CHECKING:
    from waterclock.server.cluster.replication.replicator import Replicator

_events = logging.getLogger(__name__)


class Hosted:
    """A partition that this node knows of; it has a replica here while `core` is there."""

    def __init__(
        self,
        replicator: "Replicator",
        host: PartitionHost,
        log_id: bytes,
        *,
        factor: int,
        is_everywhere: bool,
    ) -> None:
        self.replicator = replicator
        self.host = host
        self.log_id = log_id
        self.factor = factor
        self.is_everywhere = is_everywhere
        """All nodes have a copy, those that do not vote as well."""
        self.core: Replica | None = None
        self.problem = ""
        """The last one the core told of."""
        self.is_busy = False
        """Its log is being opened or closed."""
        self.may_have_files = True
        """Files of a replica may be here, also where none is wanted."""
        self.timers: asyncio.Task[None] | None = None
        self.due_ms: int | None = None
        """When the core is ticked next."""
        self._leaders_end: int | None = None
        """What was committed when its leader was first heard."""
        self._todo: deque[Effect] = deque()
        self._is_at_work = False
        self._known_ends: tuple[int, int] = (0, 0)
        self._tail: FrameTail | None = None
        self._copying: tuple[ReplicaId, asyncio.Task[None]] | None = None
        """From whom segments are copied beside the log."""
        self._copied: Intent | None = None
        self._by_all = Waiters(asyncio.get_running_loop())
        host.has_others = self._has_others
        host.notify_flushed_by_all = self._notify_flushed_by_all

    def __repr__(self) -> str:
        return f"<Hosted {self.host.topic}/{self.host.partition} {self.core!r}>"

    @property
    def log(self) -> ReplicaLog:
        """The log; it must be open."""
        assert self.host.replica is not None, "it is open while there is a core"
        return self.host.replica

    @property
    def epoch(self) -> Epoch:
        """What was promised last; there must be a replica here."""
        assert self.core is not None, "there is no replica"
        return self.core.epoch

    @property
    def is_leading(self) -> bool:
        """This node leads it, and what was there is committed."""
        return self.core is not None and self.host.is_led

    def _has_others(self) -> bool:
        """Say if other replicas vote, or may do so for all that is known now."""
        record = None if self.core is None else self.core.record
        return record is None or any(each != self.replicator.me for each in record.replicas)

    def shows_all_it_joined_to(self) -> bool:
        """Tell whether readers see all that was committed when this node began to follow."""
        if not self.host.is_open:
            return False
        return self.host.is_led or (
            self._leaders_end is not None and self.host.store.acknowledged_end >= self._leaders_end
        )

    def received(self, peer: ReplicaId, message: Message) -> None:
        """Take a message of another replica."""
        assert self.core is not None
        is_first = False
        if self._leaders_end is None and isinstance(message, Frames):
            self._leaders_end, is_first = message.commit_end, True
        self.tell(self.core.received(peer, message, self.replicator.now_ms()))
        if is_first and self.is_everywhere:
            # It may have all of it already, so that nothing more is committed or flushed.
            self.replicator.note_change()

    # The log comes and goes

    async def open(self, placed: Placed) -> None:
        """Open the log, and take part. Nothing happens if it cannot be opened."""
        replicator = self.replicator
        self.may_have_files = True
        kept = replicator.promises.get(self.log_id)
        # A voter had its log open before it promised anything. What learns may begin with nothing.
        is_voter = replicator.me in placed.record.replicas
        log = await self.host.open_replica(was_here=is_voter and kept.epoch > 0)
        if log is None:
            return
        self.core = Replica(
            replicator.me,
            self.log_id,
            log,
            promised=kept.epoch,
            candidate=kept.candidate,
            lease_ms=replicator.settings.lease_ms,
        )
        self._follow_log()
        now_ms = replicator.now_ms()
        self.tell(self.core.alive_changed(replicator.session.view.alive, now_ms))
        for peer in replicator.channels.up:
            self.tell(self.core.link_up(peer, now_ms))
        self.tell(self.core.record_changed(*placed, now_ms))

    async def close(self, why: str) -> None:
        """Let go of the log."""
        self.core = None
        self._todo.clear()
        await self._end_work()
        async with self.host.rewriting:
            self.host.close_replica(why)
        self._by_all.fail(self._unknown(why))

    async def leave(self, placed: Placed) -> None:
        """Let go of the log, if it is open, and of its files: the record names others."""
        if self.core is not None:
            await self.close("another node has it now")
        if placed.record.state == "leading":
            self.may_have_files = False
            if self._is_given_up(placed.record):
                await self.host.remove_files()

    def _is_given_up(self, record: PartitionRecord) -> bool:
        """Say if a leader has taken this node out of the set, for good.

        A record of an epoch before what was promised here was restored from an old copy; one that
        names this node with another disk does not know that its promises were lost. In both cases
        these files may be all that is left.
        """
        is_old = record.epoch < self.replicator.promises.get(self.log_id).epoch
        names = map(node_of, (*record.replicas, *record.learners))
        is_named = self.replicator.name in names
        return not (is_old or is_named or self.is_everywhere)

    async def reopen(self) -> None:
        """Open the log again, after it was cut or is to be replaced."""
        await self._end_work()
        async with self.host.rewriting:
            self.host.close_replica("its log is made to be the leader's")
        log = await self.host.open_replica()
        if log is None or self.core is None:
            self.core = None
            return
        self._follow_log()
        self.tell(self.core.reopened(log, self.replicator.now_ms()))

    def _follow_log(self) -> None:
        store, flush_queue = self.host.store, self.host.flush_queue
        self._known_ends = int(store.end), int(store.flushed_end)
        self._tail = FrameTail(store)
        flush_queue.on_moved = self._log_moved

    def _log_moved(self) -> None:
        """Tell the core that the log grew, or more of it is durable."""
        core = self.core
        if core is None or not self.host.is_open:
            return
        (end, flushed_end), now_ms = self._known_ends, self.replicator.now_ms()
        store = self.host.store
        self._known_ends = int(store.end), int(store.flushed_end)
        if store.end != end:
            self.tell(core.appended(now_ms))
        if store.flushed_end != flushed_end:
            self.tell(core.flushed(now_ms))
            if self.is_everywhere:
                self.replicator.note_change()

    # Events in, effects out

    def tell(self, effects: list[Effect]) -> None:
        """Perform what the core answered, in order, and what it answers to that."""
        self._todo.extend(effects)
        if self._is_at_work:
            return
        self._is_at_work = True
        try:
            while self._todo and self.core is not None:
                self._perform(self.core, self._todo.popleft())
        finally:
            self._is_at_work = False
        if self.core is not None:
            if len(self._by_all):
                self._by_all.reached(self.core.flushed_by_all)
            self.replicator.deadlines.set(self, self.core.next_deadline())

    def _perform(self, core: Replica, effect: Effect) -> None:
        replicator = self.replicator
        match effect:
            case do.Send(to, message):
                replicator.channels.send(to, message)
            case do.Stream():
                replicator.streams.add(self, effect)
            case do.SavePromise(epoch, candidate):
                replicator.promise_writer.save(self.log_id, epoch, candidate)
            case do.Swap(record, revision):
                replicator.swaps.swap(self.log_id, record, revision)
            case do.ReadRecord():
                replicator.swaps.read(self.log_id)
            case do.Append(data, leader_epoch):
                view, now_ms = memoryview(data), self.host.clock.now_ms()
                append = partial(self.log.append_frames, view, leader_epoch=leader_epoch)
                self._write(core, partial(append, now_ms=now_ms))
            case do.BeginEpoch(epoch):
                now_ms = self.host.clock.now_ms()
                self._write(core, partial(self.log.begin_epoch, epoch, now_ms=now_ms))
            case do.Truncate(end):
                _events.info("replica_cut partition=%s end=%d", self.name, end)
                replicator.truncations += 1
                self.log.truncate(end)
                replicator.begin_reopening(self)
            case do.Install(source):
                self._copy_from(source)
            case do.Replace():
                self._replace(core)
            case do.CommitTo(end):
                replicator.commits += self.host.role == "leader"
                self.log.commit(end)
                self.host.flush_queue.committed()
                if self.is_everywhere:
                    replicator.note_change()  # a node that joins waits for the records
            case _:
                self._play(effect)

    def _play(
        self,
        effect: do.Opened | do.Paused | do.Led | do.SteppedDown | do.Problem,
    ) -> None:
        """Play the part that the core has now."""
        host, replicator = self.host, self.replicator
        match effect:
            case do.Opened(epoch):
                _events.info("replica_leads partition=%s epoch=%d", self.name, epoch)
                if host.role != "leader":
                    replicator.elections += 1
                host.admit(epoch, leader=replicator.name)
            case do.Paused(why, fails_waiting):
                _events.warning("replica_paused partition=%s: %s", self.name, why)
                host.pause(why, fails_waiting=fails_waiting)
                if fails_waiting:
                    self._by_all.fail(self._unknown(why))
            case do.Led():
                host.lead()
                replicator.run_timers(self)
                replicator.placing.look()
            case do.SteppedDown(why):
                _events.info("replica_steps_down partition=%s: %s", self.name, why)
                host.step_down(why)
                self._by_all.fail(self._unknown(why))
                if self.timers is not None:
                    self.timers.cancel()
            case do.Problem(text):
                self._note(text)
            case _:
                assert_never(effect)

    def _write(self, core: Replica, write: Callable[[], Offset]) -> None:
        try:
            write()
        except (BadInput, StorageError) as error:
            self.host.flush_queue.request_flush()
            self.tell(core.append_failed(str(error), self.replicator.now_ms()))
            return
        # The core hears of it when the queue has begun to flush it: once in a turn of the loop.
        self.host.flush_queue.request_flush()

    def read(self, stream: do.Stream) -> Tail | None:
        """Return the frames to be streamed; None if the log is not open."""
        core = self.core
        if core is None or self._tail is None or not self.host.is_open:
            return None
        # The active segment is never rewritten: it is what most streams are about.
        is_old = stream.offset < self.host.store.segments[-1].base_offset
        if is_old and stream.offset < self.log.stream_start:
            _events.info("replica_overtaken partition=%s offset=%d", self.name, stream.offset)
            self.tell(core.overtaken(stream, self.replicator.now_ms()))
            return None
        try:
            return self._tail.read(stream.offset, bytes_max=stream.bytes_max)
        except FrameDamaged:
            self.tell(core.faulted(self.replicator.now_ms()))
            return None

    def send(self, stream: do.Stream, tail: Tail) -> None:
        """Send frames that were read."""
        core = self.core
        if core is not None:
            message = Frames(self.log_id, core.epoch, stream.offset, core.committed_end, tail.data)
            self.replicator.channels.send(stream.to, message)
            now_ms = self.replicator.now_ms()
            self.tell(core.streamed(stream, tail.end, len(tail.data), now_ms))

    # Segments whole

    def leading_log(self, epoch: Epoch) -> ReplicaLog | None:
        """Return the log if this node leads it under that epoch."""
        core = self.core
        is_leader = core is not None and core.role == "leader" and core.epoch == epoch
        return self.host.replica if is_leader else None

    def _copy_from(self, source: ReplicaId) -> None:
        if self._copying is not None:
            before, task = self._copying
            if before == source and not task.done():
                return  # it goes on
            task.cancel()
        _events.info("replica_lags_behind_segments partition=%s source=%s", self.name, source)
        self._copying = source, self.replicator.installs.begin(self, source)

    def copied(self, source: ReplicaId, intent: Intent) -> bool:
        """Take segments that were copied beside the log; say if they take its place."""
        if self.core is not None:
            self._copied = intent
            self.tell(self.core.copied(source, self.replicator.now_ms()))
        is_used, self._copied = self._copied is None and self.core is not None, None
        return is_used

    def copy_failed(self, source: ReplicaId, *, problem: str = "") -> None:
        """Have segments asked for again, if they still are needed then."""
        if problem:
            self._note(problem)
        if self.core is not None:
            self.tell(self.core.copy_failed(source, self.replicator.now_ms()))

    def _replace(self, core: Replica) -> None:
        intent = self._copied
        assert intent is not None, "told when it is there"
        try:
            self.log.install(intent)
        except (BadInput, StorageError) as error:
            if isinstance(error, StorageFailed):
                self._copied = None  # the note that names the copy may be there
            self._note(f"copied segments are not used: {error}")
            self.tell(core.install_failed(self.replicator.now_ms()))
            return
        self._copied = None
        _events.info("replica_replaced partition=%s end=%d", self.name, intent.end)
        self.replicator.replacements += 1
        self.replicator.begin_reopening(self)

    async def _end_work(self) -> None:
        """Have nothing done with the log any more."""
        await self._end_timers()
        copying, self._copying = self._copying, None
        if copying is not None:
            copying[1].cancel()
            await asyncio.wait([copying[1]])

    # Timers of messages

    async def play_timers(self, before: asyncio.Task[None] | None) -> None:
        """Load the timers and run them, until cancelled; those of before have ended then."""
        if before is not None:
            await asyncio.wait([before])
        if not self.host.is_led:
            return
        try:
            scheduler = await self.host.load_timers()
            if scheduler is not None:
                await scheduler.run()
        finally:
            self.host.unload_timers()

    async def _end_timers(self) -> None:
        timers, self.timers = self.timers, None
        if timers is not None:
            timers.cancel()
            await asyncio.wait([timers])

    # Others

    def hand_over(self) -> bool:
        """Have another replica lead; tell whether one will, and does not yet."""
        core = self.core
        if core is None or core.role != "leader":
            return False
        self.tell(core.hand_over(self.replicator.now_ms()))
        return self.host.is_handing_over

    def record_changed(self, record: PartitionRecord | None) -> None:
        """Know who leads, also where no replica is here."""
        leads = record is not None and record.state == "leading"
        leader = node_of(record.leader) if record is not None and leads else ""
        if self.host.role != "leader":
            self.host.follow(leader if leader != self.replicator.name else "")

    def caught_up(self, replicas: tuple[str, ...]) -> frozenset[ReplicaId]:
        """Return which replicas have flushed about all that there is."""
        core = self.core
        if core is None:
            return frozenset()
        ends = {ReplicaId(each): core.flushed_end_of(ReplicaId(each)) for each in replicas}
        return frozenset(
            each for each, end in ends.items() if end is not None and end >= core.committed_end
        )

    def _notify_flushed_by_all(self, end: int, call: Notified) -> None:
        if self.core is None or self.host.role != "leader":
            # It is committed, but nobody here hears who else has it.
            call(self._unknown("another node leads"))
        elif self.core.flushed_by_all >= end:
            call(None)
        else:
            self._notify_later(end, call)

    def _notify_later(self, end: int, call: Notified) -> None:
        """Tell when all replicas have it. Who has asked may be gone, and a replica be away for
        ever: so a wait has an end, and who wants to wait on asks again with the same ids."""
        wait_s = self.replicator.settings.acks_all_ms / 1_000

        def heard(error: Exception | None) -> None:
            timer.cancel()
            call(error)

        def late() -> None:
            self._by_all.withdraw(notice)
            behind = [] if self.core is None else self.core.voters_behind(Offset(end))
            missing = " and ".join(map(node_of, behind)) or "all of them"
            why = f"a majority of replicas has stored it, but not {missing} within {wait_s:g} s"
            call(NotEnoughReplicas(f"{self.name}: {why}: ask again with the same id to wait on"))

        notice = self._by_all.notify(end, heard)
        timer = asyncio.get_running_loop().call_later(wait_s, late)

    def _note(self, text: str) -> None:
        if text != self.problem:
            _events.error("replica_problem partition=%s: %s", self.name, text)
        self.problem = text

    @property
    def name(self) -> str:
        """What it is called in the node's log."""
        return f"{self.host.topic}/{self.host.partition}"

    def _unknown(self, why: str) -> Exception:
        return self.host.unknown(why)
