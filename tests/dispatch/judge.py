"""The judge of the simulation: sees everything, and says which guarantee was not kept."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.dispatch.model_redis import Violation
from waterclock.dispatch.core.batches import HandOut
from waterclock.dispatch.core.identity import Position
from waterclock.dispatch.core.plan import Plan
from waterclock.dispatch.core.ring import Resumed

if TYPE_CHECKING:
    from tests.dispatch.simulated_dispatcher import SimulatedDispatcher
    from tests.dispatch.simulation import World

SLACK_MS = 4_000
"""How long a message, or the word that it is stored, may be on the way."""


@dataclass
class Judge:
    """Remembers what was published and handed out."""

    world: "World"
    published: dict[bytes, int] = field(default_factory=dict)
    """When each message of the channel was published."""
    added: set[bytes] = field(default_factory=set)
    """Messages of the stream."""
    missed: int = 0
    maybe_repeated: int = 0
    windows: list[tuple[int, int]] = field(default_factory=list)
    """Times in which something may be lost, because a gap was told."""
    takeovers: int = 0
    _unsubscribed: dict[int, int] = field(default_factory=dict)
    _with: dict[tuple[int, bytes], tuple[int, int]] = field(default_factory=dict)
    """Who has a message until when, by epoch and uuid."""
    _accepted: dict[int, int] = field(default_factory=dict)

    # On the way

    def leaders(self) -> None:
        """There is one leader at most, by everybody's own clock."""
        leading = [
            each.number
            for each in self.world.dispatchers.values()
            if each.is_running and each.lease.is_held(each.now_ms)
        ]
        if len(leading) > 1:
            raise Violation(f"{leading} lead at the same time")

    def accepted(self, worker: int, epoch: int) -> None:
        """A worker never goes back to an older leader."""
        if epoch < self._accepted.get(worker, 0):
            raise Violation(f"worker {worker} took epoch {epoch} after {self._accepted[worker]}")
        self._accepted[worker] = epoch

    def handed_out(self, leader: "SimulatedDispatcher", out: HandOut, now_ms: int) -> None:
        """A message is with one worker at a time, until its deadline or the worker's end."""
        for uuid in out.uuids:
            worker, until_ms = self._with.get((leader.epoch, uuid), (-1, 0))
            if now_ms < until_ms:
                raise Violation(f"{uuid.hex()} is with {worker} and goes to {out.worker}")
            until_ms = now_ms + self.world.plan_config.deadline_ms
            self._with[leader.epoch, uuid] = (out.worker, until_ms)

    def extended(
        self, leader: "SimulatedDispatcher", uuids: Sequence[bytes], worker: int, now_ms: int
    ) -> None:
        for uuid in uuids:
            holder, until_ms = self._with.get((leader.epoch, uuid), (-1, 0))
            if holder == worker and now_ms < until_ms:
                until_ms = now_ms + self.world.plan_config.deadline_ms
                self._with[leader.epoch, uuid] = (worker, until_ms)

    def given_back(self, leader: "SimulatedDispatcher", uuids: Sequence[bytes]) -> None:
        for uuid in uuids:
            self._with.pop((leader.epoch, uuid), None)

    def worker_gone(self, leader: "SimulatedDispatcher", worker: int) -> None:
        held = [key for key, (holder, _) in self._with.items() if holder == worker]
        for key in held:
            del self._with[key]

    def bounded(self, leader: "SimulatedDispatcher", plan: Plan) -> None:
        """Memory has its limits."""
        limit = self.world.plan_config.messages_max + 500
        if plan.held > 2 * limit:
            raise Violation(f"the plan holds {plan.held}")
        if self.world.schedule.rng.random() < 0.02:
            plan.check_invariants()
            leader.ring.check_invariants()

    def dead_lettered(self, dead_letters: Sequence[Any]) -> None:
        for dead_letter in dead_letters:
            is_over = dead_letter.deliveries >= self.world.plan_config.deliveries_max
            if not dead_letter.body.startswith(b"poison") and not is_over:
                after = f"after {dead_letter.deliveries} deliveries"
                raise Violation(f"{dead_letter.body!r} is dead-lettered {after}")

    # Gaps that are told

    def unsubscribed(self, number: int) -> None:
        self._unsubscribed[number] = self.world.schedule.now_ms

    def subscribed(self, number: int) -> None:
        since_ms = self._unsubscribed.pop(number, None)
        if since_ms is not None:
            self.windows.append((since_ms - SLACK_MS, self.world.schedule.now_ms + SLACK_MS))

    def resumed(self, resumed: Resumed, stored: Position | None) -> None:
        """A take-over says what it may have lost: all behind the place it goes on from. When that
        was stored does not matter; a slow leader stores places of long ago."""
        self.takeovers += 1
        self.missed += resumed.missed
        self.maybe_repeated += resumed.maybe_repeated
        if resumed.has_gap:
            start_ms = 0 if stored is None else self.world.redis.markers_ms[stored.marker]
            self.windows.append((start_ms, self.world.schedule.now_ms + SLACK_MS))

    # At the end

    def verdict(self) -> None:
        """Everything is done, once; what is not there was told."""
        redis = self.world.redis
        counted = Counter(redis.written.values())
        done = {*counted, *redis.dead.values()}
        lost = self.added - done
        if lost:
            raise Violation(f"{len(lost)} messages of the stream are lost: {sorted(lost)[:3]}")
        repeated = [body for body, count in counted.items() if count > 1]
        if [body for body in repeated if body in self.added]:
            raise Violation(f"{repeated[:3]} are in the output twice")
        if len(repeated) > self.maybe_repeated:
            raise Violation(f"{len(repeated)} repeated, {self.maybe_repeated} told")
        untold = [
            body
            for body, at_ms in self.published.items()
            if body not in done and not any(start <= at_ms < end for start, end in self.windows)
        ]
        if len(untold) > self.missed:
            raise Violation(f"{len(untold)} lost and {self.missed} told: {sorted(untold)[:3]}")
        missing = len(set(self.published) - done)
        if self.world.is_steady and (missing or repeated):
            raise Violation(f"{missing} lost and {len(repeated)} repeated in a steady story")
        if redis.stored_batches or redis.pending:
            raise Violation(
                f"{len(redis.stored_batches)} stored batches, {len(redis.pending)} entries are left"
            )

    def is_done(self) -> bool:
        """Say whether nothing is under way."""
        redis = self.world.redis
        return (
            not redis.stored_batches
            and not redis.pending
            and redis.read_to == len(redis.source_entries)
        )
