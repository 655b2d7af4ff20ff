"""Kafka: one broker that is its own controller (KRaft), one partition.

`flush.messages=1` with `acks=all` is what we promise: the broker answers a batch after its fsync.
By default it leaves that to the kernel: measured too, and named for it. librdkafka is the client.
"""

import importlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.client import Stopwatch
from benchmarks.peers.cache import Absent, maven, python
from benchmarks.peers.server import Server, free_port, started
from benchmarks.peers.wire import VALUE

NAME = "kafka"
GROUP, ARTIFACT, VERSION = "org.apache.kafka", "kafka_2.13", "4.3.1"
CLIENT, CLIENT_VERSION = "confluent-kafka", "2.16.1"
DURABLE, DEFAULT = "durable", "default"
"""Topics: one flushes every batch, one leaves it to the kernel."""
BATCH = 1_000
CONSUME_MAX = 10_000
# As its own start script sets them.
JVM = "-Xms1G -Xmx1G -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:+ExplicitGCInvokesConcurrent"

CONFIG = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller_port}
log.dirs={folder}/data
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def archives() -> Path:
    """Fetch the broker; give the folder its archives are in."""
    if not shutil.which("java"):
        raise Absent("there is no Java to run Kafka with")
    return maven(GROUP, ARTIFACT, VERSION)


def version() -> str:
    """Say which it is."""
    return f"{VERSION} ({CLIENT} {CLIENT_VERSION})"


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Run a broker with both topics."""
    port = free_port()
    client = python(CLIENT, CLIENT_VERSION)
    folder.mkdir(parents=True)
    config = folder / "kafka.properties"
    config.write_text(CONFIG.format(port=port, controller_port=free_port(), folder=folder))
    java = ["java", *JVM.split(), "-cp", f"{archives()}/*"]
    cluster = ["-t", str(uuid.uuid4()), "-c", str(config)]
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", *cluster], check=True, capture_output=True
    )
    with started([*java, "kafka.Kafka", config], folder=folder, port=port) as server:
        server.client_environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(client), os.environ.get("PYTHONPATH", "")])
        )
        yield server


def _library() -> Any:  # it ships no types, and is not among our dependencies
    return importlib.import_module("confluent_kafka")


def _settings(port: int, **more: object) -> dict[str, object]:
    return {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 3, **more}


# Clients


def create_topics(watch: Stopwatch, port: int, *, suffix: str) -> None:
    """Create both topics, empty."""
    _library()
    admin = importlib.import_module("confluent_kafka.admin")
    topics = [
        admin.NewTopic(f"{name}{suffix}", num_partitions=1, replication_factor=1, config=config)
        for name, config in ((DURABLE, {"flush.messages": "1"}), (DEFAULT, {}))
    ]
    for created in admin.AdminClient(_settings(port)).create_topics(topics).values():
        created.result(30)


def publish(watch: Stopwatch, port: int, *, topic: str, messages: int, window: int) -> None:
    """Publish in batches, at most a window of them unanswered; wait for the last answer."""
    settings = _settings(
        port,
        **{
            "acks": "all",
            "linger.ms": 5,
            "batch.num.messages": BATCH,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 1_000_000,
            "max.in.flight": window,
        },
    )
    producer = _library().Producer(settings)
    warm_up(producer, topic)
    batch = [{"value": VALUE}] * BATCH
    with watch.running(messages):
        for _ in range(messages // BATCH):
            producer.produce_batch(topic, batch)
        unanswered = producer.flush()
    assert not unanswered


def warm_up(producer: Any, topic: str) -> None:
    """Have it connect and learn where the topic is."""
    producer.produce(topic, VALUE)
    producer.flush()
