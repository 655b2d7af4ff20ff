"""Cold timers stay where they lie: in sealed segments, through rewrites, restarts and lies."""

import pytest

from tests.node.timed_partition import TimedPartition, ran
from tests.storage.stores import files_of, flipped, message
from waterclock.model.sections import ScheduleConfig
from waterclock.node.schedule.scheduler import DONE
from waterclock.schedule import cold_timers
from waterclock.storage.rewrite import Wanted, rewrites

DAY_MS = 86_400_000
SCHEDULE = ScheduleConfig(hot_window_ms=10_000)


@pytest.fixture
def partition():
    partition = TimedPartition(SCHEDULE)
    yield partition
    assert partition.pending() == partition.scheduled()
    partition.scheduler.timers.check_invariants()


def schedule(partition: TimedPartition, *delays_ms: int) -> list[int]:
    now, start = partition.clock.now_ms(), partition.store.end
    messages = [message(start + i, due_ms=now + delay) for i, delay in enumerate(delays_ms)]
    return partition.publish(*messages)


def seal(partition: TimedPartition) -> None:
    """Seal the segment and let the scheduler take it in."""
    partition.store.roll(partition.clock.now_ms())
    partition.store.run_jobs()
    ran(partition.scheduler.tend())


def rewrite(partition: TimedPartition) -> None:
    store = partition.store
    for job in rewrites(store, Wanted(keep_from=store.end), now_ms=partition.clock.now_ms()):
        job.run()
        job.finish()


def in_memory(partition: TimedPartition) -> int:
    """How many cold timers are in the overflow."""
    return len(partition.scheduler.timers.cold._overflow)


def test_cold_timers_leave_memory_when_their_segment_is_sealed(partition):
    schedule(partition, 5_000, DAY_MS, 2 * DAY_MS)
    assert in_memory(partition) == 2

    seal(partition)

    assert in_memory(partition) == 0
    assert len(partition.scheduler) == 3


def test_what_nears_is_loaded_and_fires_in_order_with_what_came_later(partition):
    a, b = schedule(partition, DAY_MS, DAY_MS + 500)
    seal(partition)
    partition.clock.advance(DAY_MS - 4_000)
    ran(partition.scheduler.tend())
    (c,) = schedule(partition, 4_200)

    partition.clock.advance(5_000)

    assert partition.fire() == [a, c, b]


def test_nothing_overtakes_what_is_still_to_be_loaded(partition):
    (sooner,) = schedule(partition, 9_000)
    (later,) = schedule(partition, 10_500)
    now = partition.clock.now_ms()
    partition.reschedule((sooner, now + 11_000))
    seal(partition)
    partition.reschedule((sooner, now + 9_900))
    partition.reschedule((later, now + 10_100))

    partition.clock.step(DAY_MS)
    start = partition.store.end
    while partition.scheduler.firing.fire_slice():
        pass
    partition.flush()
    assert partition.fired_from(start) in ([], [sooner])
    partition.fire()
    assert partition.fired_from(start) == [sooner, later]


def test_cold_timers_are_cancelled_and_moved_where_they_lie(partition):
    now = partition.clock.now_ms()
    a, b, c, d = schedule(partition, DAY_MS, DAY_MS, DAY_MS, DAY_MS)
    seal(partition)

    assert partition.cancel(b) == [DONE]
    assert partition.reschedule((c, now + 2_000), (d, now + 3 * DAY_MS)) == [DONE, DONE]

    assert partition.pending() == {a: now + DAY_MS, c: now + 2_000, d: now + 3 * DAY_MS}
    seal(partition)
    assert partition.pending() == {a: now + DAY_MS, c: now + 2_000, d: now + 3 * DAY_MS}
    assert in_memory(partition) == 0
    partition.clock.advance(3 * DAY_MS)
    assert partition.fire() == [c, a, d]


def test_a_scheduled_message_moved_again_and_again_is_where_it_was_moved_last(partition):
    now = partition.clock.now_ms()
    (a,) = schedule(partition, DAY_MS)
    for days in (2, 3, 2, 5):
        seal(partition)
        partition.reschedule((a, now + days * DAY_MS))
        assert partition.pending() == {a: now + days * DAY_MS}
    seal(partition)
    partition.kill()

    assert partition.pending() == {a: now + 5 * DAY_MS}


def test_a_rewritten_segment_keeps_its_cold_timers(partition):
    now = partition.clock.now_ms()
    a, b, c, d = schedule(partition, DAY_MS, DAY_MS, DAY_MS, DAY_MS)
    partition.reschedule((d, now + 2 * DAY_MS))
    seal(partition)
    partition.reschedule((c, now + 2 * DAY_MS))
    seal(partition)
    partition.cancel(a, c)

    rewrite(partition)
    ran(partition.scheduler.tend())

    assert partition.pending() == {b: now + DAY_MS, d: now + 2 * DAY_MS}
    partition.scheduler.timers.check_invariants()
    rewrite(partition)  # what ended them may go now, and segments become hollow
    ran(partition.scheduler.tend())
    assert partition.pending() == {b: now + DAY_MS, d: now + 2 * DAY_MS}


def saved_and_rewritten(partition: TimedPartition) -> dict[int, int]:
    """Save, then change the log behind the checkpoint's back; return what is pending."""
    now = partition.clock.now_ms()
    a, b, c, d = schedule(partition, DAY_MS, DAY_MS, 2 * DAY_MS, 3 * DAY_MS)
    seal(partition)
    partition.save()
    partition.cancel(a, b)
    rewrite(partition)
    return {c: now + 2 * DAY_MS, d: now + 3 * DAY_MS}


def test_a_checkpoint_of_a_segment_that_was_rewritten_is_not_believed(partition):
    pending = saved_and_rewritten(partition)

    partition.kill()

    assert partition.pending() == pending


def test_a_checkpoint_is_used_and_what_came_after_it_is_folded_in(partition):
    now = partition.clock.now_ms()
    a, b, c = schedule(partition, DAY_MS, DAY_MS, DAY_MS)
    seal(partition)
    partition.save()
    d, e = schedule(partition, DAY_MS, 4_000)
    partition.cancel(a)
    seal(partition)
    partition.reschedule((b, now + 2 * DAY_MS))

    partition.kill()

    day = now + DAY_MS
    assert partition.pending() == {b: now + 2 * DAY_MS, c: day, d: day, e: now + 4_000}


def test_a_checkpoint_is_trusted_where_it_is_true():
    partition = TimedPartition(SCHEDULE)
    schedule(partition, DAY_MS, DAY_MS)
    seal(partition)
    partition.save()
    segments = partition.scheduler._segments

    partition.kill()

    assert partition.scheduler._segments is not segments
    assert partition.scheduler._segments.is_saved


@pytest.mark.parametrize("damage", ["gone", "flipped", "cut", "of another log"])
def test_without_a_sound_checkpoint_the_log_tells_all(partition, damage):
    now = partition.clock.now_ms()
    a, b = schedule(partition, DAY_MS, DAY_MS)
    partition.cancel(a)
    seal(partition)
    partition.save()
    (data,) = files_of(partition.timer_folder).values()
    if damage == "of another log":
        other = TimedPartition(SCHEDULE)
        schedule(other, DAY_MS, DAY_MS)
        seal(other)
        other.save()
        (data,) = files_of(other.timer_folder).values()
        data = data[:16] + bytes(16) + data[32:]
    changed = {"flipped": flipped(data, 70), "cut": data[:-1]}.get(damage, data)
    partition.timer_folder.remove("timers")
    if damage != "gone":
        file = partition.timer_folder.create("timers")
        file.write(0, [changed])

    partition.kill()

    assert partition.pending() == {b: now + DAY_MS}
    assert not partition.scheduler._segments.is_saved


def test_a_full_disk_only_costs_the_checkpoint(partition, caplog):
    schedule(partition, DAY_MS)
    seal(partition)
    partition.timer_folder.capacity_bytes = 0

    partition.save()
    partition.restart()

    assert len(partition.scheduler) == 1
    assert "timers_not_saved" in caplog.text


@pytest.mark.parametrize("pauses", range(1, 7))
def test_a_node_that_stops_while_a_segment_is_taken_in_forgets_nothing(
    partition, monkeypatch, pauses
):
    monkeypatch.setattr(cold_timers, "STEP_ROWS", 1)
    now = partition.clock.now_ms()
    a, b, c, d = schedule(partition, DAY_MS, DAY_MS, DAY_MS, DAY_MS)
    seal(partition)
    partition.save()
    partition.reschedule((b, now + 2 * DAY_MS), (c, now + 2 * DAY_MS))
    partition.cancel(d)
    (e,) = schedule(partition, DAY_MS)
    partition.store.roll(now)
    partition.store.run_jobs()
    tending = partition.scheduler.tend()
    for _ in range(pauses):
        tending.send(None)
    tending.close()

    partition.restart()

    day, later = now + DAY_MS, now + 2 * DAY_MS
    assert partition.pending() == {a: day, b: later, c: later, e: day}
