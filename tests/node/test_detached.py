import asyncio
from collections.abc import Callable

import pytest

from waterclock.model.errors import NotFound, Stopping
from waterclock.node.detached import run_detached
from waterclock.node.task_groups import task_group


class Work:
    """Something that takes until it is told to go on."""

    def __init__(self, end: Callable[[], str] = lambda: "done") -> None:
        self.has_begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.results: list[str] = []
        self._end = end

    async def run(self) -> str:
        self.has_begun.set()
        await self.go_on.wait()
        self.results.append(self._end())
        return self.results[-1]


def missing() -> str:
    raise NotFound("topic", "t")


async def leave(tasks: asyncio.TaskGroup, work: Work) -> None:
    """Ask for work and be cancelled in the middle of it."""
    caller = tasks.create_task(run_detached(tasks, work.run()))
    await work.has_begun.wait()
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()


async def test_who_waits_gets_the_answer_or_the_problem():
    async def ask(end: Callable[[], str]) -> str:
        async with task_group() as tasks:
            work = Work(end)
            work.go_on.set()
            return await run_detached(tasks, work.run())

    assert await ask(lambda: "done") == "done"
    with pytest.raises(NotFound):
        await ask(missing)


async def test_work_goes_on_when_its_caller_has_left():
    async with task_group() as tasks:
        work = Work()
        await leave(tasks, work)
        work.go_on.set()

    assert work.results == ["done"]


async def test_a_problem_that_nobody_waits_for_is_said_and_ends_nothing(caplog):
    async with task_group() as tasks:
        work = Work(missing)
        await leave(tasks, work)
        work.go_on.set()

    assert [record.message for record in caplog.records] == [
        "failed_unheard work=Work.run error=there is no topic 't'"
    ]


async def refused(tasks: asyncio.TaskGroup, work: Work) -> None:
    with pytest.raises(Stopping):
        await run_detached(tasks, work.run())


async def test_who_waits_hears_that_the_group_ends():
    async def fail(callers: asyncio.TaskGroup, work: Work) -> None:
        async with task_group() as tasks:
            callers.create_task(refused(tasks, work))
            await work.has_begun.wait()
            missing()

    work = Work()
    async with asyncio.TaskGroup() as callers:
        with pytest.raises(NotFound):
            await fail(callers, work)

    assert work.results == []


async def test_a_group_that_has_ended_takes_no_work():
    work = Work()
    async with task_group() as tasks:
        pass
    await refused(tasks, work)

    assert work.results == []
