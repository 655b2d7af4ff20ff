"""Torn or rotten: what was never safe is cut off, what was is reported, and nothing else changes.

Each kind of evidence that bytes were fsynced is tried alone, with all others taken away.
"""

from collections.abc import Callable
from random import Random

import pytest

from tests.storage.stores import (
    FIRST,
    LOG_ID,
    SIDECARS,
    Partition,
    disk_of,
    files_of,
    flipped,
    message,
    open_store,
    places,
    rows_of,
)
from waterclock.log.frame import HEADER_BYTES
from waterclock.log.segment import segment_name
from waterclock.model.errors import PartitionFaulty
from waterclock.storage.folders.read_only_folder import ReadOnlyFolder
from waterclock.storage.recovery_point import NAME as RECOVERY_POINT
from waterclock.storage.repair import accept_loss
from waterclock.storage.survey import check, look

Files = dict[str, bytes]

HEADER, BODY = 20, HEADER_BYTES + 300
"""A byte of a frame's header, and one of its body."""


def one_group(count: int = 3) -> Partition:
    """Frames that share one fsync: none of them knows of it."""
    partition = Partition()
    for number in range(count):
        partition.append(message(number))
    partition.flush()
    return partition


def rotten(files: Files, frame: int, byte: int, name: str = FIRST) -> Files:
    position, _ = places(files[name])[frame]
    return files | {name: flipped(files[name], position + byte)}


def without(files: Files, *endings: str) -> Files:
    return {name: data for name, data in files.items() if not name.endswith(endings)}


def assert_rotten(files: Files, frame: int, byte: int, name: str = FIRST) -> None:
    """Damage to a frame is reported, the others are served, and no file is changed."""
    _, header = places(files[name])[frame]
    damaged = rotten(files, frame, byte, name)
    folder = disk_of(damaged)
    whole = rows_of(open_store(disk_of(files)))[0]

    store = open_store(folder)
    rows, refused = rows_of(store)

    assert refused == {header.base_offset}
    assert rows == {offset: row for offset, row in whole.items() if offset not in refused}
    with pytest.raises(PartitionFaulty):
        store.roll(2_000)
    assert files_of(folder)[name] == damaged[name]


# Each evidence alone


@pytest.mark.parametrize("byte", [HEADER, BODY])
@pytest.mark.parametrize("frame", [0, 1, 2])
def test_the_recovery_point_alone_tells_rot(frame, byte):
    partition = one_group()
    partition.close()

    assert_rotten(without(partition.files(), *SIDECARS), frame, byte)


@pytest.mark.parametrize("byte", [HEADER, BODY])
@pytest.mark.parametrize("frame", [0, 1])
def test_what_a_later_frame_says_tells_rot(frame, byte):
    partition = Partition()
    partition.fill(range(3))
    partition.kill()

    assert_rotten(partition.files(), frame, byte)


@pytest.mark.parametrize("byte", [HEADER, BODY])
@pytest.mark.parametrize("frame", [0, 2])
def test_a_later_segment_alone_tells_rot(frame, byte):
    partition = one_group()
    partition.store.roll(partition.clock.now_ms())
    partition.kill()

    assert without(partition.files(), ".seg") == {}
    assert_rotten(partition.files(), frame, byte)


@pytest.mark.parametrize("byte", [HEADER, BODY])
@pytest.mark.parametrize("frame", [0, 2])
def test_sidecars_alone_tell_rot(frame, byte):
    partition = one_group()
    partition.close()

    assert_rotten(without(partition.files(), RECOVERY_POINT), frame, byte)


def test_sidecars_alone_tell_that_the_end_is_gone():
    partition = one_group()
    partition.close()
    files = without(partition.files(), RECOVERY_POINT)
    position, _ = places(files[FIRST])[2]
    files[FIRST] = files[FIRST][:position] + bytes(len(files[FIRST]) - position)
    folder = disk_of(files)

    store = open_store(folder)

    assert [(fault.start, fault.end) for fault in store.faults] == [(2, 3)]
    assert files_of(folder) == files


@pytest.mark.parametrize("byte", [HEADER, BODY])
@pytest.mark.parametrize("frame", [0, 1, 2])
def test_without_evidence_damage_is_a_torn_tail_and_is_cut_off(frame, byte):
    """A limit, stated in decision 1: the last group before a crash has no witness."""
    partition = one_group()
    partition.kill()
    files = partition.files()
    folder = disk_of(rotten(files, frame, byte))

    store = open_store(folder)

    assert (store.end, store.faults) == (frame, [])
    position, _ = places(files[FIRST])[frame]
    assert files_of(folder)[FIRST] == files[FIRST][:position]


# The recovery point itself


def spoil_a_bit(point: bytes) -> bytes:
    return flipped(point, 9)


def spoil_the_end(point: bytes) -> bytes:
    return point[:-1]


def spoil_all(point: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("spoil", [spoil_a_bit, spoil_the_end, spoil_all])
def test_a_rotten_recovery_point_may_have_vouched_for_everything(
    spoil: Callable[[bytes], bytes],
) -> None:
    partition = one_group()
    partition.close()
    files = without(partition.files(), *SIDECARS)
    files[RECOVERY_POINT] = spoil(files[RECOVERY_POINT])

    assert_rotten(files, 2, BODY)


def test_a_rotten_recovery_point_beside_a_whole_log_changes_nothing():
    partition = one_group()
    partition.close()
    files = partition.files()
    files[RECOVERY_POINT] = spoil_a_bit(files[RECOVERY_POINT])
    partition.folder = disk_of(files)

    partition.open()

    assert partition.publish(message(3)).durable_at == 4
    assert partition.values() == [b"value 0", b"value 1", b"value 2", b"value 3"]


def test_a_recovery_point_ahead_of_the_log_is_a_fault():
    partition = one_group()
    partition.close()
    files = without(partition.files(), *SIDECARS)
    position, _ = places(files[FIRST])[1]
    files[FIRST] = files[FIRST][:position]
    folder = disk_of(files)

    store = open_store(folder)

    assert [(fault.start, fault.end) for fault in store.faults] == [(1, 3)]
    assert sorted(rows_of(store)[0]) == [0]
    assert files_of(folder) == files


def test_damage_at_the_end_reaches_as_far_as_was_acknowledged():
    partition = Partition()
    partition.publish(message(0), message(1), message(2))
    partition.close()
    files = rotten(without(partition.files(), *SIDECARS), 0, HEADER)

    store = open_store(disk_of(files))

    assert [(fault.start, fault.end) for fault in store.faults] == [(0, 3)]


# A disk that lies


def test_a_disk_that_lied_is_found_out_by_a_frame_it_kept():
    partition = Partition()
    partition.folder.lie_on_sync = True
    partition.fill(range(6))
    faulty = 0

    for seed in range(100):
        partition.cut_power(Random(seed).randrange)
        store = open_store(partition.folder)
        rows, refused = rows_of(store)
        assert refused | set(rows) >= set(range(max(rows, default=-1) + 1)), "a hole is hidden"
        faulty += bool(store.faults)

    assert faulty > 5


# After a torn tail


@pytest.mark.parametrize("seed", range(20))
def test_after_a_torn_tail_its_offsets_are_used_again_and_its_bytes_never_come_back(seed):
    random = Random(seed)
    partition = Partition()
    partition.publish(message(0))
    for number in range(1, 4):
        partition.append(message(number, value=b"never flushed" * 100))
    partition.cut_power(random.randrange)

    kept = partition.open().end
    offset = partition.publish(message(9, value=b"short")).offsets[0]
    partition.append(message(10, value=b"s"))
    partition.cut_power(random.randrange)
    partition.open()

    assert offset == kept
    assert partition.rows()[kept].value == b"short"
    assert partition.store.end in (kept + 1, kept + 2)
    assert not partition.store.faults


def test_a_frame_published_inside_a_message_is_not_taken_for_a_witness():
    inner = one_group()
    inner.kill()
    frames = inner.files()[FIRST][64:]
    partition = Partition()
    partition.publish(message(0))
    partition.append(message(1, value=frames))
    partition.kill()
    files = rotten(partition.files(), 1, HEADER)

    store = open_store(disk_of(files))

    assert inner.store.log_id == LOG_ID, "the frames inside are of the same log"
    assert sorted(rows_of(store)[0]) == [0]


def test_rot_before_a_tail_to_be_settled_does_not_keep_the_log_from_being_read():
    partition = Partition(index_every_bytes=1 << 20)
    partition.fill(range(3))
    partition.restart()
    partition.fill(range(3, 5))
    partition.kill()
    files = rotten(partition.files(), 1, HEADER)
    partition.folder = disk_of(files)

    rows, refused = rows_of(partition.open())

    assert (sorted(rows), refused) == ([0, 2, 3, 4], {1})


# Damage that takes no offset


def behind_a_sealed_segment(garbage: bytes) -> tuple[Files, Files]:
    partition = Partition()
    partition.fill(range(3), roll=True)
    partition.fill(range(3, 8))
    partition.close()
    files = partition.files()
    return files, files | {FIRST: files[FIRST] + garbage}


def test_garbage_behind_a_sealed_segment_hides_nothing_of_the_next():
    files, damaged = behind_a_sealed_segment(b"\x55" * 4096)
    folder = disk_of(damaged)

    store = open_store(folder)

    assert rows_of(store)[0] == rows_of(open_store(disk_of(files)))[0]
    assert store.faults
    assert files_of(folder) == damaged


def test_accepting_garbage_behind_a_sealed_segment_loses_no_message():
    files, damaged = behind_a_sealed_segment(b"\x55" * 4096)
    folder = disk_of(damaged)

    accept_loss(open_store(folder))
    store = open_store(folder.reopen())

    assert rows_of(store) == rows_of(open_store(disk_of(files)))
    assert segment_name(3) in files_of(folder)


def test_a_survey_tells_of_garbage_in_the_file_that_has_it(tmp_path):
    _, damaged = behind_a_sealed_segment(b"\x55" * 4096)
    for name, data in damaged.items():
        (tmp_path / name).write_bytes(data)

    with ReadOnlyFolder(tmp_path) as folder:
        for survey in (look(folder), check(folder, advance=lambda _: None)):
            assert [segment.file.name for segment, _ in survey.damage] == [FIRST]
