"""The broker that is inside librdkafka, made for tests: where there is no Kafka to be had.

It answers from memory and forgets all but the last 5 MB of a partition. It serves to see that a
benchmark still works; its numbers are compared with nothing.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer

from benchmarks.machine import ROOT
from benchmarks.peers.server import Server, started

NAME = "mock"
PORT_FILE = "port"
READY_S = 30.0


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Run it. Topics have four partitions, and are there when somebody asks for them."""
    found = folder / PORT_FILE
    environ = {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks.peers.kafka_mock", str(found)]
    with started(command, folder=folder, port=0, environ=environ, is_ready=found.exists) as server:
        server.port = int(found.read_text())
        server.version = "inside the client"
        yield server


def main() -> None:
    """Be that broker until the process is ended."""
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 2})
    (broker,) = producer.list_topics(timeout=READY_S).brokers.values()
    file = Path(sys.argv[1])
    fresh = file.with_suffix(".new")
    fresh.write_text(str(broker.port))
    fresh.rename(file)
    while True:
        time.sleep(3_600)


if __name__ == "__main__":
    main()
