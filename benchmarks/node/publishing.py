"""Clients that publish to our node: whole batches, and single messages that the node batches."""

import asyncio
import os

import uvloop

from benchmarks.client import Stopwatch
from benchmarks.messages import VALUE_BYTES, Producer
from benchmarks.node.wire import (
    fresh_topic,
    link_all,
    linked,
    opened,
    publish_request,
    published,
    stream_all,
    until_linked,
)
from waterclock.client.client import Client, connect
from waterclock.client.settings import ClientSettings

WARM_UP_BATCHES = 16
WARM_UP_MESSAGES = 2_000


def batches(
    watch: Stopwatch,
    port: int,
    *,
    batch: int,
    messages: int,
    window: int,
    partitions: int,
    is_native: bool = True,
) -> None:
    """Publish batches to each partition in turn, at most a window of them unanswered."""
    count = messages // batch + WARM_UP_BATCHES

    async def run() -> None:
        async with opened(port) as channel, fresh_topic(channel, partitions=partitions) as topic:
            requests = requests_of(topic, batch, count, partitions, is_native=is_native)
            first, requests = requests[:WARM_UP_BATCHES], requests[WARM_UP_BATCHES:]
            if is_native:
                async with linked(channel, port) as link:
                    await link_all(link, first, window=window)
                    with watch.running(len(requests) * batch):
                        taken = await link_all(link, requests, window=window)
            else:
                await stream_all(channel, first, window=window)
                with watch.running(len(requests) * batch):
                    answers = await stream_all(channel, requests, window=window)
                taken = published(answers)
            assert taken == watch.messages

    uvloop.run(run())


def requests_of(
    topic: str, batch: int, count: int, partitions: int, *, is_native: bool = False
) -> list[bytes]:
    """Encode batches of messages, each for the next partition."""
    producer = Producer(int.from_bytes(os.urandom(7)), batch_messages=batch)
    return [
        publish_request(topic, body, partition=number % partitions, is_native=is_native)
        for number, body in enumerate(producer.bodies(count))
    ]


def singles(
    watch: Stopwatch,
    port: int,
    *,
    callers: int,
    messages: int,
    partitions: int,
    is_native: bool = True,
) -> None:
    """Publish one message after the other from many callers that share a client."""

    async def run() -> None:
        async with (
            opened(port) as channel,
            fresh_topic(channel, partitions=partitions) as topic,
            connect(f"127.0.0.1:{port}", ClientSettings(native=is_native)) as client,
        ):
            if is_native:
                await until_linked(client)
            await _call_all(client, topic, callers, WARM_UP_MESSAGES // callers)
            with watch.running(messages // callers * callers):
                await _call_all(client, topic, callers, messages // callers)

    uvloop.run(run())


async def _call_all(client: Client, topic: str, callers: int, each: int) -> None:
    value = bytes(VALUE_BYTES)

    async def call() -> None:
        for _ in range(each):
            await client.publish(topic, value)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(callers):
            tasks.create_task(call())
