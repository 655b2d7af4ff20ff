"""Looking at a folder leaves no trace, keeps writers out, and reports what cannot be read."""

import errno
import os

import pytest

from waterclock.model.errors import BadInput, FolderInUse, ForeignFile, StorageFailed
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.folders.read_only_folder import ReadOnlyFolder


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").write_bytes(b"content")
    with ReadOnlyFolder(tmp_path) as folder:
        yield folder


def test_files_are_listed_and_read(folder):
    file = folder.open("data")

    assert folder.names() == ["data"]
    assert bytes(file.view(2, file.size())) == b"ntent"


def test_nothing_can_be_changed(folder, tmp_path):
    file = folder.open("data")
    changes = [
        lambda: folder.create("new"),
        lambda: folder.rename("data", "new"),
        lambda: folder.remove("data"),
        lambda: file.write(0, [b"x"]),
        lambda: file.truncate(1),
        lambda: file.allocate(100),
    ]

    for change in changes:
        with pytest.raises(StorageFailed):
            change()
    folder.sync()

    assert [p.name for p in tmp_path.iterdir()] == ["data"]
    assert (tmp_path / "data").read_bytes() == b"content"


def test_several_look_at_once_and_nobody_writes_meanwhile(tmp_path):
    owner = OsFolder(tmp_path)
    owner.lock()
    owner.close()
    held = (tmp_path / "LOCK").stat()

    with ReadOnlyFolder(tmp_path) as one, ReadOnlyFolder(tmp_path) as other:
        one.lock()
        one.lock()
        other.lock()
        with pytest.raises(FolderInUse):
            OsFolder(tmp_path).lock()

    assert (tmp_path / "LOCK").stat().st_mtime_ns == held.st_mtime_ns
    OsFolder(tmp_path).lock()


def test_a_folder_in_use_is_refused_by_the_owners_name(tmp_path):
    owner = OsFolder(tmp_path)
    owner.lock()

    with (
        ReadOnlyFolder(tmp_path) as folder,
        pytest.raises(FolderInUse, match=f"in use by process {os.getpid()}: stop it first"),
    ):
        folder.lock()
    owner.close()


def test_a_folder_never_locked_needs_no_lock(folder):
    folder.lock()

    assert folder.names() == ["data"]
    assert not repr(folder).endswith("locked>")


def test_only_existing_folders_are_opened(tmp_path):
    (tmp_path / "file").write_text("x")

    with pytest.raises(BadInput, match="does not exist"):
        ReadOnlyFolder(tmp_path / "absent")
    with pytest.raises(BadInput, match="is not a folder"):
        ReadOnlyFolder(tmp_path / "file")
    assert not (tmp_path / "absent").exists()


def test_only_regular_files_are_opened(folder, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("data")

    with pytest.raises(ForeignFile, match="not a regular file"):
        folder.open("pipe")
    with pytest.raises(StorageFailed):
        folder.open("link")
    with pytest.raises(StorageFailed):
        folder.open("absent")


def test_a_file_is_read_through(folder):
    heard: list[int] = []

    folder.read_through("data", heard.append)

    assert heard == [7]


def test_a_bad_sector_is_an_error(folder, monkeypatch):
    def failing(number, buffers, position):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", failing)

    with pytest.raises(StorageFailed, match=r"read byte 0 of .*data: Input/output error"):
        folder.read_through("data", lambda count: None)
