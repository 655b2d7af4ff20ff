"""A real Kafka broker for tests: KRaft, one node, in a folder, on free ports."""

import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.peers.kafka import CONFIG, archives
from benchmarks.peers.server import Server, free_port, started
from tests.kit.needs import claim

JVM = "-Xms256M -Xmx512M -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
ANSWER_S_MAX = 120
"""A broker that was just started, beside other JVMs on two cores, has been seen to take over 30."""
# Tests rebalance often and want to know soon; by default members are given half a minute, and a
# broker that was killed waits nine seconds for its own former life to be over.
MORE = """
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.session.timeout.ms=4000
group.consumer.min.heartbeat.interval.ms=200
group.consumer.heartbeat.interval.ms=500
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
"""


class KafkaBroker:
    """A broker, and what tests want of it."""

    def __init__(self, folder: Path, command: Sequence[str | Path], port: int) -> None:
        self._folder = folder
        self._command = command
        self._port = port
        self._running = ExitStack()
        self._server: Server
        self.settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "log_level": 2,
        }

    def start(self) -> None:
        """Start it, on the data it has."""
        run = started(self._command, folder=self._folder, port=self._port)
        self._server = self._running.enter_context(run)

    def stop(self) -> None:
        """End it in good order."""
        self._running.close()

    def restart(self, *, is_crash: bool = False) -> None:
        """End it, or kill it, and start it again; returns when it listens."""
        if is_crash:
            self._server.kill()
        self.stop()
        self.start()

    def create(self, topic: str, partitions: int = 4) -> None:
        admin = AdminClient(self.settings)  # held: it ends with its last name
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(ANSWER_S_MAX)

    def publish(self, topic: str, count: int, *, keys: int = 50, start: int = 0) -> None:
        # Idempotent, for it keeps the order: for a while after a topic was made its leader refuses
        # what comes, and other batches would overtake what is sent again.
        settings = {"enable.idempotence": True, "linger.ms": 5}
        more = {"queue.buffering.max.messages": 1_000_000}
        producer = Producer({**self.settings, **settings, **more})
        for number in range(start, start + count):
            producer.produce(topic, b"%d" % number, b"k%d" % (number % keys))
        assert producer.flush(ANSWER_S_MAX) == 0

    def committed(self, topic: str, group: str, partitions: int = 4) -> dict[int, int]:
        """Return the committed offsets, without joining."""
        return {each.partition: each.offset for each in self.commits(topic, group, partitions)}

    def commits(self, topic: str, group: str, partitions: int = 4) -> list[TopicPartition]:
        """Return what is committed, offsets and metadata, without joining."""
        consumer = Consumer({**self.settings, "group.id": group})
        places = [TopicPartition(topic, number) for number in range(partitions)]
        found = consumer.committed(places, timeout=ANSWER_S_MAX)
        consumer.close()
        return found

    def read(
        self, topic: str, partitions: int = 1, *, isolation: str = "read_committed"
    ) -> list[bytes]:
        """Return all values of a topic."""
        return read(self.settings, topic, partitions, isolation=isolation)


def read(
    settings: Mapping[str, str | int | float | bool],
    topic: str,
    partitions: int = 1,
    *,
    isolation: str = "read_committed",
) -> list[bytes]:
    """Return all values of a topic, from its beginning to where it ends now."""
    own = {"group.id": uuid.uuid4().hex, "enable.partition.eof": True, "fetch.wait.max.ms": 50}
    consumer = Consumer({**settings, **own, "isolation.level": isolation})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    values: list[bytes] = []
    ends: set[int | None] = set()
    while len(ends) < partitions:
        for message in consumer.consume(500, 0.1):
            error = message.error()
            if error is None:
                value = message.value()
                assert isinstance(value, bytes)
                values.append(value)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends.add(message.partition())
    consumer.close()
    return values


@contextmanager
def running(folder: Path) -> Iterator[KafkaBroker]:
    """Run a broker until the end of the block; raises Absent if there is none to be had."""
    claim("kafka")
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "kafka.properties"
    controller = free_port()
    properties = CONFIG.format(
        node=1,
        port=port,
        controller_port=controller,
        voters=f"1@127.0.0.1:{controller}",
        folder=folder,
        replicas=1,
    )
    config.write_text(properties + MORE)
    java = ["java", *JVM.split(), "-cp", f"{archives()}/*"]
    cluster = ["-t", str(uuid.uuid4()), "-c", str(config)]
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", *cluster], check=True, capture_output=True
    )
    broker = KafkaBroker(folder, [*java, "kafka.Kafka", config], port)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
