"""Clients that publish to our node for later, cancel, and watch a storm of messages fall due."""

import os
import random
import time

import numpy as np
import uvloop

from benchmarks.client import Stopwatch
from benchmarks.messages import Producer
from benchmarks.node.wire import call_all, fresh_topic, opened, publish_request, stream_all
from waterclock.v1 import scheduler_pb2

CANCEL = "/waterclock.v1.Scheduler/Cancel"
CHUNK_BATCHES = 200
"""Batches encoded, then published, at a time."""
WARM_UP_BATCHES = 16
HOUR_MS = 3_600_000
AHEAD_MS = (HOUR_MS, 5 * HOUR_MS)
"""When the many are due: late enough that none fires, soon enough that all are kept in memory."""


def now_ms() -> int:
    """Give the time of the wall."""
    return time.time_ns() // 1_000_000


class ScheduledRequests:
    """Makes requests to publish batches for later."""

    def __init__(self, topic: str, *, batch: int, due_ms: tuple[int, int]) -> None:
        """Each message is due at some moment between the two."""
        self._topic = topic
        self._due_ms = due_ms
        self._rng = np.random.default_rng()
        self.number = int.from_bytes(os.urandom(7))
        self._producer = Producer(self.number, batch_messages=batch, is_scheduled=True)

    def requests(self, count: int) -> list[bytes]:
        """Encode the next batches."""
        dues = self._producer.dues_ms
        assert dues is not None
        made = []
        for _ in range(count):
            dues[:] = self._rng.integers(*self._due_ms, len(dues))
            made.append(publish_request(self._topic, self._producer.bodies(1)[0]))
        return made


def _later() -> tuple[int, int]:
    now = now_ms()
    return now + AHEAD_MS[0], now + AHEAD_MS[1]


def publish(watch: Stopwatch, port: int, *, batch: int, messages: int, window: int) -> None:
    """Publish batches for later, at most a window of them unanswered."""

    async def run() -> None:
        async with opened(port) as channel, fresh_topic(channel) as topic:
            scheduled = ScheduledRequests(topic, batch=batch, due_ms=_later())
            first = scheduled.requests(WARM_UP_BATCHES)
            await stream_all(channel, first, window=window)
            requests = scheduled.requests(messages // batch)
            with watch.running(messages):
                await stream_all(channel, requests, window=window)

    uvloop.run(run())


def fill(
    watch: Stopwatch, port: int, *, topic: str, batch: int, messages: int, window: int
) -> None:
    """Publish very many for later, and leave them there."""

    async def run() -> None:
        scheduled = ScheduledRequests(topic, batch=batch, due_ms=_later())
        async with opened(port) as channel:
            left = messages // batch
            while left > 0:
                requests = scheduled.requests(min(left, CHUNK_BATCHES))
                with watch.running(len(requests) * batch):
                    await stream_all(channel, requests, window=window)
                left -= len(requests)

    uvloop.run(run())


def cancel(
    watch: Stopwatch,
    port: int,
    *,
    batch: int,
    messages: int,
    window: int,
    is_scattered: bool = False,
) -> None:
    """Publish for later, then cancel all of it by message id, a batch in a call.

    Scattered: each call names messages from everywhere, as people cancel, not a batch as it came.
    """

    async def run() -> None:
        async with opened(port) as channel, fresh_topic(channel) as topic:
            scheduled = ScheduledRequests(topic, batch=batch, due_ms=_later())
            batches = messages // batch
            await stream_all(channel, scheduled.requests(batches), window=window)
            # The same number gives the same ids.
            ids = Producer(scheduled.number, batch_messages=batch).ids(batches)
            named = [id_ for some in ids for id_ in some.to_pylist()]
            if is_scattered:
                random.shuffle(named)
            requests = [
                _cancel_request(topic, named[at : at + batch]) for at in range(0, messages, batch)
            ]
            with watch.running(messages):
                answers = await call_all(channel, CANCEL, requests, window=window)
        outcomes = [o for a in answers for o in scheduler_pb2.CancelResponse.FromString(a).outcomes]
        assert outcomes == [scheduler_pb2.OUTCOME_DONE] * messages

    uvloop.run(run())


def _cancel_request(topic: str, ids: list[bytes]) -> bytes:
    pending = [scheduler_pb2.Pending(message_id=id_) for id_ in ids]
    return scheduler_pb2.CancelRequest(topic=topic, pending=pending).SerializeToString()
