"""Puts partitions where they belong: new ones, by the leader of `__meta`; others by their leaders.

The leader of `__meta` knows all topics. It gives a partition that has no record one, and takes away
records that no topic has; the latter only as long as its own record is unchanged, so that a leader
that was superseded without knowing cannot take away what the next one made. It raises the release
level of the cluster, under the same condition. Each leader sees to the replicas of what it leads,
one step at a time, and takes away what people wanted moved once it is.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, assert_never

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
from waterclock.cluster.replication.cluster_view import ClusterView, node_of
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.placement import Places, Spread, Step
from waterclock.server.cluster.replication.release_level import raising_txn

if TYPE_CHECKING:
    from waterclock.cluster.replication.replica import Replica
    from waterclock.server.cluster.replication.hosted import Hosted
    from waterclock.server.cluster.replication.replicator import Replicator

PAUSE_S: Final = 0.3
"""Between two looks while something is under way: a replica learns, the coordinator is away."""
IDLE_S: Final = 5.0
"""Between two looks while nothing is, or nothing has come of it for long."""
REST: Final = 4
"""How many times as long as a look took the next one waits. A look goes through all partitions, and
each partition that comes to be led asks for one: a thousand of them would take all of the loop."""
BATCH: Final = OPERATIONS_MAX - 1
"""Records in one transaction, beside the condition on the record of `__meta`."""

_log = logging.getLogger(__name__)


class Pace:
    """How long to wait before the next look.

    What is under way is looked at soon, and as long as nothing comes of it ever later: a node that
    is drained while no other can lead in its place may stay so for days.
    """

    def __init__(self) -> None:
        self._pause_s = PAUSE_S

    def __repr__(self) -> str:
        return f"<Pace of {self._pause_s:g} s>"

    def quicken(self) -> None:
        """Something was done, or has changed: what was stuck may not be any more."""
        self._pause_s = PAUSE_S

    def next_s(self, *, is_busy: bool) -> float:
        """Return how long to wait now, unless something changes."""
        if not is_busy:
            self.quicken()
            return IDLE_S
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, IDLE_S)
        return pause_s

    def rest_s(self, *, is_busy: bool, took_s: float) -> float:
        """Return how long to wait whatever changes: what comes meanwhile is seen to together."""
        return PAUSE_S if is_busy else min(PAUSE_S, REST * took_s)


class Placing:
    """Looks after the places of partitions. `run` it in a task."""

    def __init__(self, replicator: "Replicator") -> None:
        self._replicator = replicator
        self._look = asyncio.Event()
        self._away_since_ms: dict[ReplicaId, int] = {}
        self._may_move = False
        """None of what this node leads is on its way to another node: one may be."""
        self._load, self._leaders = Counter[str](), Counter[str]()
        """Replicas and leaders of each node, with those that the steps of this look make."""
        self._moved: list[bytes] = []
        """Logs that are where people wanted them."""
        self._has_acted = False
        """The last look led to something."""
        self.knows_all_topics: Callable[[], bool] = lambda: False
        """Whether the node has attached all topics that there are: what no topic has may go."""

    def __repr__(self) -> str:
        return f"<Placing of {self._replicator.name}>"

    def look(self) -> None:
        """Something changed: see whether there is something to do."""
        self._look.set()

    async def run(self) -> None:
        """Do what there is to do, until cancelled."""
        pace, now_s = Pace(), asyncio.get_running_loop().time
        while True:
            begun_s = now_s()
            try:
                await self._place_new()
                await self._raise_level()
                is_busy = self._step_all()
                await self._forget_done()
            except (CoordinatorUnavailable, CoordinatorRefused) as error:
                _log.debug("placing waits: %s", error)
                is_busy = self._has_acted = True
            except RevisionWentBack:
                return
            if self._has_acted:
                pace.quicken()
            wait_s = pace.next_s(is_busy=is_busy)
            rest_s = pace.rest_s(is_busy=is_busy, took_s=now_s() - begun_s)
            await asyncio.sleep(rest_s)
            wait_s = max(0.0, wait_s - rest_s)
            if await self._is_asked_within(wait_s):
                pace.quicken()

    async def _is_asked_within(self, wait_s: float) -> bool:
        """Wait until there may be something to do; tell whether somebody said so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._look.wait()
        is_asked = self._look.is_set()
        self._look.clear()
        return is_asked

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
        spread = Spread(view.nodes, load=view.load(), leads=view.leads(), drained=view.drains)
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

    async def _raise_level(self) -> None:
        """Let later kinds be written, once all members can read them."""
        session, me = self._replicator.session, self._replicator.me
        if raising_txn(session.view, session.keys, me) is None:
            return
        # A node of an older release may have registered since: what was watched may be late.
        view = ClusterView(session.keys)
        view.read(await session.coordinator.read(session.keys.everything))
        txn = raising_txn(view, session.keys, me)
        if txn is not None and (await session.coordinator.write(txn)).succeeded:
            _log.info("release_level_raised nodes=%d", len(view.nodes))

    # What people want

    async def _forget_done(self) -> None:
        """Take away what people wanted and is done; of nodes and topics the leader of `__meta`
        does."""
        session = self._replicator.session
        view, keys = session.view, session.keys
        done = [(keys.move(log_id), view.moves[log_id].revision) for log_id in self._moved]
        if view.meta_log is not None and view.leader_of(view.meta_log) == self._replicator.me:
            named = {*map(node_of, view.replicas())}
            done += [
                (keys.drain(name), drain.revision)
                for name, drain in view.drains.items()
                if drain.record.target and name not in named
            ]
            strays = view.moves.keys() - view.partitions.keys()
            done += [(keys.move(log_id), view.moves[log_id].revision) for log_id in strays]
        for key, revision in done:
            txn = Txn((Unchanged(key, revision),), (Delete(one_key(key)),))
            await session.coordinator.write(txn)

    # Replicas

    def _step_all(self) -> bool:
        """Do the next step for each partition that this node leads; tell if any is under way."""
        self._moved, self._has_acted = [], False
        if self._replicator.is_leaving:
            return False
        view = self._replicator.session.view
        led = [each for each in self._replicator.hosted if each.is_leading]
        lost = self._lost()
        self._load = Counter(view.load() if led else {})
        self._leaders = Counter(view.leaders() if led else {})
        self._may_move = not any(map(_is_moving, led))
        steps = [self._step(hosted, lost) for hosted in led]
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
        away = {*session.view.replicas()} - here
        self._away_since_ms = {
            ReplicaId(each): self._away_since_ms.get(ReplicaId(each), now_ms) for each in away
        }
        return frozenset(
            each for each, ms in self._away_since_ms.items() if now_ms - ms >= after_ms
        )

    def _step(self, hosted: "Hosted", lost: frozenset[ReplicaId]) -> bool:
        replicator, core = self._replicator, hosted.core
        record = None if core is None else core.record
        if core is None or record is None or record.leader != replicator.me:
            return False
        view = replicator.session.view
        move = view.moves.get(hosted.log_id)
        places = Places(
            record=record,
            factor=hosted.factor,
            nodes=view.nodes,
            load=self._load,
            leaders=self._leaders,
            caught_up=hosted.caught_up((*record.replicas, *record.learners)),
            lost=lost,
            damaged=core.damaged,
            is_everywhere=hosted.is_everywhere,
            may_move=self._may_move,
            drains={name: drain.record.target for name, drain in view.drains.items()},
            move=None if move is None else move.record,
        )
        if move is not None and places.is_move_over:
            self._moved.append(hosted.log_id)
            self._has_acted = True
            return True
        step = places.next_step()
        if step is None:
            return places.is_under_way or move is not None
        _log.info("placing partition=%s %s %s", hosted.name, step.do, step.replica)
        self._perform(hosted, core, step)
        self._has_acted = True
        return True

    def _perform(self, hosted: "Hosted", core: "Replica", step: Step) -> None:
        replica, now_ms = step.replica, self._replicator.now_ms()
        match step.do:
            case "learn":
                self._may_move = False
                self._load[node_of(replica)] += 1  # the next partition may go elsewhere
                hosted.tell(core.add_learner(replica, now_ms))
            case "vote":
                hosted.tell(core.promote(replica, now_ms))
            case "demote":
                hosted.tell(core.demote(replica, now_ms))
            case "drop":
                hosted.tell(core.remove(replica, now_ms))
            case "prefer":
                hosted.tell(core.prefer(replica, now_ms))
            case "hand_over":
                self._leaders[node_of(replica)] += 1
                hosted.tell(core.transfer(replica, now_ms))
            case _:
                assert_never(step.do)


def _is_moving(hosted: "Hosted") -> bool:
    """Say if a partition has something on its way: a replica that learns, to vote."""
    record = None if hosted.core is None else hosted.core.record
    if record is None or not record.learners:
        return False
    return not hosted.is_everywhere or len(record.replicas) < hosted.factor
