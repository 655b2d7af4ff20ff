"""Clients that consume from our node, through the client library, as the one member of a group."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvloop

from benchmarks.client import Stopwatch
from benchmarks.messages import Producer
from benchmarks.node.wire import opened, publish_request, stream_all
from waterclock.client.client import connect
from waterclock.client.consumer.subscription import Subscription

FILL_BATCHES = 200
"""Batches encoded, then published, at a time."""


def fill(
    watch: Stopwatch, port: int, *, topic: str, batch: int, messages: int, window: int
) -> None:
    """Publish messages, and leave them there."""

    async def run() -> None:
        producer = Producer(int.from_bytes(os.urandom(7)), batch_messages=batch)
        async with opened(port) as channel:
            left = messages // batch
            while left > 0:
                bodies = producer.bodies(min(left, FILL_BATCHES))
                requests = [publish_request(topic, body) for body in bodies]
                with watch.running(len(requests) * batch):
                    await stream_all(channel, requests, window=window)
                left -= len(bodies)

    uvloop.run(run())


@asynccontextmanager
async def _reading(port: int, topic: str) -> AsyncIterator[Subscription]:
    group = f"group-{os.urandom(6).hex()}"
    async with (
        connect(f"127.0.0.1:{port}") as client,
        client.subscribe(topic, group=group) as subscription,
    ):
        yield subscription


def raw_batches(watch: Stopwatch, port: int, *, topic: str, messages: int) -> None:
    """Read Arrow batches, and ack each as a whole."""

    async def run() -> None:
        async with _reading(port, topic) as subscription:
            done = 0
            with watch.running(messages):
                async for batch in subscription.batches():
                    done += batch.rows.num_rows
                    batch.ack()
                    if done >= messages:
                        break
            assert done == messages

    uvloop.run(run())


def each_message(watch: Stopwatch, port: int, *, topic: str, messages: int) -> None:
    """Read message by message, look at each value, and ack each."""

    async def run() -> None:
        async with _reading(port, topic) as subscription:
            done = size = 0
            with watch.running(messages):
                async for message in subscription:
                    size += len(message.value or b"")
                    message.ack()
                    done += 1
                    if done >= messages:
                        break

    uvloop.run(run())
