"""The job as taskiq's workers run it, and its messages as taskiq sends them."""

import asyncio
import importlib
import os
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.client import Stopwatch
from benchmarks.dispatch_load import OUTPUT, body, write_commands
from benchmarks.dispatch_peer import PORT_VARIABLE, READY

taskiq: Any = importlib.import_module("taskiq")
taskiq_redis: Any = importlib.import_module("taskiq_redis")
redis: Any = importlib.import_module("redis.asyncio")

STREAM = "taskiq"
READ_COUNT = 500
BrokerMessage = Any
"""Of taskiq, which is not there when types are checked."""
URL = f"redis://127.0.0.1:{os.environ[PORT_VARIABLE]}"
store = redis.Redis.from_url(URL)
recorded: list[tuple[str | int | bytes, ...]] = []


class Recording(taskiq_redis.RedisStreamBroker):  # type: ignore[misc]
    """Its broker; what it is to send is only written down."""

    async def kick(self, message: BrokerMessage) -> None:
        """Write a message down as the broker would add it to its stream."""
        recorded.append(("XADD", self.queue_name, "*", "data", message.message))


broker: Any = Recording(
    URL,
    queue_name=STREAM,
    consumer_id="0",
    xread_count=READ_COUNT,
    unacknowledged_lock_timeout=10,
)


@broker.on_event(taskiq.TaskiqEvents.WORKER_STARTUP)  # type: ignore[untyped-decorator]
async def announce(state: object) -> None:
    """Say that a worker process runs."""
    await store.incr(READY)


@broker.task  # type: ignore[untyped-decorator]
async def write(text: str) -> None:
    """Do the job."""
    await store.xadd(OUTPUT, msgspec.json.decode(text))


def commands(watch: Stopwatch, port: int, *, file: str, first: int, count: int) -> None:
    """Write down what its broker sends for so many messages."""

    async def record() -> None:
        for number in range(first, first + count):
            await write.kiq(body(number).decode())

    asyncio.run(record())
    write_commands(Path(file), recorded)
