"""Those who run the handler: everybody gets a result, and the right number are at work."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from waterclock.dispatch.worker.handler_pool import Item, handler_pool
from waterclock.dispatch.worker.handlers import handler_of

LINK = object()


def items(count: int) -> list[Item]:
    return [(n.to_bytes(16, "big"), 0, str(n).encode(), 1, LINK) for n in range(count)]


class Pool:
    """A pool for a function, and what came of its items."""

    def __init__(self, function: Callable[..., Any], tasks: asyncio.TaskGroup, count: int) -> None:
        self.results: list[tuple[Item, object]] = []
        self._has_results = asyncio.Event()
        self.workers = handler_pool(
            handler_of(function), count=count, parse=int, prepare=str, settle=self._settled,
            tasks=tasks,
        )  # fmt: skip

    def _settled(self, item: Item, result: object, seconds: float) -> None:
        self.results.append((item, result))
        self._has_results.set()

    async def collected(self, count: int) -> list[tuple[Item, object]]:
        while len(self.results) < count:
            self._has_results.clear()
            await self._has_results.wait()
        return self.results


def run(
    function: Callable[..., Any], work: Callable[[Pool], Awaitable[Any]], *, count: int = 4
) -> Any:
    """Run a story with a pool for a function."""

    async def story() -> Any:
        async with asyncio.TaskGroup() as tasks:
            pool = Pool(function, tasks, count)
            try:
                return await work(pool)
            finally:
                pool.workers.stop()

    return asyncio.run(story())


def double(number: int) -> int | None:
    if number % 10 == 3:
        raise ValueError(number)
    return None if number % 10 == 5 else 2 * number


async def double_later(number: int) -> int | None:
    await asyncio.sleep(0)
    return double(number)


@pytest.mark.parametrize("function", [double, double_later])
def test_every_item_has_its_result_and_errors_are_results(function):
    async def work(pool: Pool) -> list[tuple[Item, object]]:
        for start in range(0, 1_000, 100):
            pool.workers.give(items(1_000)[start : start + 100])
        return await pool.collected(1_000)

    results = {int(item[2]): result for item, result in run(function, work)}

    assert len(results) == 1_000
    for number, result in results.items():
        if number % 10 == 3:
            assert isinstance(result, ValueError)
        else:
            assert result == (None if number % 10 == 5 else str(2 * number))


def test_functions_that_block_run_side_by_side():
    together = threading.Barrier(4)

    def meet(number: int) -> int:
        return together.wait(30)  # returns only if all four are here

    async def work(pool: Pool) -> list[tuple[Item, object]]:
        pool.workers.give(items(4))
        return await pool.collected(4)

    assert sorted(str(result) for _, result in run(meet, work)) == ["0", "1", "2", "3"]


def test_coroutines_run_side_by_side_and_no_more_than_told():
    running, most = 0, 0

    async def count(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return number

    async def work(pool: Pool) -> list[tuple[Item, object]]:
        pool.workers.give(items(40))
        return await pool.collected(40)

    run(count, work)

    assert most == 4


@pytest.mark.parametrize("is_async", [True, False])
def test_what_nobody_has_begun_can_be_taken_back(is_async):
    go_on = threading.Event()

    def block(number: int) -> int:
        go_on.wait(30)
        return number

    async def wait_for_it(number: int) -> int:
        await asyncio.to_thread(go_on.wait, 30)
        return number

    async def work(pool: Pool) -> tuple[int, int]:
        pool.workers.give(items(10))
        while len(pool.workers.at_work()) < 2:  # noqa: ASYNC110 - a pool tells of results only
            await asyncio.sleep(0.001)
        taken = pool.workers.take_back()
        begun = pool.workers.at_work()
        assert all(since <= time.monotonic() for _, since in begun)
        go_on.set()
        results = await pool.collected(10 - len(taken))
        return len(taken), len(results)

    taken, done = run(wait_for_it if is_async else block, work, count=2)

    assert (taken, done) == (8, 2)


def test_a_coroutine_that_cancels_itself_is_a_failed_message_and_no_end():
    async def give_up(number: int) -> int:
        if number == 1:
            raise asyncio.CancelledError
        return number

    async def work(pool: Pool) -> list[tuple[Item, object]]:
        pool.workers.give(items(3))
        return await pool.collected(3)

    results = {int(item[2]): result for item, result in run(give_up, work)}

    assert isinstance(results[1], asyncio.CancelledError)
    assert (results[0], results[2]) == ("0", "2")
