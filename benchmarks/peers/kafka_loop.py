"""What everybody writes first: a loop that reads from Kafka, works, and commits.

It shows what the client can do at most, since there is nothing around the work; and it does one
message at a time, so work that takes 10 ms makes it a hundred messages a second.
"""

import time

from confluent_kafka import Consumer

from benchmarks.client import Stopwatch
from benchmarks.peers.wire import SILENCE_S_MAX

NAME = "loop"
BATCH = 1_000
"""Messages for each commit, as ours."""
PATIENCE_S = 0.05
"""How long to wait for a batch to be whole."""


def consume(watch: Stopwatch, port: int, *, topic: str, messages: int) -> None:
    """Do nothing with each message."""
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "log_level": 3,
            "group.id": f"group-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 20,
        }
    )
    consumer.subscribe([topic])
    first = consumer.consume(1, SILENCE_S_MAX)
    assert len(first) == 1
    left = messages - 1

    def process(value: object) -> None:
        nonlocal left
        left -= 1

    with watch.running(left):
        while left > 0:
            batch = consumer.consume(min(BATCH, left), PATIENCE_S)
            for message in batch:
                assert message.error() is None
                process(message.value())
            if batch:
                consumer.commit(asynchronous=False)
    consumer.close()
