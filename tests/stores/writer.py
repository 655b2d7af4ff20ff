"""A process that stores messages and says which are acknowledged; it may be killed at any time.

    python -m tests.stores.writer URL STREAM PREFIX CALLS BATCH

Each call stores BATCH messages with ids PREFIX-0, PREFIX-1 ... and prints a line `id position` for
each of them when it returns.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

from tests.stores.backend import opened
from waterclock.stores.base import Record

ROOT = Path(__file__).parents[2]
NOW_MS = 1_800_000_000_000


def started(
    url: str, stream: str, prefix: str, *, calls: int, batch: int
) -> "subprocess.Popen[str]":
    """Start such a process."""
    command = [sys.executable, "-m", "tests.stores.writer", url, stream, prefix]
    return subprocess.Popen(
        [*command, str(calls), str(batch)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


async def write(url: str, stream: str, prefix: str, *, calls: int, batch: int) -> None:
    async with opened(url) as store:
        for start in range(0, calls * batch, batch):
            ids = [f"{prefix}-{number}" for number in range(start, start + batch)]
            records = [Record(message_id, message_id.encode(), None) for message_id in ids]
            stored = await store.store(stream, records, now_ms=NOW_MS)
            for message_id, (position, _) in zip(ids, stored, strict=True):
                print(message_id, position)
            sys.stdout.flush()


if __name__ == "__main__":
    url, stream, prefix, calls, batch = sys.argv[1:]
    asyncio.run(write(url, stream, prefix, calls=int(calls), batch=int(batch)))
