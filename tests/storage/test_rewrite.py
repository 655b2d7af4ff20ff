"""Retention and compaction on disk: what may go goes, offsets keep their meaning, a crash is fine.

Scheduled messages and ids, which outlive their segments, have test files of their own.
"""

from random import Random

import pytest

from tests.kit.disk import SimulatedFolder, keep_all, lose_all
from tests.storage.stores import FIRST, SIDECARS, WINDOW_MS, Partition, message, offsets, stored
from waterclock.log.segment import segment_name
from waterclock.model.errors import FrameDamaged, PartitionFaulty, StorageFailed
from waterclock.model.ids import Epoch
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig, RetentionConfig
from waterclock.model.units import KIB, SECOND_MS
from waterclock.storage.rewrite import Wanted, retained_from, rewrites

LARGE = b"large enough for a rewrite to be worth it" * 20


def segments(partition: Partition) -> list[int]:
    return [segment.base_offset for segment in partition.store.segments]


def assert_dense(partition: Partition) -> None:
    """Frames follow each other without a gap, from the start to the end."""
    end = partition.store.start
    for frame in partition.store.frames(end):
        assert frame.header.base_offset == end
        end = frame.header.end_offset
    assert end == partition.store.acknowledged_end


@pytest.fixture
def partition() -> Partition:
    """Four closed segments of three messages, ten seconds apart, and an open one."""
    partition = Partition()
    for start in range(0, 12, 3):
        partition.publish(*[message(n, value=LARGE) for n in range(start, start + 3)])
        partition.roll()
        partition.clock.advance(10 * SECOND_MS)
    partition.publish(message(12))
    return partition


def test_allowed_repeats_leave_nothing_that_outgrows_retention():
    partition = Partition(dedup=DedupConfig(window_ms=WINDOW_MS, ids_max=20))
    for start in range(0, 300, 10):
        numbers = range(start, start + 10)
        partition.publish(*map(message, numbers), allow_duplicate=True)
        partition.roll()
        partition.rewrite(keep_from=keep(partition, RetentionConfig(bytes=8 * KIB)))

    store = partition.store
    assert sum(segment.end_position for segment in store.segments) <= 8 * KIB
    assert store.ids is not None
    assert len(store.ids.untracked) <= 20
    partition.restart()
    assert partition.store.ids is not None
    assert len(partition.store.ids.untracked) <= 20


# What retention asks for


def keep(partition: Partition, config: RetentionConfig, **facts: int | None) -> int:
    consumed: int | None = facts.pop("consumed_end", None)
    now = partition.clock.now_ms()
    below = facts.get("below") or 0
    return retained_from(partition.store, config, now_ms=now, consumed_end=consumed, below=below)


def test_retention_by_age_takes_whole_segments_older_than_that(partition):
    ages = [5, 10, 20, 35, 60]

    kept = [keep(partition, RetentionConfig(age_ms=age * SECOND_MS)) for age in ages]

    assert kept == [12, 9, 6, 3, 0]


def test_retention_by_size_takes_the_oldest_until_the_rest_fits(partition):
    size = partition.store.segments[0].end_position
    active = partition.store.segments[-1].end_position

    limits = [4 * KIB, active + 2 * size - 1, active + 2 * size, active + 4 * size]
    kept = [keep(partition, RetentionConfig(bytes=limit)) for limit in limits]

    assert kept == [9, 9, 6, 0]


def test_retention_by_offset_takes_whole_segments_below_it(partition):
    kept = [keep(partition, RetentionConfig(), below=below) for below in (0, 2, 3, 8, 12, 99)]

    assert kept == [0, 0, 3, 6, 12, 12]


def test_retention_waits_for_those_who_have_not_read_it(partition):
    old = RetentionConfig(age_ms=5 * SECOND_MS)

    kept = [keep(partition, old, consumed_end=end) for end in (0, 2, 3, 7, 13, None)]

    assert kept == [0, 0, 3, 6, 12, 12]


def test_without_a_reason_everything_is_kept(partition):
    assert keep(partition, RetentionConfig()) == 0
    assert keep(partition, RetentionConfig(), consumed_end=13) == 0


# What a rewrite leaves


def test_messages_below_go_and_the_rest_keeps_its_offsets(partition):
    before = partition.rows()

    freed = partition.rewrite(keep_from=6)

    assert freed > 4_000
    assert partition.rows() == {offset: row for offset, row in before.items() if offset >= 6}
    assert_dense(partition)
    assert partition.store.end == 13


def test_a_segment_that_is_only_half_below_is_left_alone(partition):
    files = partition.files()

    partition.rewrite(keep_from=5)

    assert sorted(partition.rows()) == list(range(3, 13))
    assert partition.files()[segment_name(3)] == files[segment_name(3)]


def test_a_rewrite_that_frees_nothing_changes_nothing(partition):
    partition.rewrite(keep_from=12)
    files = partition.files()

    assert partition.rewrite(keep_from=12) == 0
    assert partition.files() == files


def test_segments_that_hold_nothing_any_more_are_removed_with_their_side_cars(partition):
    partition.rewrite(keep_from=12)
    assert segments(partition) == [0, 3, 6, 9, 12]
    partition.clock.advance(WINDOW_MS)
    partition.publish(message(13))

    partition.rewrite(keep_from=12)

    assert segments(partition) == [12]
    assert partition.store.start == 12
    endings = (".seg", *SIDECARS)
    assert [name for name in partition.files() if name.endswith(endings)] == [segment_name(12)]


def test_epoch_and_time_of_the_log_outlive_its_messages():
    partition = Partition()
    partition.store.begin_epoch(Epoch(5), now_ms=partition.clock.now_ms())
    partition.publish(message(0))
    partition.clock.advance(WINDOW_MS + 1)
    partition.publish(message(1, value=LARGE))
    log_time = partition.store.log_time_ms
    partition.store.ids = None  # so that not even ids are left

    partition.roll()
    partition.rewrite(keep_from=3)
    partition.rewrite(keep_from=3)
    partition.clock.step(-3_600_000)

    assert partition.rows() == {}
    for again in (partition.restart, partition.restart):
        store = again()
        assert (store.epoch, store.log_time_ms, store.end) == (5, log_time, 3)
    assert partition.publish(message(7)).offsets[0] == 3
    assert next(iter(partition.store.frames(3))).header.append_ms == log_time


def test_the_middle_of_a_log_is_hollow_until_the_start_is():
    partition = Partition()
    later = partition.clock.now_ms() + 5
    partition.publish(message(0, due_ms=later))
    partition.roll()
    partition.publish(message(1, value=LARGE))
    partition.roll()
    partition.clock.advance(WINDOW_MS + 1)
    partition.publish(message(2))

    partition.rewrite(keep_from=2)
    hollow = segments(partition)
    partition.store.fire(offsets(0), now_ms=partition.clock.now_ms())
    partition.rewrite(keep_from=2)

    assert hollow == [0, 1, 2]
    assert segments(partition) == [2]
    assert partition.restart().start == 2
    assert partition.scheduled() == {}


# By key


def keyed(number: int, key: bytes | None, *, is_tombstone: bool = False) -> Message:
    value = None if is_tombstone else b"%d " % number + LARGE
    return Message(value, key=key, message_id=b"id-%d" % number)


def test_compaction_keeps_the_latest_of_each_key_and_all_without_one():
    partition = Partition()
    keys = [b"a", b"b", b"a", None, b"b", b"c", b"a", None]
    for number, key in enumerate(keys):
        partition.publish(keyed(number, key))
        if number % 3 == 2:
            partition.roll()
    partition.roll()
    partition.publish(keyed(8, b"c"))

    partition.rewrite(keep_from=0, by_key=True)
    assert sorted(partition.rows()) == list(range(9)), "nothing below what must be kept"
    partition.rewrite(keep_from=8, by_key=True)

    assert sorted(partition.rows()) == [3, 4, 6, 7, 8]
    assert_dense(partition)
    partition.restart()
    assert sorted(partition.rows()) == [3, 4, 6, 7, 8]


def test_a_tombstone_stays_for_its_grace_and_its_key_is_gone_after_it():
    partition = Partition()
    partition.publish(keyed(0, b"a"), keyed(1, b"b"))
    partition.publish(keyed(2, b"a", is_tombstone=True), keyed(3, b"b"))
    partition.roll()
    grace = {"by_key": True, "tombstone_grace_ms": 10 * SECOND_MS}

    partition.clock.advance(10 * SECOND_MS)
    partition.rewrite(keep_from=4, **grace)
    within = sorted(partition.rows())
    partition.clock.advance(1)
    partition.publish(keyed(4, b"b"))
    partition.roll()
    partition.rewrite(keep_from=5, **grace)

    assert within == [2, 3]
    assert sorted(partition.rows()) == [4]
    assert_dense(partition)


# When something goes wrong


def test_a_power_cut_while_a_segment_is_removed_is_not_taken_for_a_loss(partition):
    partition.rewrite(keep_from=12)
    partition.clock.advance(WINDOW_MS)
    partition.publish(message(13))
    crashed: list[SimulatedFolder] = []

    def crash(name: str) -> None:
        crashed.extend(partition.folder.crash(Random(seed).randrange) for seed in range(5))

    partition.folder.on_sync = crash
    partition.rewrite(keep_from=12)

    starts = {Partition(folder).store.start for folder in crashed}
    assert starts == {0, 3, 6, 9, 12}


def test_a_power_cut_at_any_moment_leaves_the_log_as_it_was_or_as_it_will_be():
    """Every sync of a pass is a moment; after each, the disk may keep all, nothing or a part."""
    partition = Partition()
    for start in range(0, 9, 3):
        due = partition.clock.now_ms() + 50
        partition.publish(*[message(start + i, value=LARGE, due_ms=due) for i in range(3)])
        partition.roll()
    partition.store.cancel(offsets(0, 4, 5), now_ms=partition.clock.now_ms())
    partition.store.fire(offsets(1, 8), now_ms=partition.clock.now_ms())
    partition.flush()
    before, scheduled = partition.rows(), partition.scheduled()
    crashed: list[SimulatedFolder] = []

    def keep_half(count: int) -> int:
        return (count - 1) // 2

    def crash(name: str) -> None:
        crashed.extend(map(partition.folder.crash, (lose_all, keep_half, keep_all)))

    partition.folder.on_sync = crash
    partition.rewrite(keep_from=9)
    partition.folder.on_sync = None
    after = partition.rows()

    assert len(crashed) > 30
    for folder in crashed:
        survivor = Partition(folder)
        assert not survivor.store.faults
        assert survivor.scheduled() == scheduled
        assert before.items() >= survivor.rows().items() >= after.items()
        assert_dense(survivor)
        assert list(survivor.publish(message(4)).offsets) == [4]


def test_rot_met_by_a_rewrite_stops_it_and_the_segment_stays(partition):
    position = 64 + 72 + 500
    partition.folder.flip(FIRST, position, 0)
    files = partition.files()

    with pytest.raises(FrameDamaged, match=FIRST):
        partition.rewrite(keep_from=12)
    with pytest.raises(PartitionFaulty):
        partition.rewrite(keep_from=12)

    assert {n: d for n, d in partition.files().items() if not n.endswith(".tmp")} == files
    partition.kill()
    partition.open()
    assert not [name for name in partition.files() if name.endswith(".tmp")]


def test_a_rewrite_whose_fsync_fails_leaves_the_old_segment_in_use(partition):
    rows = partition.rows()
    jobs = rewrites(partition.store, Wanted(keep_from=12), now_ms=partition.clock.now_ms())  # type: ignore[arg-type]
    job = next(jobs)
    partition.folder.fail_next_sync()
    with pytest.raises(StorageFailed):
        job.run()

    partition.cut_power()
    partition.open()

    assert partition.rows() == rows


def test_a_rewrite_run_elsewhere_takes_effect_when_the_owner_finishes_it(partition):
    rows = partition.rows()
    jobs = rewrites(partition.store, Wanted(keep_from=12), now_ms=partition.clock.now_ms())  # type: ignore[arg-type]
    job = next(jobs)

    job.run()
    old = partition.folder.durable_bytes(FIRST)
    partition.publish(message(20))
    unchanged = {o: row for o, row in partition.rows().items() if o < 13}
    job.finish()

    assert unchanged == rows
    assert old != partition.folder.durable_bytes(FIRST) == partition.files()[FIRST], "it is durable"
    assert sorted(partition.rows()) == [*range(3, 14)]
    assert partition.store.segments[0].header.generation == 1
    assert {o for f in partition.store.frames(0, 3) for o in stored(f)} == set()
