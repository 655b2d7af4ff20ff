"""Clients of a node with very many partitions: one makes a topic, one publishes with keys."""

import asyncio
from itertools import count

import uvloop

from benchmarks.client import Stopwatch
from benchmarks.messages import VALUE_BYTES
from benchmarks.node.wire import opened
from waterclock.client.client import Client, connect
from waterclock.v1 import admin_pb2, admin_pb2_grpc


def make(watch: Stopwatch, port: int, *, topic: str, partitions: int) -> None:
    """Make a topic; it stays."""

    async def run() -> None:
        async with opened(port) as channel:
            admin = admin_pb2_grpc.AdminStub(channel)
            settings = admin_pb2.TopicSettings(partitions=partitions)
            request = admin_pb2.CreateTopicRequest(topic=topic, settings=settings)
            with watch.running(partitions):
                await admin.CreateTopic(request)

    uvloop.run(run())


def keyed(watch: Stopwatch, port: int, *, topic: str, callers: int, messages: int) -> None:
    """Publish messages one by one, each with a key of its own, from many callers of a client."""

    async def run() -> None:
        async with connect(f"127.0.0.1:{port}") as client:
            keys = count()
            await _call_all(client, topic, keys, callers, 1)
            each = -(-messages // callers)
            with watch.running(each * callers):
                await _call_all(client, topic, keys, callers, each)

    uvloop.run(run())


async def _call_all(
    client: Client, topic: str, keys: "count[int]", callers: int, each: int
) -> None:
    value = bytes(VALUE_BYTES)

    async def call() -> None:
        for _ in range(each):
            await client.publish(topic, value, key=b"%d" % next(keys))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(callers):
            tasks.create_task(call())
