"""One group on one topic, driven: who is a member, who owns what, and when time must be told.

The core decides (`delivery/groups.py`); this performs, in order, and nothing that follows a new
generation before that generation is durable. Joins, leaves and moves wait for it in `_todo`; what
members and cursors say to each other meanwhile goes on (`serving.py`).

There is one timer for the whole group, however many leases there are. Nothing else runs: what has
to wait (for the metadata, for the dead letter topic) is a task while it waits.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, assert_never

from waterclock.delivery import groups as core
from waterclock.delivery.credits import Credit
from waterclock.delivery.events import (
    DeadLetter,
    DeadLettered,
    PartitionRevoked,
    RevocationCancelled,
)
from waterclock.delivery.spans import Range
from waterclock.model.clock import Clock, SteadyClock
from waterclock.model.errors import BadInput, CapacityReached, Stopping, StorageFull, Unavailable
from waterclock.model.sections import DeliveryConfig, GroupConfig
from waterclock.node.counters import GroupCounters
from waterclock.node.dead_letters.writer import DeadLetterSink, DeadLetterWriter
from waterclock.node.groups.delivery import GroupDelivery
from waterclock.node.groups.outbound import Delivery, Revoked
from waterclock.node.groups.partition import GroupPartition
from waterclock.node.groups.session import AnswerKind, Ending, QueuedDelivery, Session

SAVE_RETRY_S = 1.0

log = logging.getLogger("waterclock.delivery")

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class Records(Protocol):
    """Where a group is remembered."""

    async def save_generation(self, host: "GroupHost", generation: int) -> None:
        """Make a generation durable."""
        ...

    async def save_progress(self, hosts: "Iterable[GroupHost]") -> None:
        """Save what has changed of the progress of groups."""
        ...


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
    """Drives a group. Bring its places and the generation that was saved."""

    def __init__(
        self,
        topic: str,
        name: str,
        places: list[GroupPartition],
        *,
        generation: int,
        delivery: DeliveryConfig,
        groups: GroupConfig,
        wall: Clock,
        clock: SteadyClock,
        grave: DeadLetterSink,
        records: "Records",
        spawn: Spawn,
    ) -> None:
        self.topic = topic
        self.name = name
        self.places = places
        self.counters = GroupCounters()
        self.active_ms = 0
        """When it was last noted to be in use; `Groups` keeps this."""
        self._config = groups
        self._clock = clock
        """Leases, waits and heartbeats: no setting of the wall clock ends or prolongs them."""
        self._group = core.Group(groups, partitions=len(places), generation=generation)
        self.serving = GroupDelivery(delivery, wall, clock, self.counters, self)
        self._burial = DeadLetterWriter(name, grave)
        self._records = records
        self._spawn = spawn
        self._members: dict[str, Session] = {}
        """As the core knows them; those that still wait in `_todo` included."""
        self._sessions: dict[str, Session] = {}
        """Those that may own something."""
        self._todo: deque[core.GroupEffect | _Enter | _Exit | _Opened] = deque()
        self._saved_generation = generation
        self._is_advancing = self._is_saving = self._is_burying = self._is_over = False
        self._has_moved = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        for place in places:
            self._listen(place)

    def __repr__(self) -> str:
        return f"<GroupHost {self.topic}/{self.name} {self._group!r}>"

    @property
    def generation(self) -> int:
        """The present generation."""
        return self._group.generation

    @property
    def members(self) -> tuple[str, ...]:
        """Who is in the group."""
        return self._group.members

    @property
    def has_dead(self) -> bool:
        """Dead messages wait to be written, and only the cursors know of them."""
        return bool(self._burial)

    # Members

    async def join(self, member: str, *, credit: tuple[int, int] | None = None) -> Session:
        """Open a session; raises CapacityReached if there is no room for one more member.

        It begins with `credit` messages and bytes, or with what is configured.
        """
        if self._is_over:
            raise Stopping("the group has ended")
        delivery = self.serving.config
        messages, size = credit or (delivery.credit_messages, delivery.credit_bytes)
        held = Credit(0, messages=max(0, messages), bytes=max(0, size))
        heartbeat_ms = max(1, self._config.session_timeout_ms // 3)
        session = Session(self, member, credit=held, heartbeat_ms=heartbeat_ms)
        effects = self._group.handle(core.MemberJoined(member), self._clock.now_ms())
        if isinstance(effects[0], core.RefuseMember):
            raise CapacityReached("members of a group", self._config.members_max)
        self._members[member] = session
        answer = asyncio.get_running_loop().create_future()
        # The old session of this name, if there is one, ends before the new one is known.
        ends_old = isinstance(effects[0], core.CloseSession)
        self._todo += [*effects[:ends_old], _Enter(session), *effects[ends_old:], _Opened(answer)]
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
            self._todo += self._group.handle(kind(session.member), self._clock.now_ms())
            self._todo.append(_Exit(session))
            self._advance()

    def answer(
        self,
        session: Session,
        kind: AnswerKind,
        partition: int,
        generation: int,
        ranges: Sequence[Range],
        at_ms: int,
    ) -> None:
        """Take what a member says of messages."""
        if not 0 <= partition < len(self.places):
            raise BadInput(f"partition {partition}: the topic has {len(self.places)}")
        place = self.places[partition]
        self.serving.answer(session, place, kind, generation=generation, ranges=ranges, at_ms=at_ms)

    def after(self, ms: int) -> int:
        """Return the instant that is so far from now, in the time of the wall."""
        return self._clock.now_ms() + ms + self._clock.set_by_ms()

    def hand_out(self, queued: QueuedDelivery) -> Delivery | None:
        """Return the next messages of a queued, if there are any left."""
        return self.serving.hand_out(queued)

    def progress(self, place: GroupPartition) -> bytes:
        """Return how far the group has come in a partition, to be saved."""
        return place.encode(shift_ms=self._clock.set_by_ms())

    def wake(self, session: Session) -> None:
        """Serve a session soon."""
        self.serving.wake(session)

    # The topic

    def add_place(self, place: GroupPartition) -> None:
        """Take in a partition that was added to the topic."""
        assert place.number == len(self.places)
        self.places.append(place)
        self._listen(place)
        self._tell(core.PartitionsAdded(len(self.places)))

    def configure(self, delivery: DeliveryConfig) -> None:
        """Go on under other settings of the topic."""
        self.serving.config = delivery
        for place in self.places:
            place.cursor.configure(delivery)

    def _listen(self, place: GroupPartition) -> None:
        if place.is_readable:
            serve = partial(self.serving.readable, place)
            place.stop_listening = place.partition.on_readable(serve)

    def end(self, ending: Ending) -> None:
        """End all sessions and stop listening. What is known of progress stays to be saved."""
        self._is_over = True
        self._burial.end()
        for place in self.places:
            place.stop_listening()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for session in {*self._members.values(), *self._sessions.values()}:
            session.end(ending)
        for step in self._todo:
            if isinstance(step, _Opened) and not step.answer.done():
                step.answer.set_exception(Unavailable(ending.value))
        self._todo.clear()
        self._members.clear()
        self._sessions.clear()

    # Time

    def tick(self) -> None:
        """Tell everyone the time."""
        now_ms = self._clock.now_ms()
        for place in self.places:
            deadline_ms = place.cursor.next_deadline()
            if deadline_ms is not None and deadline_ms <= now_ms:
                self.serving.tick(place, now_ms)
        effects = self._group.tick(now_ms)
        self._todo += effects
        for effect in effects:
            if isinstance(effect, core.CloseSession) and effect.member in self._members:
                self._todo.append(_Exit(self._members.pop(effect.member)))
        self._advance()
        times = [place.cursor.next_deadline() for place in self.places]
        for deadline_ms in (*times, self._group.next_deadline()):
            self.due(deadline_ms)

    def due(self, deadline_ms: int | None) -> None:
        """Have time told at a deadline, or before."""
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
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1_000, self._rang)

    def _rang(self) -> None:
        self._timer = None
        self.tick()

    # The group's decisions

    def _tell(self, event: core.GroupEvent) -> None:
        self._todo += self._group.handle(event, self._clock.now_ms())
        self._advance()

    def _advance(self) -> None:
        """Perform what can be performed now."""
        if self._is_advancing or self._is_saving:
            return
        self._is_advancing = True
        try:
            while self._todo:
                step = self._todo.popleft()
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
            self._spawn(self._records.save_progress([self]))
        self.due(self._group.next_deadline())

    async def _save_generation(self) -> None:
        """Make the present generation durable: what waits needs none that is later."""
        generation = self._group.generation
        while True:
            try:
                await self._records.save_generation(self, generation)
                break
            except StorageFull as error:
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
            case _Exit(session):
                if self._sessions.get(session.member) is session:
                    del self._sessions[session.member]
            case _Opened(answer):
                if not answer.done():
                    answer.set_result(None)
            case core.CloseSession(member):
                self._close_session(member)
            case core.Release(number, _, generation, is_counted):
                self.serving.release(self.places[number], generation, is_counted=is_counted)
                self._has_moved = True
            case core.Revoke(number, member, generation, deadline_ms):
                ends_ms = deadline_ms + self._clock.set_by_ms()
                self._sessions[member].tell(Revoked(number, generation, ends_ms))
                self.serving.tell(self.places[number], PartitionRevoked(generation))
            case core.CancelRevoke(number, member, generation):
                self._sessions[member].tell(Revoked(number, generation, 0, is_cancelled=True))
                self.serving.tell(self.places[number], RevocationCancelled(generation))
            case core.Assign(number, member, generation):
                self.serving.assign(self.places[number], self._sessions[member], generation)
            case core.RefuseMember() | core.SaveGeneration():
                pass  # it was let go before; it is performed where it can wait
            case _:
                assert_never(step)

    def _close_session(self, member: str) -> None:
        session = self._sessions.get(member)
        if session is not None:
            is_replaced = member in self._members
            session.end(Ending.REPLACED if is_replaced else Ending.SILENT)

    # The cursors' decisions that concern more than one partition

    def drained(self, place: GroupPartition, generation: int) -> None:
        """Have a partition move."""
        self._tell(core.PartitionDrained(place.number, generation))

    def died(self, place: GroupPartition, letter: DeadLetter) -> None:
        """Have dead messages written."""
        self._burial.add(place, letter)
        if not self._is_burying:
            self._is_burying = True
            self._spawn(self._bury())

    async def settled(self, session: Session) -> int:
        """Wait for dead letters of a session; return how many are not written all the same."""
        return await self._burial.written(session)

    async def _bury(self) -> None:
        try:
            while self._burial:
                buried = await self._burial.next()
                if buried is not None:
                    self.serving.tell(buried.place, DeadLettered(buried.letter.ranges))
                    self.counters.dead_lettered += buried.messages
                if not self._burial:
                    # At once: a crash before it is saved would deliver dead messages again.
                    await self._records.save_progress([self])
        finally:
            self._is_burying = False
