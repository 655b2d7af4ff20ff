"""A consumer group read by hand: the loop of one worker, and its messages.

A batch is read with one XREADGROUP; its results and its acknowledgement leave in one pipeline.
Every second it asks with XAUTOCLAIM for what another worker has left behind. A batch that is
claimed after its results were added is there twice: nothing recognises it.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import redis

from benchmarks.client import Stopwatch
from benchmarks.dispatch_load import OUTPUT, body, write_commands
from benchmarks.dispatch_peer import PORT_VARIABLE, READY

STREAM, GROUP = "input", "workers"
BATCH = 1_000
BLOCK_MS = 1_000
CLAIM_S = 1.0
IDLE_MS = 2_000
"""As long as the dispatcher waits for a worker."""


def commands(watch: Stopwatch, port: int, *, file: str, first: int, count: int) -> None:
    """Write down what adds so many messages."""
    numbers = range(first, first + count)
    write_commands(Path(file), [("XADD", STREAM, "*", "data", body(n)) for n in numbers])


def main() -> None:
    """Work until told to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    name = f"worker-{os.getpid()}"
    store: Any = redis.Redis(port=int(os.environ[PORT_VARIABLE]))
    try:
        store.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    except redis.ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise
    store.incr(READY)
    claimed_at = time.monotonic()
    while True:
        found = store.xreadgroup(GROUP, name, {STREAM: ">"}, count=BATCH, block=BLOCK_MS)
        entries = found[0][1] if found else []
        if time.monotonic() - claimed_at > CLAIM_S:
            claimed_at = time.monotonic()
            entries += store.xautoclaim(STREAM, GROUP, name, IDLE_MS, count=BATCH)[1]
        if entries:
            work(store, entries)


def work(store: "redis.Redis", entries: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
    """Do the job for a batch."""
    pipeline = store.pipeline(transaction=False)
    for _, fields in entries:
        pipeline.xadd(OUTPUT, msgspec.json.decode(fields[b"data"]))
    pipeline.xack(STREAM, GROUP, *(entry for entry, _ in entries))
    pipeline.execute()


if __name__ == "__main__":
    main()
