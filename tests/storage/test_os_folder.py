"""What only a real operating system's folder can do: other processes, foreign entries, threads."""

import contextlib
import errno
import fcntl
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from waterclock.model.errors import Closed, FolderInUse, ForeignFile, StorageFailed
from waterclock.storage.folders.os_folder import Descriptor, OsFile, OsFolder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[OsFolder]:
    with contextlib.closing(OsFolder(tmp_path / "folder")) as folder:
        yield folder


# The folder itself.


def test_missing_parents_are_made(tmp_path):
    OsFolder(tmp_path / "x" / "y" / "z").close()

    assert (tmp_path / "x" / "y" / "z").is_dir()


def test_a_folder_reached_by_a_link_is_used(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with contextlib.closing(OsFolder(tmp_path / "link")) as folder:
        folder.create("a")

    assert (tmp_path / "real" / "a").is_file()


@pytest.mark.parametrize("path", ["plain", "plain/folder"])
def test_a_file_where_the_folder_should_be_is_foreign(tmp_path, path):
    (tmp_path / "plain").write_text("in the way")

    with pytest.raises(ForeignFile, match="plain"):
        OsFolder(tmp_path / path)
    assert (tmp_path / "plain").read_text() == "in the way"


def test_a_folder_keeps_its_files_when_its_path_moves(tmp_path):
    with contextlib.closing(OsFolder(tmp_path / "old")) as folder:
        (tmp_path / "old").rename(tmp_path / "new")
        folder.create("a")

    assert (tmp_path / "new" / "a").is_file()


def test_files_and_folders_are_not_for_everybody(tmp_path):
    with contextlib.closing(OsFolder(tmp_path / "folder")) as folder:
        folder.create("a")

    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder.path, folder.path / "a")]
    assert [mode & 0o007 for mode in modes] == [0, 0]


# Entries that are not ours.


@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "pipe"])
def test_what_is_not_a_regular_file_is_listed_and_foreign(folder, tmp_path, kind):
    target = tmp_path / "elsewhere"
    target.write_text("not ours")
    entry = folder.path / "odd"
    match kind:
        case "link":
            entry.symlink_to(target)
        case "dangling":
            entry.symlink_to(tmp_path / "nowhere")
        case "folder":
            entry.mkdir()
        case _:
            os.mkfifo(entry)

    assert folder.names() == ["odd"]
    with pytest.raises(ForeignFile, match="odd"):
        folder.open("odd")
    with pytest.raises(StorageFailed, match="odd"):
        folder.create("odd")
    assert target.read_text() == "not ours"


def test_a_link_in_place_of_the_lock_is_not_followed(folder, tmp_path):
    (tmp_path / "victim").write_text("precious")
    (folder.path / "LOCK").symlink_to(tmp_path / "victim")

    with pytest.raises(ForeignFile, match="LOCK"):
        folder.lock()
    assert (tmp_path / "victim").read_text() == "precious"


# The lock between processes.

HOLD = """
import sys
from waterclock.storage.folders.os_folder import OsFolder
folder = OsFolder(sys.argv[1])
folder.lock()
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(folder) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_a_folder_locked_by_another_process_names_it_and_the_way_out(folder, holder):
    with pytest.raises(FolderInUse) as refused:
        folder.lock()

    assert str(refused.value) == (
        f"{folder.path} is in use by process {holder.pid}: stop it, or use another folder"
    )


def test_a_long_note_of_an_earlier_owner_is_replaced_whole(folder):
    (folder.path / "LOCK").write_text("1234567890 and more\n" * 3)
    folder.lock()

    assert (folder.path / "LOCK").read_text() == f"{os.getpid()}\n".ljust(32)


def test_a_killed_process_leaves_no_lock(folder, holder):
    holder.kill()
    holder.wait()
    folder.lock()

    assert (folder.path / "LOCK").read_text() == f"{os.getpid()}\n".ljust(32)


def test_a_child_that_inherited_the_lock_does_not_keep_it(folder):
    folder.lock()
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        pass_fds=[int(entry) for entry in os.listdir("/dev/fd") if _is_lock(entry, folder)],
    )
    folder.close()
    with child, contextlib.closing(OsFolder(folder.path)) as later:
        later.lock()
        child.kill()


def test_the_lock_of_an_earlier_release_is_heeded(folder):
    (folder.path / "LOCK").write_text("77\n")
    with (folder.path / "LOCK").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(FolderInUse, match="process 77"):
            folder.lock()
    folder.lock()


def test_where_a_folder_cannot_be_locked_its_file_is(folder, monkeypatch):
    flock = fcntl.flock

    def as_nfs_does(number: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(number).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(number, operation)

    monkeypatch.setattr(fcntl, "flock", as_nfs_does)
    folder.lock()
    with contextlib.closing(OsFolder(folder.path)) as other:
        with pytest.raises(FolderInUse, match=f"process {os.getpid()}"):
            other.lock()
        folder.close()
        other.lock()


def _is_lock(entry: str, folder: OsFolder) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(int(entry)), os.stat(folder.path))
    return False


# Descriptors and threads.


def test_a_locked_folder_with_a_file_that_is_read_takes_two_descriptors(tmp_path):
    before = len(os.listdir("/dev/fd"))
    with contextlib.closing(OsFolder(tmp_path / "folder")) as folder:
        folder.lock()
        file = folder.create("a")
        file.write(0, [b"abc"])
        view = file.view(0, 3)
        assert len(os.listdir("/dev/fd")) == before + 2

    assert len(os.listdir("/dev/fd")) == before
    assert bytes(view) == b"abc"


def test_a_descriptor_closed_in_use_keeps_its_number_until_the_user_leaves(tmp_path):
    path = tmp_path / "a"
    descriptor = Descriptor(os.open(path, os.O_RDWR | os.O_CREAT), "a")
    with descriptor as number:
        descriptor.close()
        other = os.open(path, os.O_RDONLY)
        assert other != number
        os.fdatasync(number)
        with pytest.raises(Closed), descriptor:
            pass
        os.fstat(number)

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    os.close(other)


def test_two_users_leave_a_closed_descriptor_in_any_order(tmp_path):
    descriptor = Descriptor(os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT), "a")
    first = descriptor.__enter__()
    second = descriptor.__enter__()
    descriptor.close()
    descriptor.__exit__()

    assert first == second
    os.fstat(first)
    descriptor.__exit__()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(first)


def test_files_closed_under_a_syncing_thread_never_sync_a_stranger(folder):
    """Each round's number is free for the next round's file as soon as it may be, never sooner."""
    for number in range(100):
        file = folder.create(f"{number}")
        file.write(0, [b"x"])
        started = threading.Event()
        failures: list[BaseException] = []
        thread = threading.Thread(target=_sync_until_closed, args=(file, started, failures))
        thread.start()
        started.wait()
        file.close()
        thread.join()
        assert failures == []


def _sync_until_closed(
    file: OsFile, started: threading.Event, failures: list[BaseException]
) -> None:
    try:
        while True:
            file.sync()
            started.set()
    except Closed:
        return
    except BaseException as error:
        failures.append(error)
    finally:
        started.set()


def test_closing_gives_every_descriptor_back(tmp_path):
    before = len(os.listdir("/dev/fd"))
    folder = OsFolder(tmp_path / "folder")
    folder.lock()
    for name in ("a", "b", "c"):
        folder.create(name).write(0, [b"x"])
        folder.open(name).view(0, 1).release()
    with contextlib.suppress(FolderInUse), contextlib.closing(OsFolder(folder.path)) as other:
        other.lock()
    folder.close()

    assert len(os.listdir("/dev/fd")) == before
