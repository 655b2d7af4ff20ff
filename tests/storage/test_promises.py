"""Promises are kept over any crash once they were made, and never taken back."""

from random import Random

import pytest

from tests.kit.disk import SimulatedFolder
from tests.storage.stores import disk_of, files_of, flipped
from waterclock.model.errors import PartitionFaulty
from waterclock.model.ids import Epoch
from waterclock.storage.promises import NAME, KeptPromise, Promises

DISK = bytes(range(8))
ONE, OTHER = b"1" * 16, b"2" * 16
BYTES_1 = bytes.fromhex(
    "f3574350520d0a01 0001020304050607 02000000 bb3281d7"
    "31313131313131313131313131313131 0300000000000000"
    "32323232323232323232323232323232 0000000000010000"
)
"""As version 1 draws it: never change this."""
BYTES = bytes.fromhex(
    "f3574350520d0a02 0001020304050607 02000000 e6979d96"
    "31313131313131313131313131313131 0300000000000000 0400 613a6331"
    "32323232323232323232323232323232 0000000000010000 0400 623ac3a4"
)
"""As version 2 draws it: never change this."""


def promises_on(folder: SimulatedFolder) -> Promises:
    return Promises(folder, new_disk_id=bytes(8))


def made(folder: SimulatedFolder) -> Promises:
    promises = Promises(folder, new_disk_id=DISK)
    promises.save({OTHER: KeptPromise(Epoch(1 << 40), "b:ä"), ONE: KeptPromise(Epoch(3), "a:c1")})
    return promises


def test_what_was_promised_is_known_after_a_crash():
    folder = SimulatedFolder()
    made(folder)

    found = promises_on(folder.crash())

    assert (found.disk_id, found.get(ONE), found.get(OTHER)) == (
        DISK.hex(),
        (3, "a:c1"),
        (1 << 40, "b:ä"),
    )
    assert found.get(b"3" * 16) == (0, "")


def test_a_promise_is_never_taken_back():
    promises = made(SimulatedFolder())

    promises.save({ONE: KeptPromise(Epoch(2), "b")})

    assert promises.get(ONE) == (3, "a:c1")


def test_many_promises_are_one_write():
    folder = SimulatedFolder()
    promises = made(folder)
    syncs: list[str] = []
    folder.on_sync = syncs.append

    promises.save({bytes([number]) * 16: KeptPromise(Epoch(1)) for number in range(100)})

    assert len(syncs) == 2  # of the file and of the folder


def test_its_bytes_are_those_of_version_2():
    folder = SimulatedFolder()
    made(folder).close()

    assert files_of(folder) == {NAME: BYTES}
    assert promises_on(disk_of({NAME: BYTES})).get(ONE) == (3, "a:c1")


def test_what_version_1_had_is_read_and_names_nobody():
    found = promises_on(disk_of({NAME: BYTES_1}))

    assert (found.disk_id, found.get(ONE), found.get(OTHER)) == (
        DISK.hex(),
        (3, ""),
        (1 << 40, ""),
    )


def test_of_two_that_have_one_epoch_the_first_is_kept():
    promises = promises_on(disk_of({NAME: BYTES_1}))
    for candidate in ("a", "b"):
        promises.save({ONE: KeptPromise(Epoch(3), candidate)})

    assert promises.get(ONE) == (3, "a")


def test_one_with_any_byte_changed_or_gone_stops_the_start():
    harmed = [flipped(BYTES, at) for at in range(len(BYTES))]
    harmed += [BYTES[:size] for size in range(len(BYTES))] + [BYTES + bytes(24)]

    for data in harmed:
        with pytest.raises(PartitionFaulty, match="cannot be read"):
            promises_on(disk_of({NAME: data}))


def test_a_crash_while_promises_are_made_leaves_all_of_them_or_none():
    folder = SimulatedFolder()
    promises = made(folder)
    found = set()

    def crash(name: str) -> None:
        for seed in range(20):
            after = promises_on(folder.crash(Random(seed).randrange))
            found.add((after.disk_id, after.get(ONE).epoch, after.get(OTHER).epoch))

    folder.on_sync = crash
    promises.save({ONE: KeptPromise(Epoch(4)), OTHER: KeptPromise(Epoch(1 << 41))})

    assert found == {(DISK.hex(), 3, 1 << 40), (DISK.hex(), 4, 1 << 41)}
