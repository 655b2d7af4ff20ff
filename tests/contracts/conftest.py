"""The disks under contract: the operating system's folder and the simulated one."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kit.disk import SimulatedFolder
from waterclock.storage.folders.folder import File, Folder
from waterclock.storage.folders.os_folder import OsFolder

Handles = Callable[[], Folder]
"""Makes handles on one and the same disk, each as another process would have it."""


@pytest.fixture(params=["os", "simulated"])
def new_disk(request: pytest.FixtureRequest) -> Iterator[Callable[[], Handles]]:
    """Return a maker of disks, for tests that need a fresh one per example."""
    with ExitStack() as cleanup:

        def make() -> Handles:
            if request.param == "simulated":
                return SimulatedFolder().reopen
            path = Path(cleanup.enter_context(tempfile.TemporaryDirectory())) / "folder"
            return lambda: OsFolder(path)

        yield make


@pytest.fixture
def handle(new_disk: Callable[[], Handles]) -> Iterator[Handles]:
    make = new_disk()
    made: list[Folder] = []

    def tracked() -> Folder:
        made.append(make())
        return made[-1]

    yield tracked
    for folder in made:
        folder.close()


@pytest.fixture
def folder(handle: Handles) -> Folder:
    return handle()


@pytest.fixture
def file(folder: Folder) -> File:
    return folder.create("a.seg")
