"""What every source keeps, seen through a pool: the same promises over a list in memory, the mock
cluster of librdkafka, a real Kafka and a real Waterclock node."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from waterclock.burrow.core.records import Record
from waterclock.burrow.runtime.pool import Pool
from waterclock.burrow.runtime.source import Source

KEYS = 10


class Bench(Protocol):
    """A topic of four partitions and a group."""

    async def publish(self, count: int, *, start: int = 0) -> None:
        """Store messages start, start + 1, ..., each in the key of its last digit."""
        ...

    def source(self) -> Source:
        """Return one more member."""
        ...


class Seen:
    """What functions saw, over all pools of a test."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.by_key: dict[bytes | None, list[int]] = defaultdict(list)
        self._more = asyncio.Event()

    def note(self, record: Record) -> None:
        assert record.value is not None
        self.values.append(int(record.value))
        self.by_key[record.key].append(int(record.value))
        self._more.set()

    async def process(self, record: Record) -> None:
        await asyncio.sleep(0.001)
        self.note(record)

    async def until(self, count: int) -> None:
        """Return when so many different ones were seen."""
        while len(set(self.values)) < count:
            self._more.clear()
            await self._more.wait()

    async def nothing_again(self, bench: Bench) -> None:
        """Fail if anything comes again before what is published now, one message in each key."""
        before = len(self.values)
        await bench.publish(KEYS, start=before)
        await self.until(before + KEYS)
        assert sorted(self.values[before:]) == list(range(before, before + KEYS))


def pool_of(bench: Bench, process: Any, **options: Any) -> Pool:
    return Pool(bench.source(), process, **{"workers": 20, "handle_signals": False, **options})


async def everything_is_done_once_and_a_key_in_its_order(bench: Bench) -> None:
    await bench.publish(1_000)
    seen = Seen()
    async with pool_of(bench, seen.process):
        await seen.until(1_000)
    assert sorted(seen.values) == list(range(1_000))
    assert all(values == sorted(values) for values in seen.by_key.values())


async def a_clean_stop_repeats_nothing(bench: Bench) -> None:
    await bench.publish(1_000)
    seen = Seen()
    async with pool_of(bench, seen.process):
        await seen.until(300)
    assert len(seen.values) < 1_000
    async with pool_of(bench, seen.process):
        await seen.until(1_000)
    async with pool_of(bench, seen.process):
        await seen.nothing_again(bench)
    assert sorted(seen.values) == list(range(1_000 + KEYS))
    assert all(values == sorted(values) for values in seen.by_key.values())


async def a_full_partition_is_paused_and_resumed(bench: Bench) -> None:
    await bench.publish(1_000)
    seen = Seen()
    async with pool_of(bench, seen.process, queue_max=10, workers=5):
        await seen.until(1_000)
    assert sorted(seen.values) == list(range(1_000))


async def what_is_finished_beyond_a_stuck_record_is_not_done_again(bench: Bench) -> None:
    await bench.publish(1_000)
    seen = Seen()

    async def stuck(record: Record) -> None:
        if record.value == b"5":
            await asyncio.Event().wait()
        seen.note(record)

    # Behind it in its key stand 99 more, and whatever comes of its partition later.
    async with pool_of(bench, stuck, grace_s=0.1, order="none"):
        await seen.until(999)
    assert 5 not in seen.values
    async with pool_of(bench, seen.process):
        await seen.until(1_000)
        await seen.nothing_again(bench)
    assert sorted(seen.values) == list(range(1_000 + KEYS))


async def members_share_the_work_and_hand_it_over(bench: Bench) -> None:
    await bench.publish(4_000)
    seen, helped = Seen(), Counter[str]()
    work_s = 0.02  # so that there is work left to share

    def process_as(name: str) -> Callable[[Record], Coroutine[Any, Any, None]]:
        async def process(record: Record) -> None:
            await asyncio.sleep(work_s)
            helped[name] += 1
            seen.note(record)

        return process

    async with pool_of(bench, process_as("first"), workers=10, queue_max=50):
        await seen.until(100)
        async with pool_of(bench, process_as("second"), workers=10, queue_max=50):
            while not helped["second"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await seen.until(len(set(seen.values)) + 200)
        work_s = 0
        await seen.until(4_000)
    assert sorted(seen.values) == list(range(4_000))
    assert all(values == sorted(values) for values in seen.by_key.values())


ALONE = [
    everything_is_done_once_and_a_key_in_its_order,
    a_clean_stop_repeats_nothing,
    a_full_partition_is_paused_and_resumed,
    what_is_finished_beyond_a_stuck_record_is_not_done_again,
]
TOGETHER = [members_share_the_work_and_hand_it_over]
