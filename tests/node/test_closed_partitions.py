"""Nobody is told that a message will not fire which a partition that is not open still holds."""

import re
from pathlib import Path

import pytest

from tests.kit.clock import ManualClock
from tests.node.timed_topics import TimedTopics, timed_topics
from waterclock.model.errors import PartitionFaulty
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.node.schedule.named_changes import Named
from waterclock.node.schedule.scheduler import ALREADY_FIRED, DONE, UNKNOWN

DELAY_MS = 60_000


async def scheduled(here: TimedTopics, *names: bytes) -> None:
    """Publish a message of each id for later in each partition."""
    due_ms = Millis(here.clock.now_ms() + DELAY_MS)
    for host in here.topics.get("t").partitions:
        for name in names:
            message = Message(b"%d" % host.partition, message_id=name, due_ms=due_ms)
            await here.publish("t", [message], partition=host.partition)


def log_of(path: Path, partition: int) -> Path:
    (log,) = path.glob(f"topics/t*/{partition}/log")
    return log


async def take_one_away(path: Path, while_closed, after) -> None:
    """Have ids x and y pending in partitions 0 to 2; take 1 away for a while, then restore it."""
    clock = ManualClock()
    async with timed_topics(path, clock) as here:
        await here.create("t", 3)
        await scheduled(here, b"x", b"y")
    log = log_of(path, 1)
    away = log.rename(log.with_name("away"))
    async with timed_topics(path, clock) as here:
        assert [host.is_open for host in here.topics.get("t").partitions] == [True, False, True]
        await while_closed(here)
    away.rename(log)
    async with timed_topics(path, clock) as here:
        await after(here)


async def fired(here: TimedTopics) -> list[tuple[bytes | None, bytes | None]]:
    here.clock.advance(2 * DELAY_MS)
    return sorted((m.message_id, m.value) for m in await here.fired("t"))


OF_Y = [(b"y", b"0"), (b"y", b"1"), (b"y", b"2")]


async def test_a_cancel_by_id_fails_and_says_how_far_it_came(tmp_path):
    async def while_closed(here: TimedTopics) -> None:
        with pytest.raises(PartitionFaulty, match=r"t/1 is not open.* 2 pending .*were cancelled"):
            await here.pending.cancel("t", [Named(b"x")])
        with pytest.raises(PartitionFaulty, match="0 pending elsewhere were cancelled"):
            await here.pending.cancel("t", [Named(b"x")])
        with pytest.raises(PartitionFaulty, match="0 pending elsewhere were cancelled"):
            await here.pending.cancel("t", [Named(b"nobody")])

    async def after(here: TimedTopics) -> None:
        outcomes, reached = await here.pending.cancel("t", [Named(b"x"), Named(b"nobody")])
        assert (outcomes.tolist(), reached.tolist()) == ([DONE, UNKNOWN], [1, 0])
        assert await fired(here) == OF_Y

    await take_one_away(tmp_path, while_closed, after)


async def test_what_a_cancel_that_failed_has_reached_stays_cancelled(tmp_path):
    async def while_closed(here: TimedTopics) -> None:
        named = [Named(b"x"), Named(position=(0, 1)), Named(b"y", position=(2, 1))]
        with pytest.raises(PartitionFaulty, match="4 pending elsewhere were cancelled"):
            await here.pending.cancel("t", named)

    async def after(here: TimedTopics) -> None:
        assert await fired(here) == [(b"x", b"1"), (b"y", b"1")]

    await take_one_away(tmp_path, while_closed, after)


async def test_a_move_by_id_fails_and_what_it_reached_is_moved(tmp_path):
    async def while_closed(here: TimedTopics) -> None:
        due_ms = here.clock.now_ms() + 10 * DELAY_MS
        with pytest.raises(PartitionFaulty, match="2 pending elsewhere were rescheduled"):
            await here.pending.reschedule("t", [Named(b"x")], [due_ms])

    async def after(here: TimedTopics) -> None:
        assert await fired(here) == [(b"x", b"1"), *OF_Y]

    await take_one_away(tmp_path, while_closed, after)


async def test_positions_in_open_partitions_are_not_concerned(tmp_path):
    async def while_closed(here: TimedTopics) -> None:
        named = [Named(position=(0, 0)), Named(b"x", position=(2, 0))]
        outcomes, reached = await here.pending.cancel("t", named)
        assert (outcomes.tolist(), reached.tolist()) == ([DONE, DONE], [1, 1])

    async def after(here: TimedTopics) -> None:
        assert await fired(here) == [(b"x", b"1"), *OF_Y]

    await take_one_away(tmp_path, while_closed, after)


@pytest.mark.parametrize("message_id", [b"", b"x"])
async def test_a_position_in_a_closed_partition_fails_when_all_others_are_done(
    tmp_path, message_id
):
    async def while_closed(here: TimedTopics) -> None:
        named = [Named(message_id, position=(1, 0)), Named(position=(2, 0))]
        with pytest.raises(PartitionFaulty, match=re.escape("t/1 is not open")):
            await here.pending.cancel("t", named)

    async def after(here: TimedTopics) -> None:
        assert await fired(here) == [(b"x", b"0"), (b"x", b"1"), *OF_Y]
        outcomes, _ = await here.pending.cancel("t", [Named(position=(1, 0))])
        assert outcomes.tolist() == [ALREADY_FIRED]

    await take_one_away(tmp_path, while_closed, after)
