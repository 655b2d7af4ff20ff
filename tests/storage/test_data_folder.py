"""The data folder: whether it is still the one it was, and has room."""

import errno
import os
import shutil

import pytest

from waterclock.model.errors import StorageFailed
from waterclock.storage.folders import data_folder
from waterclock.storage.folders.data_folder import DataFolder
from waterclock.storage.folders.os_folder import OsFolder


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data" / "meta").mkdir(parents=True)
    return DataFolder(tmp_path / "data", "meta")


def test_a_folder_as_it_was_is_well_whatever_comes_and_goes_in_it(folder):
    (folder.path / "topics").mkdir()
    (folder.path / "topics").rmdir()

    folder.check()


@pytest.mark.parametrize("name", ["", "meta"])
def test_a_folder_that_was_deleted_is_noticed(folder, name):
    shutil.rmtree(folder.path / name)

    with pytest.raises(StorageFailed, match="is gone, under the running node"):
        folder.check()


@pytest.mark.parametrize("name", ["", "meta"])
def test_a_folder_that_was_replaced_is_noticed(folder, name):
    path = folder.path / name
    path.rename(folder.path.parent / "away")
    (folder.path / "meta").mkdir(parents=True, exist_ok=True)

    with pytest.raises(StorageFailed, match="is another one now"):
        folder.check()


@pytest.mark.parametrize("how", ["is gone", "is another one now"])
def test_a_folder_that_came_later_is_watched_too(tmp_path, how):
    (tmp_path / "meta").mkdir()
    folder = DataFolder(tmp_path, "meta", "topics")
    assert folder.check() is None
    topics = tmp_path / "topics"
    topics.mkdir()
    assert folder.check() is None

    topics.rename(tmp_path / "away")
    if how != "is gone":
        topics.mkdir()
    with pytest.raises(StorageFailed, match=f"topics {how}, under the running node"):
        folder.check()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_folder_that_cannot_be_looked_at_is_not_gone(folder, monkeypatch, number):
    def refused(path):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr("waterclock.storage.folders.data_folder.os.stat", refused)
        assert folder.check() == f"{folder.path / 'meta'}: {os.strerror(number)}"

    assert folder.check() is None


def test_room_is_tried_and_leaves_nothing_behind(folder, monkeypatch):
    assert folder.shortage() is None
    assert [path.name for path in folder.path.iterdir()] == ["meta"]

    monkeypatch.setattr(data_folder, "ROOM_BYTES", 1 << 60)
    assert "MiB free" in str(folder.shortage())
    assert [path.name for path in folder.path.iterdir()] == ["meta"]


def test_a_file_that_was_deleted_is_not_made_durable(tmp_path):
    folder = OsFolder(tmp_path / "log")
    file = folder.create("segment")
    file.write(0, [b"acknowledged"])
    file.sync()
    os.unlink(tmp_path / "log" / "segment")

    with pytest.raises(StorageFailed, match="was deleted while it was in use"):
        file.sync()
    folder.close()
