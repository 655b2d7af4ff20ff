"""Places of partitions: those that no topic has are forgotten, those of lost nodes taken."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from tests.cluster.replication.shell.live_coordinator import LiveCoordinator, until
from tests.cluster.replication.shell.trio import LOG_ID, SHORT_LEASE_MS, Node, trio
from waterclock.cluster.coordinator.records import (
    ClusterRecord,
    DrainRecord,
    Keys,
    PartitionRecord,
    encode_record,
)
from waterclock.cluster.coordinator.requests import Put, Txn
from waterclock.server.cluster.replication import placing

KEYS = Keys("c")
STRAY = b"s" * 16


class Led:
    """A node that leads `__meta`, and a record of a partition that no topic has."""

    def __init__(self, live: LiveCoordinator, node: Node) -> None:
        self.live = live
        self.node = node

    def put(self, key: bytes, record: ClusterRecord | PartitionRecord) -> None:
        self.live.fake.store.write(Txn(success=(Put(key, encode_record(record)),)))

    async def place(self, *, knows_all_topics: bool) -> set[bytes]:
        """Look at all places once; return which there are then."""
        at = self.node.replicator.placing
        at.knows_all_topics = lambda: knows_all_topics
        await at._place_new()
        found = self.live.fake.store.read(KEYS.partitions).items
        return {KEYS.log_of(item.key) for item in found}


@asynccontextmanager
async def leading(folder: Path) -> AsyncIterator[Led]:
    live = LiveCoordinator()
    async with trio(folder, live.client, lease_ms=SHORT_LEASE_MS) as it:
        leader = Led(live, await it.leader())
        view = leader.node.replicator.session.view
        leader.put(KEYS.cluster, ClusterRecord(cluster_id="x", level=1, meta_log=LOG_ID.hex()))
        leader.put(KEYS.partition(STRAY), PartitionRecord(epoch=0, state="vacant", replicas=("z",)))
        live.poke()
        await until(lambda: view.meta_log == LOG_ID and STRAY in view.partitions)
        yield leader


async def test_the_place_of_a_deleted_topic_is_forgotten_and_that_of_the_records_stays(tmp_path):
    async with leading(tmp_path) as it:
        assert await it.place(knows_all_topics=True) == {LOG_ID}


async def test_a_leader_that_has_not_taken_in_all_records_forgets_nothing(tmp_path):
    async with leading(tmp_path) as it:
        assert await it.place(knows_all_topics=False) == {LOG_ID, STRAY}


async def test_a_leader_that_was_superseded_and_does_not_know_forgets_nothing(tmp_path):
    async with leading(tmp_path) as it:
        placed = it.node.replicator.session.view.partitions[LOG_ID]
        it.put(KEYS.partition(LOG_ID), msgspec.structs.replace(placed.record, epoch=9))

        assert await it.place(knows_all_topics=True) == {LOG_ID, STRAY}


def test_what_is_under_way_is_looked_at_ever_later_while_nothing_comes_of_it():
    pace = placing.Pace()

    assert [pace.next_s(is_busy=True) for _ in range(6)] == [0.3, 0.6, 1.2, 2.4, 4.8, 5.0]
    pace.quicken()
    assert pace.next_s(is_busy=True) == 0.3
    assert pace.next_s(is_busy=False) == 5.0
    assert pace.next_s(is_busy=True) == 0.3


def test_a_look_that_took_long_is_followed_by_a_longer_rest():
    pace = placing.Pace()

    assert pace.rest_s(is_busy=False, took_s=0.0) == 0.0
    assert pace.rest_s(is_busy=False, took_s=0.01) == 0.04
    assert pace.rest_s(is_busy=False, took_s=1.0) == 0.3
    assert pace.rest_s(is_busy=True, took_s=0.0) == 0.3


async def test_however_often_a_look_is_asked_for_there_is_a_rest_between_two(tmp_path, monkeypatch):
    happened = list[str]()

    def rest_s(pace: placing.Pace, *, is_busy: bool, took_s: float) -> float:
        happened.append("rest")
        return 0.0

    monkeypatch.setattr(placing.Pace, "rest_s", rest_s)
    async with trio(tmp_path, LiveCoordinator().client) as it:
        at = (await it.leader()).replicator.placing

        def look_and_ask() -> bool:
            happened.append("look")
            at.look()  # as each partition does that comes to be led
            return False

        monkeypatch.setattr(at, "_step_all", look_and_ask)
        at.look()
        await until(lambda: happened.count("look") >= 5)

        own = happened[happened.index("look") :]
        assert "look look" not in " ".join(own)


async def test_a_drain_that_no_node_can_help_is_looked_at_ever_later(tmp_path, monkeypatch):
    monkeypatch.setattr(placing, "PAUSE_S", 0.001)
    monkeypatch.setattr(placing, "IDLE_S", 0.064)
    live = LiveCoordinator()
    async with trio(tmp_path, live.client) as it:
        leader = await it.leader()
        at, view = leader.replicator.placing, leader.replicator.session.view
        asked_within, pauses = at._is_asked_within, list[float]()

        async def noted(wait_s: float) -> bool:
            pauses.append(wait_s)
            return await asked_within(wait_s)

        drains = [
            Put(KEYS.drain(node.name), encode_record(DrainRecord(since_ms=1))) for node in it.nodes
        ]
        live.fake.store.write(Txn(success=tuple(drains)))
        live.poke()
        await until(lambda: len(view.drains) == len(it.nodes))
        monkeypatch.setattr(at, "_is_asked_within", noted)

        # One that leads on a node that is to have nothing is under way for as long as that lasts.
        await until(lambda: pauses[-3:] == [0.031, 0.063, 0.063])
        assert at._step_all()


async def test_a_node_that_does_not_come_back_is_replaced_by_one_that_has_no_replica(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(placing, "IDLE_S", 0.01)
    live = LiveCoordinator()
    async with trio(tmp_path, live.client, others=("d",), replace_after_ms=50) as it:
        leader = await it.leader()
        await leader.publish("kept")
        lost, spare = it.nodes[2:]
        await lost.replicator.leave()
        lost.kill()

        view = leader.replicator.session.view
        names = {node.replicator.me for node in it.nodes if node is not lost}
        await until(lambda: set(view.partitions[LOG_ID].record.replicas) == names)
        await leader.publish("new")

        await until(lambda: spare.texts() == ["kept", "new"])
