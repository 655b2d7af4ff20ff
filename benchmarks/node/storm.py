"""A storm: very many messages due in one second, one client that takes them, one that feels it.

Lateness is when a message fired (was appended to be delivered) less when it was due. The second
client calls the node every few milliseconds about other things, before and during the storm; its
slowest call, less its median one, is the stall.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import numpy as np
import numpy.typing as npt
import uvloop

from benchmarks.client import Stopwatch
from benchmarks.node.scheduling import ScheduledRequests, now_ms
from benchmarks.node.wire import fresh_topic, opened, stream_all
from benchmarks.peers.pacing import percentiles
from waterclock.client.client import Client, connect
from waterclock.client.consumer.delivery import ReceivedBatch
from waterclock.client.consumer.subscription import Subscription
from waterclock.v1 import admin_pb2, admin_pb2_grpc, broker_pb2, broker_pb2_grpc

Millis = npt.NDArray[np.float64]

LEADS_MS = (2_000, 8_000, 32_000)
"""Time to publish a storm before it begins; a longer one, if that was not enough."""
AFTER_S = 1.0
"""How long others are watched after the last message was taken."""
PERIOD_S = 0.004


class _Storm:
    """Messages due in a span of time."""

    def __init__(self, *, batch: int, messages: int, span_ms: int) -> None:
        self._batch = batch
        self._messages = messages
        self._span_ms = span_ms
        self.start_ms = 0

    async def publish(self, channel: grpc.aio.Channel, topic: str, *, lead_ms: int) -> bool:
        """Publish all of it; tell whether that was done before it began."""
        self.start_ms = now_ms() + lead_ms
        due_ms = (self.start_ms, self.start_ms + self._span_ms)
        scheduled = ScheduledRequests(topic, batch=self._batch, due_ms=due_ms)
        await stream_all(channel, scheduled.requests(self._messages // self._batch), window=8)
        return now_ms() < self.start_ms

    async def take(self, subscription: Subscription) -> tuple[Millis, Millis]:
        """Take all of it; give how late each message was fired, and delivered."""
        fired: list[Millis] = []
        taken: list[Millis] = []
        left = self._messages
        while left:
            delivery = await subscription.next_delivery()
            assert delivery is not None
            due_ms = delivery.rows.column("due_ms").to_numpy()
            taken.append(time.time_ns() / 1e6 - due_ms)
            fired.append(delivery.append_ms - due_ms)
            left -= len(due_ms)
            ReceivedBatch(delivery, delivery.take_rest()).ack()
        return np.concatenate(fired), np.concatenate(taken)


def take(watch: Stopwatch, port: int, *, span_ms: int, batch: int, messages: int) -> None:
    """Publish messages that are due in a span of time, and take them as they fire."""
    storm = _Storm(batch=batch, messages=messages, span_ms=span_ms)

    async def attempt(channel: grpc.aio.Channel, client: Client, lead_ms: int) -> bool:
        async with (
            fresh_topic(channel) as topic,
            client.subscribe(topic, group="bench") as subscription,
        ):
            if not await storm.publish(channel, topic, lead_ms=lead_ms):
                return False
            with watch.running(messages):
                fired_ms, taken_ms = await storm.take(subscription)
            watch.more["start_ms"], watch.more["end_ms"] = storm.start_ms, now_ms()
            # The topic goes when nobody feels it any more.
            await asyncio.sleep(AFTER_S)
        if fired_ms.min() < 0:
            raise RuntimeError(f"a message fired {-fired_ms.min()} ms early")
        watch.more["fired_ms"] = percentiles(fired_ms / 1e3)
        watch.more["taken_ms"] = percentiles(taken_ms / 1e3)
        return True

    async def run() -> None:
        async with opened(port) as channel, connect(f"127.0.0.1:{port}") as client:
            for lead_ms in LEADS_MS:
                if await attempt(channel, client, lead_ms):
                    return
        raise RuntimeError(f"{messages} messages could not be published in {LEADS_MS[-1]} ms")

    uvloop.run(run())


def feel(watch: Stopwatch, port: int, *, begun: str, enough: str) -> None:
    """Call the node until there is a file `enough`; tell when each call began and what it took."""

    async def run() -> None:
        async with opened(port) as channel, fresh_topic(channel) as topic:
            admin, broker = admin_pb2_grpc.AdminStub(channel), broker_pb2_grpc.BrokerStub(channel)
            message = broker_pb2.Message(value=os.urandom(128))
            publish = broker_pb2.PublishRequest(topic=topic, message=message)
            node = admin_pb2.GetNodeRequest()
            await admin.GetNode(node)
            await broker.Publish(publish)
            say(begun)
            with watch.running(1):
                async with asyncio.TaskGroup() as tasks:
                    looks = tasks.create_task(_calls(lambda: admin.GetNode(node), enough))
                    sends = tasks.create_task(_calls(lambda: broker.Publish(publish), enough))
        watch.more |= {"look": looks.result(), "publish": sends.result()}

    uvloop.run(run())


def say(file: str) -> None:
    """Tell the process that started this one something, by a file."""
    Path(file).touch()


def is_said(file: str) -> bool:
    """Ask whether that process has written something."""
    return os.path.exists(file)


async def _calls(call: Callable[[], Awaitable[object]], enough: str) -> list[tuple[float, float]]:
    """Make calls until there is such a file; give when each began and how long it took, in ms."""
    calls = []
    while not is_said(enough):
        begun_ms = time.time_ns() / 1e6
        await call()
        calls.append((begun_ms, time.time_ns() / 1e6 - begun_ms))
        await asyncio.sleep(PERIOD_S)
    return calls
