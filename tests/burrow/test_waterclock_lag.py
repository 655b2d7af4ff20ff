"""The lag of a pool on a Waterclock topic, which only the node knows."""

import asyncio

from tests.burrow.pool_runs import until
from tests.server.served import running_server
from waterclock.burrow import Pool, Record, WaterclockSource
from waterclock.client.client import connect
from waterclock.model.message import Message


async def test_the_lag_is_what_the_node_has_and_is_not_committed(tmp_path, monkeypatch):
    monkeypatch.setattr("waterclock.burrow.runtime.pool.SAMPLE_S", 0.01)

    async with running_server(tmp_path) as served, connect(served.server.addresses.grpc) as client:
        await client.topics.create("orders", partitions=2)
        messages = [Message(b"%d" % number, key=b"%d" % number) for number in range(100)]
        await client.publish_many("orders", messages)
        gate = asyncio.Event()
        begun = 0

        async def process(record: Record) -> None:
            nonlocal begun
            begun += 1
            if begun > 30:
                await gate.wait()

        source = WaterclockSource("orders", group="billing", client=client)
        pool = Pool(source, process, workers=5, commit_every=1)
        async with pool:
            await until(lambda: sum(pool.health().offset_lag.values()) == 70)
            assert len(pool.health().offset_lag) == 2
            gate.set()
            await until(lambda: sum(pool.health().offset_lag.values()) == 0)
