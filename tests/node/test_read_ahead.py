"""Messages are read before they fire, in small steps, around damage and within bounds."""

import pytest

import waterclock.node.schedule.read_ahead as read_ahead
from tests.node.timed_partition import TimedPartition, int64s, ran
from tests.storage.stores import FIRST, message, places
from waterclock.node.schedule.firing import MISSES_MAX
from waterclock.node.schedule.read_ahead import ReadAhead

FRAME_ROWS = 100


def schedule(partition: TimedPartition, frames: int) -> list[int]:
    """Publish frames of messages that are due soon; return their offsets."""
    due = partition.clock.now_ms() + 1_000
    offsets: list[int] = []
    for _ in range(frames):
        start = partition.store.end
        numbers = range(start, start + FRAME_ROWS)
        offsets += partition.publish(*(message(n, due_ms=due) for n in numbers))
    return offsets


def steps_of(awaited) -> int:
    """Run something that only gives others a turn; return how often it did."""
    running = awaited.__await__()
    return sum(1 for _ in running)


@pytest.fixture
def partition() -> TimedPartition:
    return TimedPartition()


def test_what_is_read_ahead_is_not_read_again(partition):
    offsets = int64s(schedule(partition, 2))
    ahead = ReadAhead(partition.store, partition.scheduler.timers.is_open)

    ran(ahead.read(offsets))

    rows = [row for *_, found in ahead.rows(offsets) for row in found.tolist()]
    assert sorted(rows) == offsets.tolist()
    assert ahead.misses == 0


def test_rot_is_left_to_whoever_fires_and_the_rest_is_read(partition, monkeypatch):
    monkeypatch.setattr(read_ahead, "STEP_ROWS", FRAME_ROWS)
    offsets = int64s(schedule(partition, 3))
    _, position = [place for place, _ in places(partition.store.segments[0].view())][:2]
    partition.log_folder.flip(FIRST, position + 200, 0)
    ahead = ReadAhead(partition.store, partition.scheduler.timers.is_open)

    ran(ahead.read(offsets))

    assert repr(ahead) == f"<ReadAhead {2 * FRAME_ROWS} messages>"


def test_rot_under_what_fires_next_holds_the_partition_and_no_more(partition, caplog):
    schedule(partition, 2)
    position, _ = places(partition.store.segments[0].view())[0]
    partition.log_folder.flip(FIRST, position + 200, 0)

    ran(partition.scheduler.firing.read_ahead())
    partition.clock.advance(1_000)

    assert partition.fire() == []
    assert "firing_held" in caplog.text
    assert len(partition.scheduler) == 2 * FRAME_ROWS


def test_offsets_that_are_gone_from_the_log_are_passed_over(partition):
    offsets = schedule(partition, 1)
    ahead = ReadAhead(partition.store, lambda offsets: offsets >= 0)

    ran(ahead.read(int64s([*offsets, *range(5_000, 5_100)])))


def test_no_step_decodes_more_than_its_bytes_and_a_frame(partition, monkeypatch):
    offsets = int64s(schedule(partition, 8))
    few = offsets[:: FRAME_ROWS // 10]
    at_once = steps_of(ReadAhead(partition.store, partition.scheduler.timers.is_open).read(few))
    monkeypatch.setattr(read_ahead, "STEP_DECODED_BYTES", 1)
    ahead = ReadAhead(partition.store, partition.scheduler.timers.is_open)

    steps = steps_of(ahead.read(few))

    assert steps == at_once + 7
    assert repr(ahead) == "<ReadAhead 80 messages>"


def test_much_that_is_scheduled_for_soon_is_read_though_all_before_it_was(partition):
    scheduler = partition.scheduler
    schedule(partition, 2)
    ran(scheduler.firing.read_ahead())

    schedule(partition, MISSES_MAX // FRAME_ROWS)
    ran(scheduler.firing.read_ahead())
    assert repr(scheduler.firing._ahead) == f"<ReadAhead {2 * FRAME_ROWS} messages>"

    schedule(partition, 1)
    ran(scheduler.firing.read_ahead())
    assert repr(scheduler.firing._ahead) == f"<ReadAhead {8 * FRAME_ROWS} messages>"
