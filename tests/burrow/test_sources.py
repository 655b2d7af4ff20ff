"""Every source keeps the contract; the real Kafka has a folder of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.burrow import source_contract as contract
from tests.burrow.memory_source import MemoryBroker, MemorySource
from tests.burrow.source_contract import Bench
from tests.server.served import running_server
from waterclock.burrow.kafka.source import KafkaSource
from waterclock.burrow.runtime.source import Source
from waterclock.burrow.runtime.waterclock_source import WaterclockSource
from waterclock.client.client import Client, connect
from waterclock.model.message import Message


class MemoryBench:
    """Lists."""

    def __init__(self) -> None:
        self._broker = MemoryBroker()

    async def publish(self, count: int, *, start: int = 0) -> None:
        self._broker.fill(count, start=start)

    def source(self) -> Source:
        return MemorySource(self._broker)


class MockBench:
    """The mock cluster inside librdkafka."""

    def __init__(self, **settings: object) -> None:
        self._settings = settings
        self._producer = Producer(
            {"test.mock.num.brokers": 1, "bootstrap.servers": "unused", "log_level": 2}
        )
        (node,) = self._producer.list_topics(timeout=10).brokers.values()
        self._address = f"{node.host}:{node.port}"

    async def publish(self, count: int, *, start: int = 0) -> None:
        for number in range(start, start + count):
            self._producer.produce("orders", b"%d" % number, b"k%d" % (number % 10))
        assert await asyncio.to_thread(self._producer.flush, 30) == 0

    def source(self) -> Source:
        own = {"bootstrap.servers": self._address, "group.id": "billing", "log_level": 2}
        return KafkaSource({**own, **self._settings}, ["orders"])


class NodeBench:
    """A Waterclock node."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def publish(self, count: int, *, start: int = 0) -> None:
        await self._client.topics.create("orders", partitions=4, if_absent=True)
        numbers = range(start, start + count)
        messages = [Message(b"%d" % number, key=b"k%d" % (number % 10)) for number in numbers]
        await self._client.publish_many("orders", messages)

    def source(self) -> Source:
        return WaterclockSource("orders", group="billing", client=self._client)


@asynccontextmanager
async def node_bench(folder: Path) -> AsyncIterator[Bench]:
    async with running_server(folder) as served, connect(served.server.addresses.grpc) as client:
        yield NodeBench(client)


@pytest.mark.parametrize("guarantee", contract.ALONE, ids=lambda each: each.__name__)
async def test_memory(guarantee):
    await guarantee(MemoryBench())


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
async def test_mock_cluster(strategy):
    # One pool only: the next member would wait there for the session of the last to run out.
    settings: dict[str, Any] = {"partition.assignment.strategy": strategy}
    bench = MockBench(**settings)
    await contract.everything_is_done_once_and_a_key_in_its_order(bench)


@pytest.mark.parametrize(
    "guarantee", [*contract.ALONE, *contract.TOGETHER], ids=lambda each: each.__name__
)
async def test_node(guarantee, tmp_path):
    async with node_bench(tmp_path) as bench:
        await guarantee(bench)
