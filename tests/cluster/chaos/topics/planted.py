"""Bugs planted in the nodes of a round of topics, each to be given away by a finding that names it.

python -m tests.cluster.chaos.topics.planted NAME up …    is `waterclock up …` with a bug in it
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.cluster.chaos.topics.plan import Fault, Plan, Role, Step
from waterclock.cli import main as waterclock
from waterclock.model.ids import Millis
from waterclock.node.partition.host import PartitionHost
from waterclock.node.schedule.scheduler import Int64s, Outcomes, Scheduler
from waterclock.runtime.clock import SystemClock
from waterclock.storage.flush import FlushPlan
from waterclock.storage.replica_log import ReplicaLog

HASTE_MS = 1_000


@dataclass(frozen=True, slots=True)
class Plant:
    """A bug, the round it is looked for in, and what should give it away."""

    put: Callable[[], None]
    gives_away: frozenset[str]
    steps: tuple[Step, ...]

    def plan(self, seed: int) -> Plan:
        """Return the round of a seed: the clients differ, what happens does not."""
        last_ms = max(step.at_ms + step.for_ms for step in self.steps)
        return Plan(
            seed, seed, "planted", self.steps, partitions=1, publishers=6, load_ms=last_ms + 2_000
        )


def acks_early() -> None:
    """A leader acknowledges what it has flushed, and nobody else."""

    async def publish(self: PartitionHost, *args: Any, **words: Any) -> Any:
        return await as_it_is(self, *args, **{**words, "acks": "leader"})

    as_it_is = PartitionHost.publish
    PartitionHost.publish = publish  # type: ignore[method-assign]


def spares_some() -> None:
    """A leader that is to have all replicas store a message waits for a majority."""

    async def publish(self: PartitionHost, *args: Any, **words: Any) -> Any:
        acks = words.get("acks", "quorum")
        return await as_it_is(self, *args, **{**words, "acks": "quorum" if acks == "all" else acks})

    as_it_is = PartitionHost.publish
    PartitionHost.publish = publish  # type: ignore[method-assign]


def dirty_reads() -> None:
    """Readers are given what is flushed here, committed or not."""
    FlushPlan.commit = lambda self, end: None  # type: ignore[method-assign]


def hasty() -> None:
    """Timers fire a second before their time."""

    def now_ms(self: SystemClock) -> Millis:
        return Millis(as_it_is(self) + HASTE_MS)

    as_it_is = SystemClock.now_ms
    SystemClock.now_ms = now_ms  # type: ignore[method-assign]


def cancels_nothing() -> None:
    """A cancel is acknowledged, and not done."""

    async def cancel(self: Scheduler, offsets: Int64s) -> Outcomes:
        outcomes, _ = self._standing(offsets)
        return await self._answered(outcomes)

    Scheduler.cancel = cancel  # type: ignore[method-assign]


def forgets_ids() -> None:
    """Who comes to lead does not know the ids of what it has copied."""
    ReplicaLog._note_ids = lambda self, foreign: None  # type: ignore[method-assign]


_KILL = tuple(Step(at_ms, Fault.KILL, Role.LEADER, 300) for at_ms in (1_500, 6_500, 11_500))
_AWAY = (Step(1_500, Fault.KILL, Role.FOLLOWER, 4_000),)
_CUT = (Step(1_500, Fault.CUT, Role.LEADER, 6_000),)
PLANTS = {
    "acks-early": Plant(acks_early, frozenset({"lost write", "false ack"}), _CUT),
    "spares-some": Plant(spares_some, frozenset({"acked without all"}), _AWAY),
    "dirty-reads": Plant(
        dirty_reads, frozenset({"inconsistent offsets", "copies differ", "duplicate"}), _CUT
    ),
    "hasty": Plant(hasty, frozenset({"early fire"}), _KILL[:1]),
    "cancels-nothing": Plant(cancels_nothing, frozenset({"fired after cancel"}), _KILL[:1]),
    "forgets-ids": Plant(forgets_ids, frozenset({"duplicate"}), _KILL),
}


if __name__ == "__main__":
    PLANTS[sys.argv.pop(1)].put()
    waterclock()
