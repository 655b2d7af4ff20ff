"""The Python client over kills of its node: nothing raised, nothing lost, nothing stored twice."""

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import grpc

import waterclock
from benchmarks.peers.server import free_port
from tests.integration.node_process import NodeProcess
from tests.integration.verdict import frames_of
from tests.kit.node import HOST
from waterclock.log.schema import decode
from waterclock.v1 import broker_pb2_grpc

TOPIC = "work"
KILLS = 4
CALLERS = 12


def settings(port: int) -> dict[str, dict[str, Any]]:
    return {
        "cluster": {"grpc_port": port, "http_port": 0},
        "log": {"segment_bytes": 256 << 10, "preallocate_bytes": 64 << 10},
        "schedule": {"tick_ms": 50},
        "delivery": {"ack_timeout_ms": 3_000, "retry_delay_ms": 100},
        "topics": {"partitions": 2},
    }


class Run:
    """Callers who publish, a member who acks, and a node that dies under them."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.node = NodeProcess(folder, settings(port))
        self.address = f"{HOST}:{port}"
        self.rng = Random(5)
        self.stored: dict[bytes, tuple[int, int]] = {}
        self.got: Counter[bytes] = Counter()
        self._is_over = asyncio.Event()
        self._arrived = asyncio.Event()

    async def publish(self, client: waterclock.Client, caller: int) -> None:
        number = 0
        while not self._is_over.is_set():
            id_ = b"%d-%d" % (caller, number)
            at = "+300ms" if number % 3 == 0 else None
            receipt = await client.publish(TOPIC, id_, message_id=id_, at=at)
            self.stored[id_] = receipt.partition, receipt.offset
            number += 1
            await asyncio.sleep(self.rng.uniform(0, 0.02))

    async def consume(self, client: waterclock.Client) -> None:
        async with client.subscribe(TOPIC, group="g") as messages:
            async for message in messages:
                self.got[message.id] += 1
                message.ack()
                self._arrived.set()

    async def kill(self) -> None:
        for _ in range(KILLS):
            await asyncio.sleep(self.rng.uniform(0.3, 1.5))
            await self.node.kill()
            await self.node.start()
        self._is_over.set()

    async def all_came(self) -> None:
        async with asyncio.timeout(30):
            while not self.stored.keys() <= self.got.keys():
                self._arrived.clear()
                await self._arrived.wait()

    async def logged(self) -> Counter[bytes]:
        """Return how often each id can be delivered, by the logs themselves."""
        counted: Counter[bytes] = Counter()
        async with grpc.aio.insecure_channel(
            self.address, options=[("grpc.max_receive_message_length", -1)]
        ) as channel:
            broker = broker_pb2_grpc.BrokerStub(channel)
            for partition in range(2):
                async for frame in frames_of(broker, TOPIC, partition):
                    if frame.header.is_deliverable:
                        rows = decode(frame.header, frame.body)
                        counted.update(rows.column("message_id").to_pylist())
        return counted


async def test_the_client_rides_out_kills_and_stores_each_message_once(tmp_path):
    it = Run(tmp_path)
    try:
        await it.node.start()
        async with (
            asyncio.timeout(80),
            waterclock.connect(it.address) as client,
            asyncio.TaskGroup() as tasks,
        ):
            consuming = tasks.create_task(it.consume(client))
            async with asyncio.TaskGroup() as callers_group:
                for caller in range(CALLERS):
                    callers_group.create_task(it.publish(client, caller))
                callers_group.create_task(it.kill())
            await it.all_came()
            consuming.cancel()
        assert len(it.stored) > 100
        assert len(set(it.stored.values())) == len(it.stored)
        logged = await it.logged()
        assert logged.keys() == it.stored.keys()
        assert set(logged.values()) == {1}
        assert it.node.bugs() == [], it.node.last_words(40)
    finally:
        await it.node.kill()
