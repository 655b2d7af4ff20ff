"""Kafka: one broker that is its own controller (KRaft), one partition.

`flush.messages=1` with `acks=all` is what we promise: the broker answers a batch after its fsync.
By default it leaves that to the kernel: measured too, and named for it. librdkafka is the client.
"""

import importlib
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Protocol

import numpy as np

from benchmarks.client import Stopwatch, run_client
from benchmarks.peers.cache import Absent, maven, python
from benchmarks.peers.pacing import Schedule, Times, tell
from benchmarks.peers.server import Server, free_port, started
from benchmarks.peers.wire import SILENCE_S_MAX, VALUE

NAME = "kafka"
GROUP, ARTIFACT, VERSION = "org.apache.kafka", "kafka_2.13", "4.3.1"
CLIENT, CLIENT_VERSION = "confluent-kafka", "2.16.1"
DURABLE, DEFAULT = "durable", "default"
"""Topics: one flushes every batch, one leaves it to the kernel."""
BATCH = 1_000
CATCH_UP_S = 1.0
POLL_S = 0.1
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


@contextmanager
def running(folder: Path, *, warm_up_messages: int = 0) -> Iterator[Server]:
    """Run a broker with both topics, and let it compile itself on so many messages."""
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
        server.version = f"{VERSION} ({CLIENT} {CLIENT_VERSION})"
        server.client_environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(client), os.environ.get("PYTHONPATH", "")])
        )
        run_client("benchmarks.peers.kafka:create_topics", server)
        for topic in (DURABLE, DEFAULT) if warm_up_messages else ():
            work = {"topic": topic, "messages": warm_up_messages, "window": 8}
            run_client("benchmarks.peers.kafka:publish", server, **work)
        yield server


class _Producer(Protocol):
    def produce(self, topic: str, value: bytes) -> None: ...
    def flush(self) -> int: ...


class _Consumer(Protocol):
    def poll(self, timeout: float) -> object: ...
    def close(self) -> None: ...


def _library() -> ModuleType:
    """Load the client, which is not among our dependencies."""
    return importlib.import_module("confluent_kafka")


def _settings(port: int, **more: object) -> dict[str, object]:
    return {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 3, **more}


# Clients


def create_topics(watch: Stopwatch, port: int) -> None:
    """Create both topics, empty."""
    admin = importlib.import_module("confluent_kafka.admin")
    topics = [
        admin.NewTopic(name, num_partitions=1, replication_factor=1, config=config)
        for name, config in ((DURABLE, {"flush.messages": "1"}), (DEFAULT, {}))
    ]
    client = admin.AdminClient(_settings(port))
    for created in client.create_topics(topics).values():
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
    _warm_up(producer, topic)
    batch = [{"value": VALUE}] * BATCH
    with watch.running(messages):
        for _ in range(messages // BATCH):
            producer.produce_batch(topic, batch)
        unanswered = producer.flush()
    assert not unanswered


def _warm_up(producer: _Producer, topic: str) -> None:
    """Have it connect and learn where the topic is."""
    producer.produce(topic, VALUE)
    producer.flush()


def consume(watch: Stopwatch, port: int, *, topic: str, messages: int, batch: int) -> None:
    """Read the whole topic as the one member of a new group; progress is saved now and then."""
    settings = _settings(
        port,
        **{
            "group.id": f"group-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
            # What it has read ahead when the clock starts counts for it, so that must be little.
            "queued.min.messages": 100_000,
            "fetch.message.max.bytes": 2 << 20,
            "check.crcs": False,
        },
    )
    consumer = _library().Consumer(settings)
    consumer.subscribe([topic])
    first = consumer.poll(SILENCE_S_MAX)
    assert first is not None
    assert first.error() is None
    with watch.running(messages - 1):
        done = 1
        while done < messages:
            done += len(consumer.consume(min(batch, messages - done), SILENCE_S_MAX))
    consumer.close()


def latency(watch: Stopwatch, port: int, *, topic: str, rate: int, messages: int) -> None:
    """Publish at a rate and read in a group; tell how long both took."""
    library = _library()
    producer = library.Producer(_settings(port, acks="all"))
    _warm_up(producer, topic)
    consumer = _at_the_end(library, port, topic)
    acked, delivered = np.zeros(messages), np.zeros(messages)
    count = 0

    def on_ack(error: object, _: object) -> None:
        nonlocal count
        assert error is None
        acked[count] = time.perf_counter()
        count += 1

    def read() -> None:
        for number in range(messages):
            assert consumer.poll(SILENCE_S_MAX) is not None
            delivered[number] = time.perf_counter()

    with ThreadPoolExecutor(1) as reader, watch.running(messages):
        reading = reader.submit(read)
        schedule = Schedule(rate=rate, messages=messages)
        while count < messages:
            for _ in range(schedule.due()):
                producer.produce(topic, VALUE, on_delivery=on_ack)
            producer.poll(min(schedule.wait_s(), POLL_S))
        reading.result()
    consumer.close()
    tell(watch, Times(schedule.meant, acked, delivered))


def _at_the_end(library: ModuleType, port: int, topic: str) -> _Consumer:
    """Give a consumer that has caught up."""
    settings = {"group.id": f"group-{time.monotonic_ns()}", "fetch.wait.max.ms": 500}
    consumer = library.Consumer(_settings(port, **settings, **{"auto.offset.reset": "latest"}))
    place = library.TopicPartition(topic, 0)
    _, place.offset = consumer.get_watermark_offsets(place, timeout=SILENCE_S_MAX)
    consumer.assign([place])
    while consumer.poll(CATCH_UP_S) is not None:
        pass
    caught_up: _Consumer = consumer
    return caught_up
