"""FastStream on confluent-kafka: a function for each message, with the framework around it.

It has two ways to say that a message is done. By default the client commits by the clock what was
handed out, whatever becomes of it (`ackfirst`). The way that loses nothing commits each message
after it, and waits for it. With either, messages of a partition come one after the other.
"""

import asyncio
import importlib
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy

from benchmarks.client import Stopwatch
from benchmarks.peers.cache import python
from benchmarks.peers.server import Server

NAME = "faststream"
PACKAGE, VERSION = "faststream[confluent]", "0.7.8"
WARM_UP = 100


@contextmanager
def beside(broker: Server) -> Iterator[Server]:
    """Give the broker as this library's clients see it."""
    library = python(PACKAGE, VERSION)
    seen = copy(broker)
    seen.client_environ = {**broker.client_environ, "PYTHONPATH": os.pathsep.join([str(library)])}
    seen.version = VERSION
    yield seen


def consume(watch: Stopwatch, port: int, *, topic: str, messages: int, is_ack_first: bool) -> None:
    """Do nothing with each message."""
    asyncio.run(_consume(watch, port, topic, messages, is_ack_first))


async def _consume(
    watch: Stopwatch, port: int, topic: str, messages: int, is_ack_first: bool
) -> None:
    confluent = importlib.import_module("faststream.confluent")
    policies = importlib.import_module("faststream").AckPolicy
    broker = confluent.KafkaBroker(f"127.0.0.1:{port}", logger=None, log_level=logging.CRITICAL)
    done = asyncio.Event()
    clock = watch.running(messages)
    left = messages + WARM_UP

    async def process(body: bytes) -> None:
        nonlocal left
        left -= 1
        if left == messages:
            clock.__enter__()
        elif left == 0:
            clock.__exit__(None, None, None)
            done.set()

    broker.subscriber(
        topic,
        group_id=f"group-{time.monotonic_ns()}",
        auto_offset_reset="earliest",
        ack_policy=policies.ACK_FIRST if is_ack_first else policies.NACK_ON_ERROR,
    )(process)
    await broker.start()
    await done.wait()
    await broker.stop()
