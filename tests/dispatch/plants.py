"""Bugs planted in the core of the dispatcher; each must be found by the simulator.

A plant is a context: inside it the core has the bug. `PLANTS` names them all. Where the core's own
books would show a bug at once, `check_invariants` is switched off: the simulator must see it too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from waterclock.dispatch.core import ring
from waterclock.dispatch.core.batches import (
    Batch,
    BatchState,
    DeadLetter,
    Effect,
    Settle,
    WriteDeadLetters,
)
from waterclock.dispatch.core.identity import Position, SequenceMarker
from waterclock.dispatch.core.lease import Fence, Lease, LeaseConfig, LeaseEffect
from waterclock.dispatch.core.message_table import MessageTable
from waterclock.dispatch.core.plan import Plan
from waterclock.dispatch.core.ring import Resumed, Ring
from waterclock.dispatch.core.worker_pool import WorkerPool

Plant = Callable[[], AbstractContextManager[Any]]


@contextmanager
def unchecked(*plants: AbstractContextManager[Any]) -> Iterator[None]:
    """Plant, and switch the core's own checks off."""
    with (
        patch.object(Plan, "check_invariants", lambda self: None),
        patch.object(Ring, "check_invariants", lambda self: None),
    ):
        for plant in plants:
            plant.__enter__()
        try:
            yield
        finally:
            for plant in plants:
                plant.__exit__(None, None, None)


def leads_for_ever() -> AbstractContextManager[Any]:
    """Easily left open: a dispatcher that once got the lease leads until Redis says otherwise."""
    acquired, renewed = Lease.acquired, Lease.renewed

    def acquired_for_ever(self: Lease, epoch: int, *, asked_ms: int, now_ms: int) -> bool:
        is_ours = acquired(self, epoch, asked_ms=asked_ms, now_ms=now_ms)
        self._held_until_ms = 1 << 60
        return is_ours

    def renewed_for_ever(self: Lease, *, asked_ms: int, now_ms: int) -> list[LeaseEffect]:
        actions = renewed(self, asked_ms=asked_ms, now_ms=now_ms)
        self._held_until_ms = 1 << 60
        return actions

    return unchecked(
        patch.object(Lease, "acquired", acquired_for_ever),
        patch.object(Lease, "renewed", renewed_for_ever),
    )


def lease_counts_from_the_answer() -> AbstractContextManager[Any]:
    """The lease is counted from when the answer came, as if the way to Redis took no time."""
    acquired, renewed = Lease.acquired, Lease.renewed

    def acquired_late(self: Lease, epoch: int, *, asked_ms: int, now_ms: int) -> bool:
        return acquired(self, epoch, asked_ms=now_ms, now_ms=now_ms)

    def renewed_late(self: Lease, *, asked_ms: int, now_ms: int) -> list[LeaseEffect]:
        return renewed(self, asked_ms=now_ms, now_ms=now_ms)

    return unchecked(
        patch.object(Lease, "acquired", acquired_late),
        patch.object(Lease, "renewed", renewed_late),
        patch.object(LeaseConfig, "margin_ms", 0),
    )


def no_fence() -> AbstractContextManager[Any]:
    """A worker takes frames of whoever sends some."""
    return patch.object(Fence, "lets", lambda self, epoch: True)


def late_answers_revive() -> AbstractContextManager[Any]:
    """A renewal that was answered after the end makes a leader again."""

    def renewed(self: Lease, *, asked_ms: int, now_ms: int) -> list[LeaseEffect]:
        self._asked_ms = None
        self._held_until_ms = now_ms + self._config.lease_ms
        self._next_ask_ms = now_ms + self._config.renew_ms
        return []

    return patch.object(Lease, "renewed", renewed)


def resumes_too_late() -> AbstractContextManager[Any]:
    """A take-over begins with the next message, and not behind the stored ones."""
    resume = Ring.resume

    def resume_at_the_end(self: Ring, stored: Position | None) -> Resumed:
        resumed = resume(self, stored)
        position = self.position
        if position is not None:
            self.stored(position)
        return resumed

    return patch.object(Ring, "resume", resume_at_the_end)


def places_differ() -> AbstractContextManager[Any]:
    """Leader and standby do not agree where messages stand: half of the rings count from 1."""
    marker_heard = Ring.marker_heard
    rings: dict[int, Ring] = {}

    def marker_shifted(self: Ring, marker: SequenceMarker) -> None:
        marker_heard(self, marker)
        rings.setdefault(id(self), self)
        if list(rings).index(id(self)) % 2:
            self._stretches[-1].first = 1

    return patch.object(Ring, "marker_heard", marker_shifted)


def pushes_out_in_silence() -> AbstractContextManager[Any]:
    """What the ring's limits cost is not counted."""
    return patch.object(ring.Ring, "_missed", staticmethod(lambda stretches, stored: 0))


def settles_stored_batches_early() -> AbstractContextManager[Any]:
    """A stored batch is removed with its first message."""
    settle = MessageTable.settle

    def settle_early(
        self: MessageTable, batch: Batch, uuids: Sequence[bytes], into: Settle
    ) -> None:
        if batch.home is not None:
            into.stored_batches.append(batch.home.stored_id)
        settle(self, batch, uuids, into)

    return patch.object(MessageTable, "settle", settle_early)


def forgets_the_last_of_a_stored_batch() -> AbstractContextManager[Any]:
    """A stored batch of which one message was dead-lettered is never settled."""
    dead_lettered = Plan.dead_lettered

    def dead_lettered_only(self: Plan, uuids: Sequence[bytes]) -> list[Effect]:
        dead_lettered(self, uuids)
        return []

    return patch.object(Plan, "dead_lettered", dead_lettered_only)


def settles_what_is_handed_out() -> AbstractContextManager[Any]:
    """At most once: an entry is acknowledged when its worker goes away."""
    left = Plan.left

    def left_and_settled(self: Plan, worker: int, now_ms: int) -> list[Effect]:
        known = self._pool.get(worker)
        entries = [e for batch in (known.batches if known else ()) for e in batch.entries or ()]
        uuids = [u for batch in (known.batches if known else ()) for u in batch.uuids]
        actions = left(self, worker, now_ms)
        self.acked(uuids, worker)
        return [*actions, Settle(entries=entries)]

    return unchecked(patch.object(Plan, "left", left_and_settled))


def forgets_who_went() -> AbstractContextManager[Any]:
    """What a worker that went away had is never handed out again."""

    def left(self: Plan, worker: int, now_ms: int) -> list[Effect]:
        self._pool.leave(worker)
        return []

    return unchecked(
        patch.object(Plan, "left", left), patch.object(Plan, "_again_or_dead", lambda *said: None)
    )


def deadline_of_half() -> AbstractContextManager[Any]:
    """Messages are taken back before their time."""
    send = Plan._send

    def send_short(self: Plan, worker: Any, batch: Batch, now_ms: int) -> Any:
        return send(self, worker, batch, now_ms - self._config.deadline_ms // 2)

    return patch.object(Plan, "_send", send_short)


def progress_is_ignored() -> AbstractContextManager[Any]:
    """Who says that it is still at work loses its messages all the same."""
    return patch.object(Plan, "progressed", lambda self, uuids, worker, now_ms: None)


def rests_for_ever() -> AbstractContextManager[Any]:
    """A worker that was late once is never trusted again."""
    return unchecked(
        patch.object(WorkerPool, "answered", lambda self, key: None),
        patch.object(WorkerPool, "next_rest_end", lambda self, now_ms: None),
        patch.object(WorkerPool, "strike", lambda self, key, now_ms: _never_again(self.get(key))),
    )


def _never_again(worker: Any) -> None:
    if worker is not None:
        worker.strikes, worker.rest_until_ms = 1, 1 << 60


def gives_up_the_innocent() -> AbstractContextManager[Any]:
    """A message that failed once is given up."""

    def again_or_dead(self: Plan, batch: Batch, why: str, dead_letters: list[DeadLetter]) -> None:
        self._give_up(batch, why, dead_letters)

    return patch.object(Plan, "_again_or_dead", again_or_dead)


def forgets_dead_letters() -> AbstractContextManager[Any]:
    """What is given up is just dropped."""
    nacked = Plan.nacked

    def nacked_silently(self: Plan, *said: Any, **more: Any) -> list[Effect]:
        actions = nacked(self, *said, **more)
        return [action for action in actions if not isinstance(action, WriteDeadLetters)]

    return patch.object(Plan, "nacked", nacked_silently)


def takes_everything_twice() -> AbstractContextManager[Any]:
    """What the source brings again is taken for new."""

    def take_in(self: MessageTable, batch: Batch, stored_id: bytes | None) -> int:
        batch.state = BatchState.WAITING
        self.name(batch)
        self.bytes += batch.bytes
        return 0

    return unchecked(patch.object(MessageTable, "take_in", take_in))


PLANTS: Mapping[str, Plant] = {
    plant.__name__: plant
    for plant in (
        leads_for_ever,
        lease_counts_from_the_answer,
        no_fence,
        late_answers_revive,
        resumes_too_late,
        places_differ,
        pushes_out_in_silence,
        settles_stored_batches_early,
        forgets_the_last_of_a_stored_batch,
        settles_what_is_handed_out,
        forgets_who_went,
        deadline_of_half,
        progress_is_ignored,
        rests_for_ever,
        gives_up_the_innocent,
        forgets_dead_letters,
        takes_everything_twice,
    )
}
