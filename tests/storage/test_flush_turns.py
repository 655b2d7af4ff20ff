import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from tests.kit.async_fsyncs import SimulatedAsked, SimulatedKernel
from tests.kit.disk import SimulatedFile, SimulatedFolder
from waterclock.model.errors import StorageFailed
from waterclock.storage.folders.folder import File
from waterclock.storage.fsyncs import ASKED_MAX, FlushTurns, OnFsynced, Sync


class FakeFsyncs:
    """Keeps the rounds it was handed until they are to end."""

    def __init__(self) -> None:
        self.rounds: list[list[Sync]] = []
        self.learned: list[int] = []
        self.is_idle = True
        self._on_end: list[OnFsynced] = []

    def submit(self, syncs: Sequence[Sync], on_end: OnFsynced) -> None:
        self.rounds.append(list(syncs))
        self._on_end.append(on_end)

    def learn(self, count: int, seconds: float) -> None:
        self.learned.append(count)

    def end(self, number: int, errors: Sequence[Exception | None]) -> None:
        self._on_end[number](self.rounds[number], errors, 0.5)


class FakeQueue:
    """Wants an fsync each time it is asked, and notes how each ended."""

    def __init__(
        self, *, wants: bool = True, problem: str = "", file: SimulatedFile | None = None
    ) -> None:
        self.heard: list[tuple[Exception | None, float]] = []
        self.begun = 0
        self.sync: Sync | None = None
        self._file = file
        self._wants = wants
        self._problem = problem

    def begin(self) -> Sync | None:
        self.begun += 1
        if self._problem:
            raise ValueError(self._problem)
        file: Any = self._file
        self.sync = Sync(file, 1) if self._wants else None
        return self.sync

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

    def __init__(self, kernel: SimulatedKernel | None = None) -> None:
        self.fsyncs = FakeFsyncs()
        fsyncs: Any = self.fsyncs
        self.turns = FlushTurns(fsyncs, kernel)
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


# Those that the kernel runs


class Files:
    """Queues with a file each, and the kernel that runs their fsyncs."""

    def __init__(self, kernel: SimulatedKernel | None = None) -> None:
        self.kernel = kernel or SimulatedKernel()
        self.kit = Kit(self.kernel)
        self.folder = SimulatedFolder()
        self._names = iter(range(1_000))

    def queues(self, count: int) -> list[FakeQueue]:
        return [FakeQueue(file=self.folder.create(f"{next(self._names)}")) for _ in range(count)]


def problems(queues: list[FakeQueue]) -> list[list[str | None]]:
    return [[None if error is None else str(error) for error, _ in q.heard] for q in queues]


async def test_a_few_fsyncs_are_run_by_the_kernel_and_end_in_the_turn_that_hears_of_them():
    on = Files()
    queues = on.queues(ASKED_MAX)
    await on.kit.call(*queues)
    before = problems(queues)

    on.kernel.end_all()
    await asyncio.sleep(0)

    assert (before, problems(queues)) == ([[]] * ASKED_MAX, [[None]] * ASKED_MAX)
    assert (on.kit.fsyncs.rounds, on.kit.loop.woken) == ([], 0)
    assert on.kit.fsyncs.learned == [1] * ASKED_MAX


async def test_what_is_more_than_a_few_is_one_round_for_the_threads():
    on = Files()
    await on.kit.call(*on.queues(1))

    await on.kit.call(*on.queues(ASKED_MAX))

    assert len(on.kernel.under_way) == 1
    assert [len(syncs) for syncs in on.kit.fsyncs.rounds] == [ASKED_MAX]


async def test_while_threads_run_some_the_others_come_to_them_too():
    on = Files()
    on.kit.fsyncs.is_idle = False
    await on.kit.call(*on.queues(1))

    assert (len(on.kernel.under_way), len(on.kit.fsyncs.rounds)) == (0, 1)


async def test_what_the_kernel_does_not_take_is_run_on_threads():
    class Refusing(SimulatedKernel):
        def begin(self, file: File) -> SimulatedAsked | None:
            return None if file.name == "1" else super().begin(file)

    on = Files(Refusing())
    await on.kit.call(*on.queues(3))

    assert [[sync.file.name for sync in syncs] for syncs in on.kit.fsyncs.rounds] == [["1"]]
    assert len(on.kernel.under_way) == 2


async def test_the_names_in_a_folder_are_synced_on_a_thread():
    on = Files()
    (queue,) = on.queues(1)

    class Named(FakeQueue):
        def begin(self) -> Sync | None:
            file: Any = queue._file
            return Sync(file, 1, folder=on.folder)

    await on.kit.call(Named())

    assert (len(on.kernel.under_way), len(on.kit.fsyncs.rounds)) == (0, 1)


async def test_an_fsync_that_never_ends_holds_up_nobody_else():
    on = Files()
    queues = on.queues(3)
    await on.kit.call(*queues)
    _, second, _ = on.kernel.under_way

    second.end()
    await asyncio.sleep(0)
    await on.kit.call(*on.queues(1))

    assert problems(queues) == [[], [None], []]
    assert len(on.kernel.under_way) == 3


async def test_an_error_of_the_kernel_comes_to_the_queue_whose_file_it_is():
    on = Files()
    queues = on.queues(2)
    await on.kit.call(*queues)
    on.folder.fail_next_sync()

    on.kernel.end_all()
    await asyncio.sleep(0)

    first, second = queues[0].heard[0][0], queues[1].heard[0][0]
    assert isinstance(first, StorageFailed)
    assert (str(first), second) == ("sync 0: simulated failure", None)


async def test_an_owner_that_does_not_wait_for_the_loop_hears_what_the_kernel_was_told():
    """The kernel tells of an error once: to ask the file again would bring no error."""
    on = Files()
    queues = on.queues(2)
    await on.kit.call(*queues)
    on.folder.fail_next_sync()
    on.kernel.under_way[0].end()
    sync = queues[0].sync
    assert sync is not None

    with pytest.raises(StorageFailed, match="simulated failure"):
        sync.run()
    await asyncio.sleep(0)

    assert problems(queues) == [["sync 0: simulated failure"], []]
    assert on.folder.counters.syncs == 2


async def test_an_owner_that_runs_it_himself_keeps_the_loop_from_waiting_there():
    on = Files()
    (queue,) = on.queues(1)
    sync = queue.begin()
    assert sync is not None
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with sync._lock:
            is_held.set()
            may_end.wait(30)

    owner = threading.Thread(target=hold)
    owner.start()
    assert is_held.wait(30)
    asked = sync.begin(on.kernel)
    may_end.set()
    owner.join()

    assert asked is None
