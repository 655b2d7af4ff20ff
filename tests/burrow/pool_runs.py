"""What tests of pools share."""

import asyncio
from collections import defaultdict
from collections.abc import Callable

from tests.burrow.memory_source import MemoryBroker
from waterclock.burrow.core.records import Record
from waterclock.burrow.runtime.pool import Pool

PATIENCE_S = 20


async def until(check: Callable[[], object]) -> None:
    """Return when something is so; the test's patience is the limit."""
    while not check():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def done_of(broker: MemoryBroker) -> int:
    return sum(commit.offset for commit in broker.committed.values())


class CallLog:
    """What a function saw; it stops the pool when it has seen enough."""

    def __init__(self, stop_at: int) -> None:
        self.values: list[bytes] = []
        self.by_key: dict[bytes | None, list[int]] = defaultdict(list)
        self._stop_at = stop_at
        self.pool: Pool

    def saw(self, record: Record) -> None:
        assert record.value is not None
        self.values.append(record.value)
        self.by_key[record.key].append(record.offset)
        if len(self.values) >= self._stop_at:
            self.pool.stop()

    async def process(self, record: Record) -> None:
        await asyncio.sleep(0)
        self.saw(record)
