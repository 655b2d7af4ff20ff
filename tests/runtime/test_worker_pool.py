"""Worker pools lose no item and do none twice, however often they are resized and emptied."""

import asyncio
from random import Random

import pytest

from waterclock.runtime.worker_pool import CoroutinePool, Settle, ThreadPool, WorkerPool


class Settled:
    """What came of items, by item; one that is settled twice is noted."""

    def __init__(self) -> None:
        self.results: dict[int, object] = {}
        self.repeated: list[int] = []
        self._has_more = asyncio.Event()

    def settle(self, item: int, result: object, seconds: float) -> None:
        if item in self.results:
            self.repeated.append(item)
        self.results[item] = result
        self._has_more.set()

    async def until(self, count: int) -> None:
        while len(self.results) < count:
            self._has_more.clear()
            await self._has_more.wait()


def negate(number: int) -> int:
    if number % 7 == 3:
        raise ValueError(number)
    return -number


async def negate_later(number: int) -> int:
    for _ in range(number % 3):
        await asyncio.sleep(0)
    return negate(number)


def new_pool(kind: str, settle: Settle[int], tasks: asyncio.TaskGroup) -> WorkerPool[int]:
    if kind == "coroutines":
        return CoroutinePool(negate_later, tasks=tasks, settle=settle)
    return ThreadPool(negate, tasks=tasks, settle=settle, name="test-worker")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", ["coroutines", "threads"])
async def test_every_item_is_settled_once_or_taken_back(kind, seed):
    rng = Random(seed)
    settled, kept_back, given = Settled(), [], 0
    async with asyncio.TaskGroup() as tasks:
        pool = new_pool(kind, settled.settle, tasks)
        for _ in range(50):
            pool.start(rng.randint(1, 6))
            count = rng.randrange(20)
            pool.give(range(given, given + count))
            given += count
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            if rng.random() < 0.2:
                taken = pool.take_back()
                kept_back += taken[::2]
                pool.give(taken[1::2])
        await settled.until(given - len(kept_back))
        pool.stop()

    assert sorted([*settled.results, *kept_back]) == list(range(given))
    assert settled.repeated == []
    for item, result in settled.results.items():
        assert isinstance(result, ValueError) if item % 7 == 3 else result == -item


@pytest.mark.parametrize("kind", ["coroutines", "threads"])
async def test_a_pool_without_workers_keeps_its_items_until_it_has_some(kind):
    settled = Settled()
    async with asyncio.TaskGroup() as tasks:
        pool = new_pool(kind, settled.settle, tasks)
        pool.give([0, 1, 2])
        pool.start(2)
        await settled.until(3)
        pool.stop()

    assert sorted(settled.results) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["coroutines", "threads"])
async def test_a_result_that_cannot_be_settled_fails_the_owner_of_the_pool(kind):
    def settle(item: int, result: object, seconds: float) -> None:
        raise KeyError(item)

    async def work_for_ever() -> None:
        async with asyncio.TaskGroup() as tasks:
            pool = new_pool(kind, settle, tasks)
            pool.start(1)
            pool.give([1])
            try:
                await asyncio.Event().wait()
            finally:
                pool.stop()

    with pytest.raises(ExceptionGroup) as raised:
        await work_for_ever()

    assert raised.group_contains(KeyError)
