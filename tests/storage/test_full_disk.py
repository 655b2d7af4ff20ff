"""A full disk refuses and forgets nothing; once there is room again, everything goes on."""

from collections.abc import Callable

import pytest

from tests.kit.disk import SimulatedFolder
from tests.storage.stores import (
    FIRST,
    SIDECARS,
    WINDOW_MS,
    Partition,
    disk_of,
    message,
    offsets,
    open_store,
    rows_of,
)
from waterclock.log.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from waterclock.log.segment import segment_name
from waterclock.model.errors import StorageFull
from waterclock.model.ids import Epoch
from waterclock.storage.recovery_point import NAME as RECOVERY_POINT


def fill_up(partition: Partition, *, room: int = 0) -> None:
    """Leave so many bytes of the disk."""
    used = sum(len(data) for data in partition.files().values())
    partition.folder.capacity_bytes = used + room


def free(partition: Partition) -> None:
    partition.folder.capacity_bytes = None


@pytest.fixture
def partition() -> Partition:
    """Three messages and a scheduled message; what was allocated ahead is used up."""
    partition = Partition(preallocate_bytes=0)
    partition.fill(range(3))
    partition.publish(message(3, due_ms=partition.clock.now_ms() + 500))
    return partition


class CrampedFolder(SimulatedFolder):
    """A folder whose directory has no room for another name, as some file systems have it."""

    is_cramped = False

    def rename(self, old: str, new: str) -> None:
        if self.is_cramped:
            raise StorageFull(f"rename {old}: no room")
        super().rename(old, new)


Attempt = Callable[[Partition], object]

ATTEMPTS: dict[str, Attempt] = {
    "append": lambda p: p.append(message(9)),
    "append of a batch": lambda p: p.append(message(9), message(10, due_ms=1 << 42)),
    "fire": lambda p: p.store.fire(offsets(3), now_ms=p.clock.now_ms()),
    "cancel": lambda p: p.store.cancel(offsets(3), now_ms=p.clock.now_ms()),
    "reschedule": lambda p: p.store.reschedule(
        offsets(3), offsets(1 << 42), now_ms=p.clock.now_ms()
    ),
    "epoch": lambda p: p.store.begin_epoch(Epoch(7), now_ms=p.clock.now_ms()),
}


@pytest.mark.parametrize("room", [0, 1, 71, 100])
@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=list(ATTEMPTS))
def test_what_does_not_fit_changes_nothing_and_works_when_there_is_room(partition, attempt, room):
    before = partition.rows(), partition.scheduled(), partition.store.end
    fill_up(partition, room=min(room, 71) if attempt is ATTEMPTS["epoch"] else room)

    for _ in range(2):
        with pytest.raises(StorageFull):
            attempt(partition)
        assert (partition.rows(), partition.scheduled(), partition.store.end) == before
        assert partition.store.epoch == 0
    free(partition)
    attempt(partition)
    partition.flush()

    assert partition.store.end > before[2]
    after = partition.rows(), partition.scheduled(), partition.store.epoch
    partition.cut_power()
    partition.open()
    assert (partition.rows(), partition.scheduled(), partition.store.epoch) == after


def test_an_id_that_did_not_fit_is_new_when_it_comes_again(partition):
    fill_up(partition)
    with pytest.raises(StorageFull):
        partition.append(message(9))
    with pytest.raises(StorageFull):
        partition.append(message(9), message(10))
    free(partition)

    answer = partition.publish(message(9), message(10), message(0))

    assert answer.is_new is not None
    assert answer.is_new.tolist() == [True, True, False]


def test_repeats_are_answered_on_a_full_disk(partition):
    fill_up(partition)

    assert list(partition.append(message(1)).offsets) == [1]
    assert list(partition.append(message(2), message(0)).offsets) == [2, 0]


def test_a_time_that_was_never_written_does_not_count_as_the_logs(partition):
    """Else ids would leave the window early when the clock steps back."""
    then = partition.store.log_time_ms
    fill_up(partition)
    partition.clock.step(WINDOW_MS + 1)
    with pytest.raises(StorageFull):
        partition.append(message(9))
    partition.clock.step(-WINDOW_MS - 1)
    free(partition)

    assert partition.store.log_time_ms == then
    assert list(partition.publish(message(0)).offsets) == [0]


def test_preallocation_gives_way_to_a_message_that_just_fits():
    partition = Partition(preallocate_bytes=4096)
    partition.publish(message(0, value=b"v" * 2_500))
    fill_up(partition, room=2_500)

    partition.publish(message(1, value=b"v" * 2_000))

    assert len(partition.values()) == 2


# Space is reserved by the first frame of a segment


def size_of(partition: Partition, base: int) -> int:
    return len(partition.files()[segment_name(base)])


def test_a_log_without_messages_takes_a_header_and_no_more():
    partition = Partition(preallocate_bytes=32 << 20)

    assert size_of(partition, 0) == SEGMENT_HEADER_BYTES
    partition.close()
    partition.open()
    assert size_of(partition, 0) == SEGMENT_HEADER_BYTES


def test_what_is_reserved_doubles_until_it_is_what_was_configured():
    partition = Partition(segment_bytes=8 << 20, preallocate_bytes=1 << 20)
    sizes = set()
    for number in range(40):
        partition.publish(message(number, value=b"v" * 100_000))
        sizes.add(size_of(partition, 0))

    assert sorted(sizes) == [128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 3 << 20, 4 << 20]


def test_a_first_message_that_does_not_fit_is_refused_before_it_is_written_and_fits_later():
    partition = Partition(preallocate_bytes=4096)
    fill_up(partition)

    with pytest.raises(StorageFull):
        partition.append(message(0))
    assert size_of(partition, 0) == SEGMENT_HEADER_BYTES
    free(partition)
    partition.publish(message(0))

    assert len(partition.values()) == 1


def test_space_reserved_by_an_earlier_release_for_nothing_is_given_back_when_it_is_opened():
    partition = Partition()
    partition.close()
    files = partition.files()
    files[FIRST] += bytes(1 << 20)
    partition.folder = disk_of(files)
    partition.open()

    assert size_of(partition, 0) == SEGMENT_HEADER_BYTES
    partition.publish(message(0))
    partition.cut_power()
    partition.open()
    assert len(partition.values()) == 1


# At the end of a segment


def test_a_segment_that_cannot_be_begun_leaves_the_old_one_in_use():
    partition = Partition(segment_bytes=4096, preallocate_bytes=1024)
    partition.fill(range(5))
    fill_up(partition)

    for _ in range(2):
        with pytest.raises(StorageFull):
            partition.append(message(9))
    full = partition.files()
    free(partition)
    partition.publish(message(9))

    assert segment_name(5) + ".tmp" not in full
    assert [s.base_offset for s in partition.store.segments] == [0, 5]
    partition.cut_power()
    partition.open()
    assert len(partition.values()) == 6


def test_a_log_that_could_not_roll_is_opened_again_and_goes_on():
    partition = Partition(segment_bytes=4096, preallocate_bytes=1024)
    partition.fill(range(5))
    fill_up(partition)
    with pytest.raises(StorageFull):
        partition.append(message(9))
    partition.kill()

    partition.open()
    free(partition)
    partition.publish(message(9))

    assert len(partition.values()) == 6


# Side-cars and the recovery point


@pytest.mark.parametrize("room", range(0, 600, 40))
def test_side_cars_without_room_are_done_without(room):
    partition = Partition(preallocate_bytes=2048)
    partition.fill(range(3))
    partition.store.roll(partition.clock.now_ms())
    partition.publish(message(3))  # the first of a segment reserves room for the next
    fill_up(partition, room=room)

    partition.store.run_jobs()
    partition.publish(message(4))
    partition.close()

    assert not [name for name in partition.files() if name.endswith(".tmp")]
    partition.folder = disk_of(partition.files())
    partition.open()
    assert len(partition.values()) == 5
    assert list(partition.publish(message(1)).offsets) == [1]


# Opening


def test_a_log_that_cannot_be_begun_leaves_an_empty_folder():
    folder = SimulatedFolder(capacity_bytes=40)
    with pytest.raises(StorageFull):
        open_store(folder)

    folder = folder.reopen()
    assert folder.names() == ["LOCK"]
    folder.capacity_bytes = None
    assert open_store(folder).end == 0


@pytest.mark.parametrize("is_torn", [False, True])
def test_a_full_disk_is_opened_and_read_whatever_is_missing_beside_the_segments(is_torn):
    partition = Partition()
    partition.fill(range(3), roll=True)
    partition.fill(range(3, 5))
    partition.append(message(5))
    partition.kill()
    files = partition.files()
    if is_torn:
        files[segment_name(3)] = files[segment_name(3)][: 64 + 2 * 712 + 100]
    gone = (*SIDECARS, RECOVERY_POINT)
    partition.folder = disk_of({n: d for n, d in files.items() if not n.endswith(gone)})
    fill_up(partition)

    rows, refused = rows_of(partition.open())

    assert sorted(rows) == list(range(5 if is_torn else 6))
    assert not refused
    assert list(partition.append(message(4)).offsets) == [4]
    free(partition)
    partition.publish(message(7))
    assert partition.store.acknowledged_end == len(rows) + 1


# Rewriting


@pytest.mark.parametrize("room", [0, 64, 100, 1_000])
def test_a_rewrite_without_room_leaves_the_segment_as_it_was(room):
    partition = Partition()
    due = partition.clock.now_ms() + 500
    partition.publish(*[message(n, due_ms=due if n % 2 else None) for n in range(40)])
    partition.roll()
    rows = partition.rows()
    fill_up(partition, room=room)
    before = partition.files()

    for _ in range(2):
        with pytest.raises(StorageFull):
            partition.rewrite(keep_from=40)
        assert partition.files() == before
        assert partition.rows() == rows
    free(partition)
    partition.publish(message(50))
    freed = partition.rewrite(keep_from=40)

    assert freed > 0
    assert sorted(partition.rows()) == [o for o in rows if rows[o].kind == "SCHEDULED"] + [40]
    assert list(partition.publish(message(0)).offsets) == [0]


@pytest.mark.parametrize("room", range(2_000, 3_300, 100))
def test_a_rewrite_with_room_for_itself_needs_none_for_its_side_cars(room):
    partition = Partition()
    due = partition.clock.now_ms() + 500
    partition.publish(*[message(n, due_ms=due) for n in range(8)], message(8))
    partition.roll()
    partition.store.fire(offsets(1, 2, 3, 4), now_ms=partition.clock.now_ms())
    partition.flush()
    fill_up(partition, room=room)

    partition.rewrite(keep_from=9)
    free(partition)
    kept = partition.rows(), partition.scheduled()
    partition.restart()

    assert (partition.rows(), partition.scheduled()) == kept
    assert list(kept[1]) == [5, 6, 7, 8]
    assert FIRST in partition.files()


# Renaming


def test_a_directory_without_room_for_a_name_is_a_full_disk_too():
    folder = CrampedFolder()
    partition = Partition(folder)
    partition.fill(range(3))
    folder.is_cramped = True

    for _ in range(2):
        with pytest.raises(StorageFull):
            partition.roll()
        assert not [name for name in partition.files() if name.endswith(".tmp")]
    folder.is_cramped = False
    partition.store.roll(partition.clock.now_ms())
    folder.is_cramped = True
    partition.store.run_jobs()
    assert not [name for name in partition.files() if name.endswith(".tmp")]
    for _ in range(2):
        with pytest.raises(StorageFull):
            partition.rewrite(keep_from=3)
        assert not [name for name in partition.files() if name.endswith(".tmp")]
        assert len(partition.values()) == 3
    folder.is_cramped = False

    assert partition.rewrite(keep_from=3) > 0
    assert list(partition.publish(message(3), message(1)).offsets) == [3, 1]
