"""Two principals on one node: one sends as fast as it can, against its quota, and one does not.

The greedy one is a hostile client: what is refused it sends again at once, whatever the node says
of when. It yields the processor to everyone else on the machine, so that the other one waits for
the node and not for its client.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

import grpc
import numpy as np
import uvloop

from benchmarks.client import Stopwatch
from benchmarks.messages import VALUE_BYTES, Producer
from benchmarks.node.secured import (
    HttpClient,
    http_client,
    http_publish,
    is_taken,
    opened,
)
from benchmarks.node.wire import fresh_topic, publish_request, stream_all
from benchmarks.peers.pacing import Schedule, Seconds, percentiles
from waterclock.v1 import broker_pb2, broker_pb2_grpc

GREEDY, QUIET = "greedy", "quiet"
BATCH_VALUE_BYTES = 1_024
BATCH_MESSAGES = 1_000
CALLERS = 8
HTTP_VALUE_BYTES = 64 * 1_024
WARM_UP_CALLS = 200
NICE = 19


class Tally:
    """What a greedy client was granted, until its time is over."""

    def __init__(self, seconds: float) -> None:
        self.bytes = 0
        self.refusals = 0
        self.begun = time.perf_counter()
        self._end = self.begun + seconds

    @property
    def is_over(self) -> bool:
        return time.perf_counter() >= self._end


def greedy(watch: Stopwatch, port: int, *, way: str, seconds: float) -> None:
    """Send as much as the node takes, for so long."""
    os.nice(NICE)
    ways = {"stream": _by_stream, "calls": _by_calls, "http": _by_http}

    async def run() -> None:
        async with opened(port) as admin, fresh_topic(admin) as topic:
            with watch.running(0):
                tally = await ways[way](port, topic, seconds)
            watch.more |= {"bytes": tally.bytes, "refusals": tally.refusals}

    uvloop.run(run())


async def _by_stream(port: int, topic: str, seconds: float) -> Tally:
    """Keep a window of batches under way on one stream."""
    producer = _producer()
    async with opened(port, GREEDY) as channel:
        tally = Tally(seconds)
        while not tally.is_over:
            requests = [publish_request(topic, body) for body in producer.bodies(CALLERS)]
            await stream_all(channel, requests, window=CALLERS)
            tally.bytes += sum(map(len, requests))
    return tally


async def _by_calls(port: int, topic: str, seconds: float) -> Tally:
    """Publish batches by single calls."""
    producer = _producer()
    async with opened(port, GREEDY) as channel:
        broker, tally = broker_pb2_grpc.BrokerStub(channel), Tally(seconds)

        async def call() -> None:
            while not tally.is_over:
                (body,) = producer.bodies(1)
                request = broker_pb2.PublishBatchRequest(topic=topic, arrow=body)
                try:
                    await broker.PublishBatch(request)
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        raise
                    tally.refusals += 1
                else:
                    tally.bytes += request.ByteSize()

        await asyncio.gather(*(call() for _ in range(CALLERS)))
    return tally


async def _by_http(_: int, topic: str, seconds: float) -> Tally:
    """Post messages, over connections that are opened again when the node closes them."""
    request = http_publish(topic, GREEDY, value_bytes=HTTP_VALUE_BYTES)
    size = len(request.partition(b"\r\n\r\n")[2])
    tally = Tally(seconds)

    async def call() -> None:
        client: HttpClient | None = None
        while not tally.is_over:
            try:
                client = client or await http_client(GREEDY)
                is_granted = is_taken(await client.ask(request))
            except OSError:
                client = None
                continue
            tally.bytes += size * is_granted
            tally.refusals += not is_granted
        if client is not None:
            client.close()

    await asyncio.gather(*(call() for _ in range(CALLERS)))
    return tally


def _producer() -> Producer:
    number = int.from_bytes(os.urandom(7))
    return Producer(number, batch_messages=BATCH_MESSAGES, value_bytes=BATCH_VALUE_BYTES)


def quiet(watch: Stopwatch, port: int, *, way: str, rate: int, seconds: float) -> None:
    """Publish single messages at a steady rate; tell how long they took."""

    async def run() -> None:
        async with opened(port, QUIET) as channel, fresh_topic(channel) as topic:
            if way == "http":
                publish = await _http_publisher(topic)
            else:
                publish = _publisher(channel, topic)
            for _ in range(WARM_UP_CALLS):
                await publish()
            took = np.zeros(max(1, round(rate * seconds)))
            with watch.running(len(took)):
                await _at_rate(publish, took, rate)
            watch.more |= percentiles(took)

    uvloop.run(run())


async def _at_rate(publish: Callable[[], Awaitable[None]], took: Seconds, rate: int) -> None:
    schedule, sent = Schedule(rate=rate, messages=len(took)), 0

    async def one(number: int) -> None:
        await publish()
        took[number] = time.perf_counter() - schedule.meant[number]

    async with asyncio.TaskGroup() as tasks:
        while sent < len(took):
            for _ in range(schedule.due()):
                tasks.create_task(one(sent))
                sent += 1
            await asyncio.sleep(schedule.wait_s() if sent < len(took) else 0)


def _publisher(channel: grpc.aio.Channel, topic: str) -> Callable[[], Awaitable[None]]:
    broker = broker_pb2_grpc.BrokerStub(channel)
    message = broker_pb2.Message(value=bytes(VALUE_BYTES))
    request = broker_pb2.PublishRequest(topic=topic, message=message)

    async def publish() -> None:
        await broker.Publish(request)

    return publish


async def _http_publisher(topic: str) -> Callable[[], Awaitable[None]]:
    request = http_publish(topic, QUIET)
    free = [await http_client(QUIET) for _ in range(CALLERS)]

    async def publish() -> None:
        client = free.pop() if free else await http_client(QUIET)
        assert is_taken(await client.ask(request))
        free.append(client)

    return publish
