"""The job as Dramatiq's workers run it, and its messages as Dramatiq sends them."""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.client import Stopwatch
from benchmarks.dispatch_load import OUTPUT, body, write_commands
from benchmarks.dispatch_peer import PORT_VARIABLE, READY

dramatiq: Any = importlib.import_module("dramatiq")
brokers: Any = importlib.import_module("dramatiq.brokers.redis")
redis: Any = importlib.import_module("redis")

NAMESPACE = "dramatiq"
store = redis.Redis(port=int(os.environ[PORT_VARIABLE]))


class Announcing(dramatiq.Middleware):  # type: ignore[misc]
    """Says that a worker process runs."""

    def after_process_boot(self, broker: object) -> None:
        """Count this process."""
        store.incr(READY)


broker: Any = brokers.RedisBroker(client=store, middleware=[Announcing()])
dramatiq.set_broker(broker)


@dramatiq.actor  # type: ignore[untyped-decorator]
def write(text: str) -> None:
    """Do the job."""
    store.xadd(OUTPUT, msgspec.json.decode(text))


class Recorder:
    """In the place of a client: keeps the calls of scripts instead of sending them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str | int | bytes, ...]] = []

    def register_script(self, text: bytes) -> Callable[[list[Any], list[str]], None]:
        """Give a script that is only written down."""
        digest = store.script_load(text)

        def call(args: list[Any], keys: list[str]) -> None:
            self.calls.append(("EVALSHA", digest, len(keys), *keys, *args))

        return call


def commands(watch: Stopwatch, port: int, *, file: str, first: int, count: int) -> None:
    """Write down what its broker sends for so many messages."""
    # It asks Redis how many values a script may unpack; so many, by Redis's default.
    brokers.DEFAULT_LUA_MAX_STACK = 7_999
    recorder = Recorder()
    recording = brokers.RedisBroker(client=recorder, middleware=[])
    for number in range(first, first + count):
        recording.enqueue(write.message(body(number).decode()))
    write_commands(Path(file), recorder.calls)
