"""A real Kafka broker for tests: KRaft, one node, in a folder, on free ports."""

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.peers.kafka import CONFIG, archives
from benchmarks.peers.server import free_port, started

JVM = "-Xms256M -Xmx512M -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
# Tests rebalance often and want to know soon; by default members are given half a minute.
MORE = """
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.session.timeout.ms=6000
group.consumer.min.heartbeat.interval.ms=200
group.consumer.heartbeat.interval.ms=500
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
"""


class KafkaBroker:
    """A running broker."""

    def __init__(self, port: int) -> None:
        self.settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "log_level": 2,
        }

    def create(self, topic: str, partitions: int = 4) -> None:
        admin = AdminClient(self.settings)  # held: it ends with its last name
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)

    def publish(self, topic: str, count: int, *, keys: int = 50, start: int = 0) -> None:
        settings = {"linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
        producer = Producer({**self.settings, **settings})
        for number in range(start, start + count):
            producer.produce(topic, b"%d" % number, b"k%d" % (number % keys))
        assert producer.flush(30) == 0

    def committed(self, topic: str, group: str, partitions: int = 4) -> dict[int, int]:
        """Return the committed offsets, without joining."""
        consumer = Consumer({**self.settings, "group.id": group})
        places = [TopicPartition(topic, number) for number in range(partitions)]
        found = consumer.committed(places, timeout=30)
        consumer.close()
        return {place.partition: place.offset for place in found}

    def read(self, topic: str, partitions: int = 1) -> list[bytes]:
        """Return all committed values of a topic."""
        settings = {**self.settings, "group.id": uuid.uuid4().hex, "enable.partition.eof": True}
        consumer = Consumer({**settings, "isolation.level": "read_committed"})
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        values, ends = [], 0
        while ends < partitions:
            for message in consumer.consume(500, 1.0):
                if message.error() is not None:
                    ends += 1
                else:
                    value = message.value()
                    assert isinstance(value, bytes)
                    values.append(value)
        consumer.close()
        return values


@contextmanager
def running(folder: Path) -> Iterator[KafkaBroker]:
    """Run a broker until the end of the block; raises Absent if there is none to be had."""
    port = free_port()
    config = folder / "kafka.properties"
    config.write_text(CONFIG.format(port=port, controller_port=free_port(), folder=folder) + MORE)
    java = ["java", *JVM.split(), "-cp", f"{archives()}/*"]
    cluster = ["-t", str(uuid.uuid4()), "-c", str(config)]
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", *cluster], check=True, capture_output=True
    )
    with started([*java, "kafka.Kafka", config], folder=folder, port=port):
        yield KafkaBroker(port)
