"""The job as Celery's workers run it, and its messages as Celery sends them."""

import importlib
import json
import os
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.client import Stopwatch
from benchmarks.dispatch_load import OUTPUT, body, write_commands
from benchmarks.dispatch_peer import PORT_VARIABLE, READY

celery: Any = importlib.import_module("celery")
signals: Any = importlib.import_module("celery.signals")
transport: Any = importlib.import_module("kombu.transport.redis")
redis: Any = importlib.import_module("redis")

PREFETCH = 100
Channel = Any
"""Of kombu, which is not there when types are checked."""
store = redis.Redis(port=int(os.environ[PORT_VARIABLE]))
app: Any = celery.Celery("bench", broker=f"redis://127.0.0.1:{os.environ[PORT_VARIABLE]}//")
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=PREFETCH,
    worker_send_task_events=False,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
)


@signals.worker_ready.connect(weak=False)  # type: ignore[untyped-decorator]
def announce(**about: object) -> None:
    """Say that a worker runs."""
    store.incr(READY)


@app.task  # type: ignore[untyped-decorator]
def write(text: str) -> None:
    """Do the job."""
    store.xadd(OUTPUT, msgspec.json.decode(text))


def commands(watch: Stopwatch, port: int, *, file: str, first: int, count: int) -> None:
    """Write down what it sends for so many messages."""
    recorded: list[tuple[str | int | bytes, ...]] = []

    def record(channel: Channel, queue: str, message: dict[str, Any], **more: object) -> None:
        key = channel._q_for_pri(queue, channel._get_message_priority(message, reverse=False))
        recorded.append(("LPUSH", key, json.dumps(message)))

    transport.Channel._put = record
    with app.producer_pool.acquire(block=True) as producer:
        for number in range(first, first + count):
            write.apply_async((body(number).decode(),), producer=producer)
    write_commands(Path(file), recorded)
