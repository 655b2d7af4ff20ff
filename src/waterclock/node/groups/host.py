"""One group on one topic: who is a member, who owns which partition, and the group's timer.

The core decides (`delivery/groups.py`); the host performs, in order, and nothing that follows a new
generation before that generation is durable. Joins, leaves and moves wait for it in `_steps`;
deliveries and answers go on meanwhile (`delivery.py`).

There is one timer for the whole group, however many leases there are. Nothing else runs: what has
to wait (for the metadata, for the dead letter topic) is a task while it waits.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

from waterclock.delivery import groups as core
from waterclock.delivery.credits import Credit
from waterclock.delivery.events import (
    DeadLettered,
    PartitionRevoked,
    RevocationCancelled,
    WriteDeadLetters,
)
from waterclock.model.clock import Clock, SteadyClock
from waterclock.model.errors import CapacityReached, Stopping, StorageFull, Unavailable
from waterclock.model.sections import DeliveryConfig, GroupConfig
from waterclock.model.views import GroupInfo
from waterclock.node.counters import GroupCounters
from waterclock.node.dead_letters.dead_letters import DeadLetters
from waterclock.node.dead_letters.writer import DeadLetterWriter
from waterclock.node.groups.delivery import GroupDelivery
from waterclock.node.groups.outbound import Revoked
from waterclock.node.groups.partition import GroupPartition
from waterclock.node.groups.session import Ending, Session
from waterclock.node.metadata import Metadata
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.remote_log import PartitionLog

if TYPE_CHECKING:
    from waterclock.node.groups.groups import Groups

SAVE_RETRY_S = 1.0

log = logging.getLogger("waterclock.delivery")

Spawn = Callable[[Coroutine[Any, Any, None]], object]


@dataclass(frozen=True, slots=True)
class _Enter:
    """A session is its member's from here on."""

    session: Session


@dataclass(frozen=True, slots=True)
class _Exit:
    """A session owns nothing more."""

    session: Session


@dataclass(frozen=True, slots=True)
class _Opened:
    """Everything that makes a session a member has been done."""

    answer: "asyncio.Future[None]"


class GroupHost:
    """Drives a group. Bring its partitions and the generation that was saved."""

    def __init__(
        self,
        topic: str,
        name: str,
        partitions: list[GroupPartition],
        *,
        folder: str,
        metadata: Metadata,
        generation: int,
        delivery: DeliveryConfig,
        config: GroupConfig,
        wall: Clock,
        clock: SteadyClock,
        dead_letters: DeadLetters,
        groups: "Groups",
        spawn: Spawn,
    ) -> None:
        self.topic = topic
        self.folder = folder
        """Of its topic."""
        self.name = name
        self.metadata = metadata
        """Has its records."""
        self.partitions = partitions
        self.counters = GroupCounters()
        self.active_ms = 0
        """When it was last noted to be in use; `Groups` keeps this."""
        self.is_used = False
        """Somebody meant it: it has answered a message, was moved, or has had members for long.
        `Groups` keeps this, too."""
        self.opened_ms = clock.now_ms()
        """When it was made, or found at the start."""
        self._config = config
        self._clock = clock
        """Leases, waits and heartbeats: no setting of the wall clock ends or prolongs them."""
        self._group = core.Group(config, partitions=len(partitions), generation=generation)
        self.delivery = GroupDelivery(self, delivery, wall, clock)
        self.dead_letters = DeadLetterWriter(name, dead_letters)
        """Its dead messages that have to be written."""
        self._groups = groups
        self._spawn = spawn
        self._members: dict[str, Session] = {}
        """As the core knows them; those that still wait in `_steps` included."""
        self._sessions: dict[str, Session] = {}
        """Those that may own something."""
        self._steps: deque[core.GroupEffect | _Enter | _Exit | _Opened] = deque()
        self._saved_generation = generation
        self._is_advancing = self._is_saving = self._is_writing = self._is_over = False
        self._has_moved = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        for partition in partitions:
            self._listen(partition)

    def __repr__(self) -> str:
        return f"<GroupHost {self.topic}/{self.name} {self._group!r}>"

    @property
    def generation(self) -> int:
        return self._group.generation

    @property
    def members(self) -> tuple[str, ...]:
        return self._group.members

    @property
    def has_answered(self) -> bool:
        """A member said of a message what became of it, since the node started."""
        counters = self.counters
        return bool(counters.acked or counters.nacked or counters.rejected)

    def info(self) -> GroupInfo:
        """Return the group as it is now, for administrators."""
        partitions = tuple(partition.info() for partition in self.partitions)
        return GroupInfo(self.topic, self.name, self.generation, self.members, partitions)

    # Members

    async def join(self, member: str, *, credit: tuple[int, int] | None = None) -> Session:
        """Open a session; raises CapacityReached if there is no room for one more member.

        It begins with `credit` messages and bytes, or with what is configured.
        """
        if self._is_over:
            raise Stopping("the group has ended")
        delivery = self.delivery.config
        messages, size = credit or (delivery.credit_messages, delivery.credit_bytes)
        held = Credit(messages=messages, bytes=size)
        heartbeat_ms = max(1, self._config.session_timeout_ms // 3)
        session = Session(self, member, credit=held, heartbeat_ms=heartbeat_ms)
        effects = self._group.handle(core.MemberJoined(member), self._clock.now_ms())
        if isinstance(effects[0], core.RefuseMember):
            raise CapacityReached("members of a group", self._config.members_max)
        self._members[member] = session
        answer = asyncio.get_running_loop().create_future()
        # The old session of this name, if there is one, ends before the new one is known.
        ends_old = isinstance(effects[0], core.CloseSession)
        self._steps += [*effects[:ends_old], _Enter(session), *effects[ends_old:], _Opened(answer)]
        self._advance()
        try:
            await answer
        except BaseException:
            session.close(clean=True)
            raise
        return session

    def heard(self, session: Session) -> None:
        """Note that a member is there."""
        now_ms = self._clock.now_ms()
        # Not for each of a thousand answers: what matters are seconds.
        if now_ms - session.heard_ms >= session.heartbeat_ms // 8:
            session.heard_ms = now_ms
            if self._members.get(session.member) is session:
                self._group.handle(core.HeartbeatReceived(session.member), now_ms)

    def member_gone(self, session: Session, *, is_clean: bool) -> None:
        """Let a member go: it left, or its connection broke."""
        if self._members.get(session.member) is session:
            del self._members[session.member]
            kind = core.MemberLeft if is_clean else core.MemberLost
            self._steps += self._group.handle(kind(session.member), self._clock.now_ms())
            self._steps.append(_Exit(session))
            self._advance()

    # The topic

    def add_partition(self, partition: GroupPartition) -> None:
        """Take in a partition that was added to the topic."""
        assert partition.number == len(self.partitions)
        self.partitions.append(partition)
        self._listen(partition)
        self._decide(core.PartitionsAdded(len(self.partitions)))

    def reopen(self, host: PartitionHost, log: PartitionLog | None) -> None:
        """Go on with the log of a partition as it was opened anew; None: it was closed."""
        for partition in self.partitions:
            if partition.host is host:
                partition.stop_listening()
                partition.stop_listening = lambda: None
                partition.reopen(log)
                self._listen(partition)
                self.delivery.readable(partition)
                if partition.session is not None:
                    partition.session.wake()

    def configure(self, delivery: DeliveryConfig) -> None:
        """Go on under other settings of the topic."""
        self.delivery.config = delivery
        for partition in self.partitions:
            partition.cursor.configure(delivery)

    def _listen(self, partition: GroupPartition) -> None:
        if partition.is_readable:
            partition.listen(partial(self._readable, partition))

    def _readable(self, partition: GroupPartition) -> None:
        """Go on with a log that has grown, or of which more was pulled from another node.

        What is queued already may have waited for that: it was planned before the log was opened
        anew, and was not known to be committed since.
        """
        self.delivery.readable(partition)
        if partition.session is not None:
            partition.session.wake()

    def end(self, ending: Ending) -> None:
        """End all sessions and stop listening. What is known of progress stays to be saved."""
        self._is_over = True
        self.dead_letters.stop()
        for partition in self.partitions:
            partition.stop_listening()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for session in {*self._members.values(), *self._sessions.values()}:
            session.end(ending)
        for step in self._steps:
            if isinstance(step, _Opened) and not step.answer.done():
                step.answer.set_exception(Unavailable(ending.value))
        self._steps.clear()
        self._members.clear()
        self._sessions.clear()

    # Time

    def tick(self) -> None:
        """Do what the time asks for: leases, retries, sessions that fell silent."""
        now_ms = self._clock.now_ms()
        for partition in self.partitions:
            deadline_ms = partition.cursor.next_deadline()
            if deadline_ms is not None and deadline_ms <= now_ms:
                self.delivery.tick(partition, now_ms)
        effects = self._group.tick(now_ms)
        self._steps += effects
        for effect in effects:
            if isinstance(effect, core.CloseSession) and effect.member in self._members:
                self._steps.append(_Exit(self._members.pop(effect.member)))
        self._advance()
        times = [partition.cursor.next_deadline() for partition in self.partitions]
        for deadline_ms in (*times, self._group.next_deadline()):
            self.tick_by(deadline_ms)

    def tick_by(self, deadline_ms: int | None) -> None:
        """Have `tick` called at a deadline, or before."""
        if (
            deadline_ms is None
            or self._is_over
            or (self._timer is not None and self._timer_ms <= deadline_ms)
        ):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        wait_ms = max(1, deadline_ms - self._clock.now_ms())
        # What time brings is no part of the request that waits for it.
        self._timer = asyncio.get_running_loop().call_later(
            wait_ms / 1_000, self._on_timer, context=Context()
        )

    def _on_timer(self) -> None:
        self._timer = None
        self.tick()

    # The group's decisions

    def _decide(self, event: core.GroupEvent) -> None:
        self._steps += self._group.handle(event, self._clock.now_ms())
        self._advance()

    def _advance(self) -> None:
        """Perform what can be performed now."""
        if self._is_advancing or self._is_saving:
            return
        self._is_advancing = True
        try:
            while self._steps:
                step = self._steps.popleft()
                if isinstance(step, core.SaveGeneration):
                    if step.generation > self._saved_generation:
                        self._is_saving = True
                        self._spawn(self._save_generation())
                        return
                else:
                    self._perform(step)
        finally:
            self._is_advancing = False
        if self._has_moved:
            self._has_moved = False
            self._spawn(self._groups.save_progress([self]))
        self.tick_by(self._group.next_deadline())

    async def _save_generation(self) -> None:
        """Make the present generation durable: what waits needs none that is later."""
        generation = self._group.generation
        while True:
            try:
                await self._groups.save_generation(self, generation)
                break
            except (StorageFull, Unavailable) as error:
                if self._is_over:
                    self._is_saving = False
                    return
                log.warning("rebalance_waits group=%s error=%s", self, error)
                await asyncio.sleep(SAVE_RETRY_S)
        self._saved_generation = generation
        self._is_saving = False
        self.counters.rebalances += 1
        self._advance()

    def _perform(self, step: core.GroupEffect | _Enter | _Exit | _Opened) -> None:
        match step:
            case _Enter(session):
                self._sessions[session.member] = session
                self._tell("member_joined topic=%s group=%s member=%s", session)
            case _Exit(session):
                if self._sessions.get(session.member) is session:
                    del self._sessions[session.member]
                self._tell("member_left topic=%s group=%s member=%s", session)
            case _Opened(answer):
                if not answer.done():
                    answer.set_result(None)
            case core.CloseSession(member):
                self._close_session(member)
            case core.Release(number, _, generation, is_counted):
                self.delivery.release(self.partitions[number], generation, is_counted=is_counted)
                self._has_moved = True
            case core.Revoke(number, member, generation, deadline_ms):
                ends_ms = deadline_ms + self._clock.set_by_ms()
                self._sessions[member].notify(Revoked(number, generation, ends_ms))
                self.delivery.handle(self.partitions[number], PartitionRevoked(generation))
            case core.CancelRevoke(number, member, generation):
                self._sessions[member].notify(Revoked(number, generation, 0, is_cancelled=True))
                self.delivery.handle(self.partitions[number], RevocationCancelled(generation))
            case core.Assign(number, member, generation):
                self.delivery.assign(self.partitions[number], self._sessions[member], generation)
            case core.RefuseMember() | core.SaveGeneration():
                pass  # it was let go before; it is performed where it can wait
            case _:
                assert_never(step)

    def _tell(self, event: str, session: Session) -> None:
        log.info(event, self.topic, self.name, session.member)

    def _close_session(self, member: str) -> None:
        session = self._sessions.get(member)
        if session is not None:
            is_replaced = member in self._members
            session.end(Ending.REPLACED if is_replaced else Ending.SILENT)

    # The cursors' decisions that concern more than one partition

    def drained(self, partition: GroupPartition, generation: int) -> None:
        """Have a partition move: the owner it was revoked from holds nothing more of it."""
        self._decide(core.PartitionDrained(partition.number, generation))

    def write_dead_letters(self, partition: GroupPartition, effect: WriteDeadLetters) -> None:
        """Have dead messages written to the dead letter topic."""
        self.dead_letters.add(partition, effect)
        if not self._is_writing:
            self._is_writing = True
            self._spawn(self._write_dead_letters())

    async def _write_dead_letters(self) -> None:
        try:
            while self.dead_letters:
                written = await self.dead_letters.write_next()
                if written is not None:
                    self.delivery.handle(written.partition, DeadLettered(written.effect.ranges))
                    self.counters.dead_lettered += written.messages
                if not self.dead_letters:
                    # At once: a crash before it is saved would deliver dead messages again.
                    await self._groups.save_progress([self])
        finally:
            self._is_writing = False
