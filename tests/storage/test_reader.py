"""Reading by offset and by append time, also while segments are swapped underneath."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.kit.disk import SimulatedFolder
from tests.storage.stores import (
    FIRST,
    Partition,
    batch_of,
    message,
    offsets,
    open_store,
    stored,
)
from waterclock.log.batch import encode_batch
from waterclock.log.frame import Frame
from waterclock.model.errors import OffsetOutOfRange
from waterclock.model.limits import Limits
from waterclock.storage.folders.folder import Folder
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.rewrite import Wanted, rewrites

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def bases(frames: list[Frame]) -> list[int]:
    return [frame.header.base_offset for frame in frames]


@pytest.fixture
def partition() -> Partition:
    """Three batches of three, and a batch of its own in a second segment."""
    partition = Partition()
    for start in (0, 3, 6):
        partition.publish(*map(message, range(start, start + 3)))
    partition.roll()
    partition.publish(*map(message, range(9, 12)))
    return partition


# By offset


@pytest.mark.parametrize(
    ("offset", "first"), [(0, 0), (1, 0), (2, 0), (3, 3), (8, 6), (9, 9), (11, 9)]
)
def test_reading_starts_with_the_frame_that_holds_the_offset(partition, offset, first):
    assert bases(partition.store.read(offset)) == list(range(first, 12, 3))


def test_reading_at_the_end_finds_nothing_yet(partition):
    assert partition.store.read(12) == []


@pytest.mark.parametrize("offset", [-1, 13, 1 << 40])
def test_an_offset_outside_the_log_is_refused(partition, offset):
    with pytest.raises(OffsetOutOfRange) as refused:
        partition.store.read(offset)

    assert (refused.value.offset, refused.value.start, refused.value.end) == (offset, 0, 12)


def test_an_offset_below_the_start_is_refused(partition):
    partition.rewrite(keep_from=9)
    partition.clock.advance(partition.dedup.window_ms + 1)
    partition.publish(message(99))
    partition.rewrite(keep_from=9)

    assert partition.store.start == 9
    with pytest.raises(OffsetOutOfRange, match=r"8 is outside the log \[9, 13\)"):
        partition.store.read(8)


def test_reading_returns_as_many_whole_frames_as_fit_and_at_least_one(partition):
    size = partition.store.read(0)[0].header.size

    counts = [len(partition.store.read(0, bytes_max=most)) for most in (0, 1, size, 2 * size, 9999)]

    assert counts == [1, 1, 1, 2, 4]


def test_nothing_unacknowledged_is_shown_by_any_way_of_reading(partition):
    now = partition.clock.now_ms()
    partition.clock.advance(5)
    partition.append(message(50))

    assert bases(partition.store.read(9)) == [9]
    assert partition.store.read(12) == []
    assert partition.store.offset_at(now + 1) == 12
    with pytest.raises(OffsetOutOfRange):
        partition.store.read(13)


def test_frames_are_handed_out_as_they_lie_in_the_file(partition):
    frames = list(partition.store.frames(0, 9))

    segment = next(iter(partition.files().items()))[1]
    name = partition.store.segments[0].file.name
    assert b"".join(frame.raw for frame in frames) == partition.files()[name][64:]
    assert segment


def test_what_is_in_reach_lies_in_few_frames_and_few_bytes():
    partition = Partition()
    for number in range(4):
        partition.publish(message(number, value=bytes(4_096)))
    reach = partition.store.reader.reach

    assert reach(offsets(0, 1, 2, 3), frames_max=9, bytes_max=8_192) == 2
    assert reach(offsets(0, 1, 2, 3), frames_max=9, bytes_max=1) == 1
    assert reach(offsets(0, 1, 2, 3), frames_max=3, bytes_max=1 << 30) == 3
    assert reach(offsets(2, 3, 77), frames_max=9, bytes_max=1 << 30) == 3


# By time


def brute_offset_at(store: PartitionStore, append_ms: int) -> int:
    later = [f.header.base_offset for f in store.frames(0) if f.header.append_ms >= append_ms]
    return min(later, default=store.acknowledged_end)


@pytest.mark.parametrize("seed", range(8))
def test_an_append_time_is_found_even_if_the_clock_has_stepped_back(seed):
    random = Random(seed)
    partition = Partition(index_every_bytes=random.choice([1, 3_000]))
    start = partition.clock.now_ms()
    for number in range(30):
        partition.publish(message(number))
        partition.clock.step(random.choice([0, 1, 1, 50, 400, -30, -500]))
        if random.random() < 0.2:
            partition.roll()
    partition.roll()

    for open_again in (lambda: partition.store, partition.restart):
        store = open_again()
        for append_ms in range(start - 10, store.log_time_ms + 10, 7):
            assert store.offset_at(append_ms) == brute_offset_at(store, append_ms), append_ms


def test_an_append_time_is_found_in_front_of_an_empty_segment_begun_after_a_step_back():
    partition = Partition()
    start = partition.clock.now_ms()
    partition.fill([0], roll=True)
    for number in (1, 2, 3):
        partition.clock.advance(1_000)
        partition.fill([number])
    partition.clock.step(-1_000_000)
    partition.roll()

    assert partition.store.offset_at(start + 2_500) == 3


# While segments change


def long_log(folder: Folder) -> PartitionStore:
    """Five segments of three messages each, those of even numbers scheduled messages for later."""
    store = open_store(folder)
    for number in range(15):
        due = 5_000 if number % 2 == 0 else None
        store.append(batch_of([message(number, due_ms=due)], 1_000), now_ms=1_000)
        if number % 3 == 2:
            store.roll(1_000)
    store.sync()
    return store


def rewrite(store: PartitionStore, *, now_ms: int = 1_000) -> None:
    for job in rewrites(store, Wanted(keep_from=store.end), now_ms=now_ms):
        job.run()
        job.finish()


Folders = Callable[[Path], Folder]


@pytest.fixture(params=[lambda _: SimulatedFolder(), lambda path: OsFolder(path / "log")])
def store(request, tmp_path) -> PartitionStore:
    return long_log(request.param(tmp_path))


def test_a_reader_goes_on_while_segments_are_rewritten(store):
    frames = store.frames(0)
    first = next(frames)

    rewrite(store)
    rest = [offset for frame in frames for offset, row in stored(frame).items()]

    assert list(stored(first)) == [0]
    assert rest[:2] == [1, 2], "the segment it was in is read as it was"
    assert set(rest[2:]) == {4, 6, 8, 10, 12, 14}, "later ones as they are"
    store.close()


def test_a_reader_overtaken_by_retention_is_told_where_the_log_starts_now(store):
    scheduled, _ = store.open_scheduled()
    store.cancel(scheduled, now_ms=1_000)
    frames = store.frames(0)
    for _ in range(3):
        next(frames)

    rewrite(store, now_ms=1_000)
    store.append(batch_of([message(99)], 10_000_000), now_ms=10_000_000)
    store.sync()
    rewrite(store, now_ms=10_000_000)

    assert store.start > 3
    with pytest.raises(OffsetOutOfRange, match=f"outside the log .{store.start}, "):
        next(frames)
    store.close()


def test_frames_stay_readable_after_their_segment_was_rewritten_removed_and_closed(store):
    frames = list(store.frames(0))
    raw = [bytes(frame.raw) for frame in frames]
    scheduled, _ = store.open_scheduled()
    store.cancel(scheduled, now_ms=1_000)

    rewrite(store)
    store.append(batch_of([message(99)], 10_000_000), now_ms=10_000_000)
    store.sync()
    rewrite(store, now_ms=10_000_000)
    store.close()

    assert [bytes(frame.raw) for frame in frames] == raw


# Ids


def test_ids_are_confirmed_without_inflating_the_rest_of_a_frame():
    partition = Partition()
    now = partition.clock.now_ms()
    messages = [message(n, value=bytes(10_000)) for n in range(20)]
    batch = encode_batch(messages, Limits(), now_ms=now, compression="zstd")
    partition.store.append(batch, now_ms=now)
    # Damage shows what is read.
    segment = bytes(partition.store.segments[0].view())
    partition.folder.flip(FIRST, segment.rindex(ZSTD_MAGIC), 0)

    found = partition.store.reader.has_ids(offsets(3, 19, 0), [b"id-3", b"id-19", b"id-1"])

    assert found.tolist() == [True, True, False]


def test_ids_in_a_frame_that_lost_rows_are_confirmed():
    partition = Partition()
    now = partition.clock.now_ms()
    partition.publish(*(message(n, due_ms=now + 1_000) for n in range(6)))
    partition.store.cancel(offsets(0, 2), now_ms=now)
    partition.roll()
    partition.rewrite(keep_from=partition.store.end)

    found = partition.store.reader.has_ids(offsets(1, 2, 3), [b"id-1", b"id-2", b"id-4"])

    assert found.tolist() == [True, False, False]


def test_ids_of_messages_that_are_gone_come_with_the_frame_before_them_also_at_the_end():
    partition = Partition()
    partition.publish(*map(message, range(3)))
    partition.publish(*map(message, range(3, 6)))
    partition.roll()
    partition.rewrite(keep_from=6)
    store = partition.store
    kinds = ["NOOP", "SEEN"]

    assert (store.end, store.segments[-1].is_empty) == (6, True)
    assert [frame.header.type.name for frame in store.frames(0)] == kinds
    assert [frame.header.type.name for frame in store.read(0, bytes_max=1)] == kinds
    assert [*store.frames(6)] == []
    partition.publish(message(9))
    assert [frame.header.type.name for frame in store.frames(0)] == [*kinds, "DATA"]
    assert [frame.header.type.name for frame in store.read(0, bytes_max=1)] == kinds
    assert [frame.header.type.name for frame in store.frames(0, 6)] == kinds
