"""The epoch table is there whole, in its old or its new form; anything else is recognised."""

from random import Random

from tests.kit.disk import SimulatedFolder
from tests.storage.stores import disk_of, files_of, flipped
from waterclock.cluster.replication.lineage import EpochStart
from waterclock.model.ids import Epoch, Offset
from waterclock.storage.epoch_file import NAME, load_epochs, save_epochs

TABLE = (EpochStart(Epoch(1), Offset(0)), EpochStart(Epoch(4), Offset(1 << 40)))
BYTES = bytes.fromhex(
    "f3574345540d0a01 02000000 f35fe6f4"
    "01000000 00000000 0000000000000000"
    "04000000 00000000 0000000000010000"
)
"""As version 1 draws it: never change this."""


def saved(*tables: tuple[EpochStart, ...]) -> SimulatedFolder:
    folder = SimulatedFolder()
    for table in tables:
        save_epochs(folder, table)
    return folder


def test_what_was_saved_is_read_back():
    for table in ((), TABLE[:1], TABLE):
        folder = saved(TABLE, table)
        assert load_epochs(folder) == load_epochs(folder.crash()) == table
        assert folder.names() == [NAME]
    assert load_epochs(SimulatedFolder()) is None


def test_its_bytes_are_those_of_version_1():
    assert files_of(saved(TABLE)) == {NAME: BYTES}
    assert load_epochs(disk_of({NAME: BYTES})) == TABLE


def test_one_with_any_byte_changed_or_gone_cannot_be_read():
    whole = files_of(saved(TABLE))[NAME]

    readings = {load_epochs(disk_of({NAME: flipped(whole, at)})) for at in range(len(whole))}
    readings |= {load_epochs(disk_of({NAME: whole[:size]})) for size in range(len(whole))}
    readings.add(load_epochs(disk_of({NAME: whole + bytes(16)})))

    assert readings == {None}


def test_a_crash_while_it_is_replaced_leaves_the_old_or_the_new_one():
    folder = saved(TABLE[:1])
    found = set()

    def crash(name: str) -> None:
        for seed in range(20):
            found.add(load_epochs(folder.crash(Random(seed).randrange)))

    folder.on_sync = crash
    save_epochs(folder, TABLE)

    assert found == {TABLE[:1], TABLE}
