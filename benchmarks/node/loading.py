"""Clients besides Spark: they load rows into our node, replay them, publish singles meanwhile."""

import asyncio
import os
import time

import numpy as np
import uvloop

from benchmarks.client import Stopwatch
from benchmarks.messages import VALUE_BYTES
from benchmarks.node.storm import is_said, say
from benchmarks.node.wire import fresh_topic, opened, publish_request, published, stream_all
from benchmarks.peers.pacing import Schedule
from benchmarks.rows import BATCH, Rows, Template
from waterclock.client.client import Client, connect
from waterclock.v1 import admin_pb2, admin_pb2_grpc

CHUNK_BATCHES = 200
WINDOW = 8
SECONDS_MAX = 900
"""Nobody publishes singles for longer."""
SINGLES_LEAST = 100


def create(watch: Stopwatch, port: int, *, topic: str, partitions: int) -> None:
    """Create a topic, or empty it."""

    async def run() -> None:
        async with opened(port) as channel:
            admin = admin_pb2_grpc.AdminStub(channel)
            listed = await admin.ListTopics(admin_pb2.ListTopicsRequest())
            if topic in {found.topic for found in listed.topics}:
                await admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic=topic))
            settings = admin_pb2.TopicSettings(partitions=partitions)
            await admin.CreateTopic(admin_pb2.CreateTopicRequest(topic=topic, settings=settings))

    uvloop.run(run())


def load(
    watch: Stopwatch, port: int, *, topic: str, partitions: int, messages: int, keys: int
) -> None:
    """Publish numbered batches, to each partition in turn."""
    rows = Rows(keys, partitions)
    template = Template(rows)

    async def run() -> None:
        async with opened(port) as channel:
            for first in range(0, messages // BATCH, CHUNK_BATCHES):
                numbers = range(first, min(first + CHUNK_BATCHES, messages // BATCH))
                requests = [
                    publish_request(
                        topic, template.body(number), partition=rows.partition_of(number)
                    )
                    for number in numbers
                ]
                with watch.running(len(requests) * BATCH):
                    answers = await stream_all(channel, requests, window=WINDOW)
                assert published(answers) == len(requests) * BATCH

    uvloop.run(run())


def replay(watch: Stopwatch, port: int, *, topic: str, messages: int) -> None:
    """Replay what compaction left of a topic, raw batches; check how many that is."""

    async def run() -> None:
        async with connect(f"127.0.0.1:{port}") as client:
            with watch.running(messages):
                found = await _replayed(client, topic)
            assert found == messages, f"{found:,} messages replayed, not {messages:,}"

    uvloop.run(run())


async def _replayed(client: Client, topic: str) -> int:
    found = 0
    async for batch in client.replay(topic, compacted=True).batches():
        found += batch.count
    return found


def trickle(
    watch: Stopwatch, port: int, *, rate: int, begun: str, enough: str, samples: str
) -> None:
    """Publish singles at a rate until the file `enough` appears; save how long each took."""
    singles = _Singles(rate)

    async def run() -> None:
        async with (
            opened(port) as channel,
            fresh_topic(channel) as topic,
            connect(f"127.0.0.1:{port}") as client,
        ):
            await singles.run(client, topic, begun=begun, enough=enough)

    with watch.running(0):
        uvloop.run(run())
    watch.messages = singles.sent
    singles.save(samples)


def span(watch: Stopwatch, port: int, *, topic: str, partitions: int) -> None:
    """Tell how many messages a topic has, and when the first and the last of them came."""

    async def run() -> None:
        rows, times = 0, []
        async with connect(f"127.0.0.1:{port}") as client:
            for partition in range(partitions):
                first = await client.fetch(topic, partition, 0, bytes_max=1, deliverable_only=False)
                if end := first.end_offset:
                    last = await client.fetch(topic, partition, end - 1, deliverable_only=False)
                    frames = [*first.frames(), *last.frames()]
                    times += [frame.header.append_ms for frame in frames]
                    rows += end
        watch.more |= {"rows": rows, "first_ms": min(times), "last_ms": max(times)}

    uvloop.run(run())


class _Singles:
    """Messages that are due one after the other, whatever becomes of those before."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._value = os.urandom(VALUE_BYTES)
        self._acked = np.zeros(rate * SECONDS_MAX)
        self._meant = self._acked
        self.sent = 0

    async def run(self, client: Client, topic: str, *, begun: str, enough: str) -> None:
        for _ in range(SINGLES_LEAST):  # until it is warm
            await client.publish(topic, self._value)
        schedule = Schedule(rate=self._rate, messages=len(self._acked))
        self._meant = schedule.meant
        say(begun)
        async with asyncio.TaskGroup() as tasks:
            while self.sent < SINGLES_LEAST or not is_said(enough):
                for _ in range(schedule.due()):
                    tasks.create_task(self._publish(client, topic, self.sent))
                    self.sent += 1
                await asyncio.sleep(schedule.wait_s())

    async def _publish(self, client: Client, topic: str, number: int) -> None:
        await client.publish(topic, self._value)
        self._acked[number] = time.perf_counter()

    def save(self, file: str) -> None:
        """Save by the clock on the wall when each was meant to be sent, and how long it took."""
        meant, acked = self._meant[: self.sent], self._acked[: self.sent]
        wall_ms = (meant + (time.time() - time.perf_counter())) * 1e3
        np.save(file, [wall_ms, (acked - meant) * 1e3])
