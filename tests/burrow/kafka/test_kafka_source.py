"""Kafka as it is: groups of every protocol, and commits that a broker keeps."""

import asyncio

import pytest

from tests.burrow import source_contract as contract
from tests.burrow.source_contract import run
from waterclock.burrow.kafka_source import KafkaSource
from waterclock.burrow.source import Source

PROTOCOLS = {
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "eager": {"partition.assignment.strategy": "range"},
    "kip848": {"group.protocol": "consumer"},
}


class KafkaBench:
    """A topic on a broker."""

    def __init__(self, broker, topic, settings):
        self.broker = broker
        self.topic = topic
        self._settings = {**broker.settings, "group.id": f"group-of-{topic}", **settings}

    async def publish(self, count: int) -> None:
        await asyncio.to_thread(self.broker.create, self.topic)
        await asyncio.to_thread(self.broker.publish, self.topic, count, keys=10)

    def source(self) -> Source:
        return KafkaSource(self._settings, [self.topic])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "promise", [*contract.ALONE, *contract.TOGETHER], ids=lambda each: each.__name__
)
def test_real_kafka(broker, topic, protocol, promise):
    bench = KafkaBench(broker, topic, PROTOCOLS[protocol])

    run(lambda: promise(bench))
    assert sum(broker.committed(topic, f"group-of-{topic}").values()) in (1_000, 4_000)
