"""A function with a source is a program, and still a function."""

import asyncio

from tests.burrow.memory_source import MemoryBroker, MemorySource
from tests.burrow.pool_runs import done_of
from waterclock import burrow
from waterclock.burrow import Record, consumer


async def test_a_decorated_function_runs_as_a_pool_and_can_be_called():
    broker = MemoryBroker()
    broker.fill(100)
    seen = []

    @consumer(MemorySource(broker), workers=5, commit_every=10)
    async def process(record: Record) -> int:
        """Say what it is."""
        seen.append(record.value)
        return len(seen)

    async with process.pool():
        while len(seen) < 100:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert await process(Record("orders", 0, 0, None, b"by hand")) == 101
    assert done_of(broker) == 100
    assert process.__doc__ == "Say what it is."


def test_every_exported_name_can_be_loaded():
    assert all(getattr(burrow, name) is not None for name in burrow.__all__)
    assert set(burrow.__all__) <= set(dir(burrow))
