"""The recovery point is there whole, in its old or its new form; anything else is recognised."""

from random import Random

import pytest

from tests.kit.disk import SimulatedFolder
from tests.storage.stores import disk_of, files_of, flipped
from waterclock.storage.recovery_point import NAME, load_recovery_point, save_recovery_point


def saved(*values: int) -> SimulatedFolder:
    folder = SimulatedFolder()
    for value in values:
        save_recovery_point(folder, value)
    return folder


@pytest.mark.parametrize("offset", [0, 1, (1 << 62) - 1])
def test_what_was_saved_is_read_back(offset):
    folder = saved(5, offset)

    assert load_recovery_point(folder) == offset
    assert load_recovery_point(folder.crash()) == offset
    assert folder.names() == [NAME]


def test_a_folder_without_one_vouches_for_nothing():
    assert load_recovery_point(SimulatedFolder()) == 0


def test_one_with_any_byte_changed_cannot_be_read():
    whole = files_of(saved(77))[NAME]

    readings = {
        load_recovery_point(disk_of({NAME: flipped(whole, position)}))
        for position in range(len(whole))
    }

    assert len(whole) == 32
    assert readings == {None}


@pytest.mark.parametrize("data", [b"", b"\0" * 32, b"x" * 31, b"x" * 33])
def test_one_of_another_form_cannot_be_read(data):
    assert load_recovery_point(disk_of({NAME: data})) is None


def test_a_crash_while_it_is_replaced_leaves_the_old_or_the_new_one():
    folder = saved(5)
    found = set()

    def crash(name: str) -> None:
        for seed in range(20):
            found.add(load_recovery_point(folder.crash(Random(seed).randrange)))

    folder.on_sync = crash
    save_recovery_point(folder, 6)

    assert found == {5, 6}
