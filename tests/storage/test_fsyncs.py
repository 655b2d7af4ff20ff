import threading
from collections.abc import Sequence
from queue import SimpleQueue

import pytest

from waterclock.model.errors import StorageFailed
from waterclock.storage.folders.folder import File
from waterclock.storage.fsyncs import (
    SLOW_BREAK_S,
    SLOW_BREAK_S_MIN,
    SLOW_S_MIN,
    TOGETHER_MIN,
    FsyncThreads,
    Sync,
)

GRACE_S = 30


class FakeFile:
    """A file whose fsync waits until it may end."""

    def __init__(self, name: str, *, may_end: bool = True, error: str = "") -> None:
        self.name = name
        self.syncs = 0
        self.begun = threading.Event()
        self._may_end = threading.Event()
        self._error = error
        if may_end:
            self._may_end.set()

    def let_end(self) -> None:
        self._may_end.set()

    def sync(self) -> None:
        self.begun.set()
        assert self._may_end.wait(GRACE_S)
        self.syncs += 1
        if self._error:
            raise StorageFailed(self._error)


class FakeFileSystem:
    """Notes what is synced together, and takes its time by a clock of its own."""

    def __init__(self, *, error: str = "", seconds: float = 0) -> None:
        self.groups: list[list[str]] = []
        self.now_s = 100.0
        self._error = error
        self._seconds = seconds

    def sync(self, files: Sequence[File]) -> list[StorageFailed | None]:
        self.groups.append([file.name for file in files])
        self.now_s += self._seconds
        if self._error:
            raise StorageFailed(self._error)
        return [None] * len(files)

    def covers(self, file: File) -> bool:
        return file.name != "elsewhere"

    def close(self) -> None:
        """There is nothing to let go of."""


class Kit:
    """One thread, and what it has done."""

    def __init__(self, file_system: FakeFileSystem | None) -> None:
        now_s = (lambda: 0.0) if file_system is None else (lambda: file_system.now_s)
        self.fsyncs = FsyncThreads(1, file_system, now_s=now_s)
        self.ended: SimpleQueue[Exception | None] = SimpleQueue()
        self.calls = 0

    def submit(self, *files: FakeFile) -> None:
        for file in files:
            self.submit_round(file)

    def submit_round(self, *files: FakeFile) -> None:
        self.fsyncs.submit([Sync(file, 1) for file in files], self._note)  # type: ignore[arg-type]

    def _note(
        self, syncs: Sequence[Sync], errors: Sequence[Exception | None], seconds: float
    ) -> None:
        self.calls += 1
        for _, error in zip(syncs, errors, strict=True):
            self.ended.put(error)

    def run(self, *files: FakeFile) -> list[str | None]:
        """Have files wait until all of them do, then let them run; return their errors."""
        first = FakeFile("first", may_end=False)
        self.submit(first)
        assert first.begun.wait(GRACE_S)
        self.submit(*files)
        first.let_end()
        assert self.ended.get(timeout=GRACE_S) is None
        ended = [self.ended.get(timeout=GRACE_S) for _ in files]
        return [None if error is None else str(error) for error in ended]


def files(count: int, prefix: str = "f") -> list[FakeFile]:
    return [FakeFile(f"{prefix}{number}") for number in range(count)]


@pytest.fixture(autouse=True)
def no_thread_is_left_behind():
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def test_many_that_wait_are_synced_together_and_a_few_each_by_itself():
    file_system = FakeFileSystem()
    kit = Kit(file_system)
    many, few = files(TOGETHER_MIN), files(TOGETHER_MIN - 1)

    answers = kit.run(*many), kit.run(*few)
    kit.fsyncs.stop()

    assert answers == ([None] * len(many), [None] * len(few))
    assert file_system.groups == [[file.name for file in many]]
    assert [file.syncs for file in many] == [0] * len(many)
    assert [file.syncs for file in few] == [1] * len(few)


def test_without_a_file_system_each_is_synced_by_itself():
    kit = Kit(None)
    many = files(20)

    kit.run(*many)
    kit.fsyncs.stop()

    assert [file.syncs for file in many] == [1] * 20


def test_after_a_failed_sync_of_the_file_system_each_file_answers_for_itself_for_good():
    file_system = FakeFileSystem(error="the disk of somebody is broken")
    kit = Kit(file_system)
    broken = FakeFile("broken", error="this one is broken")
    others = files(TOGETHER_MIN)

    first = kit.run(broken, *others)
    second = kit.run(*others)
    kit.fsyncs.stop()

    assert first == ["this one is broken", *[None] * len(others)]
    assert second == [None] * len(others)
    assert len(file_system.groups) == 1
    assert [file.syncs for file in others] == [2] * len(others)


def test_a_file_system_that_is_slow_for_others_sake_is_left_alone_for_a_while():
    file_system = FakeFileSystem(seconds=SLOW_S_MIN * 2)
    kit = Kit(file_system)
    many = files(TOGETHER_MIN)

    kit.run(*many)
    kit.run(*many)
    groups_meanwhile = len(file_system.groups)
    file_system.now_s += SLOW_BREAK_S
    kit.run(*many)
    kit.fsyncs.stop()

    assert groups_meanwhile == 1
    assert [file.syncs for file in many] == [1] * len(many)
    assert len(file_system.groups) == 2


def test_a_file_system_that_stays_slow_is_left_alone_for_longer_each_time():
    file_system = FakeFileSystem(seconds=SLOW_S_MIN * 2)
    kit = Kit(file_system)
    many = files(TOGETHER_MIN)

    kit.run(*many)
    file_system.now_s += 1.5 * SLOW_BREAK_S_MIN
    kit.run(*many)
    file_system.now_s += 1.5 * SLOW_BREAK_S_MIN
    kit.run(*many)
    groups_meanwhile = len(file_system.groups)
    file_system.now_s += 2 * SLOW_BREAK_S_MIN
    kit.run(*many)
    kit.fsyncs.stop()

    assert (groups_meanwhile, len(file_system.groups)) == (2, 3)


def test_who_needs_an_fsync_that_others_run_together_waits_for_it():
    is_syncing, may_end = threading.Event(), threading.Event()

    class Waiting(FakeFileSystem):
        def sync(self, files: Sequence[File]) -> list[StorageFailed | None]:
            is_syncing.set()
            assert may_end.wait(GRACE_S)
            return [StorageFailed("gone"), *[None] * (len(files) - 1)]

    syncs = [Sync(file, 1) for file in files(3)]  # type: ignore[arg-type]
    together = threading.Thread(target=Sync.run_together, args=(syncs, Waiting()))
    together.start()
    assert is_syncing.wait(GRACE_S)
    threading.Timer(0, may_end.set).start()

    with pytest.raises(StorageFailed, match="gone"):
        syncs[0].run()
    syncs[1].run()
    together.join()


def test_stopping_finishes_what_was_submitted():
    kit = Kit(FakeFileSystem())
    first, rest = FakeFile("first", may_end=False), files(30)
    kit.submit(first, *rest)
    threading.Timer(0, first.let_end).start()

    kit.fsyncs.stop()

    assert kit.ended.qsize() == 31


def test_a_round_of_many_is_run_and_told_of_as_one():
    file_system = FakeFileSystem()
    kit = Kit(file_system)
    many = files(TOGETHER_MIN)

    kit.submit_round(*many)
    errors = [kit.ended.get(timeout=GRACE_S) for _ in many]
    kit.fsyncs.stop()

    assert errors == [None] * len(many)
    assert file_system.groups == [[file.name for file in many]]
    assert kit.calls == 1


def test_threads_are_idle_before_the_first_fsync_and_not_while_one_runs():
    kit = Kit(None)
    held = FakeFile("held", may_end=False)
    before = kit.fsyncs.is_idle
    kit.submit(held)
    assert held.begun.wait(GRACE_S)
    meanwhile = kit.fsyncs.is_idle
    held.let_end()
    kit.fsyncs.stop()

    assert (before, meanwhile) == (True, False)


class FakeFolder:
    """Counts its fsyncs, which may fail."""

    def __init__(self, *, error: str = "") -> None:
        self.syncs = 0
        self._error = error

    def sync(self) -> None:
        self.syncs += 1
        if self._error:
            raise StorageFailed(self._error)


def synced_with(file: FakeFile, folder: FakeFolder, file_system: FakeFileSystem | None) -> Sync:
    """Return the fsync of a file and the names in a folder, after it was run."""
    sync = Sync(file, 1, folder=folder)  # type: ignore[arg-type]
    if file_system is not None:
        Sync.run_together([sync], file_system)
    sync.run()
    return sync


def test_names_are_synced_with_their_file_unless_the_file_system_was():
    by_itself, covered, elsewhere = FakeFolder(), FakeFolder(), FakeFolder()

    synced_with(FakeFile("a"), by_itself, None)
    synced_with(FakeFile("a"), covered, FakeFileSystem())
    synced_with(FakeFile("elsewhere"), elsewhere, FakeFileSystem())

    assert [by_itself.syncs, covered.syncs, elsewhere.syncs] == [1, 0, 1]


@pytest.mark.parametrize("file_system", [None, FakeFileSystem()])
def test_names_that_cannot_be_synced_are_a_failure(file_system):
    with pytest.raises(StorageFailed, match="no names"):
        synced_with(FakeFile("elsewhere"), FakeFolder(error="no names"), file_system)
