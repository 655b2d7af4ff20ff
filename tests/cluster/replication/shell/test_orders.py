"""What people want of nodes and partitions is done by the leaders, and refused if it cannot be."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from tests.cluster.replication.shell.live_coordinator import LiveCoordinator, until
from tests.cluster.replication.shell.trio import LOG_ID, Node, Trio, trio
from waterclock.cluster.coordinator.records import ClusterRecord, Keys, encode_record
from waterclock.cluster.coordinator.requests import Put, Txn
from waterclock.model.cluster_views import PlacementView
from waterclock.model.errors import BadInput, Busy, NotFound, Unavailable, UnknownTopic
from waterclock.server.cluster.replication.orders import Orders


class Wanting(Trio):
    """Nodes of which one is asked for things."""

    orders: Orders
    live: LiveCoordinator

    @property
    def record(self):
        """As the node that is asked knows it."""
        return self.nodes[-1].replicator.session.view.partitions[LOG_ID].record

    def voters(self) -> set[str]:
        return {each.partition(":")[0] for each in self.record.replicas}

    def is_led_by(self, name: str) -> bool:
        node = next(each for each in self.nodes if each.name == name)
        return node.host.is_led and self.record.leader == node.replicator.me


@asynccontextmanager
async def wanting(folder, *others: str) -> AsyncIterator[Wanting]:
    """Run three nodes with a partition that has a message, and others; the last is asked."""
    live = LiveCoordinator()
    async with trio(folder, live.client, others=others) as nodes:
        it = Wanting(nodes.nodes)
        it.live, it.orders = live, Orders(it.nodes[-1].replicator)
        await (await it.leader()).publish("kept")
        yield it


async def test_a_node_that_is_drained_leads_nothing_and_has_nothing_in_the_end(tmp_path):
    async with wanting(tmp_path, "d") as it:
        drained, spare = it.nodes[0], it.nodes[3]

        found = await it.orders.drain("a")
        assert [(each.node, each.is_done) for each in found.drains] == [("a", False)]

        await until(lambda: it.orders.placement().drains[0].is_done)
        assert it.voters() == {"b", "c", "d"}
        assert not drained.host.is_led
        await until(lambda: spare.texts() == ["kept"] and drained.removals == 1)


async def test_a_drain_outlives_its_node_and_is_undone(tmp_path):
    async with wanting(tmp_path) as it:
        await it.orders.drain("c")
        await it.nodes[2].replicator.leave()
        it.nodes[2].kill()
        view = it.nodes[0].replicator.session.view
        await until(lambda: "c" not in view.nodes)

        (drain,) = Orders(it.nodes[0].replicator).placement().drains
        assert (drain.node, drain.is_alive, drain.replicas, drain.stuck) == ("c", False, 1, 1)
        assert await Orders(it.nodes[0].replicator).undrain("c") == PlacementView()


async def test_leaders_leave_a_node_though_its_replicas_can_go_nowhere(tmp_path):
    async with wanting(tmp_path) as it:
        await it.orders.drain("a")

        await until(lambda: it.is_led_by("b") or it.is_led_by("c"))
        assert it.voters() == {"a", "b", "c"}
        (drain,) = it.orders.placement().drains
        assert (drain.leaders, drain.replicas, drain.stuck) == (0, 1, 1)
        await it.orders.undrain("a")
        await until(lambda: it.is_led_by("a"))


async def test_a_node_that_is_gone_is_replaced_at_once_and_may_come_again_then(tmp_path):
    async with wanting(tmp_path, "d") as it:
        with pytest.raises(Busy, match="drain it"):
            await it.orders.replace("c", "d")
        lost, spare = it.nodes[2:]
        await lost.replicator.leave()
        lost.kill()
        await until(lambda: "c" not in it.nodes[3].replicator.session.view.nodes)
        meta = ClusterRecord(cluster_id="x", level=1, meta_log=LOG_ID.hex())
        put = Put(Keys("c").cluster, encode_record(meta))
        it.live.fake.store.write(Txn(success=(put,)))
        it.live.poke()

        await it.orders.replace("c", "d")

        await until(lambda: it.voters() == {"a", "b", "d"})
        await until(lambda: spare.texts() == ["kept"])
        await until(lambda: it.orders.placement() == PlacementView())


async def test_a_replica_is_moved_to_where_people_want_it(tmp_path):
    async with wanting(tmp_path, "d") as it:
        found = await it.orders.move("t", 0, target="d", source="a")
        assert [(each.topic, each.target, each.source) for each in found.moves] == [("t", "d", "a")]

        await until(lambda: not it.orders.placement().moves)
        assert it.voters() == {"b", "c", "d"}
        await until(lambda: it.nodes[3].texts() == ["kept"])


async def test_a_leader_is_moved_alone_and_stays_there(tmp_path):
    async with wanting(tmp_path) as it:
        await it.orders.move("t", 0, target="c", is_leader_only=True)

        await until(lambda: not it.orders.placement().moves and it.is_led_by("c"))
        assert it.record.replicas[0] == it.nodes[2].replicator.me
        assert it.voters() == {"a", "b", "c"}
        await it.nodes[2].publish("more")
        await until(lambda: all(node.texts() == ["kept", "more"] for node in it.nodes))


async def test_a_move_to_a_node_that_goes_away_is_undone(tmp_path):
    async with wanting(tmp_path, "d") as it:
        gone: Node = it.nodes[3]
        gone.isolate()
        orders = Orders(it.nodes[0].replicator)
        await orders.move("t", 0, target="d")
        await until(lambda: it.record.learners)

        assert await orders.undo_move("t", 0) == PlacementView()


async def test_what_cannot_be_is_refused_and_says_why(tmp_path):
    async with wanting(tmp_path, "d") as it:
        orders = it.orders
        with pytest.raises(NotFound, match="'z'"):
            await orders.drain("z")
        with pytest.raises(NotFound, match="'z'"):
            await orders.undrain("z")
        with pytest.raises(UnknownTopic):
            await orders.move("u", 0, target="d")
        with pytest.raises(NotFound, match="t/1"):
            await orders.move("t", 1, target="d")
        with pytest.raises(NotFound, match="'z'"):
            await orders.move("t", 0, target="z")
        with pytest.raises(Busy, match="has a replica already"):
            await orders.move("t", 0, target="b")
        with pytest.raises(Busy, match="source: 'z'"):
            await orders.move("t", 0, target="d", source="z")
        with pytest.raises(Busy, match="move one there first"):
            await orders.move("t", 0, target="d", is_leader_only=True)
        with pytest.raises(BadInput, match="name none"):
            await orders.move("t", 0, target="b", source="a", is_leader_only=True)
        for name in "bcd":
            await orders.drain(name)
        with pytest.raises(Busy, match="the last that stays"):
            await orders.drain("a")
        with pytest.raises(Busy, match="is to have nothing"):
            await orders.move("t", 0, target="d")
        it.live.fake.go_away()
        with pytest.raises(Unavailable):
            await orders.undrain("b")
        it.live.fake.come_back()


async def test_another_number_of_replicas_is_made_of_a_partition_that_is_there(tmp_path):
    async with wanting(tmp_path, "d", "e") as it:

        def is_made(factor: int) -> bool:
            having = [node for node in it.nodes if node.name in it.voters()]
            is_whole = len(having) == factor and not it.record.learners
            is_led = any(it.is_led_by(each.name) for each in having)
            return is_whole and is_led and all(each.texts() == ["kept"] for each in having)

        for factor in (5, 1, 3):
            for node in it.nodes:
                node.replicator.set_factor(node.host, factor)

            await until(partial(is_made, factor))
