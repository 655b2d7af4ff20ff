"""Bugs planted in the consumers of a round, each to be given away by a finding that names it.

Most are those of the simulator (tests/burrow/plants.py); here they run in real processes.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.burrow import plants
from tests.burrow.chaos.plan import Plan
from waterclock.burrow.core import commits
from waterclock.burrow.core.effects import Effect
from waterclock.burrow.core.engine import Engine
from waterclock.burrow.core.failures import Failures
from waterclock.burrow.core.records import Assignment, Record, TopicPartition
from waterclock.burrow.core.work import Work
from waterclock.burrow.kafka.dead_letters import KafkaDeadLetters
from waterclock.burrow.runtime.driver import Driver

TICKS = 14


@dataclass(frozen=True, slots=True)
class Plant:
    """A bug, the rounds it is looked for in, and what should give it away."""

    put: plants.Plant
    gives_away: frozenset[str]
    kind: str = "members"
    order: str = "key"

    def plan(self, seed: int) -> Plan:
        """Return the plan of a seed, made fit for this bug."""
        drawn = Plan.of(seed, kind=self.kind, ticks=TICKS)
        return Plan(
            seed=seed,
            kind=self.kind,
            assignor=drawn.assignor,
            order=self.order,  # type: ignore[arg-type]
            is_async=True,
            queue_max=40,
            ticks=TICKS,
        )


def drops_what_fails() -> AbstractContextManager[Any]:
    """A message that fails counts as done."""

    def failed(
        self: Engine, records: Iterable[Record], error: BaseException, now_ms: int
    ) -> list[Effect]:
        return self.finished(records, now_ms)

    return patch.object(Engine, "failed", failed)


def writes_no_dead_letters() -> AbstractContextManager[Any]:
    """A dead letter counts as written before anybody has written it."""

    async def write_dead_letters(
        self: KafkaDeadLetters, records: Sequence[Record], error: BaseException
    ) -> None:
        return

    return patch.object(KafkaDeadLetters, "write_dead_letters", write_dead_letters)


def gives_up_at_once() -> AbstractContextManager[Any]:
    """Every failure is final."""
    return patch.object(Failures, "is_final", lambda self, record, error: True)


def dies_of_a_rebalance() -> AbstractContextManager[Any]:
    """A consumer ends when a partition is taken from it."""

    async def revoke(self: Driver, names: Sequence[TopicPartition]) -> None:
        os._exit(1)

    return patch.object(Driver, "revoke", revoke)


def takes_late_results() -> AbstractContextManager[Any]:
    """A partition is given up without waiting, and what is in flight counts as done."""
    revoked = Engine.revoked

    async def revoke(self: Driver, names: Sequence[TopicPartition]) -> None:
        engine = self._engine
        engine.revoking(names, self.now_ms())
        running = [record for name in names for record in engine._works[name].in_flight]
        engine.finished(running, self.now_ms())
        for effect in revoked(engine, names, self.now_ms()):
            await self._commit_finally(effect)  # type: ignore[arg-type]

    return patch.object(Driver, "revoke", revoke)


def knows_no_keys() -> AbstractContextManager[Any]:
    """Messages of a key run at once."""

    def offer(self: Work, records: Sequence[Record]) -> None:
        self._is_keyed = False
        self.held += len(records)
        self.ready.extend(records)

    return patch.object(Work, "offer", offer)


def stands_still() -> AbstractContextManager[Any]:
    """Parallel Consumer #857: what a rebalance brings is never handed out, and nobody notices."""
    assigned = Engine.assigned

    def first_only(self: Engine, assignments: Sequence[Assignment], now_ms: int) -> list[Effect]:
        is_first = not any(each.epoch > 1 for each in assignments)
        effects = assigned(self, assignments, now_ms)
        if not is_first:
            for each in assignments:
                self._states[each.name].is_draining = True
        return effects

    return patch.object(Engine, "assigned", first_only)


@contextmanager
def ends_without_commit() -> Iterator[None]:
    """A stop leaves what was done since the last commit to be done again."""

    async def drain(self: Driver) -> None:
        self.is_stopping = True
        self._has_room.set()
        self._engine.lost(self._engine.names(), self.now_ms())

    with patch.object(Driver, "drain", drain):
        yield


def commits_go_back() -> AbstractContextManager[Any]:
    """Now and then a commit is an old one."""
    begin = commits.Commits.begin
    old: dict[TopicPartition, Any] = {}

    def stale(self: commits.Commits, states: Any, *, is_final: bool) -> list[Effect]:
        effects = begin(self, states, is_final=is_final)
        for effect in effects:
            mutable: dict[TopicPartition, Any] = effect.commits  # type: ignore[union-attr, assignment]
            for name, commit in mutable.items():
                if name in old and commit.offset % 3 == 0:
                    mutable[name] = old[name]
                old.setdefault(name, commit)
        return effects

    return patch.object(commits.Commits, "begin", stale)


PLANTS: Mapping[str, Plant] = {
    "commits_highest_seen": Plant(plants.commits_highest_seen, frozenset({"ahead"})),
    "map_of_another_base": Plant(plants.map_of_another_base, frozenset({"map"})),
    "takes_late_results": Plant(takes_late_results, frozenset({"ahead", "map"}), "gentle", "none"),
    "drops_what_fails": Plant(drops_what_fails, frozenset({"lost"})),
    "writes_no_dead_letters": Plant(writes_no_dead_letters, frozenset({"no dead letter"})),
    "gives_up_at_once": Plant(gives_up_at_once, frozenset({"dead-lettered"})),
    "knows_no_keys": Plant(knows_no_keys, frozenset({"overlap"})),
    "retry_frees_its_key": Plant(plants.retry_frees_its_key, frozenset({"order"})),
    "ends_without_commit": Plant(ends_without_commit, frozenset({"repeated"}), "gentle"),
    "no_last_commit": Plant(plants.no_last_commit, frozenset({"repeated"}), "gentle"),
    "ignores_the_map": Plant(plants.ignores_the_map, frozenset({"repeated"}), "gentle", "none"),
    "commits_go_back": Plant(commits_go_back, frozenset({"back"})),
    "dies_of_a_rebalance": Plant(dies_of_a_rebalance, frozenset({"ended"})),
    "stands_still": Plant(stands_still, frozenset({"slow", "lost"})),
    "stays_paused": Plant(plants.stays_paused, frozenset({"slow", "lost"})),
}
