"""Replays: bounded when they begin, in order, and going on where their consumer was."""

import asyncio
from dataclasses import dataclass, field

import pytest

from tests.node.consuming import Consuming, consuming
from waterclock.model.errors import (
    AlreadyExists,
    BadInput,
    Busy,
    LimitExceeded,
    NotFound,
    OffsetOutOfRange,
    UnknownTopic,
)
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.views import Position
from waterclock.node.replay import replays, scan
from waterclock.node.replay.records import OffsetRange, Request, TimeRange
from waterclock.node.replay.replays import Replay

EVERYTHING = Request("t")


@dataclass
class Read:
    """What a replay handed out."""

    places: list[tuple[int, int]] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    next_offsets: list[tuple[int, int]] = field(default_factory=list)


async def read(replay: Replay, batches: int = 1_000, *, is_reported: bool = False) -> Read:
    """Take some batches, reporting each as done if asked to."""
    got = Read()
    async for batch in replay:
        for start, end in batch.messages.ranges:
            got.places += [(batch.partition, offset) for offset in range(start, end)]
        got.values += batch.messages.rows().column("value").to_pylist()
        got.next_offsets.append((batch.partition, batch.next_offset))
        if is_reported:
            replay.report([(batch.partition, batch.next_offset)])
        if len(got.next_offsets) == batches:
            break
    return got


async def large(c: Consuming, count: int, partition: int = 0) -> None:
    """Publish messages each of which goes out alone."""
    for number in range(count):
        await c.publish(b"%d" % number + b"x" * 70_000, partition=partition)


async def test_everything_is_replayed_partition_by_partition_up_to_where_it_began(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t", partitions=2)
        await c.publish(b"a", b"b", partition=1)
        await c.publish(b"later", partition=0, due_ms=c.clock.now_ms() + 1_000)
        await c.publish(b"c", partition=0)
        replay = await c.replays.begin(EVERYTHING)
        await c.publish(b"too late", partition=1)

        got = await read(replay)

        assert got.places == [(0, 1), (1, 0), (1, 1)]
        assert got.values == [b"c", b"a", b"b"]
        assert replay.messages == 3


async def test_others_have_their_turns_while_somebody_reads_on_and_on(tmp_path, monkeypatch):
    monkeypatch.setattr(scan, "SLICE_S", -1.0)  # has passed, however fast the machine is
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await large(c, 3)
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        replay = await c.replays.begin(EVERYTHING)
        before = [turns async for _ in replay]
        ticking.cancel()

        assert len(before) == len(set(before)) == 3


async def test_some_partitions_can_be_chosen(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t", partitions=3)
        for partition in range(3):
            await c.publish(b"%d" % partition, partition=partition)

        got = await read(await c.replays.begin(Request("t", (2, 0))))

        assert got.values == [b"2", b"0"]
        with pytest.raises(NotFound):
            await c.replays.begin(Request("t", (3,)))


async def test_a_time_range_has_what_was_appended_within_it(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        begun_ms = c.clock.now_ms()
        for number in range(5):
            await c.publish(b"%d" % number)
            c.clock.advance(1_000)

        times = TimeRange(begun_ms + 1_000, begun_ms + 3_000)
        got = await read(await c.replays.begin(Request("t", times=times)))
        assert got.values == [b"1", b"2"]
        since = TimeRange(begun_ms + 3_000)
        got = await read(await c.replays.begin(Request("t", times=since)))
        assert got.values == [b"3", b"4"]


async def test_a_range_of_due_times_has_what_was_due_within_it(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        begun_ms = c.clock.now_ms()
        dues = [Millis(begun_ms + 1_000 * number) for number in (1, 5, 2, 4, 3)]
        await c.send([Message(b"%d" % (due - begun_ms), due_ms=due) for due in dues])
        c.clock.advance(10_000)
        await c.fire(0, 2, 4, 3, 1)
        await c.publish(b"now")  # due when it was appended
        await c.publish(b"far off")

        times = TimeRange(begun_ms + 2_000, begun_ms + 4_000, by_due=True)
        got = await read(await c.replays.begin(Request("t", times=times)))
        assert got.values == [b"2000", b"3000"]
        assert got.places == [(0, 6), (0, 7)]
        overdue = Message(b"overdue", due_ms=begun_ms)
        await c.send([overdue, Message(b"with it")])
        times = TimeRange(c.clock.now_ms(), c.clock.now_ms() + 1, by_due=True)
        got = await read(await c.replays.begin(Request("t", times=times)))
        assert got.values == [b"now", b"far off", b"with it"]


async def test_an_offset_and_a_count_are_of_messages_not_of_offsets(tmp_path):
    async with consuming(tmp_path) as c:
        topic = await c.hosts.topic("t")
        await c.publish(b"a", b"b")
        await c.publish(b"later", b"later", due_ms=c.clock.now_ms() + 1_000)
        await c.send([Message(b"%d" % n, key=b"k%d" % (n // 2)) for n in range(6)])
        c.compact(topic.partition(0))

        async def values(start: int, count: int) -> list[bytes]:
            request = Request("t", offsets=OffsetRange(start, count))
            return (await read(await c.replays.begin(request))).values

        assert await values(1, 2) == [b"b", b"1"]
        assert await values(4, 3) == [b"1", b"3", b"5"]
        assert await values(8, 0) == [b"5"]
        assert await values(10, 5) == []
        with pytest.raises(OffsetOutOfRange):
            await values(11, 1)


async def test_what_was_too_late_for_a_group_is_replayed(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        headers = {"wc-expires-ms": b"%d" % (c.clock.now_ms() + 10)}
        await c.send([Message(b"late", headers=headers)])
        c.clock.advance(1_000)

        assert (await read(await c.replays.begin(EVERYTHING))).values == [b"late"]


async def test_small_frames_are_replayed_together_and_large_ones_alone(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        for number in range(5):
            await c.publish(b"%d" % number)
        await large(c, 2)

        got = await read(await c.replays.begin(EVERYTHING))

        assert got.next_offsets == [(0, 5), (0, 6), (0, 7)]


async def test_a_named_replay_goes_on_behind_what_was_reported(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t", partitions=2)
        await large(c, 4)
        await large(c, 2, partition=1)
        replay = await c.replays.begin(EVERYTHING, name="r", checkpoint_every=1)
        await read(replay, 3)
        replay.report([(0, 2)])
        c.has_crashed = True
    async with consuming(tmp_path, clock=c.clock) as c:
        await large(c, 1)
        replay = await c.replays.begin(Request(""), name="r")
        rest = await read(replay, is_reported=True)
        assert rest.places == [(0, 2), (0, 3), (1, 0), (1, 1)]
        replay.close()
    async with consuming(tmp_path, clock=c.clock) as c:
        (info,) = c.replays.list()
        assert (info.name, info.topic, info.done) == ("r", "t", info.ends)
        assert (await read(await c.replays.begin(EVERYTHING, name="r"))).places == []


async def test_progress_is_saved_every_so_many_messages_and_on_closing(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await large(c, 5)
        replay = await c.replays.begin(EVERYTHING, name="r", checkpoint_every=2)
        await read(replay)

        replay.report([(0, 1)])
        assert c.replays.list()[0].done == (Position(0, 0),)
        replay.report([(0, 2)])
        assert c.replays.list()[0].done == (Position(0, 2),)
        replay.report([(0, 3)])
        replay.close()
        assert c.replays.list()[0].done == (Position(0, 3),)


async def test_a_stretch_that_ends_with_nothing_to_replay_is_done_when_its_messages_are(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t", partitions=2)
        await c.publish(b"a")
        for partition in range(2):
            due_ms = c.clock.now_ms() + 1_000
            await c.publish(b"later", due_ms=due_ms, partition=partition)
        replay = await c.replays.begin(EVERYTHING, name="r")
        await read(replay, is_reported=True)
        replay.close()

        assert c.replays.list()[0].done == (Position(0, 2), Position(1, 1))


async def test_only_what_was_handed_out_can_be_done(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await large(c, 2)
        replay = await c.replays.begin(EVERYTHING)
        await read(replay, 1)

        replay.report([(0, 1)])
        with pytest.raises(BadInput):
            replay.report([(0, 2)])
        with pytest.raises(BadInput):
            replay.report([(1, 0)])


async def test_a_name_stands_for_one_replay_until_it_is_deleted(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a", b"b")
        some = Request("t", offsets=OffsetRange(0, 1))
        await c.replays.begin(some, name="r")

        await c.replays.begin(some, name="r")
        await c.replays.begin(Request("t"), name="r")
        with pytest.raises(AlreadyExists):
            await c.replays.begin(Request("t", offsets=OffsetRange(0, 2)), name="r")
        assert await c.replays.delete("r")
        assert not await c.replays.delete("r")
        with pytest.raises(NotFound):
            await c.replays.begin(Request(""), name="r")
        assert c.replays.list() == []


async def test_who_begins_a_replay_again_takes_it_over(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await large(c, 3)
        first = await c.replays.begin(EVERYTHING, name="r", checkpoint_every=1)
        await read(first, 2)
        first.report([(0, 1)])
        second = await c.replays.begin(EVERYTHING, name="r")

        assert (await read(second)).places == [(0, 1), (0, 2)]
        with pytest.raises(Busy):
            await read(first)
        second.report([(0, 3)])
        second.close()
        first.report([(0, 2)])
        first.close()
        assert c.replays.list()[0].done == (Position(0, 3),), "the former reader is not listened to"


async def test_the_replays_of_a_topic_go_with_it(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        replay = await c.replays.begin(EVERYTHING, name="r")
        await c.hosts.topics.delete("t")

        assert c.replays.list() == []
        with pytest.raises(Busy):
            await read(replay)


async def test_requests_that_make_no_sense_are_refused(tmp_path, monkeypatch):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        for request in (
            Request("t", times=TimeRange(5, 3)),
            Request("t", times=TimeRange(-1)),
            Request("t", offsets=OffsetRange(-1)),
            Request("t", offsets=OffsetRange(0, -1)),
            Request("t", times=TimeRange(0), offsets=OffsetRange(0)),
        ):
            with pytest.raises(BadInput):
                await c.replays.begin(request)
        with pytest.raises(BadInput):
            await c.replays.begin(EVERYTHING, name="a/b")
        with pytest.raises(BadInput):
            await c.replays.begin(EVERYTHING, checkpoint_every=-1)
        with pytest.raises(UnknownTopic):
            await c.replays.begin(Request("nowhere"))
        monkeypatch.setattr(replays, "REPLAYS_MAX", 1)
        await c.replays.begin(EVERYTHING, name="one")
        with pytest.raises(LimitExceeded):
            await c.replays.begin(EVERYTHING, name="two")
