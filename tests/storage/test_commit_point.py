"""A replicated log shows its readers what is committed; what is only flushed here waits for it."""

import asyncio

import pytest

from tests.storage.stores import Partition, message, offsets
from tests.storage.test_flush_queue import Kit
from waterclock.model.errors import Closed


def test_no_way_of_reading_shows_what_is_flushed_and_not_committed():
    partition = Partition()
    partition.store.commit(0)
    partition.fill(range(4), roll=True)
    partition.fill(range(4, 6))
    store = partition.store

    assert (store.flushed_end, store.acknowledged_end, partition.rows()) == (6, 0, {})
    store.commit(3)
    assert [frame.header.base_offset for frame in store.frames(0)] == [0, 1, 2]
    assert [frame.header.base_offset for frame in store.read(2)] == [2]
    assert store.offset_at(1 << 50) == 3
    store.commit(9)
    assert (len(partition.rows()), store.acknowledged_end) == (6, 6)


def test_a_repeat_of_what_is_not_committed_is_no_safer_than_it():
    partition = Partition()
    partition.store.commit(0)
    partition.publish(message(1))

    again = partition.publish(message(1))

    assert (again.new_count, again.durable_at) == (0, 1)
    assert partition.store.acknowledged_end < again.durable_at


def test_a_cancel_that_may_still_be_undone_costs_no_scheduled_message():
    partition = Partition()
    partition.store.commit(0)
    now = partition.clock.now_ms()
    partition.publish(message(0, due_ms=now + 500), message(1, due_ms=now + 600))
    partition.roll()
    partition.store.commit(2)
    partition.store.cancel(offsets(0), now_ms=now)
    partition.flush()
    before = partition.files()

    partition.rewrite(keep_from=2)
    assert partition.files() == before
    partition.store.commit(3)
    partition.rewrite(keep_from=2)

    assert partition.files() != before


async def test_who_waits_is_answered_when_it_is_committed(tmp_path):
    kit = Kit(tmp_path)
    kit.store.commit(0)
    end = kit.append()
    waiting = asyncio.ensure_future(kit.queue.wait_flushed(end))
    kit.store.sync()
    kit.queue.request_flush()
    for _ in range(3):
        await asyncio.sleep(0)
    is_early = waiting.done()
    kit.store.commit(end)
    kit.queue.request_flush()
    await waiting
    kit.close()

    assert not is_early


async def test_who_waits_for_a_commit_when_the_log_is_closed_is_not_acknowledged(tmp_path):
    kit = Kit(tmp_path)
    kit.store.commit(0)
    waiting = asyncio.ensure_future(kit.queue.wait_flushed(kit.append()))
    await asyncio.sleep(0)
    kit.close()

    with pytest.raises(Closed):
        await waiting
