"""The groups of a node: remembered over restarts, looked at, moved, deleted."""

import asyncio
from dataclasses import replace

import pytest

from tests.node.consuming import GROUPS, consuming
from waterclock.model.errors import (
    BadInput,
    Busy,
    LimitExceeded,
    NotFound,
    OffsetOutOfRange,
    StorageFull,
    UnknownTopic,
)
from waterclock.model.views import TopicSettings
from waterclock.node.dead_letters import writer
from waterclock.node.groups import host as group_host
from waterclock.node.groups.outbound import Assigned, Delivery
from waterclock.node.groups.positions import Start
from waterclock.node.groups.session import AnswerKind
from waterclock.node.metadata import Metadata
from waterclock.node.partition.host import PartitionHost

NACK = AnswerKind.NACK


async def test_progress_survives_a_stop_with_its_holes_and_its_failures(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(*[b"%d" % n for n in range(10)])
        member = await c.join()
        member.take()
        member.ack(0, 1, 4, 5, 8)
        member.answer(NACK, 6)
    async with consuming(tmp_path, clock=c.clock) as c:
        assert c.groups.get("t", "g").partitions[0].committed == 2
        assert c.groups.get("t", "g").partitions[0].lag == 5
        member = await c.join()
        await c.pass_time(100)
        member.take()

        got = {(d.attempt, d.messages.ranges) for d in member.deliveries}
        assert got == {(1, ((2, 4), (7, 8), (9, 10))), (2, ((6, 7),))}


async def test_a_crash_delivers_again_what_was_acked_since_the_last_save_and_nothing_else(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(*[b"%d" % n for n in range(6)])
        member = await c.join()
        member.take()
        member.ack(0, 1, 3)
        await c.groups.save_all()
        member.ack(2, 4)
        c.has_crashed = True
    async with consuming(tmp_path, clock=c.clock) as c:
        member = await c.join()
        member.take()

        assert [offset for _, offset in member.offsets] == [2, 4, 5]


async def test_a_generation_is_durable_before_anyone_hears_of_it(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        member = await c.join()
        assert member.take() == [Assigned(0, 1, 0)]
        c.has_crashed = True
    async with consuming(tmp_path, clock=c.clock) as c:
        member = await c.join()

        assert member.take() == [Assigned(0, 2, 0)]


async def test_a_full_disk_delays_a_rebalance_and_keeps_its_order(tmp_path, monkeypatch):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        one = await c.join("one")
        monkeypatch.setattr(group_host, "SAVE_RETRY_S", 0)
        put_many, tries = Metadata.put_many, []

        async def full_at_first(self, records):
            tries.append(records)
            if len(tries) < 3:
                raise StorageFull("no space left")
            await put_many(self, records)

        monkeypatch.setattr(Metadata, "put_many", full_at_first)
        one.session.leave()
        two = await c.join("two")

        assert two.take() == [Assigned(0, 3, 0)]
        assert len(tries) >= 3


async def test_progress_that_cannot_be_saved_is_saved_later(tmp_path, monkeypatch):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a", b"b")
        member = await c.join()
        member.take()
        member.ack(0)

        async def full(self, records):
            raise StorageFull("no space left")

        monkeypatch.setattr(Metadata, "put_many", full)
        await c.groups.save_all()
        monkeypatch.undo()
    async with consuming(tmp_path, clock=c.clock) as c:
        assert c.groups.get("t", "g").partitions[0].committed == 1


async def test_progress_beyond_a_log_that_lost_its_tail_is_forgotten(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a", b"b", b"c")
        member = await c.join()
        member.take()
        member.ack(0, 2)
        host = c.host()
        cursor = host.partitions[0].cursor
        cursor._tracker.add(5, 9)
    async with consuming(tmp_path, clock=c.clock) as c:
        await c.publish(*[b"new %d" % n for n in range(4)])
        member = await c.join()
        member.take()

        assert [offset for _, offset in member.offsets] == [1, 3, 4, 5, 6]


async def test_progress_that_cannot_be_read_begins_again_at_the_start(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await c.join()
        member.take()
        member.ack(0)
        await c.groups.close()
        await c.hosts.metadata.put("progress/t/g/0", b"nonsense")
        c.has_crashed = True
    async with consuming(tmp_path, clock=c.clock) as c:
        member = await c.join()
        member.take()

        assert member.offsets == [(0, 0)]


async def test_groups_are_listed_with_what_each_has_to_do(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t", partitions=2)
        await c.hosts.topic("u")
        await c.publish(*[b"%d" % n for n in range(5)], partition=1)
        member = await c.join(credit=3)
        await c.join(group="other", topic="u")
        member.take()
        member.ack(0, partition=1)
        member.answer(NACK, 2, partition=1)

        view = c.groups.get("t", "g")
        assert (view.generation, view.members) == (1, ("m",))
        place = view.partitions[1]
        assert (place.member, place.committed, place.end_offset) == ("m", 1, 5)
        assert (place.lag, place.unacked, place.waiting) == (4, 1, 1)
        assert [(v.topic, v.group) for v in c.groups.list()] == [("t", "g"), ("u", "other")]
        assert [v.group for v in c.groups.list("u")] == ["other"]
        with pytest.raises(NotFound):
            c.groups.get("t", "nobody")
        with pytest.raises(UnknownTopic):
            c.groups.get("nowhere", "g")


async def test_a_group_with_members_is_neither_deleted_nor_moved(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        member = await c.join()

        with pytest.raises(Busy):
            await c.groups.delete("t", "g")
        with pytest.raises(Busy):
            await c.groups.seek("t", "g")
        member.session.leave()
        await c.settle()
        await c.groups.delete("t", "g")
        with pytest.raises(NotFound):
            await c.groups.delete("t", "g")
    async with consuming(tmp_path, clock=c.clock) as c:
        assert c.groups.list() == []


@pytest.mark.parametrize(
    ("seek", "expected"),
    [
        ({"start": Start.EARLIEST}, [0, 1, 2, 3]),
        ({"start": Start.LATEST}, []),
        ({"positions": {0: 3}}, [3]),
    ],
)
async def test_a_group_goes_on_where_it_is_told_also_after_a_crash(tmp_path, seek, expected):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(*[b"%d" % n for n in range(4)])
        member = await c.join()
        member.take()
        member.ack(0, 2)
        member.session.leave()
        await c.settle()
        await c.groups.seek("t", "g", **seek)
        c.has_crashed = True
    async with consuming(tmp_path, clock=c.clock) as c:
        member = await c.join()
        member.take()
        assert [offset for _, offset in member.offsets] == expected
        assert member.notices[0].generation == 3


async def test_a_full_disk_leaves_a_group_where_it_was(tmp_path, monkeypatch):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a", b"b")
        member = await c.join()
        member.take()
        member.ack(0)
        member.session.leave()
        await c.settle()

        def full(self, records):
            raise StorageFull("no space left")

        monkeypatch.setattr(Metadata, "write", full)
        with pytest.raises(StorageFull):
            await c.groups.seek("t", "g", start=Start.LATEST)
        with pytest.raises(StorageFull):
            await c.groups.delete("t", "g")
        monkeypatch.undo()

        assert c.groups.get("t", "g").partitions[0].committed == 1
        again = await c.join()
        again.take()
        assert again.values == [b"b"]


async def test_a_topic_deleted_while_its_dead_are_written_harms_nobody(tmp_path, monkeypatch):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        for _ in range(3):
            await c.publish(b"x" * 100_000)
        member = await c.join()
        member.take()
        publish, deleted = PartitionHost.publish, asyncio.Event()

        async def delete_first(self, batch, **options):
            if self.topic == "t.dlq" and not deleted.is_set():
                await c.hosts.topics.delete("t")
                c.forget_frames()
                deleted.set()
            return await publish(self, batch, **options)

        monkeypatch.setattr(PartitionHost, "publish", delete_first)
        monkeypatch.setattr(writer, "RETRY_S", 0)
        member.answer(AnswerKind.REJECT, 0, 1, 2)
        await deleted.wait()
        await c.hosts.topic("u")
        await c.publish(b"a", topic="u")

        other = await c.join(topic="u")
        other.take()
        assert other.values == [b"a"]


async def test_a_group_cannot_be_told_to_go_where_the_log_is_not(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await c.join()
        member.session.leave()
        await c.settle()

        with pytest.raises(OffsetOutOfRange):
            await c.groups.seek("t", "g", positions={0: 2})
        with pytest.raises(BadInput):
            await c.groups.seek("t", "g", positions={1: 0})


async def test_records_of_groups_whose_topic_is_gone_are_removed(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.join()
        await c.groups.save_all()
        records = dict(c.hosts.metadata.items("group/") + c.hosts.metadata.items("progress/"))
        await c.hosts.topics.delete("t")
        await c.hosts.metadata.put_many(records)  # as if the crash had come between
        c.has_crashed = True
    async with consuming(tmp_path, clock=c.clock) as c:
        assert c.groups.list() == []
        assert c.hosts.metadata.items("group/") == c.hosts.metadata.items("progress/") == []


async def test_a_node_has_room_for_so_many_groups(tmp_path):
    async with consuming(tmp_path, groups=replace(GROUPS, groups_max=1)) as c:
        await c.hosts.topic("t")
        await c.join(group="one")
        await c.join("other", group="one")
        with pytest.raises(LimitExceeded, match=r"see groups\.groups_max"):
            await c.join(group="two")


async def test_settings_of_a_topic_hold_for_its_groups(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topics.create("t", TopicSettings(retries_max=2, ack_timeout_ms=9_000))
        await c.publish(b"a")
        member = await c.join()
        member.take()

        assert member.deliveries[0].deadline_ms == c.clock.now_ms() + 9_000


async def test_settings_that_are_changed_hold_from_the_next_message_on(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topics.create("t", TopicSettings(ack_timeout_ms=9_000))
        member = await c.join()
        await c.hosts.topics.update("t", TopicSettings(ack_timeout_ms=5_000))
        await c.publish(b"a")
        await c.settle()
        member.take()

        assert member.deliveries[0].deadline_ms == c.clock.now_ms() + 5_000


async def test_a_group_reads_around_a_partition_that_cannot_be_opened(tmp_path):
    async with consuming(tmp_path) as c:
        topic = await c.hosts.topic("t", partitions=2)
        await c.publish(b"a", partition=0)
        await c.publish(b"b", partition=1)
        folder = tmp_path / "topics" / topic.folder / "0" / "log"
        member = await c.join()
        member.take()
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    async with consuming(tmp_path, clock=c.clock) as c:
        member = await c.join()
        member.take()

        assert [d.partition for d in member.out if isinstance(d, Delivery)] == [1]
        assert c.groups.get("t", "g").partitions[0].lag == 0
