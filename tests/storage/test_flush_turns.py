import asyncio
from collections.abc import Sequence
from typing import Any

from waterclock.storage.fsyncs import FlushTurns, OnFsynced, Sync


class FakeFsyncs:
    """Keeps the rounds it was handed until they are to end."""

    def __init__(self) -> None:
        self.rounds: list[list[Sync]] = []
        self._on_end: list[OnFsynced] = []

    def submit(self, syncs: Sequence[Sync], on_end: OnFsynced) -> None:
        self.rounds.append(list(syncs))
        self._on_end.append(on_end)

    def end(self, number: int, errors: Sequence[Exception | None]) -> None:
        self._on_end[number](self.rounds[number], errors, 0.5)


class FakeQueue:
    """Wants an fsync each time it is asked, and notes how each ended."""

    def __init__(self, *, wants: bool = True, problem: str = "") -> None:
        self.heard: list[tuple[Exception | None, float]] = []
        self.begun = 0
        self._wants = wants
        self._problem = problem

    def begin(self) -> Sync | None:
        self.begun += 1
        if self._problem:
            raise ValueError(self._problem)
        file: Any = None
        return Sync(file, 1) if self._wants else None

    def finish(self, sync: Sync, error: Exception | None, seconds: float) -> None:
        self.heard.append((error, seconds))
        if self._problem:
            raise ValueError(self._problem)


class Loop:
    """The running loop; counts how often it was woken from a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.woken = 0
        self.call_soon = self._loop.call_soon

    def call_soon_threadsafe(self, *args: Any) -> None:
        self.woken += 1
        self._loop.call_soon(*args)


class Kit:
    """Turns of the running loop, and the fsyncs they ask for."""

    def __init__(self) -> None:
        self.fsyncs = FakeFsyncs()
        fsyncs: Any = self.fsyncs
        self.turns = FlushTurns(fsyncs)
        self.loop: Any = Loop()
        self.problems: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self.problems.append(str(context["exception"]))
        )

    async def call(self, *queues: FakeQueue) -> None:
        for queue in queues:
            self.turns.call_soon(self.loop, queue)
        await asyncio.sleep(0)


async def test_fsyncs_that_are_asked_for_in_one_turn_of_the_loop_are_one_round():
    kit = Kit()
    queues = [FakeQueue() for _ in range(5)]

    await kit.call(*queues, FakeQueue(wants=False))
    await kit.call(queues[0])

    assert [len(syncs) for syncs in kit.fsyncs.rounds] == [5, 1]


async def test_each_queue_hears_of_its_own_fsync_and_the_loop_is_woken_once():
    kit = Kit()
    queues = [FakeQueue() for _ in range(3)]
    await kit.call(*queues)
    error = OSError("the second")

    kit.fsyncs.end(0, [None, error, None])
    before = [queue.heard for queue in queues]
    await asyncio.sleep(0)

    assert [*before, kit.loop.woken] == [*[queue.heard for queue in queues], 1]
    assert [queue.heard for queue in queues] == [[(None, 0.5)], [(error, 0.5)], [(None, 0.5)]]


async def test_a_queue_that_raises_keeps_no_other_from_being_stepped():
    kit = Kit()
    before, raising, after = FakeQueue(), FakeQueue(problem="a bug"), FakeQueue()

    await kit.call(before, raising, after)
    await asyncio.sleep(0)

    assert [before.begun, raising.begun, after.begun] == [1, 1, 1]
    assert sum(map(len, kit.fsyncs.rounds)) == 2
    assert kit.problems == ["a bug"]


async def test_what_ends_while_a_turn_is_finished_is_not_forgotten():
    kit = Kit()
    late = FakeQueue()

    class Ending(FakeQueue):
        def begin(self) -> Sync | None:
            kit.fsyncs.end(0, [None])
            return None

    await kit.call(late)
    await kit.call(Ending())
    await asyncio.sleep(0)

    assert late.heard == [(None, 0.5)]
