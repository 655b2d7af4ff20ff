import errno
import os

import pytest

from waterclock.model.errors import StorageFailed
from waterclock.storage.folders import file_system
from waterclock.storage.folders.file_system import OsFileSystem, file_system_at
from waterclock.storage.folders.os_folder import OsFolder

MOUNT = "26 1 {number} / /data rw,relatime shared:1 - {kind} /dev/vda rw"


@pytest.fixture
def folder(tmp_path):
    folder = OsFolder(tmp_path / "log")
    yield folder
    folder.close()


@pytest.fixture
def found(tmp_path):
    opened = OsFileSystem(tmp_path)
    yield opened
    opened.close()


def written(folder, name):
    file = folder.create(name)
    file.write(0, [b"bytes"])
    return file


def mounted(monkeypatch, tmp_path, *, kind, kernel="6.1.0-18-amd64"):
    device = os.stat(tmp_path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNT.format(number=number, kind=kind) + "\n")
    monkeypatch.setattr(file_system, "MOUNTS", mounts)
    names = os.uname()
    changed = os.uname_result((names.sysname, names.nodename, kernel, "", names.machine))
    monkeypatch.setattr(os, "uname", lambda: changed)


def test_files_are_synced_together(folder, found):
    assert found.sync([written(folder, name) for name in "abc"]) == [None] * 3


def test_a_file_that_was_deleted_is_not_durable_and_its_neighbours_are(folder, found):
    files = [written(folder, name) for name in "abc"]
    folder.remove("b")

    first, second, third = found.sync(files)

    assert (first, third) == (None, None)
    assert "deleted while it was in use" in str(second)


def test_a_file_closed_meanwhile_was_durable_before(folder, found):
    files = [written(folder, name) for name in "ab"]
    files[0].close()

    assert found.sync(files) == [None, None]


def test_one_of_the_files_is_synced_last_to_empty_the_cache_of_the_drive(
    folder, found, monkeypatch
):
    synced = []
    monkeypatch.setattr(
        "waterclock.storage.folders.os_folder.sync_descriptor", lambda number: synced.append(number)
    )
    files = [written(folder, name) for name in "abc"]

    found.sync(files)

    assert len(synced) == 1


def test_a_file_that_lies_elsewhere_is_synced_by_itself(folder, found, monkeypatch):
    synced = []
    monkeypatch.setattr(
        "waterclock.storage.folders.os_folder.sync_descriptor", lambda number: synced.append(number)
    )
    files = [written(folder, name) for name in "abc"]
    files[2].device += 1

    found.sync(files)

    assert len(synced) == 2


def test_a_sync_that_fails_says_so(folder, found):
    class Broken:
        def syncfs(self, number):
            return -1

    found._libc = Broken()

    with pytest.raises(StorageFailed, match="sync the file system"):
        found.sync([written(folder, "a")])


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_a_file_system_that_keeps_its_word_is_used(monkeypatch, tmp_path, kind):
    mounted(monkeypatch, tmp_path, kind=kind)
    found = file_system_at(tmp_path)
    assert found is not None
    found.close()


@pytest.mark.parametrize(
    ("kind", "kernel"),
    [("nfs4", "6.1.0"), ("fuse.sshfs", "6.1.0"), ("overlay", "6.1.0"), ("ext4", "5.15.0-91")],
)
def test_where_a_sync_may_hide_an_error_there_is_none(monkeypatch, tmp_path, kind, kernel):
    mounted(monkeypatch, tmp_path, kind=kind, kernel=kernel)

    assert file_system_at(tmp_path) is None


def test_a_mount_that_nobody_knows_is_not_trusted(monkeypatch, tmp_path):
    mounted(monkeypatch, tmp_path, kind="ext4")
    (tmp_path / "mountinfo").write_text(MOUNT.format(number="9999:0", kind="ext4") + "\n")

    assert file_system_at(tmp_path) is None


def test_a_file_system_that_was_shut_down_and_takes_a_sync_for_done_is_found_out(
    folder, found, monkeypatch
):
    def failing(number):
        raise OSError(errno.EIO, "shut down")

    monkeypatch.setattr("waterclock.storage.folders.os_folder.sync_descriptor", failing)

    errors = found.sync([written(folder, name) for name in "abc"])

    assert all(isinstance(error, StorageFailed) for error in errors)
