"""The rules of `storage.disk.Folder`, on the operating system's folder and the simulated one."""

import pytest

from waterclock.model.errors import BadInput, Closed, FolderInUse, StorageFailed
from waterclock.storage.folders.folder import File


def content(file: File) -> bytes:
    return bytes(file.view(0, file.size()))


# Names.


def test_a_new_folder_has_no_names(folder):
    assert folder.names() == []


def test_names_are_sorted(folder):
    for name in ("b", "c", "a"):
        folder.create(name)

    assert folder.names() == ["a", "b", "c"]


def test_a_created_file_is_empty(folder):
    assert folder.create("a").size() == 0


def test_a_file_knows_the_name_it_was_opened_by(folder):
    assert folder.create("a").name == "a"
    assert folder.open("a").name == "a"


def test_creating_a_name_twice_fails_and_harms_nothing(folder, file):
    file.write(0, [b"kept"])

    with pytest.raises(StorageFailed, match=r"a\.seg"):
        folder.create("a.seg")
    assert content(folder.open("a.seg")) == b"kept"


@pytest.mark.parametrize("verb", ["open", "remove"])
def test_a_missing_name_fails_and_is_named(folder, verb):
    with pytest.raises(StorageFailed, match="missing"):
        getattr(folder, verb)("missing")


def test_renaming_a_missing_name_fails(folder):
    with pytest.raises(StorageFailed, match="missing"):
        folder.rename("missing", "b")
    assert folder.names() == []


def test_a_rename_moves_the_bytes(folder, file):
    file.write(0, [b"moved"])
    folder.rename("a.seg", "b.seg")

    assert folder.names() == ["b.seg"]
    assert content(folder.open("b.seg")) == b"moved"


def test_a_rename_replaces_the_name_it_meets(folder, file):
    file.write(0, [b"new"])
    folder.create("b.seg").write(0, [b"older"])
    folder.rename("a.seg", "b.seg")

    assert folder.names() == ["b.seg"]
    assert content(folder.open("b.seg")) == b"new"


def test_a_rename_to_itself_changes_nothing(folder, file):
    file.write(0, [b"same"])
    folder.rename("a.seg", "a.seg")

    assert content(folder.open("a.seg")) == b"same"


def test_an_open_file_follows_its_rename(folder, file):
    folder.rename("a.seg", "b.seg")
    file.write(0, [b"after"])
    file.sync()

    assert content(folder.open("b.seg")) == b"after"


def test_a_removed_name_is_gone_and_can_be_created_anew(folder, file):
    file.write(0, [b"old"])
    folder.remove("a.seg")

    assert folder.names() == []
    assert folder.create("a.seg").size() == 0


def test_an_open_file_outlives_its_name_but_is_not_made_durable(folder, file):
    folder.remove("a.seg")
    file.write(0, [b"still here"])

    with pytest.raises(StorageFailed, match="deleted while it was in use"):
        file.sync()
    assert content(file) == b"still here"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "a\0b", "LOCK"])
def test_a_name_that_is_no_file_of_ours_is_refused(folder, file, name):
    for act in (
        lambda: folder.create(name),
        lambda: folder.open(name),
        lambda: folder.remove(name),
        lambda: folder.rename("a.seg", name),
        lambda: folder.rename(name, "b.seg"),
    ):
        with pytest.raises(BadInput):
            act()
    assert folder.names() == ["a.seg"]


def test_syncing_a_folder_keeps_its_names(folder, file):
    folder.sync()

    assert folder.names() == ["a.seg"]


# The lock.


def test_a_locked_folder_refuses_a_second_owner(handle):
    handle().lock()

    with pytest.raises(FolderInUse):
        handle().lock()


def test_the_owner_may_lock_again(handle):
    owner = handle()
    owner.lock()
    owner.lock()

    with pytest.raises(FolderInUse):
        handle().lock()


def test_closing_gives_the_lock_back(handle):
    first, second = handle(), handle()
    first.lock()
    first.close()

    second.lock()


def test_a_refused_owner_may_try_again(handle):
    first, second = handle(), handle()
    first.lock()
    with pytest.raises(FolderInUse):
        second.lock()
    first.close()

    second.lock()


def test_closing_a_handle_without_the_lock_does_not_break_it(handle):
    handle().lock()
    handle().close()

    with pytest.raises(FolderInUse):
        handle().lock()


def test_the_lock_is_listed_among_the_names(folder):
    folder.lock()

    assert folder.names() == ["LOCK"]


# Closing.


def test_closing_twice_is_harmless(folder, file):
    file.close()
    file.close()
    folder.close()
    folder.close()


def test_closing_a_folder_closes_its_files(folder, file):
    folder.close()

    with pytest.raises(Closed):
        file.write(0, [b"late"])


def test_a_closed_folder_refuses_all_use(folder, file):
    folder.close()

    for act in (
        folder.lock,
        folder.names,
        folder.sync,
        lambda: folder.create("b"),
        lambda: folder.open("a.seg"),
        lambda: folder.rename("a.seg", "b"),
        lambda: folder.remove("a.seg"),
    ):
        with pytest.raises(Closed):
            act()
