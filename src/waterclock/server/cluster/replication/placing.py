"""Puts partitions where they belong: new ones, by the leader of `__meta`; others by their leaders.

The leader of `__meta` knows all topics. It gives a partition that has no record one, and takes away
records that no topic has; the latter only as long as its own record is unchanged, so that a leader
that was superseded without knowing cannot take away what the next one made. Each leader sees to the
replicas of what it leads, one step at a time.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from waterclock.cluster.coordinator.errors import (
    CoordinatorRefused,
    CoordinatorUnavailable,
    RevisionWentBack,
)
from waterclock.cluster.coordinator.records import PartitionRecord, encode_record
from waterclock.cluster.coordinator.requests import (
    ABSENT,
    OPERATIONS_MAX,
    Delete,
    Put,
    Revision,
    Txn,
    Unchanged,
    one_key,
)
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.placement import Places, Spread

if TYPE_CHECKING:
    from waterclock.server.cluster.replication.hosted import Hosted
    from waterclock.server.cluster.replication.replicator import Replicator

PAUSE_S: Final = 0.3
"""Between two looks while something is under way: a replica learns, the coordinator is away."""
IDLE_S: Final = 5.0
BATCH: Final = OPERATIONS_MAX - 1
"""Records in one transaction, beside the condition on the record of `__meta`."""

_log = logging.getLogger(__name__)


class Placing:
    """Looks after the places of partitions. `run` it in a task."""

    def __init__(self, replicator: "Replicator") -> None:
        self._replicator = replicator
        self._look = asyncio.Event()
        self._away_since_ms: dict[ReplicaId, int] = {}
        self._may_move = False
        """None of what this node leads is on its way to another node: one may be."""
        self.knows_all_topics: Callable[[], bool] = lambda: False
        """Whether the node has attached all topics that there are: what no topic has may go."""

    def __repr__(self) -> str:
        return f"<Placing of {self._replicator.name}>"

    def look(self) -> None:
        """Something changed: see whether there is something to do."""
        self._look.set()

    async def run(self) -> None:
        """Do what there is to do, until cancelled."""
        while True:
            try:
                await self._place_new()
                is_busy = self._step_all()
            except (CoordinatorUnavailable, CoordinatorRefused) as error:
                _log.debug("placing waits: %s", error)
                is_busy = True
            except RevisionWentBack:
                return
            if is_busy:
                await asyncio.sleep(PAUSE_S)
            else:
                try:
                    async with asyncio.timeout(IDLE_S):
                        await self._look.wait()
                except TimeoutError:
                    continue
            self._look.clear()

    # New partitions

    async def _place_new(self) -> None:
        """Give records to partitions of topics, and take away those of topics that are gone."""
        replicator = self._replicator
        view = replicator.session.view
        meta_log = view.meta_log
        hosted = {each.log_id: each for each in replicator.hosted}
        meta = hosted.get(meta_log or b"")
        if meta is None or meta_log is None or not meta.is_leading:
            return
        new = [each for log_id, each in hosted.items() if log_id not in view.partitions]
        if new and view.nodes:
            await self._make(new)
        led = view.partitions.get(meta_log)
        # Only what was read while this node led, and had taken in all records of those before it,
        # can be compared with them.
        is_own = led is not None and led.record.leader == replicator.me
        if led is not None and is_own and self.knows_all_topics():
            known = {each.log_id for each in replicator.hosted}
            old = [log_id for log_id in view.partitions if log_id not in known]
            if old:
                await self._remove(old, meta_log, led.revision)

    async def _make(self, new: list["Hosted"]) -> None:
        session = self._replicator.session
        view = session.view
        spread = Spread(view.nodes, load=view.load(), leads=view.leads())
        for start in range(0, len(new), BATCH):
            conditions, puts = [], []
            for hosted in new[start : start + BATCH]:
                key = session.keys.partition(hosted.log_id)
                record = PartitionRecord(
                    epoch=0, state="vacant", replicas=spread.chosen(hosted.factor)
                )
                conditions.append(Unchanged(key, ABSENT))
                puts.append(Put(key, encode_record(record)))
            await session.coordinator.write(Txn(tuple(conditions), tuple(puts)))

    async def _remove(self, old: list[bytes], meta_log: bytes, led_at: Revision) -> None:
        session = self._replicator.session
        is_led = Unchanged(session.keys.partition(meta_log), led_at)
        for start in range(0, len(old), BATCH):
            keys = [session.keys.partition(log_id) for log_id in old[start : start + BATCH]]
            deletes = tuple(Delete(one_key(key)) for key in keys)
            await session.coordinator.write(Txn((is_led,), deletes))
        _log.info("partitions_forgotten partitions=%d", len(old))

    # Replicas

    def _step_all(self) -> bool:
        """Do the next step for each partition that this node leads; tell if any is under way."""
        if self._replicator.is_leaving:
            return False
        view = self._replicator.session.view
        led = [each for each in self._replicator.hosted if each.is_leading]
        lost = self._lost()
        load = view.load() if led else {}
        self._may_move = not any(map(_is_moving, led))
        steps = [self._step(hosted, load, lost) for hosted in led]
        return any(steps)

    def _lost(self) -> frozenset[ReplicaId]:
        """Return the replicas that have been away for so long that others take their places."""
        replicator = self._replicator
        session, after_ms = replicator.session, replicator.settings.replace_after_ms
        if session.problem or not after_ms:
            self._away_since_ms.clear()  # nobody can say who is there
            return frozenset()
        now_ms = replicator.now_ms()
        here = {*session.view.alive, *replicator.channels.up}
        records = [placed.record for placed in session.view.partitions.values()]
        away = {each for record in records for each in (*record.replicas, *record.learners)} - here
        self._away_since_ms = {
            ReplicaId(each): self._away_since_ms.get(ReplicaId(each), now_ms) for each in away
        }
        return frozenset(
            each for each, ms in self._away_since_ms.items() if now_ms - ms >= after_ms
        )

    def _step(self, hosted: "Hosted", load: dict[str, int], lost: frozenset[ReplicaId]) -> bool:
        replicator, core = self._replicator, hosted.core
        record = None if core is None else core.record
        if core is None or record is None or record.leader != replicator.me:
            return False
        step = Places(
            record=record,
            factor=hosted.factor,
            nodes=replicator.session.view.nodes,
            load=load,
            caught_up=hosted.caught_up((*record.replicas, *record.learners)),
            lost=lost,
            is_everywhere=hosted.is_everywhere,
            may_move=self._may_move,
        ).next_step()
        if step is None:
            return _is_moving(hosted)
        now_ms = replicator.now_ms()
        _log.info("placing partition=%s %s %s", hosted.name, step.do, step.replica)
        match step.do:
            case "learn":
                self._may_move = False
                hosted.tell(core.add_learner(step.replica, now_ms))
            case "vote":
                hosted.tell(core.promote(step.replica, now_ms))
            case "drop":
                hosted.tell(core.remove(step.replica, now_ms))
            case "hand_over":
                hosted.tell(core.transfer(step.replica, now_ms))
        return True


def _is_moving(hosted: "Hosted") -> bool:
    """Say if a partition has something on its way: a replica that learns, to vote."""
    record = None if hosted.core is None else hosted.core.record
    if record is None or not record.learners:
        return False
    return not hosted.is_everywhere or len(record.replicas) < hosted.factor
