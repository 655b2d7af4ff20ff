"""The rules of `storage.fsyncs.AsyncFsyncs`, on Linux AIO and on the stand-ins of other tests."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kit.aio import folder_with_aio
from tests.kit.async_fsyncs import SimulatedKernel, ThreadKernel
from tests.kit.disk import SimulatedFolder
from waterclock.model.errors import StorageFailed
from waterclock.storage.folders.aio import aio_at
from waterclock.storage.folders.folder import File, Folder
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.fsyncs import AskedFsync, AsyncFsyncs

GRACE_S = 30


class On:
    """Files, and the kernel that is to run their fsyncs."""

    def __init__(self, kernel: AsyncFsyncs, folder: Folder, let_end: Callable[[], None]) -> None:
        self.kernel = kernel
        self.folder = folder
        self.let_end = let_end
        """Have the disk answer, where it does not by itself."""
        self.ended: list[AskedFsync] = []
        self._is_changed = asyncio.Event()

    def listen(self) -> None:
        self.kernel.listen(asyncio.get_running_loop(), self._on_ended)

    def _on_ended(self) -> None:
        self.ended += self.kernel.ended()
        self._is_changed.set()

    async def until(self, count: int) -> None:
        """Return when so many have ended."""
        self.let_end()
        async with asyncio.timeout(GRACE_S):
            while len(self.ended) < count:
                await self._is_changed.wait()
                self._is_changed.clear()

    def written(self, name: str) -> File:
        file = self.folder.create(name)
        file.write(0, [b"bytes"])
        return file

    def begin(self, file: File) -> AskedFsync:
        asked = self.kernel.begin(file)
        assert asked is not None
        return asked


@pytest.fixture(params=["aio", "threads", "simulated"])
def on(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[On]:
    with ExitStack() as stack:
        if request.param == "simulated":
            simulated = SimulatedKernel()
            found = On(simulated, SimulatedFolder(), simulated.end_all)
        elif request.param == "threads":
            found = On(ThreadKernel(), OsFolder(tmp_path / "log"), lambda: None)
        else:
            disk = stack.enter_context(folder_with_aio(tmp_path))
            kernel = aio_at(disk)
            assert kernel is not None
            found = On(kernel, OsFolder(disk / "log"), lambda: None)
        yield found
        found.kernel.close()
        found.folder.close()


async def test_the_loop_hears_of_each_that_has_ended_once(on: On):
    on.listen()
    asked = [on.begin(on.written(name)) for name in "abc"]
    await on.until(3)
    again = on.begin(on.folder.open("a"))
    await on.until(4)

    for each in (*asked, again):
        each.result()
    assert sorted(map(id, on.ended)) == sorted(map(id, [*asked, again]))
    assert on.kernel.ended() == []


async def test_who_asks_for_a_result_waits_for_it_and_the_loop_hears_of_it_too(on: On):
    on.listen()
    first, second = on.begin(on.written("a")), on.begin(on.written("b"))

    second.result()
    await on.until(2)

    first.result()
    assert {id(first), id(second)} == set(map(id, on.ended))


async def test_a_file_that_was_deleted_is_not_durable_and_its_neighbour_is(on: On):
    on.listen()
    files = [on.written(name) for name in "ab"]
    on.folder.remove("a")
    first, second = [on.begin(file) for file in files]
    await on.until(2)

    with pytest.raises(StorageFailed, match="deleted while it was in use"):
        first.result()
    second.result()


async def test_a_file_that_is_closed_meanwhile_is_synced_all_the_same(on: On):
    on.listen()
    file = on.written("a")
    asked = on.begin(file)
    file.close()
    await on.until(1)

    asked.result()


async def test_closing_waits_for_those_that_are_under_way(on: On):
    on.listen()
    asked = [on.begin(on.written(name)) for name in "abc"]

    on.kernel.close()

    for each in asked:
        each.result()
    await asyncio.sleep(0)
