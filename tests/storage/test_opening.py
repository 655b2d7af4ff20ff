"""Whatever is in the folder, an opening serves it or says which file is wrong, and harms none.

Here: files that are not ours, files that are not there, files left over, and the start of a log.
What has rotted inside a file is in `test_damage`.
"""

import struct
from functools import cache

import pytest
from crc32c import crc32c

from tests.kit.disk import SimulatedFolder
from tests.storage.stores import (
    DEDUP,
    FIRST,
    LOG,
    LOG_ID,
    SIDECARS,
    Partition,
    disk_of,
    files_of,
    flipped,
    message,
    open_store,
    places,
    resigned,
    rows_of,
)
from waterclock.log.segment import SegmentHeader, encode_segment_header, segment_name
from waterclock.model.errors import (
    Damaged,
    ForeignFile,
    FrameDamaged,
    PartitionFaulty,
    StorageFailed,
)
from waterclock.model.ids import Millis, Offset
from waterclock.storage.opening import open_unsettled
from waterclock.storage.recovery_point import NAME as RECOVERY_POINT

MIDDLE, LAST, BEYOND = segment_name(3), segment_name(6), segment_name(9)


@cache
def _whole() -> dict[str, bytes]:
    partition = Partition()
    partition.fill(range(3), roll=True)
    partition.fill(range(3, 6), roll=True)
    partition.fill(range(6, 9))
    partition.close()
    return partition.files()


@pytest.fixture
def files() -> dict[str, bytes]:
    """A log of nine messages in three segments, cleanly closed."""
    return dict(_whole())


def without_sidecars(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not name.endswith(SIDECARS)}


def refused(files: dict[str, bytes], error: type[Damaged], *, naming: str) -> None:
    """An opening fails with an error that names the file, and leaves every byte as it was."""
    folder = disk_of(files)

    with pytest.raises(error, match=naming):
        open_store(folder)

    after = files_of(folder)
    assert {name: after.get(name) for name in files} == files
    assert all(name.endswith(SIDECARS) for name in after.keys() - files.keys())
    folder.reopen().lock()  # raises if the failed opening still holds it


# Files that are no segments of this log


FOREIGN = {
    "garbage": bytes(range(7, 250)) * 40,
    "empty": b"",
    "cut short": b"\xf3WCSEG\r\n\x01\x00",
    "text": b"These are not the bytes you are looking for.\n" * 20,
    "zeros": bytes(4096),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=list(FOREIGN))
@pytest.mark.parametrize("name", [segment_name(1), BEYOND])
def test_a_file_that_is_named_like_a_segment_and_is_none_is_refused(files, name, content):
    refused(files | {name: content}, ForeignFile, naming=name)


@pytest.mark.parametrize("name", ["7.seg", "a" * 20 + ".seg", "0" * 21 + ".seg", "9" * 20 + ".seg"])
def test_a_name_that_only_ends_like_a_segment_is_refused(files, name):
    refused(files | {name: files[FIRST]}, ForeignFile, naming=name)


def test_a_renamed_segment_is_refused(files):
    refused(files | {BEYOND: files[MIDDLE]}, ForeignFile, naming=f"{BEYOND} .* offset 3")


def test_a_segment_of_another_version_is_refused(files):
    header = files[LAST][:8] + struct.pack("<H", 2) + files[LAST][10:60]
    files[LAST] = header + struct.pack("<I", crc32c(header)) + files[LAST][64:]

    refused(files, ForeignFile, naming=f"{LAST} has segment format version 2")


@pytest.mark.parametrize("name", [FIRST, MIDDLE, LAST])
def test_a_segment_whose_header_has_rotted_is_refused(files, name):
    files[name] = flipped(files[name], 20)

    refused(files, ForeignFile, naming=name)


@pytest.mark.parametrize("base", [3, 9])
def test_a_segment_of_another_log_is_refused_and_not_mended(files, base):
    header = SegmentHeader(bytes(reversed(LOG_ID)), Offset(base), 0, Millis(1))
    files[segment_name(base)] = encode_segment_header(header) + b"half a frame of that log"

    refused(files, ForeignFile, naming=segment_name(base))


def test_a_segment_that_reaches_into_the_next_is_refused(files):
    longer = Partition()
    longer.fill(range(4))
    longer.close()
    files[FIRST] = longer.files()[FIRST]

    refused(files, ForeignFile, naming=FIRST)


NEWER = {"version": {"version": 2}, "type": {"kind": 9}, "flag": {"flags": 1 << 9}}


@pytest.mark.parametrize("claim", NEWER.values(), ids=list(NEWER))
@pytest.mark.parametrize("name", [FIRST, LAST])
@pytest.mark.parametrize("frame", [0, 2])
def test_a_frame_of_a_newer_release_is_refused_and_not_cut_off(files, name, frame, claim):
    position, _ = places(files[name])[frame]
    files[name] = resigned(files[name], position, **claim)

    refused(without_sidecars(files), ForeignFile, naming=f"{name}.*use the release")


@pytest.mark.parametrize("name", [FIRST, LAST])
@pytest.mark.parametrize("frame", [0, 2])
def test_a_frame_of_a_newer_release_behind_sidecars_is_refused_when_it_is_read(files, name, frame):
    position, header = places(files[name])[frame]
    files[name] = resigned(files[name], position, version=2)
    folder = disk_of(files)

    with pytest.raises(ForeignFile, match=f"{name}.*use the release"):
        list(open_store(folder).frames(header.base_offset))
    assert files_of(folder) == files


# Files that have nothing to do with it


UNRELATED = ["notes.txt", "core", "00000000000000000000.seg.bak", "00000000000000000000.log"]


@pytest.mark.parametrize("name", UNRELATED)
def test_an_unrelated_file_beside_a_log_is_left_alone(files, name):
    folder = disk_of(files | {name: b"not ours"})

    rows, refused = rows_of(open_store(folder))

    assert (sorted(rows), refused) == (list(range(9)), set())
    assert files_of(folder)[name] == b"not ours"


@pytest.mark.parametrize("name", UNRELATED)
def test_no_log_is_begun_among_unrelated_files(name):
    refused({name: b"not ours"}, ForeignFile, naming=f"{name} .*empty folder")


# Files that are gone


def test_missing_in_the_middle_is_a_fault_and_the_rest_can_be_read(files):
    del files[MIDDLE]
    folder = disk_of(files)

    store = open_store(folder)
    rows, gone = rows_of(store)

    assert (sorted(rows), gone) == ([0, 1, 2, 6, 7, 8], {3, 4, 5})
    with pytest.raises(FrameDamaged, match=FIRST):
        store.read(4)
    assert files_of(folder) == files


def test_missing_at_the_end_is_a_fault_by_the_recovery_point(files):
    del files[LAST]
    folder = disk_of(files)

    store = open_store(folder)
    rows, gone = rows_of(store)

    assert (sorted(rows), gone) == (list(range(6)), {6, 7, 8})
    assert files_of(folder) == files


@pytest.mark.parametrize("ending", SIDECARS)
def test_missing_at_the_start_is_told_by_any_side_car_left_behind(files, ending):
    del files[FIRST]
    for other in set(SIDECARS) - {ending}:
        del files[FIRST.replace(".seg", other)]

    refused(files, PartitionFaulty, naming=f"{FIRST} is gone.*restore it")


def test_missing_at_the_start_with_its_side_cars_looks_like_retention(files):
    """A limit: that a log began earlier is written nowhere but in what is gone."""
    for ending in (".seg", *SIDECARS):
        del files[FIRST.replace(".seg", ending)]

    store = open_store(disk_of(files))

    assert (store.start, sorted(rows_of(store)[0])) == (3, [3, 4, 5, 6, 7, 8])


@pytest.mark.parametrize("left", [RECOVERY_POINT, FIRST.replace("seg", "ids")])
def test_no_log_is_begun_where_one_has_been(files, left):
    refused({left: files[left]}, PartitionFaulty, naming=f"{left} .*restore")


def test_a_faulty_log_takes_nothing_and_says_what_to_do(files):
    del files[MIDDLE]
    partition = Partition(disk_of(files))

    with pytest.raises(PartitionFaulty, match=r"\[3, 6\).*restore the files"):
        partition.append(message(9))
    with pytest.raises(PartitionFaulty):
        partition.store.sync()
    with pytest.raises(PartitionFaulty):
        partition.rewrite(keep_from=6)
    partition.store.close()

    assert files_of(partition.folder) == files


# Beginning, and what a crash leaves


def test_an_empty_folder_becomes_a_log_with_the_identity_given():
    partition = Partition()

    assert (partition.store.start, partition.store.end) == (0, 0)
    assert partition.restart().log_id == LOG_ID
    assert (partition.store.epoch, partition.store.log_time_ms) == (0, 0)


def test_unfinished_files_are_removed(files):
    unfinished = {f"{FIRST}.tmp": b"half", f"{RECOVERY_POINT}.tmp": b"", "x.tmp": b"not ours"}
    folder = disk_of(files | unfinished)

    assert not open_store(folder).faults

    assert files_of(folder) == files | {"x.tmp": b"not ours"}


@pytest.mark.parametrize("is_rolled", [False, True])
def test_the_name_of_a_segment_is_durable_before_anything_in_it_is_acknowledged(is_rolled):
    """The process ends between the renaming and the sync of the folder; later the power goes."""
    partition = Partition(SimulatedFolder(), checkpoint_every_bytes=1)
    if is_rolled:
        partition.fill(range(2))
        partition.store.run_jobs()
        partition.folder.fail_next_folder_sync()
        with pytest.raises(StorageFailed):
            partition.roll()
    else:
        partition.folder = SimulatedFolder()
        partition.folder.fail_next_folder_sync()
        with pytest.raises(StorageFailed):
            partition.open()
    partition.kill()
    partition.open()
    partition.publish(message(7))
    acknowledged = partition.store.acknowledged_end

    partition.cut_power()
    partition.open()

    assert partition.store.end == acknowledged
    assert partition.values()[-1] == b"value 7"


def test_what_an_opening_found_is_durable_when_the_fsync_that_it_asks_for_was_run():
    partition = Partition()
    partition.fill(range(2))
    partition.append(message(2))
    partition.kill()
    folder = partition.folder

    store, sync = open_unsettled(folder, log=LOG, dedup=DEDUP, now_ms=1_000, new_log_id=LOG_ID)

    assert store.end == 3
    assert open_store(folder.crash()).end == 2
    sync.run()
    assert open_store(folder.crash()).end == 3


def test_the_fsync_that_an_opening_asks_for_covers_names():
    folder = SimulatedFolder()
    folder.fail_next_folder_sync()
    with pytest.raises(StorageFailed):
        open_store(folder)
    folder.close()
    folder = folder.reopen()

    _, sync = open_unsettled(folder, log=LOG, dedup=DEDUP, now_ms=1_000, new_log_id=LOG_ID)

    assert FIRST not in folder.crash().names()
    sync.run()
    assert FIRST in folder.crash().names()
