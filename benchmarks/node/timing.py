"""A client that publishes to our node at a steady rate and consumes what it published.

The same rules as for the peers: each message is timed from the moment it was meant to be sent.
"""

import asyncio
import json
import os
import time

import numpy as np
import uvloop

from benchmarks.client import Stopwatch
from benchmarks.load import answer_bytes, post
from benchmarks.messages import VALUE_BYTES
from benchmarks.node.ticker import Ticker
from benchmarks.node.wire import fresh_topic, opened, until_linked
from benchmarks.peers.pacing import Schedule, Times, percentiles, tell
from benchmarks.peers.wire import connect as http_connect
from benchmarks.peers.wire import received
from waterclock.client.client import Client, connect
from waterclock.client.consumer.subscription import Subscription
from waterclock.client.settings import ClientSettings
from waterclock.v1 import admin_pb2, admin_pb2_grpc

WARM_UP_MESSAGES = 200


class _Talk:
    """One publisher and one subscriber in one process."""

    def __init__(self, client: Client, topic: str, messages: int) -> None:
        self._client = client
        self._topic = topic
        self._value = os.urandom(VALUE_BYTES)
        self.acked = np.zeros(messages)
        self.delivered = np.zeros(messages)

    async def publish_at(self, schedule: Schedule) -> None:
        messages, sent = len(self.acked), 0
        first_s = float(schedule.meant[0])
        async with asyncio.TaskGroup() as tasks:
            with Ticker(first_s, rate=schedule.rate) as ticker:
                while sent < messages:
                    await ticker.tick()
                    for _ in range(schedule.due()):
                        tasks.create_task(self._publish(sent))
                        sent += 1

    async def _publish(self, number: int) -> None:
        await self._client.publish(self._topic, self._value)
        self.acked[number] = time.perf_counter()

    async def read(self, subscription: Subscription) -> None:
        done = 0
        async for message in subscription:
            self.delivered[done] = time.perf_counter()
            message.ack()
            done += 1
            if done == len(self.delivered):
                return


def latency(
    watch: Stopwatch, port: int, *, rate: int, messages: int, is_native: bool = True
) -> None:
    """Publish at a rate and consume; tell how long both took."""

    async def run() -> None:
        async with opened(port) as channel, fresh_topic(channel) as topic:
            work = {"rate": rate, "messages": messages}
            await talk(watch, port, topic, **work, is_native=is_native)

    uvloop.run(run())


def one_at_a_time(watch: Stopwatch, port: int, *, way: str, messages: int) -> None:
    """Publish one message after the other, each when the last is acknowledged: by HTTP, by gRPC, or
    by the native protocol; tell how long each took."""

    async def run() -> None:
        async with opened(port) as channel, fresh_topic(channel) as topic:
            if way == "http":
                node = await admin_pb2_grpc.AdminStub(channel).GetNode(admin_pb2.GetNodeRequest())
                http_port = int(node.http_address.rpartition(":")[2])
                # Nothing else is to be done on this loop meanwhile.
                times = _post_each(watch, http_port, topic, messages)
            else:
                times = await _call_each(watch, port, topic, messages, is_native=way == "native")
        watch.more["ack_ms"] = percentiles(np.diff(times))

    uvloop.run(run())


async def _call_each(
    watch: Stopwatch, port: int, topic: str, messages: int, *, is_native: bool
) -> list[float]:
    value = os.urandom(VALUE_BYTES)
    async with connect(f"127.0.0.1:{port}", ClientSettings(native=is_native)) as client:
        if is_native:
            await until_linked(client)
        for _ in range(WARM_UP_MESSAGES):
            await client.publish(topic, value)
        times = [time.perf_counter()]
        with watch.running(messages):
            for _ in range(messages):
                await client.publish(topic, value)
                times.append(time.perf_counter())
    return times


def _post_each(watch: Stopwatch, http_port: int, topic: str, messages: int) -> list[float]:
    value = "x" * VALUE_BYTES
    request = post(f"/topics/{topic}/messages", json.dumps({"value": value}).encode())
    with http_connect(http_port) as wire:

        def ask() -> None:
            wire.sendall(request)
            data = b""
            while answer_bytes(data) is None:
                data += received(wire)
            if not data.startswith(b"HTTP/1.1 201 "):
                raise RuntimeError(f"a publish failed: {data!r}")

        for _ in range(WARM_UP_MESSAGES):
            ask()
        times = [time.perf_counter()]
        with watch.running(messages):
            for _ in range(messages):
                ask()
                times.append(time.perf_counter())
    return times


async def talk(
    watch: Stopwatch, port: int, topic: str, *, rate: int, messages: int, is_native: bool = True
) -> None:
    """Publish to a topic that is there, at a rate, and consume from it; tell how long both took."""
    async with connect(f"127.0.0.1:{port}", ClientSettings(native=is_native)) as client:
        if is_native:
            await until_linked(client)
        async with client.subscribe(topic, group="bench") as subscription:
            await _measure(watch, client, subscription, topic, rate=rate, messages=messages)


async def _measure(
    watch: Stopwatch,
    client: Client,
    subscription: Subscription,
    topic: str,
    *,
    rate: int,
    messages: int,
) -> None:
    await _round(_Talk(client, topic, WARM_UP_MESSAGES), subscription, rate=rate)
    with watch.running(messages):
        times = await _round(_Talk(client, topic, messages), subscription, rate=rate)
    tell(watch, times)


async def _round(talk: _Talk, subscription: Subscription, *, rate: int) -> Times:
    schedule = Schedule(rate=rate, messages=len(talk.acked))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(talk.read(subscription))
        tasks.create_task(talk.publish_at(schedule))
    return Times(schedule.meant, talk.acked, talk.delivered)
