"""What is due fires, in order, never early, whatever happens to clock, disk and process."""

import asyncio

import pytest

from tests.node.timed_partition import TimedPartition, ran
from tests.storage.stores import message
from waterclock.log.schema import decode
from waterclock.model.errors import StorageFailed
from waterclock.model.message import Message
from waterclock.model.sections import ScheduleConfig
from waterclock.node.schedule.scheduler import ALREADY_FIRED, CANCELLED, DONE, EXPIRED, UNKNOWN


@pytest.fixture
def partition():
    partition = TimedPartition()
    yield partition
    assert partition.pending() == partition.scheduled()


def later(partition: TimedPartition, *delays_ms: int) -> list[int]:
    """Publish a message for each delay; return the offsets."""
    now = partition.clock.now_ms()
    start = partition.store.end
    return partition.publish(
        *[message(start + i, due_ms=now + delay) for i, delay in enumerate(delays_ms)]
    )


def test_what_is_due_fires_in_order_of_due_time_and_offset(partition):
    a, b, c, d = later(partition, 3_000, 1_000, 3_000, 2_000)

    assert partition.fire() == []
    partition.clock.advance(3_000)
    assert partition.fire() == [b, d, a, c]
    assert len(partition.scheduler) == 0


def test_nothing_fires_before_its_tick_has_come(partition):
    (offset,) = later(partition, 1_001)

    partition.clock.advance(1_099)
    assert partition.fire() == []
    partition.clock.advance(1)
    assert partition.fire() == [offset]


def test_a_moment_that_comes_between_looking_and_sleeping_is_not_slept_through(partition):
    (offset,) = later(partition, 1_000)
    assert partition.fire() == []
    partition.clock.advance(1_000)

    ran(partition.scheduler._sleep())

    assert partition.scheduler._wakes_at == 0, "it went to sleep though something was due"
    assert partition.fire() == [offset]


def test_a_clock_set_back_holds_what_was_due(partition):
    (offset,) = later(partition, 1_000)
    partition.clock.advance(2_000)
    partition.clock.step(-5_000)

    assert partition.fire() == []
    partition.clock.advance(4_000)
    assert partition.fire() == [offset]


def test_a_rescheduled_message_fires_with_the_due_time_it_has_now(partition):
    now = partition.clock.now_ms()
    (offset,) = later(partition, 1_000)

    assert partition.reschedule((offset, now + 500)) == [DONE]
    partition.clock.advance(500)
    start = partition.store.end
    assert partition.fire() == [offset]

    (frame,) = partition.store.frames(start)
    assert decode(frame.header, frame.body).column("due_ms").to_pylist() == [now + 500]
    assert (frame.header.min_due_ms, frame.header.max_due_ms) == (now + 500, now + 500)


def test_the_last_of_several_new_due_times_holds(partition):
    now = partition.clock.now_ms()
    a, b = later(partition, 1_000, 1_000)
    moves = [(a, now + 100), (b, now + 200), (a, now + 300), (b, now + 400), (b, now + 500)]

    assert partition.reschedule(*moves) == [DONE] * 5

    assert partition.pending() == {a: now + 300, b: now + 500}


def test_a_cancelled_scheduled_message_never_fires(partition):
    a, b = later(partition, 1_000, 1_000)

    assert partition.cancel(a, a) == [DONE, DONE]
    partition.clock.advance(5_000)
    assert partition.fire() == [b]


def test_a_cancel_says_what_became_of_each(partition):
    a, b = later(partition, 1_000, 9_000)
    (plain,) = partition.publish(message(99))
    partition.clock.advance(1_000)
    partition.fire()

    assert partition.cancel(a, b, plain, 12_345) == [ALREADY_FIRED, DONE, ALREADY_FIRED, UNKNOWN]
    assert partition.cancel(b) == [CANCELLED]
    assert partition.reschedule((b, 5_000), (a, 5_000)) == [CANCELLED, ALREADY_FIRED]


def test_a_cancel_sent_again_after_a_restart_is_told_that_it_was_done(partition):
    partition.save()
    (offset,) = later(partition, 1_000)
    partition.cancel(offset)

    partition.kill()

    assert partition.cancel(offset) == [CANCELLED]


def test_an_answered_cancel_survives_a_power_cut(partition):
    (offset,) = later(partition, 1_000)
    partition.cancel(offset)

    partition.cut_power()

    partition.clock.advance(5_000)
    assert partition.fire() == []


def test_an_expired_message_is_not_fired(partition):
    now = partition.clock.now_ms()
    expiry = {"wc-expires-ms": b"%d" % (now + 2_000)}
    late = Message(b"late", message_id=b"l", headers=expiry, due_ms=now + 1_000)
    a, b = partition.publish(late, message(1, due_ms=now + 1_000))

    partition.clock.advance(2_000)

    assert partition.fire() == [b]
    assert partition.counters.expired == 1
    assert partition.counters.fired == 1
    assert partition.cancel(a) == [EXPIRED]
    partition.kill()
    assert partition.reschedule((a, now + 9_000)) == [EXPIRED]


def test_a_message_that_may_expire_fires_in_time(partition):
    now = partition.clock.now_ms()
    expiry = {"wc-expires-ms": b"%d" % (now + 1_001)}
    partition.publish(Message(b"x", message_id=b"l", headers=expiry, due_ms=now + 1_000))

    partition.clock.advance(1_000)

    start = partition.store.end
    assert partition.fire() == [0]
    (frame,) = partition.store.frames(start)
    assert frame.header.may_expire


def test_a_storm_is_fired_in_slices_and_in_order():
    partition = TimedPartition(ScheduleConfig(fire_messages_max=7))
    offsets = later(partition, *[1_000 + i * 37 % 50 for i in range(100)])
    partition.clock.advance(2_000)

    slices = 0
    while partition.scheduler.firing.fire_slice():
        slices += 1
    partition.flush()

    due = [1_000 + i * 37 % 50 for i in range(100)]
    assert partition.fired_from(100) == sorted(offsets, key=lambda o: (due[o], o))
    assert slices >= 14


def test_large_messages_are_fired_a_few_at_once(partition):
    now = partition.clock.now_ms()
    big = bytes(5 << 20)
    for n in range(4):
        partition.publish(message(n, value=big, due_ms=now + 1_000))
    partition.clock.advance(1_000)

    assert partition.fire() == [0, 1, 2, 3]

    frames = [f for f in partition.store.frames(4) if f.header.type.name == "FIRED"]
    assert [frame.header.rows for frame in frames] == [1, 1, 1, 1]


def test_lateness_is_counted(partition):
    later(partition, 1_000, 1_000, 1_500)
    partition.clock.advance(1_540)

    partition.fire()

    lateness = partition.counters.lateness_ms
    assert lateness.count == 3
    assert lateness.total == 540 + 540 + 40


def test_restart_after_any_downtime_fires_all_that_is_overdue_in_order(partition):
    a, b, c = later(partition, 86_400_000, 1_000, 3_600_000)

    partition.restart()
    partition.clock.advance(10 * 86_400_000)

    assert partition.fire() == [b, c, a]


def test_a_full_disk_holds_firing_and_loses_nothing(partition, caplog):
    (offset,) = later(partition, 1_000)
    partition.clock.advance(1_000)
    partition.log_folder.capacity_bytes = 0

    assert partition.fire() == []
    assert partition.fire() == []
    assert [r.getMessage().split()[0] for r in caplog.records] == ["firing_held"]

    partition.log_folder.capacity_bytes = None
    assert partition.fire() == [offset]


def test_a_failed_disk_stops_firing_for_good(partition):
    later(partition, 1_000)
    partition.clock.advance(1_000)
    partition.log_folder.fail_next_write()

    with pytest.raises(StorageFailed):
        partition.fire()
    partition.kill()


async def test_the_task_fires_what_is_scheduled_while_it_sleeps(partition):
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(partition.scheduler.run())
        await asyncio.sleep(0)
        later(partition, 1_000)
        partition.clock.advance(1_000)
        partition.scheduler.wake()
        for _ in range(1_000):
            await asyncio.sleep(0)
        running.cancel()
    partition.flush()
    assert partition.fired_from(0) == [0]
