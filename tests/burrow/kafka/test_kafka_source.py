"""Kafka as it is: groups of every protocol, and commits that a broker keeps."""

import asyncio

import pytest

from tests.burrow import source_contract as contract
from waterclock.burrow.kafka.source import KafkaSource
from waterclock.burrow.runtime.source import Source

PROTOCOLS = {
    "cooperative": {
        "partition.assignment.strategy": "cooperative-sticky",
        "heartbeat.interval.ms": 200,
    },
    "eager": {"partition.assignment.strategy": "range", "heartbeat.interval.ms": 200},
    "kip848": {"group.protocol": "consumer"},
}


class KafkaBench:
    """A topic on a broker."""

    def __init__(self, broker, topic, settings):
        self.broker = broker
        self.topic = topic
        self.published = 0
        # A fetch that waits, by default for 500 ms, holds up what is resumed meanwhile.
        own = {"group.id": f"group-of-{topic}", "fetch.wait.max.ms": 20}
        self._settings = {**broker.settings, **own, **settings}

    async def publish(self, count: int, *, start: int = 0) -> None:
        if not start:
            await asyncio.to_thread(self.broker.create, self.topic)
        await asyncio.to_thread(self.broker.publish, self.topic, count, keys=10, start=start)
        self.published += count

    def source(self) -> Source:
        return KafkaSource(self._settings, [self.topic])


RUNS = [
    *((protocol, guarantee) for guarantee in contract.ALONE for protocol in PROTOCOLS),
    *(("cooperative", guarantee) for guarantee in contract.TOGETHER),
]
"""How members share the work is shown for all protocols in tests/burrow/kafka/test_chaos.py."""
SLOW = contract.a_full_partition_is_paused_and_resumed
"""It takes twenty seconds here; a node and a mock broker show the same."""


@pytest.mark.parametrize(
    ("protocol", "guarantee"),
    [run for run in RUNS if run[1] is not SLOW],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
async def test_real_kafka(broker, topic, protocol, guarantee):
    bench = KafkaBench(broker, topic, PROTOCOLS[protocol])

    await guarantee(bench)
    assert sum(broker.committed(topic, f"group-of-{topic}").values()) == bench.published
