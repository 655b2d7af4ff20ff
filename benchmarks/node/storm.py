"""A storm: very many messages due in one second, one client that takes them, one that feels it.

Lateness is when a message fired (was appended to be delivered) less when it was due. The second
client calls the node every few milliseconds about other things; its slowest call, less its median
one, is the stall.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from statistics import median

import numpy as np
import uvloop

from benchmarks.client import Stopwatch
from benchmarks.node.scheduling import Promises, now_ms
from benchmarks.node.wire import fresh_topic, opened, stream_all
from benchmarks.peers.pacing import percentiles
from waterclock.client.client import connect
from waterclock.client.received import ReceivedBatch
from waterclock.v1 import admin_pb2, admin_pb2_grpc, broker_pb2, broker_pb2_grpc

AFTER_MS = 1_000
"""How long calls are made after the last is due."""
PERIOD_S = 0.004


def take(
    watch: Stopwatch,
    port: int,
    *,
    start_ms: int,
    span_ms: int,
    batch: int,
    messages: int,
    window: int,
) -> None:
    """Publish messages that are due in a span of time, and take them as they fire."""

    async def run() -> None:
        async with (
            opened(port) as channel,
            fresh_topic(channel) as topic,
            connect(f"127.0.0.1:{port}") as client,
            client.subscribe(topic, group="bench") as subscription,
        ):
            promises = Promises(topic, batch=batch, due_ms=(start_ms, start_ms + span_ms))
            requests = promises.requests(messages // batch)
            await stream_all(channel, requests, window=window)
            if now_ms() >= start_ms:
                raise RuntimeError("the storm began before all of it was published")
            fired_ms: list[float] = []
            taken_ms: list[float] = []
            with watch.running(messages):
                while len(fired_ms) < messages:
                    delivery = await subscription.next_delivery()
                    assert delivery is not None
                    due_ms = delivery.rows.column("due_ms").to_numpy()
                    taken_ms += (time.time_ns() / 1e6 - due_ms).tolist()
                    fired_ms += (delivery.append_ms - due_ms).tolist()
                    ReceivedBatch(delivery, delivery.take_rest()).ack()
        if min(fired_ms) < 0:
            raise RuntimeError(f"a message fired {-min(fired_ms)} ms early")
        watch.more["fired_ms"] = percentiles(np.array(fired_ms) / 1e3)
        watch.more["taken_ms"] = percentiles(np.array(taken_ms) / 1e3)

    uvloop.run(run())


def feel(watch: Stopwatch, port: int, *, start_ms: int, span_ms: int) -> None:
    """Call the node before, during and after the storm; tell how long calls took in it."""

    async def run() -> None:
        async with opened(port) as channel, fresh_topic(channel) as topic:
            admin, broker = admin_pb2_grpc.AdminStub(channel), broker_pb2_grpc.BrokerStub(channel)
            message = broker_pb2.Message(value=os.urandom(128))
            publish = broker_pb2.PublishRequest(topic=topic, message=message)
            node = admin_pb2.GetNodeRequest()
            end_ms = start_ms + span_ms + AFTER_MS
            with watch.running(1):
                async with asyncio.TaskGroup() as tasks:
                    looks = tasks.create_task(_calls(lambda: admin.GetNode(node), end_ms))
                    sends = tasks.create_task(_calls(lambda: broker.Publish(publish), end_ms))
        for name, calls in (("look", looks.result()), ("publish", sends.result())):
            during = [took_ms for at_ms, took_ms in calls if at_ms + took_ms >= start_ms]
            usual = median(took_ms for _, took_ms in calls)
            watch.more[name] = {"stall_ms": max(during) - usual, "p50_ms": usual}

    uvloop.run(run())


async def _calls(call: Callable[[], Awaitable[object]], end_ms: int) -> list[tuple[float, float]]:
    """Make calls until a time; give when each began and how long it took."""
    calls = []
    while (begun := time.time_ns() / 1e6) < end_ms:
        await call()
        calls.append((begun, time.time_ns() / 1e6 - begun))
        await asyncio.sleep(PERIOD_S)
    return calls
