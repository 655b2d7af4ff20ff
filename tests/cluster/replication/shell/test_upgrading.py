"""Nodes are upgraded one after the other, and write what is new once the last one is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from tests.cluster.replication.shell.live_coordinator import LiveCoordinator, until
from tests.cluster.replication.shell.trio import LEASE_MS, LOG_ID, Node, Trio
from waterclock.cluster.coordinator.records import (
    ClusterRecord,
    Keys,
    PartitionRecord,
    Record,
    decode_record,
    encode_record,
)
from waterclock.cluster.coordinator.requests import Put, Txn, one_key
from waterclock.model.errors import BadConfig
from waterclock.server.cluster.replication.replicator import ReplicatorSettings

KEYS = Keys("c")
OLD, NEW = 1, 2


class Upgraded:
    """A cluster that was formed at the old level; its partition is that of the records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.live = LiveCoordinator()

    def node(
        self,
        name: str,
        level: int,
        settings: ReplicatorSettings = ReplicatorSettings(lease_ms=LEASE_MS),  # noqa: B008 - frozen
    ) -> Node:
        client = self.live.client(name)
        return Node(name, KEYS, self.folder / name, client, settings, level=level)

    async def put(self, key: bytes, record: Record) -> None:
        await self.live.client("maker").write(Txn(success=(Put(key, encode_record(record)),)))

    @property
    def level(self) -> int:
        """Of the cluster, whoever has heard of it."""
        (item,) = self.live.fake.store.read(one_key(KEYS.cluster)).items
        return decode_record(ClusterRecord, item.value, key=item.key).level

    @asynccontextmanager
    async def formed(self) -> AsyncIterator[Trio]:
        """Two nodes that are upgraded, and the third's replica."""
        async with self.node("a", NEW).running() as a, self.node("b", NEW).running() as b:
            third = self.node("c", OLD)
            async with third.running():
                nodes = a, b, third
                names = tuple(node.replicator.me for node in nodes)
                await self.put(KEYS.partition(LOG_ID), PartitionRecord(
                    epoch=0, state="vacant", replicas=names,
                ))  # fmt: skip
                await Trio([*nodes]).leader()
                record = ClusterRecord(cluster_id="x", level=OLD, meta_log=LOG_ID.hex())
                await self.put(KEYS.cluster, record)
                await until(lambda: all(node.replicator.may_write(OLD) for node in nodes))
                await settled(a)
                assert not any(node.replicator.may_write(NEW) for node in nodes)
                await third.replicator.leave()
            view = a.replicator.session.view
            await until(lambda: "c" not in view.nodes)
            yield Trio([a, b])


async def settled(leader: Node) -> None:
    """Return when a node that leads the records has looked at everything there is."""
    await leader.replicator.placing._raise_level()


async def test_the_last_node_that_is_upgraded_lets_all_write_what_is_new(tmp_path):
    it = Upgraded(tmp_path)
    async with it.formed() as two:
        leader = two.nodes[0]
        await settled(leader)
        assert not leader.replicator.may_write(NEW)  # it may come back as it was

        async with it.node("c", NEW).running() as third:
            nodes = (*two.nodes, third)
            await until(lambda: all(node.replicator.may_write(NEW) for node in nodes))
            await leader.publish("all go on")
            await until(lambda: all(node.texts() == ["all go on"] for node in nodes))


async def test_a_node_that_is_not_upgraded_does_not_start_after_that(tmp_path):
    it = Upgraded(tmp_path)
    async with it.formed() as two, it.node("c", NEW).running() as third:
        await until(lambda: all(n.replicator.may_write(NEW) for n in (*two.nodes, third)))

        async with it.node("d", OLD).running() as old:
            with pytest.raises(BadConfig, match=r"a later release \(level 2, this one has 1\)"):
                await old.replicator.meta_log_id()


async def test_a_node_that_came_unseen_as_the_level_rose_ends(tmp_path):
    it = Upgraded(tmp_path)
    with pytest.RaisesGroup(BadConfig, flatten_subgroups=True):
        async with it.node("d", OLD).running() as old:
            await it.put(
                KEYS.cluster, ClusterRecord(cluster_id="x", level=OLD, meta_log=LOG_ID.hex())
            )
            assert await old.replicator.meta_log_id() == LOG_ID

            await it.put(
                KEYS.cluster, ClusterRecord(cluster_id="x", level=NEW, meta_log=LOG_ID.hex())
            )
            async with asyncio.timeout(20):
                await asyncio.get_running_loop().create_future()


async def test_a_node_that_is_older_than_its_leader_has_heard_holds_the_level(tmp_path):
    it = Upgraded(tmp_path)
    async with it.formed() as two:
        leader = two.nodes[0]
        known = leader.replicator.session.view.nodes
        third = msgspec.structs.replace(known["b"], disk="d", level=OLD)
        await it.put(KEYS.node("c"), third)
        await until(lambda: "c" in known)
        known["c"] = msgspec.structs.replace(third, level=NEW)  # as it was a moment ago

        await settled(leader)
        assert it.level == OLD


async def test_a_cluster_is_formed_at_the_level_of_the_oldest_that_is_there(tmp_path):
    it = Upgraded(tmp_path)
    settings = ReplicatorSettings(lease_ms=LEASE_MS, expect=2)
    async with (
        it.node("a", NEW, settings).running() as new,
        it.node("b", OLD, settings).running() as old,
    ):
        found = await asyncio.gather(new.replicator.meta_log_id(), old.replicator.meta_log_id())

        assert found[0] == found[1]
        assert [new.replicator.may_write(level) for level in (OLD, NEW)] == [True, False]
