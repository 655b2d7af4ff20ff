"""Writing at the end of the log: what is acknowledged when, where segments end, how it fails.

A failed fsync is final: nothing it covered counts until it was written and fsynced once more, by
the next process ("fsyncgate").
"""

from contextlib import suppress

import pytest

from tests.kit.disk import keep_all, lose_all
from tests.storage.stores import FIRST, Partition, message, places
from waterclock.log.segment import segment_name
from waterclock.model.errors import BadInput, StorageFailed
from waterclock.model.ids import Epoch
from waterclock.model.units import SECOND_MS
from waterclock.storage import segment_file
from waterclock.storage.partition_store import PartitionStore


def ends(store: PartitionStore) -> tuple[int, int, int]:
    """Return how far the log is written, acknowledged and durable."""
    return store.end, store.acknowledged_end, store.flushed_end


# Policies


def test_group_shows_nothing_before_it_is_durable():
    partition = Partition()
    partition.append(message(0))

    before = ends(partition.store), partition.store.read(0)
    partition.flush()

    assert before == ((1, 0, 0), [])
    assert ends(partition.store) == (1, 1, 1)
    assert partition.values() == [b"value 0"]


def test_appends_during_a_group_fsync_share_the_next():
    partition = Partition()
    partition.append(message(0))
    syncs = partition.folder.counters.syncs
    first = partition.store.begin_sync(partition.clock.now_ms())
    assert first is not None

    for number in range(1, 21):
        partition.append(message(number))
        assert partition.store.begin_sync(partition.clock.now_ms()) is None
    first.run()
    partition.store.finish_sync(first)
    after_first = ends(partition.store)
    partition.flush()

    assert after_first == (21, 1, 1)
    assert ends(partition.store) == (21, 21, 21)
    assert partition.folder.counters.syncs == syncs + 2


def test_what_is_written_while_an_fsync_runs_is_not_covered_by_it():
    partition = Partition()
    partition.append(message(0))

    def append_meanwhile(name: str) -> None:
        partition.append(message(1))

    partition.folder.on_sync = append_meanwhile
    sync = partition.store.begin_sync(partition.clock.now_ms())
    assert sync is not None
    sync.run()
    partition.folder.on_sync = None
    partition.store.finish_sync(sync)

    assert ends(partition.store) == (2, 1, 1)
    partition.cut_power()
    assert partition.open().end == 1


def test_always_is_durable_when_append_returns():
    partition = Partition(fsync="always")
    syncs = partition.folder.counters.syncs

    for number in range(5):
        partition.append(message(number))
        assert ends(partition.store) == (number + 1,) * 3

    assert partition.folder.counters.syncs == syncs + 5
    assert partition.store.begin_sync(partition.clock.now_ms()) is None
    partition.cut_power()
    partition.open()
    assert len(partition.values()) == 5


def test_interval_acknowledges_at_once_and_is_durable_after_the_interval():
    partition = Partition(fsync="interval", fsync_interval_ms=100)
    partition.append(message(0))
    partition.flush()
    partition.append(message(1))

    partition.clock.advance(99)
    partition.flush()
    early = ends(partition.store), partition.values()
    partition.clock.advance(1)
    partition.flush()

    assert early == ((2, 2, 1), [b"value 0", b"value 1"])
    assert ends(partition.store) == (2, 2, 2)


def test_interval_loses_an_interval_to_a_power_cut_and_nothing_to_a_crash_of_the_process():
    partition = Partition(fsync="interval")
    partition.append(message(0))
    partition.flush()
    partition.append(message(1))

    lost = partition.folder.crash(lose_all)
    partition.kill()
    partition.open()

    assert partition.values() == [b"value 0", b"value 1"]
    partition.folder = lost
    partition.open()
    assert partition.values() == [b"value 0"]


def test_an_append_is_one_write():
    partition = Partition()
    now = partition.clock.now_ms()
    before = partition.folder.counters.writes

    partition.append(message(0), message(1, due_ms=now + 9), message(2))

    assert partition.folder.counters.writes == before + 1
    assert partition.store.end == 3


# When the disk fails


def fail_group(partition: Partition) -> None:
    sync = partition.store.begin_sync(partition.clock.now_ms())
    assert sync is not None
    try:
        sync.run()
    except StorageFailed as error:
        partition.store.finish_sync(sync, error)
        raise


def fail_sync(partition: Partition) -> None:
    partition.store.sync()


def fail_roll(partition: Partition) -> None:
    partition.roll()


def fail_unheard(partition: Partition) -> None:
    """Fail an fsync on its thread; its owner is yet to hear of it."""
    sync = partition.store.begin_sync(partition.clock.now_ms())
    assert sync is not None
    with suppress(StorageFailed):
        sync.run()


def fail_sync_unheard(partition: Partition) -> None:
    fail_unheard(partition)
    partition.store.sync()


def fail_roll_unheard(partition: Partition) -> None:
    fail_unheard(partition)
    partition.roll()


def fail_close(partition: Partition) -> None:
    partition.store.close()
    partition.folder = partition.folder.reopen()


@pytest.mark.parametrize("drop", [True, False], ids=["pages lost", "pages kept"])
@pytest.mark.parametrize(
    "fail", [fail_group, fail_sync, fail_roll, fail_sync_unheard, fail_roll_unheard, fail_close]
)
def test_after_a_failed_fsync_the_next_process_loses_nothing_it_acknowledges(fail, drop):
    partition = Partition()
    partition.publish(message(0))
    partition.append(message(1))
    partition.folder.fail_next_sync(drop=drop)
    with pytest.raises(StorageFailed):
        fail(partition)

    partition.kill()
    partition.open()
    acknowledged = partition.store.acknowledged_end
    partition.publish(message(2))
    partition.cut_power()
    partition.open()

    assert acknowledged == 2
    assert partition.values() == [b"value 0", b"value 1", b"value 2"]


def test_a_failed_fsync_while_opening_is_settled_by_the_next_opening():
    partition = Partition()
    partition.append(message(0))
    partition.kill()
    partition.folder.fail_next_sync()
    with pytest.raises(StorageFailed):
        partition.open()

    partition.kill()
    partition.open()
    partition.cut_power()
    partition.open()

    assert partition.values() == [b"value 0"]


@pytest.mark.parametrize(
    "fail", [fail_group, fail_sync, fail_roll, fail_sync_unheard, fail_roll_unheard]
)
def test_after_a_failed_fsync_nothing_is_written_and_reads_go_on(fail):
    partition = Partition()
    partition.publish(message(0))
    partition.append(message(1))
    partition.folder.fail_next_sync()
    with pytest.raises(StorageFailed):
        fail(partition)
    writes = partition.folder.counters.writes

    for attempt in (
        lambda: partition.append(message(2)),
        lambda: partition.roll(),
        lambda: partition.store.sync(),
        lambda: partition.store.begin_sync(partition.clock.now_ms()),
    ):
        with pytest.raises(StorageFailed, match="restart the node"):
            attempt()

    assert partition.values() == [b"value 0"]
    partition.store.close()
    assert partition.folder.counters.writes == writes


@pytest.mark.parametrize("after_bytes", [0, 1, 72, 100, 600, 10_000])
def test_a_failed_write_leaves_nothing_behind(after_bytes):
    partition = Partition()
    partition.publish(message(0))
    partition.folder.fail_next_write(after_bytes=after_bytes)
    with pytest.raises(StorageFailed):
        partition.append(message(1))
    with pytest.raises(StorageFailed, match="restart the node"):
        partition.append(message(2))

    for choose in (keep_all, lose_all):
        survivor = Partition(partition.folder.crash(choose))
        assert survivor.values() == [b"value 0"]
        assert survivor.publish(message(1)).offsets[0] == 1
    partition.kill()
    assert partition.open().end == 1


# Where segments end


def test_a_segment_ends_before_it_grows_over_its_size():
    partition = Partition(segment_bytes=4096)
    for number in range(40):
        partition.append(message(number, value=b"v" * 300))
    partition.close()

    sizes = {n: len(d) for n, d in partition.files().items() if n.endswith(".seg")}
    assert len(sizes) > 5
    assert max(sizes.values()) <= 4096
    partition.open()
    assert len(partition.values()) == 40


def test_a_batch_larger_than_a_segment_has_one_of_its_own():
    partition = Partition(segment_bytes=4096)
    for number in range(3):
        partition.publish(message(number, value=b"v" * 9_000))

    assert [s.base_offset for s in partition.store.segments] == [0, 1, 2]
    assert [len(v or b"") for v in partition.values()] == [9_000] * 3


def test_a_segment_ends_at_its_age():
    partition = Partition(segment_age_ms=10 * SECOND_MS)
    partition.publish(message(0))
    partition.clock.advance(10 * SECOND_MS - 1)
    partition.publish(message(1))
    partition.clock.advance(1)
    partition.publish(message(2))

    assert [s.base_offset for s in partition.store.segments] == [0, 2]


def test_a_segment_ends_before_its_offsets_outgrow_a_side_car(monkeypatch):
    monkeypatch.setattr(segment_file, "SPAN_MAX", 4)
    partition = Partition()

    for start in range(0, 9, 3):
        partition.publish(*map(message, range(start, start + 3)))

    assert [s.base_offset for s in partition.store.segments] == [0, 3, 6]


def test_the_parts_of_a_mixed_batch_share_a_segment():
    partition = Partition(segment_bytes=4096)
    later = partition.clock.now_ms() + 9
    partition.publish(message(0, value=b"v" * 2_000))
    partition.publish(message(1, value=b"v" * 500), message(2, value=b"v" * 500, due_ms=later))

    assert [s.base_offset for s in partition.store.segments] == [0, 1]


def test_a_sealed_segment_is_durable_to_its_last_byte_before_the_next_is_begun():
    partition = Partition()
    partition.append(message(0))
    partition.store.roll(partition.clock.now_ms())

    on_disk = partition.folder.durable_bytes(FIRST)

    assert on_disk is not None
    assert [header.base_offset for _, header in places(on_disk)] == [0]
    assert on_disk == partition.files()[FIRST]
    assert partition.folder.durable_bytes(segment_name(1)) is not None
    assert ends(partition.store) == (1, 1, 1)


# Time and epochs


def test_append_times_never_step_back_even_over_a_restart():
    partition = Partition()
    first = partition.clock.now_ms()
    partition.publish(message(0))
    partition.clock.step(-5_000)
    partition.publish(message(1))
    partition.restart()
    partition.publish(message(2))
    partition.clock.step(6_000)
    partition.publish(message(3))

    times = [frame.header.append_ms for frame in partition.store.frames(0)]
    assert times == [first, first, first, first + 1_000]
    assert partition.store.log_time_ms == first + 1_000


def test_epochs_only_increase_and_outlive_a_restart():
    partition = Partition()
    now = partition.clock.now_ms()
    partition.store.begin_epoch(Epoch(3), now_ms=now)
    partition.publish(message(0))

    for stale in (3, 2, 0):
        with pytest.raises(BadInput, match=f"epoch {stale} is not after 3"):
            partition.store.begin_epoch(Epoch(stale), now_ms=now)
    assert partition.store.end == 2

    assert partition.restart().epoch == 3
    partition.kill()
    assert partition.open().epoch == 3
    assert partition.store.begin_epoch(Epoch(4), now_ms=now) == 3
    partition.flush()
    assert [frame.header.epoch for frame in partition.store.frames(0)] == [3, 3, 4]
