"""An operator of a simulated cluster: moves replicas and leaders about, has nodes drained.

What it wants of a node or a partition it writes as a node does that people ask; some of it it takes
back before it is done, all of it in the end. The rest it has the leaders do directly, as they would
by themselves.
"""

from random import Random
from typing import TYPE_CHECKING

from tests.cluster.simulation.topics.hosted import Hosted
from tests.cluster.simulation.topics.session import AGAIN_MS, KEYS
from waterclock.cluster.coordinator.questions import Outcome
from waterclock.cluster.coordinator.records import DrainRecord, MoveRecord, encode_record
from waterclock.cluster.coordinator.requests import Delete, Put, Txn, one_key
from waterclock.cluster.replication.log_view import ReplicaId

if TYPE_CHECKING:
    from tests.cluster.simulation.topics.world import World

LOOK_MS = (100, 500)
ORDER_MS = (300, 6_000)
"""How long it waits until it takes back what it wanted."""


class Operator:
    """Moves leaders and replicas about, if it is a busy one."""

    def __init__(self, world: "World", rng: Random, *, is_busy: bool) -> None:
        self._world = world
        self._rng = rng
        self.is_busy = is_busy
        self._wanted: dict[bytes, bytes] = {}
        """Keys and values of what it wants."""
        self._later()

    def rest(self) -> None:
        """Want nothing any more."""
        self.is_busy = False
        for key in sorted(self._wanted):
            self._take_back(key)

    def _later(self) -> None:
        self._world.timeline.after(self._rng.randint(*LOOK_MS), self._look)

    def _look(self) -> None:
        self._later()
        if self.is_busy and self._rng.random() < 0.1:
            self._order()
        for log_id in self._world.log_ids:
            leader = self._world.leader(log_id)
            if leader is not None:
                leader.process.handle(lambda leader=leader: self._at(leader))  # type: ignore[misc]

    def _at(self, leader: Hosted) -> None:
        """Move one partition, at its leader."""
        record, rng = leader.core.record, self._rng
        if record is None or not leader.is_led or not self.is_busy or rng.random() > 0.15:
            return
        world, core, now_ms = self._world, leader.core, leader.now_ms
        others = [each for each in record.replicas if each != leader.me]
        free = [each for each in map(world.replica, world.names) if each not in record.replicas]
        if others and (not free or rng.random() < 0.6):
            world.tell(f"transfer {leader.partition}")
            leader.tell(core.transfer(ReplicaId(rng.choice(others)), now_ms))
        elif free and not record.learners and len(record.replicas) == world.shape.copies:
            # One more than there should be is taken away again; two are left for people to see to.
            world.tell(f"another place for {leader.partition}")
            leader.tell(core.add_learner(ReplicaId(rng.choice(free)), now_ms))

    # Orders

    def _order(self) -> None:
        """Want a node drained, or a replica or a leader on another one."""
        world, rng = self._world, self._rng
        name = rng.choice(world.names)
        if rng.random() < 0.5:
            drain = DrainRecord(since_ms=world.timeline.now_ms)
            self._want(KEYS.drain(name), drain, f"drain {name}")
        else:
            log_id, is_leader_only = rng.choice(world.log_ids), rng.random() < 0.5
            what = f"move {world.partition_names[log_id]} to {name}, leader {is_leader_only}"
            move = MoveRecord(target=name, is_leader_only=is_leader_only)
            self._want(KEYS.move(log_id), move, what)

    def _want(self, key: bytes, record: DrainRecord | MoveRecord, what: str) -> None:
        world = self._world
        world.tell(f"order: {what}")
        world.counts[f"orders to {what.split()[0]}"] += 1
        self._wanted[key] = encode_record(record)
        self._write(key)
        world.timeline.after(self._rng.randint(*ORDER_MS), lambda: self._take_back(key))

    def _take_back(self, key: bytes) -> None:
        if self._wanted.pop(key, None) is not None:
            self._write(key)

    def _write(self, key: bytes) -> None:
        """Have the coordinator know what is wanted now: people ask again until they are heard."""
        value = self._wanted.get(key)
        operation = Delete(one_key(key)) if value is None else Put(key, value)

        def heard(outcome: Outcome) -> None:
            if isinstance(outcome, Exception):
                self._world.timeline.after(AGAIN_MS, lambda: self._write(key))

        self._world.store.ask("people", Txn(success=(operation,)), heard)
