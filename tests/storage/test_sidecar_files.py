"""Side-cars save time and nothing else: whatever is wrong with them, the log is the same."""

from collections.abc import Callable
from functools import cache

import pytest

from tests.kit.disk import SimulatedFolder
from tests.storage.stores import (
    FIRST,
    LOG_ID,
    SIDECARS,
    Partition,
    disk_of,
    files_of,
    flipped,
    message,
    offsets,
    open_store,
    rows_of,
)
from waterclock.log.segment import segment_name
from waterclock.storage.opening import open_partition

Files = dict[str, bytes]
SECOND = segment_name(5)


def written() -> Partition:
    """Two closed segments and an open one, with messages, scheduled messages and what became of
    them."""
    partition = Partition()
    now = partition.clock.now_ms()
    partition.publish(*[message(n, due_ms=now + 50 if n > 2 else None) for n in range(5)])
    partition.roll()
    partition.publish(*[message(n, due_ms=now + 60 if n > 7 else None) for n in range(5, 10)])
    partition.store.cancel(offsets(3), now_ms=now)
    partition.roll()
    partition.store.reschedule(offsets(4, 9), offsets(now + 7, now + 8), now_ms=now)
    partition.publish(message(12))
    return partition


@cache
def _closed() -> Files:
    partition = written()
    partition.close()
    return partition.files()


@pytest.fixture
def files() -> Files:
    return dict(_closed())


def sidecars(name: str) -> list[str]:
    return [name.replace(".seg", ending) for ending in SIDECARS]


def facts(folder: SimulatedFolder) -> tuple[object, ...]:
    """Return all a side-car could change: rows, scheduled messages, known ids, and what is found by
    time."""
    partition = Partition(folder)
    assert not partition.store.faults
    repeats = partition.append(*map(message, range(14)))
    store = partition.store
    by_time = [store.offset_at(frame.header.append_ms) for frame in store.frames(store.start)]
    return rows_of(store)[0], partition.scheduled(), list(repeats.offsets), by_time


Spoil = Callable[[bytes], bytes]
SPOILS: dict[str, Spoil] = {
    "a bit of the header": lambda data: flipped(data, 30),
    "a bit of the body": lambda data: flipped(data, len(data) - 1),
    "cut": lambda data: data[:-8],
    "cut to nothing": lambda data: b"",
    "longer": lambda data: data + bytes(8),
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=list(SPOILS))
@pytest.mark.parametrize("ending", SIDECARS)
def test_a_damaged_side_car_changes_nothing(files, ending, spoil):
    damaged = {n: spoil(d) if n.endswith(ending) else d for n, d in files.items()}

    assert facts(disk_of(damaged)) == facts(disk_of(files))


@pytest.mark.parametrize("ending", [*SIDECARS, SIDECARS])
def test_a_missing_side_car_of_a_closed_segment_is_made_again_as_it_was(files, ending):
    left = {name: data for name, data in files.items() if not name.endswith(ending)}
    folder = disk_of(left)

    open_store(folder)

    made = files_of(folder)
    for name in (*sidecars(FIRST), *sidecars(SECOND)):
        assert made[name] == files[name]


def test_side_cars_that_disagree_are_not_believed(files):
    """One of the three is of an earlier moment, as a crash between two renames leaves it."""
    partition = written()
    partition.store.close()
    earlier = files_of(partition.folder)
    partition.folder = disk_of(earlier)
    partition.open()
    partition.publish(message(13))
    partition.close()
    later = partition.files()
    last = partition.store.segments[-1].file.name

    for name in sidecars(last):
        mixed = later | {name: earlier[name]}
        assert facts(disk_of(mixed)) == facts(disk_of(later))


def test_side_cars_of_before_a_rewrite_are_not_believed():
    partition = Partition()
    due = partition.clock.now_ms() + 5
    partition.publish(*[message(n, value=b"v" * 500, due_ms=due) for n in range(5)])
    partition.roll()
    partition.store.cancel(offsets(0, 1, 2), now_ms=partition.clock.now_ms())
    partition.flush()
    stale = {name: data for name, data in partition.files().items() if name in sidecars(FIRST)}
    partition.rewrite(keep_from=5)
    partition.close()
    fresh = partition.files()

    assert facts(disk_of(fresh | stale)) == facts(disk_of(fresh))


def test_side_cars_of_another_log_are_not_believed(files):
    folder = SimulatedFolder()
    other = open_partition(
        folder,
        log=written().log,
        dedup=written().dedup,
        now_ms=1,
        new_log_id=bytes(reversed(LOG_ID)),
    )
    other.close()
    partition = Partition(folder.reopen())
    now = partition.clock.now_ms()
    partition.publish(*[message(20 + n, due_ms=now + 9 if n > 2 else None) for n in range(5)])
    partition.roll()
    strange = {name: partition.files()[name] for name in sidecars(FIRST)}

    assert facts(disk_of(files | strange)) == facts(disk_of(files))


def test_side_cars_speak_of_durable_frames_only():
    """A checkpoint is taken when an fsync begins, and saved when it has succeeded."""
    partition = Partition(checkpoint_every_bytes=1)
    partition.append(message(0))
    jobs: list[int] = []

    def append_meanwhile(name: str) -> None:
        partition.folder.on_sync = None
        partition.append(message(1))
        jobs.append(len(partition.store.jobs))

    partition.folder.on_sync = append_meanwhile
    partition.flush()
    partition.store.run_jobs()

    assert jobs == [0]
    partition.cut_power()
    assert {*sidecars(FIRST)} <= partition.files().keys()
    assert partition.open().end == 1
    assert not partition.store.faults


def test_a_crash_while_side_cars_are_saved_changes_nothing(files):
    partition = written()
    wanted = facts(disk_of(partition.files()))
    crashed: list[SimulatedFolder] = []
    partition.folder.on_sync = lambda _: crashed.append(partition.folder.crash())

    partition.close()

    assert len(crashed) > 4
    for folder in crashed[1:]:  # the first is cut before the fsync of the log itself
        assert facts(folder) == wanted
