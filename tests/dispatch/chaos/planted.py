"""Bugs planted in the processes of a round, each to be given away by a finding that names it.

A plant is put into a process before it begins, and stays for its life.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha1
from typing import Any

from tests.dispatch.chaos.plan import Fault, Plan, Shares, SourceKind, Step
from waterclock.dispatch.core.batches import DeadLetter
from waterclock.dispatch.core.lease import Lease, LeaseEffect
from waterclock.dispatch.core.ring import Resumed, Ring
from waterclock.dispatch.leader import Leader
from waterclock.dispatch.redis import scripts
from waterclock.dispatch.redis.scripts import Script
from waterclock.dispatch.sinks.redis import RedisSink
from waterclock.dispatch.sinks.sink import WRITTEN, Writing
from waterclock.dispatch.sources.pubsub import PubSubSource
from waterclock.dispatch.sources.stream import StreamSource
from waterclock.dispatch.worker.worker import Worker

ACK_FIRST_S = 0.3
SHARES = Shares()


@dataclass(frozen=True, slots=True)
class Plant:
    """A bug, the rounds it is looked for in, and what should give it away."""

    put: Callable[[], None]
    gives_away: frozenset[str]
    steps: tuple[Step, ...]
    source_kind: SourceKind = "stream"
    lease_ms: int = 600
    deadline_ms: int = 800
    rate: int = 400
    publish_ms: int = 2_500
    shares: Shares = SHARES

    def plan(self, seed: int) -> Plan:
        """Return the round of a seed: who is hit differs, what happens does not."""
        steps = tuple(replace(step, index=step.index + seed) for step in self.steps)
        return Plan(
            seed=seed, number=seed, source_kind=self.source_kind, theme="planted", steps=steps,
            lease_ms=self.lease_ms, deadline_ms=self.deadline_ms, rate=self.rate,
            publish_ms=self.publish_ms, shares=self.shares, deliveries_max=8,
        )  # fmt: skip


def _rewrite(script: Script, old: str, new: str) -> None:
    assert old in script.text, f"{script.name}.lua is not what the plant was made for"
    script.text = script.text.replace(old, new)
    script.digest = sha1(script.text.encode(), usedforsecurity=False).hexdigest()


def no_fence() -> None:
    """The write script does not look at the epoch."""
    _rewrite(scripts.WRITE, "if epoch < fence then", "if false then")


def no_dedup() -> None:
    """The write script does not look at what is written already."""
    _rewrite(scripts.WRITE, "if known[i] == 1 or is_fresh[uuid] then", "if false then")


def old_leader_obeyed() -> None:
    """A leader does not stop by its clock, and workers take messages from whoever sends some."""

    def tick(self: Lease, now_ms: int) -> list[LeaseEffect]:
        self._held_until_ms = now_ms + 10_000
        return ticked(self, now_ms)

    ticked = Lease.tick
    Lease.tick = tick  # type: ignore[method-assign]
    Lease.is_held = lambda self, now_ms: self.epoch is not None  # type: ignore[method-assign]
    Worker._is_refused = lambda *_: False  # type: ignore[method-assign]


def empty_ring() -> None:
    """A standby begins with what comes after it took over."""

    def resume(self: Ring, stored: Any) -> Resumed:
        said = resumed(self, stored)
        for stretch in self._stretches:
            stretch.bodies.clear()
        self.messages = self.bytes = 0
        return said

    resumed = Ring.resume
    Ring.resume = resume  # type: ignore[method-assign]


def settle_first() -> None:
    """A message counts as done when it is handed out."""

    def pump(self: Leader) -> None:
        for out in self._plan.hand_out(0):
            self._links[out.worker].hand(out, self.epoch)
            self._perform(self._plan.acked(out.uuids, out.worker))

    Leader._pump = pump  # type: ignore[method-assign]


def ack_first() -> None:
    """A worker acknowledges, and writes a little later."""
    writes: set[asyncio.Task[list[int]]] = set()

    async def later(self: RedisSink, writing: Writing) -> list[int]:
        await asyncio.sleep(ACK_FIRST_S)
        return await write(self, writing)

    async def said(self: RedisSink, writing: Writing) -> list[int]:
        task = asyncio.get_running_loop().create_task(later(self, writing))
        writes.add(task)
        task.add_done_callback(writes.discard)
        return [WRITTEN] * len(writing.uuids)

    write = RedisSink.write
    RedisSink.write = said  # type: ignore[method-assign]


def writes_dead_letters_again() -> None:
    """A dead letter whose answer was lost is written again, whether it was written or not."""
    _rewrite(scripts.STREAM_DEAD_LETTER, "ARGV[at], 1) == 1 then", "ARGV[at], 1) >= 0 then")

    async def twice(self: StreamSource, epoch: int, dead_letters: Sequence[DeadLetter]) -> None:
        await write_dead_letters(self, epoch, dead_letters)
        await write_dead_letters(self, epoch, dead_letters)

    write_dead_letters = StreamSource.write_dead_letters
    StreamSource.write_dead_letters = twice  # type: ignore[method-assign]


def writes_no_dead_letters() -> None:
    """What cannot be processed is acknowledged, and that is all."""

    async def write_dead_letters(
        self: StreamSource, epoch: int, dead_letters: Sequence[DeadLetter]
    ) -> None:
        entries = [
            dead_letter.entry for dead_letter in dead_letters if dead_letter.entry is not None
        ]
        await self.settle(epoch, stored_batches=[], entries=entries)

    StreamSource.write_dead_letters = write_dead_letters  # type: ignore[method-assign]


def no_claim() -> None:
    """A new leader reads on, and leaves what the last one had to nobody."""

    async def claim(self: StreamSource, intake: object, start: bytes) -> None:
        return None

    StreamSource._claim = claim  # type: ignore[method-assign]


def sleepy_standby() -> None:
    """Who was refused the lock asks again much later."""

    def refused(self: Lease, *, ttl_ms: int, now_ms: int) -> None:
        was_refused(self, ttl_ms=ttl_ms, now_ms=now_ms)
        self._next_ask_ms = now_ms + 3_000

    was_refused = Lease.refused
    Lease.refused = refused  # type: ignore[method-assign]


def silenced_gaps() -> None:
    """Nobody counts that a subscription broke."""

    def begin(self: PubSubSource) -> None:
        began(self)
        self._counts.gaps = 0

    async def resume(self: PubSubSource, intake: Any) -> None:
        await resumed(self, intake)
        self._counts.gaps = 0

    began, resumed = PubSubSource._begin, PubSubSource._resume
    PubSubSource._begin = begin  # type: ignore[method-assign]
    PubSubSource._resume = resume  # type: ignore[method-assign]


def stumbles() -> None:
    """A leader fails when a worker leaves it."""

    def lost(self: Leader, link: Any) -> None:
        raise RuntimeError("planted")

    Leader._lost = lost  # type: ignore[method-assign]


_KILL_LEADER = (Step(800, Fault.LEADER_KILL),)
_KILL_WORKERS = tuple(Step(at_ms, Fault.WORKER_KILL, index=at_ms) for at_ms in (600, 1_000, 1_500))
_LATE_WRITE = (
    # The write of a slow message is held on its way while another epoch begins to write.
    *(Step(1_900, Fault.CUT_WORKER_REDIS, 1_300, index=index, mode="hold") for index in (0, 1)),
    Step(2_000, Fault.LEADER_KILL),
)

PLANTS = {
    "no-fence": Plant(
        no_fence, frozenset({"two epochs"}), _LATE_WRITE, rate=60, publish_ms=3_500,
        shares=Shares(slow=500),
    ),
    "no-dedup": Plant(
        no_dedup, frozenset({"written twice"}),
        tuple(Step(at, Fault.WORKER_DIES_AFTER_WRITE, index=at) for at in (600, 1_200)),
    ),
    "old-leader-obeyed": Plant(
        old_leader_obeyed, frozenset({"old epoch accepted"}),
        (Step(1_800, Fault.LEADER_PAUSE, 1_200),), deadline_ms=4_000, rate=1_000, publish_ms=3_000,
        shares=Shares(slow=400),
    ),
    "empty-ring": Plant(empty_ring, frozenset({"lost"}), _KILL_LEADER, source_kind="pubsub"),
    "settle-first": Plant(settle_first, frozenset({"lost"}), _KILL_WORKERS),
    "ack-first": Plant(ack_first, frozenset({"lost"}), _KILL_WORKERS),
    "dead-letters-again": Plant(
        writes_dead_letters_again, frozenset({"dead-lettered twice"}), ()
    ),
    "no-dead-letters": Plant(writes_no_dead_letters, frozenset({"lost"}), ()),
    "no-claim": Plant(no_claim, frozenset({"lost", "unsettled"}), _KILL_LEADER),
    "sleepy-standby": Plant(sleepy_standby, frozenset({"late take-over"}), _KILL_LEADER),
    "silenced-gaps": Plant(
        silenced_gaps, frozenset({"uncounted"}), (Step(800, Fault.REDIS_RESTART, 400),),
        source_kind="pubsub", rate=1_000,
    ),
    "stumbles": Plant(stumbles, frozenset({"error"}), _KILL_WORKERS),
}  # fmt: skip
