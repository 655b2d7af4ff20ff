"""Kafka: one broker that is its own controller (KRaft), or three of them; one partition.

`flush.messages=1` with `acks=all` is what we promise: the broker answers a batch after its fsync.
By default it leaves that to the kernel: measured too, and named for it. librdkafka is the client.
"""

import importlib
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Protocol

import numpy as np

from benchmarks.client import Stopwatch, run_client
from benchmarks.peers.cache import Absent, maven, python
from benchmarks.peers.pacing import Schedule, Times, tell
from benchmarks.peers.server import (
    START_S_MAX,
    Server,
    free_port,
    is_listening,
    started,
    started_together,
)
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
node.id={node}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
controller.quorum.voters={voters}
log.dirs={folder}/data
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor={replicas}
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
# More than the default: three that start at once on two busy cores are slow to find each other.
CONFIG += f"initial.broker.registration.timeout.ms={START_S_MAX * 1_000}\n"
REPLICAS = 3


def archives() -> Path:
    """Fetch the broker; give the folder its archives are in."""
    if not shutil.which("java"):
        raise Absent("there is no Java to run Kafka with")
    return maven(GROUP, ARTIFACT, VERSION)


@contextmanager
def running(folder: Path, *, warm_up_messages: int = 0) -> Iterator[Server]:
    """Run a broker with both topics, and let it compile itself on so many messages."""
    port = free_port()
    (command,) = _formatted(folder, [port])
    with started(command, folder=folder, port=port) as server:
        _prepare(server, (DURABLE, DEFAULT), warm_up_messages)
        yield server


@contextmanager
def running_replicated(folder: Path, *, warm_up_messages: int = 0) -> Iterator[Server]:
    """Run three brokers with both topics on all of them, and let them compile themselves."""
    ports = [free_port() for _ in range(REPLICAS)]
    commands = _formatted(folder, ports)
    with started_together(
        commands, folder=folder, port=ports[0], is_ready=lambda: all(map(is_listening, ports))
    ) as server:
        _prepare(server, (DURABLE,), warm_up_messages, replicas=REPLICAS)
        yield server


def _formatted(folder: Path, ports: Sequence[int]) -> list[list[str | Path]]:
    """Prepare the folders of brokers that are one cluster; give what starts each."""
    controllers = [free_port() for _ in ports]
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(controllers, 1))
    java = ["java", *JVM.split(), "-cp", f"{archives()}/*"]
    cluster_id = str(uuid.uuid4())
    commands: list[list[str | Path]] = []
    for node, (port, controller) in enumerate(zip(ports, controllers, strict=True), 1):
        its = folder / f"broker-{node}"
        its.mkdir(parents=True)
        config = its / "kafka.properties"
        config.write_text(
            CONFIG.format(
                node=node, port=port, controller_port=controller, voters=voters, folder=its,
                replicas=len(ports),
            )
        )  # fmt: skip
        words = [*java, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config)]
        subprocess.run(words, check=True, capture_output=True)
        commands.append([*java, "kafka.Kafka", config])
    return commands


def _prepare(server: Server, topics: Sequence[str], warm_up: int, *, replicas: int = 1) -> None:
    """Make the topics of a broker that has started, and let it compile itself."""
    server.version = f"{VERSION} ({CLIENT} {CLIENT_VERSION})"
    server.client_environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(python(CLIENT, CLIENT_VERSION)), os.environ.get("PYTHONPATH", "")])
    )
    run_client("benchmarks.peers.kafka:create_topics", server, replicas=replicas)
    for topic in topics if warm_up else ():
        work = {"topic": topic, "messages": warm_up, "window": 8}
        run_client("benchmarks.peers.kafka:publish", server, **work)


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


def create_topics(watch: Stopwatch, port: int, *, replicas: int) -> None:
    """Create both topics, empty; a majority of replicas has what is acknowledged."""
    admin = importlib.import_module("confluent_kafka.admin")
    common = {"min.insync.replicas": str(replicas // 2 + 1)}
    topics = [
        admin.NewTopic(name, num_partitions=1, replication_factor=replicas, config=config)
        for name, config in ((DURABLE, {**common, "flush.messages": "1"}), (DEFAULT, common))
    ]
    client = admin.AdminClient(_settings(port))
    for created in client.create_topics(topics).values():
        created.result(30)


def publish(
    watch: Stopwatch, port: int, *, topic: str, messages: int, window: int, connections: int = 1
) -> None:
    """Publish in batches, at most a window of them unanswered on each connection; wait for all."""
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
    producers = [_library().Producer(settings) for _ in range(connections)]
    for producer in producers:
        _warm_up(producer, topic)
    batch = [{"value": VALUE}] * BATCH
    with watch.running(messages):
        for number in range(messages // BATCH):
            producers[number % connections].produce_batch(topic, batch)
        unanswered = [producer.flush() for producer in producers]
    assert not any(unanswered)


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


def latency(
    watch: Stopwatch, port: int, *, topic: str, rate: int, messages: int, window: int = 1_000_000
) -> None:
    """Publish at a rate and read in a group; tell how long both took.

    A broker takes one request at a time from a connection, so where an answer takes long, a small
    window makes larger batches, and a large one a queue.
    """
    library = _library()
    producer = library.Producer(_settings(port, **{"acks": "all", "max.in.flight": window}))
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
