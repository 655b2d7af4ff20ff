"""A node's session: registered while it lives, up to date, and patient with a coordinator away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.cluster.replication.shell.live_coordinator import LiveCoordinator, until
from waterclock.cluster.coordinator.records import ClusterRecord, Keys, NodeRecord, encode_record
from waterclock.cluster.coordinator.requests import Lease, Put, Txn
from waterclock.cluster.replication.cluster_view import Changed
from waterclock.model.ids import Millis
from waterclock.server.cluster.replication import session as sessions
from waterclock.server.cluster.replication.session import Session

KEYS = Keys("c")


class Watched(Session):
    """A session whose changes can be waited for."""

    def __init__(self, live: LiveCoordinator, name: str, disk: str) -> None:
        super().__init__(
            live.client(f"{name}-{disk}"),
            KEYS,
            name,
            NodeRecord(peer=f"{name}:1", disk=disk, level=1),
            lease_ms=2_000,
            on_changed=self._turn,
            now_ms=lambda: Millis(0),
        )
        self._happened = asyncio.Event()

    def _turn(self, changed: Changed) -> None:
        self._happened.set()

    async def sees(self, *names: str) -> None:
        while set(self.view.nodes) != set(names):
            self._happened.clear()
            await self._happened.wait()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PAUSE_S", 0.005)


@asynccontextmanager
async def session(live: LiveCoordinator, name: str, disk: str = "d") -> AsyncIterator[Watched]:
    it = Watched(live, name, disk)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(it.run())
        yield it
        running.cancel()
        live.fake.check_invariants()


async def test_nodes_see_each_other_come_and_go():
    live = LiveCoordinator()
    async with session(live, "a") as one, session(live, "b") as other:
        await one.sees("a", "b")
        await other.sees("a", "b")
        await other.leave()
        await one.sees("a")


async def test_a_node_that_leaves_while_it_registers_takes_no_other_lease():
    live = LiveCoordinator()
    async with session(live, "a") as one:
        leaving = Watched(live, "b", "d")
        register = leaving._register

        async def registered(lease: Lease) -> bool:
            is_mine = await register(lease)
            await one.sees("a", "b")
            await leaving.leave()
            return is_mine

        leaving._register = registered  # type: ignore[method-assign]
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(leaving.run())
            await one.sees("a")
            await leaving.is_registered.wait()
            running.cancel()

        assert leaving._lease is None


async def test_a_node_whose_lease_was_lost_registers_anew():
    live = LiveCoordinator()
    async with session(live, "a") as one, session(live, "b") as other:
        await other.sees("a", "b")
        assert one._lease is not None
        live.fake.store.revoke(one._lease.lease)
        live.poke()

        await other.sees("b")
        await other.sees("a", "b")

        assert one.lost_leases == 1


async def test_a_coordinator_that_is_away_is_a_problem_until_it_is_back():
    live = LiveCoordinator()
    async with session(live, "a") as one:
        await one.sees("a")
        live.fake.go_away()
        await until(lambda: one.problem)
        assert not one.has_gone_back
        assert set(one.view.nodes) == {"a"}

        live.fake.come_back()
        await until(lambda: not one.problem)


async def test_a_node_goes_on_from_a_new_read_when_the_past_was_compacted():
    live = LiveCoordinator()
    async with session(live, "a") as one:
        await one.sees("a")
        live.fake.cut("a-d")
        cluster = ClusterRecord(cluster_id="x", level=1)
        live.fake.store.write(Txn(success=(Put(KEYS.cluster, encode_record(cluster)),)))
        live.fake.compact(live.fake.store.revision)
        live.fake.heal("a-d")
        live.poke()

        await until(lambda: one.view.cluster == cluster)


async def test_nothing_is_believed_of_a_coordinator_that_went_back():
    live = LiveCoordinator()
    copy = live.fake.store.snapshot()
    async with session(live, "a") as one:
        await one.sees("a")
        live.fake.restore(copy)
        live.poke()

        await until(lambda: one.has_gone_back)

        assert "restored from an old snapshot" in one.problem
        assert set(one.view.nodes) == {"a"}


async def test_two_nodes_of_one_name_are_not_both_registered():
    live = LiveCoordinator()
    async with session(live, "a", "one") as first:
        await first.sees("a")
        async with session(live, "a", "two") as second:
            await until(lambda: second.problem)

            assert "another node is called 'a'" in second.problem
            assert not second.is_registered.is_set()
            assert first.view.alive == {"a:one"}


async def test_a_node_that_restarts_takes_up_its_own_registration():
    live = LiveCoordinator()
    async with session(live, "a") as one:
        await one.sees("a")
    async with session(live, "a") as again:
        await asyncio.wait_for(again.is_registered.wait(), 1)
