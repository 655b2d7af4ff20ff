"""An open partition as a whole: how it shows itself, and how it ends."""

import pytest

from tests.storage.stores import FIRST, Partition, message, offsets, places
from waterclock.model.errors import Closed, FrameDamaged, StorageFailed
from waterclock.model.ids import Epoch


def test_a_store_tells_people_what_it_is():
    partition = Partition()
    partition.fill(range(2), roll=True)
    fine = repr(partition.store)
    partition.folder.fail_next_sync()
    with pytest.raises(StorageFailed):
        partition.store.sync()

    assert fine == "<PartitionStore [0, 2) 2 segments, ok>"
    assert "simulated failure" in repr(partition.store)
    partition.kill()
    position, _ = places(partition.files()[FIRST])[0]
    partition.folder.flip(FIRST, position + 100, 0)
    partition.open()
    with pytest.raises(FrameDamaged, match=FIRST):
        partition.store.read(0)
    assert repr(partition.store) == "<PartitionStore [0, 2) 2 segments, faulty>"


def test_a_closed_store_takes_nothing_and_closing_again_is_harmless():
    partition = Partition()
    partition.fill(range(2))
    partition.store.close()
    now = partition.clock.now_ms()

    for attempt in (
        lambda: partition.append(message(2)),
        lambda: partition.store.fire(offsets(0), now_ms=now),
        lambda: partition.store.cancel(offsets(0), now_ms=now),
        lambda: partition.store.reschedule(offsets(0), offsets(5), now_ms=now),
        lambda: partition.store.begin_epoch(Epoch(9), now_ms=now),
        lambda: partition.store.roll(now),
        lambda: partition.store.sync(),
        lambda: partition.store.read(0),
    ):
        with pytest.raises(Closed):
            attempt()
    partition.store.close()

    partition.folder = partition.folder.reopen()
    assert partition.open().end == 2


def test_an_empty_segment_is_not_rolled():
    partition = Partition()
    partition.roll()

    assert len(partition.store.segments) == 1


def test_closing_flushes_and_lets_the_folder_go():
    partition = Partition()
    partition.append(message(0))

    partition.close()
    partition.cut_power()
    partition.open()

    assert partition.values() == [b"value 0"]


def test_a_store_that_failed_lets_the_folder_go_without_another_word():
    partition = Partition()
    partition.append(message(0))
    partition.folder.fail_next_sync()
    with pytest.raises(StorageFailed):
        partition.store.sync()
    files = partition.files()

    partition.close()

    assert partition.files() == files
    partition.open()


def test_a_clean_stop_leaves_nothing_to_read_or_to_settle_for_the_next_opening():
    partition = Partition()
    partition.fill(range(5), roll=True)
    partition.fill(range(5, 8))
    partition.close()
    counters = partition.folder.counters
    before = counters.writes, counters.syncs

    partition.open()

    assert (counters.writes, counters.syncs) == before
    assert partition.store.flushed_end == 8
