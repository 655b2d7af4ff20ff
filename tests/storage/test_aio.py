"""What the kernel's AIO may answer, and what it is asked; its rules are in tests/contracts."""

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.aio import folder_with_aio
from tests.storage.test_file_system import mounted
from waterclock.model.errors import StorageFailed
from waterclock.storage.folders import aio
from waterclock.storage.folders.aio import AioFsyncs, AskedFdatasync, aio_at
from waterclock.storage.folders.os_folder import OsFile, OsFolder

GRACE_S = 30


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with folder_with_aio(tmp_path) as path:
        yield path


@pytest.fixture
def folder(disk: Path) -> Iterator[OsFolder]:
    folder = OsFolder(disk / "log")
    yield folder
    folder.close()


@pytest.fixture
def found(disk: Path) -> Iterator[AioFsyncs]:
    found = aio_at(disk)
    assert found is not None
    yield found
    found.close()


def written(folder: OsFolder, name: str = "a") -> OsFile:
    file = folder.create(name)
    file.write(0, [b"bytes"])
    return file


def refuse(found: AioFsyncs, monkeypatch: pytest.MonkeyPatch, code: int) -> list[int]:
    """Have no fsync be begun; return a list with an item for each that was tried."""
    tried: list[int] = []

    def refused(number: int, *_: int) -> int:
        assert number == found._submit
        tried.append(number)
        return -1

    monkeypatch.setattr(found, "_at_once", refused)
    monkeypatch.setattr(aio, "_error", lambda: OSError(code, os.strerror(code)))
    return tried


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EINTR, errno.ENOMEM])
def test_what_is_refused_for_now_is_asked_for_the_next_time(found, folder, monkeypatch, code):
    file = written(folder)
    with monkeypatch.context() as patch:
        refuse(found, patch, code)
        first = found.begin(file)
    second = found.begin(file)

    assert first is None
    assert second is not None
    second.result()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.EPERM])
def test_what_the_kernel_cannot_do_is_asked_for_once_and_told(
    found, folder, monkeypatch, caplog, code
):
    file = written(folder)
    with monkeypatch.context() as patch:
        tried = refuse(found, patch, code)
        answers = [found.begin(file) for _ in range(3)]

    assert (answers, len(tried), found.begin(file)) == ([None] * 3, 1, None)
    assert [record.message.split()[0] for record in caplog.records] == ["aio_refused"]


def test_a_file_that_was_refused_is_not_held_open(found, folder, monkeypatch):
    file = written(folder)
    refuse(found, monkeypatch, errno.EAGAIN)
    number = file.descriptor.number()
    found.begin(file)
    file.close()
    monkeypatch.undo()

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def asked_of(found: AioFsyncs, file: OsFile) -> AskedFdatasync:
    return AskedFdatasync(found, file, file.descriptor.__enter__())


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_an_fdatasync_that_fails_is_the_same_error_as_on_a_thread(found, folder, monkeypatch, code):
    file = written(folder)

    def failing(number: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("waterclock.storage.folders.os_folder.sync_descriptor", failing)
    with pytest.raises(StorageFailed) as on_a_thread:
        file.sync()
    asked = asked_of(found, file)
    asked.end(-code)
    with pytest.raises(StorageFailed) as by_the_kernel:
        asked.result()

    assert str(by_the_kernel.value) == str(on_a_thread.value)


def test_a_file_keeps_its_number_until_its_fdatasync_is_over(found, folder):
    file = written(folder)
    number = file.descriptor.number()
    asked = asked_of(found, file)
    file.close()
    os.fstat(number)
    asked.end(0)

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    asked.result()


def test_a_file_that_was_closed_or_lies_elsewhere_is_left_to_a_thread(found, folder):
    closed, elsewhere = written(folder, "closed"), written(folder, "elsewhere")
    closed.close()
    elsewhere.device += 1

    assert [found.begin(closed), found.begin(elsewhere)] == [None, None]


async def test_while_somebody_waits_for_a_slow_one_the_loop_hears_of_others(found, folder):
    """Only one takes in what is over at a time: he must tell the loop of what was not his."""
    heard: list[AskedFdatasync] = []
    is_waiting, is_changed = threading.Event(), asyncio.Event()

    def hear() -> None:
        heard.extend(found.ended())
        is_changed.set()

    found.listen(asyncio.get_running_loop(), hear)
    slow = asked_of(found, written(folder, "slow"))
    real = found._waiting

    def noted(*arguments: int) -> int:
        is_waiting.set()
        return int(real(*arguments))

    found._waiting = noted
    waiting = threading.Thread(target=slow.result)
    waiting.start()
    assert is_waiting.wait(GRACE_S)
    quick = found.begin(written(folder, "quick"))
    async with asyncio.timeout(GRACE_S):
        while quick not in heard:
            await is_changed.wait()
            is_changed.clear()
    slow.end(0)
    last = found.begin(written(folder, "last"))
    assert last is not None
    last.result()
    waiting.join()

    assert heard[0] is quick


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "overlay", "tmpfs"])
def test_where_a_look_at_a_file_may_wait_it_is_not_used(monkeypatch, tmp_path, caplog, kind):
    caplog.set_level(logging.INFO)
    mounted(monkeypatch, tmp_path, kind=kind)

    assert aio_at(tmp_path) is None
    assert [record.message for record in caplog.records] == [
        f"fsyncs_run_on_threads reason=the file system is {kind}"
    ]


def test_a_machine_whose_system_calls_nobody_knows_uses_threads(monkeypatch, tmp_path):
    mounted(monkeypatch, tmp_path, kind="ext4")
    monkeypatch.setattr(aio, "NUMBERS", {})

    assert aio_at(tmp_path) is None


def test_a_kernel_that_gives_no_context_leaves_fsyncs_to_threads(monkeypatch, tmp_path, caplog):
    """As a sandbox does, a kernel without AIO, or one that has given out all it may."""
    caplog.set_level(logging.INFO)
    mounted(monkeypatch, tmp_path, kind="ext4")
    # Numbers of calls that no kernel has.
    monkeypatch.setattr(aio, "NUMBERS", {os.uname().machine: (100_000,) * 4})

    assert aio_at(tmp_path) is None
    assert [record.message for record in caplog.records] == [
        "fsyncs_run_on_threads reason=[Errno 38] Function not implemented"
    ]
