"""Kafka as Spark reads and writes it, with Spark's own connector, which is not in pyspark.

Maven Central has no connector of Spark 4.3 yet: the one of 4.2.0 works in it, with the clients it
was built for. The part of it that deals with tokens is there up to 4.1.0-preview1 only; it is asked
once for each consumer, whether there are any. The broker is that of the other benchmarks.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.client import Stopwatch, run_client
from benchmarks.peers import kafka
from benchmarks.peers.cache import Absent, maven_alone
from benchmarks.peers.lineup import is_wanted
from benchmarks.peers.server import Server
from benchmarks.rows import BATCH, KEY_BYTES, VALUE_BYTES, Rows

VERSION = "4.2.0"
CONNECTOR = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
ROWS, WRITTEN = "rows", "written"
"""Topics: one is loaded and read, one is written to by Spark, and flushed with every batch."""
READ_OPTIONS = {"subscribe": ROWS, "kafka.max.poll.records": "5000"}
"""The best of what was tried: 500, its default, to 50,000, with larger fetches and without."""

QUEUED_MAX = 500_000
POLL_S = 0.05


def connector() -> list[str]:
    """Fetch the connector, if it is wanted; give the paths of its archives."""
    if not is_wanted(kafka.NAME):
        return []
    folder = maven_alone(f"maven-spark-sql-kafka-{VERSION}", *CONNECTOR)
    return sorted(map(str, folder.glob("*.jar")))


def connector_or_none() -> list[str]:
    """Give the archives, or none: starting Kafka then says why."""
    try:
        return connector()
    except Absent:
        return []


@contextmanager
def running(folder: Path, *, partitions: int, messages: int, keys: int) -> Iterator[Server]:
    """Run a broker with the rows in it."""
    connector()
    with kafka.running(folder) as server:
        server.version = f"{kafka.VERSION} (Spark's connector {VERSION})"
        run_client("benchmarks.peers.kafka_spark:create_topics", server, partitions=partitions)
        work = {"partitions": partitions, "messages": messages, "keys": keys}
        run_client("benchmarks.peers.kafka_spark:load", server, **work)
        yield server


def servers(server: Server) -> dict[str, str]:
    """Give the option that says where the broker is."""
    return {"kafka.bootstrap.servers": f"127.0.0.1:{server.port}"}


# Clients


def create_topics(watch: Stopwatch, port: int, *, partitions: int) -> None:
    """Create both topics, empty."""
    admin = importlib.import_module("confluent_kafka.admin")
    topics = [
        admin.NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
        for name, config in ((ROWS, {}), (WRITTEN, {"flush.messages": "1"}))
    ]
    client = admin.AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
    for created in client.create_topics(topics).values():
        created.result(30)


def load(watch: Stopwatch, port: int, *, partitions: int, messages: int, keys: int) -> None:
    """Publish the rows, each batch to the partition it has in our node."""
    settings = {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "acks": 1,
        "linger.ms": 100,
        "batch.num.messages": BATCH,
        "batch.size": 1 << 20,
        "queue.buffering.max.messages": 2 * QUEUED_MAX,
        "queue.buffering.max.kbytes": 1 << 19,
    }
    producer = importlib.import_module("confluent_kafka").Producer(settings)
    rows = Rows(keys, partitions)
    with watch.running(messages):
        for number in range(messages // BATCH):
            batch = _records(rows.keys_of(number).tobytes(), rows.values_of(number))
            taken = producer.produce_batch(ROWS, batch, partition=rows.partition_of(number))
            assert taken == BATCH
            while len(producer) > QUEUED_MAX:
                producer.poll(POLL_S)
            producer.poll(0)
        unanswered = producer.flush()
    assert not unanswered


def _records(keys: bytes, values: bytes) -> list[dict[str, bytes]]:
    return [
        {
            "key": keys[row * KEY_BYTES : (row + 1) * KEY_BYTES],
            "value": values[row * VALUE_BYTES : (row + 1) * VALUE_BYTES],
        }
        for row in range(BATCH)
    ]
