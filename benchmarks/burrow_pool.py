"""The clients of `benchmarks.burrow` that are ours: pools on a Kafka topic, and a loop without one.

The clock starts after a few messages for each worker and stops with the last that is counted:
joining the group and leaving it are not in it. Then the group must have committed as much.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import uvloop
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.burrow_work import ExactWait
from benchmarks.client import Stopwatch
from benchmarks.machine import rss_mb
from benchmarks.peers.wire import VALUE
from waterclock.burrow import KafkaSource, Pool, Record
from waterclock.burrow.core.config import Order

TOPIC = "messages"
PARTITIONS = 4
KEYS = 10_000
ANSWER_S = 60.0
WARM_UP = 2
"""Messages for each worker before the clock starts..."""
PREFETCH = 10
"""...and beyond the last, so that the pool never runs dry before the end."""
STUCK_PERCENT = 10


def settings_of(port: int) -> dict[str, str | int | float | bool]:
    """Give the settings of any Kafka client here."""
    return {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 3}


def create(watch: Stopwatch, port: int) -> None:
    """Create the topic."""
    admin = AdminClient(settings_of(port))
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(ANSWER_S)


def load(watch: Stopwatch, port: int, *, messages: int) -> None:
    """Fill the topic."""
    batching = {"linger.ms": 5, "batch.size": 1 << 20, "queue.buffering.max.messages": 2_000_000}
    producer = Producer({**settings_of(port), **batching})
    for number in range(messages):
        key = number % KEYS
        producer.produce(TOPIC, VALUE, b"%d" % key, key % PARTITIONS)
    assert producer.flush(ANSWER_S) == 0


class Run:
    """One pool on the topic, its clock, and the end of both."""

    def __init__(self, watch: Stopwatch, port: int, messages: int, *, warm_up: int = 0) -> None:
        self.left = messages + warm_up
        self.messages = messages
        self._watch = watch
        self._port = port
        self._group = f"group-{time.monotonic_ns()}"
        self._clock = ExitStack()
        self._pool: Pool | None = None

    def begin(self) -> None:
        """Start the clock."""
        self._clock.enter_context(self._watch.running(self.messages))

    def end(self) -> None:
        """Stop the clock, then the pool."""
        self._clock.close()
        assert self._pool is not None
        self._pool.stop()

    async def of(
        self,
        process: Callable[[Record], Awaitable[None]] | Callable[[Record], None],
        *,
        order: Order,
        workers: int,
        is_all_committed: bool = True,
    ) -> None:
        """Work on the messages with a function that calls `begin` and `end`."""
        source = KafkaSource({**settings_of(self._port), "group.id": self._group}, [TOPIC])
        self._pool = Pool(source, process, workers=workers, order=order, grace_s=1)
        await self._pool.run()
        if is_all_committed:
            found = self._committed()
            assert found >= self.messages, f"{found:,} are committed, not {self.messages:,}"

    def _committed(self) -> int:
        consumer = Consumer({**settings_of(self._port), "group.id": self._group})
        places = [KafkaPartition(TOPIC, number) for number in range(PARTITIONS)]
        offsets = [place.offset for place in consumer.committed(places, timeout=ANSWER_S)]
        consumer.close()
        return sum(offset for offset in offsets if offset > 0)


def noop(watch: Stopwatch, port: int, *, messages: int, order: Order, workers: int) -> None:
    """Do nothing with each message."""
    run = Run(watch, port, messages)

    async def process(record: Record) -> None:
        left = run.left
        if left == messages:
            run.begin()
        run.left = left - 1
        if left == 1:
            run.end()

    uvloop.run(run.of(process, order=order, workers=workers))


def work(
    watch: Stopwatch, port: int, *, messages: int, order: Order, workers: int, seconds: float
) -> None:
    """Have each message take its time on the loop; tell how long it really took."""
    run = Run(watch, port, messages, warm_up=WARM_UP * workers)

    async def main() -> None:
        exact = ExactWait(seconds)
        await exact.settle()

        async def process(record: Record) -> None:
            await exact.wait()
            run.left -= 1
            if run.left == messages:
                exact.forget()
                run.begin()
            elif run.left == 0:
                watch.more["work_s"] = exact.mean_s
                run.end()

        await run.of(process, order=order, workers=workers)
        exact.close()

    uvloop.run(main())


def sleep(
    watch: Stopwatch, port: int, *, messages: int, order: Order, workers: int, seconds: float
) -> None:
    """The same on threads, with a function that blocks."""
    warm_up = WARM_UP * workers
    run = Run(watch, port, messages, warm_up=warm_up)
    numbers = itertools.count(1)  # one step of it is never two threads'
    took: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def process(record: Record) -> None:
            begun = time.perf_counter()
            time.sleep(seconds)
            took.append(time.perf_counter() - begun)
            number = next(numbers)
            if number == warm_up:
                loop.call_soon_threadsafe(run.begin)
            elif number == warm_up + messages:
                loop.call_soon_threadsafe(run.end)

        await run.of(process, order=order, workers=workers)

    uvloop.run(main())
    watch.more["work_s"] = sum(took) / len(took)


def bare(watch: Stopwatch, port: int, *, messages: int, workers: int, seconds: float) -> None:
    """The same work on the same loop with neither pool nor messages: what can be reached at all."""
    left = messages + WARM_UP * workers

    async def main() -> None:
        exact = ExactWait(seconds)
        await exact.settle()
        clock = watch.running(messages)

        async def one() -> None:
            nonlocal left
            while left > 0:
                await exact.wait()
                left -= 1
                if left == messages:
                    exact.forget()
                    clock.__enter__()
                elif left == 0:
                    watch.more["work_s"] = exact.mean_s
                    clock.__exit__(None, None, None)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(workers):
                tasks.create_task(one())
        exact.close()

    uvloop.run(main())


def stuck(watch: Stopwatch, port: int, *, messages: int, order: Order, workers: int) -> None:
    """Do nothing with each message, but never end with the first; tell by how much memory grows."""
    logging.disable(logging.WARNING)  # the pool tells of what it leaves unfinished
    run = Run(watch, port, messages)
    early = messages - messages * STUCK_PERCENT // 100

    async def main() -> None:
        never = asyncio.Event()

        async def process(record: Record) -> None:
            left = run.left
            if left == messages:
                run.begin()
            run.left = left - 1
            if left == early:
                watch.more["early_mb"] = rss_mb()
            if left == 1:
                watch.more["grown_mb"] = max(rss_mb() - watch.more["early_mb"], 0.0)
                run.end()
            if left == messages:
                await never.wait()

        await run.of(process, order=order, workers=workers, is_all_committed=False)

    uvloop.run(main())
