"""Three replicators on a real etcd."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.cluster.replication.shell.live_coordinator import until
from tests.cluster.replication.shell.trio import trio
from waterclock.cluster.coordinator.coordinator import Coordinator
from waterclock.server.cluster.etcd.coordinator import EtcdCoordinator
from waterclock.server.cluster.etcd.members import EtcdSettings

pytestmark = pytest.mark.etcd


async def test_another_leads_when_the_leader_is_gone_and_publishes_outlive_etcd(tmp_path, member):
    async with AsyncExitStack() as stack:

        def client(name: str) -> Coordinator:
            coordinator = EtcdCoordinator(EtcdSettings(endpoints=(member.endpoint,)))
            stack.push_async_callback(coordinator.close)
            return coordinator

        it = await stack.enter_async_context(trio(tmp_path, client, cluster="shell"))
        leader = await it.leader()
        await leader.publish("0")
        await leader.replicator.leave()
        leader.kill()
        successor = await it.leader(but=leader)
        await successor.publish("1")
        member.kill()
        async with asyncio.timeout(10):
            await successor.publish("2")

        alive = it.others(leader)
        await until(lambda: all(node.texts() == ["0", "1", "2"] for node in alive))
        member.start()
