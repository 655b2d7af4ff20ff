"""Groups nobody reads for: retention takes what they have not read, and in time they expire."""

import logging
from typing import Any

import pytest

from tests.node.consuming import DELIVERY, GROUPS, Consuming, Member, consuming
from waterclock.model.clock import SETTLE_MS
from waterclock.model.errors import NotFound
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig, GroupConfig, LogConfig, RetentionConfig
from waterclock.model.units import DAY_MS, HOUR_MS, KIB
from waterclock.model.views import TopicSettings
from waterclock.node.groups.cleaner import GroupCleaner, _overlap
from waterclock.node.groups.session import AnswerKind
from waterclock.node.log_cleaner import LogCleaner

assert GROUPS.expire_ms is not None
EXPIRE_MS = GROUPS.expire_ms
assert GROUPS.expire_unused_ms is not None
UNUSED_MS = GROUPS.expire_unused_ms
SECTIONS: dict[str, Any] = {
    "log": LogConfig(segment_bytes=4 * KIB, preallocate_bytes=0),
    "dedup": DedupConfig(enabled=False),
    "retention": RetentionConfig(bytes=8 * KIB),
}


def log_cleaner(c: Consuming) -> LogCleaner:
    config = c.hosts.config
    cleaner = GroupCleaner(c.groups, config.groups, c.clock)
    return LogCleaner(c.hosts.topics, c.hosts.metadata, config, cleaner)


async def fill(c: Consuming, count: int, *, later: bool = False) -> None:
    """Publish so many messages, each a frame of its own; those for later are never due here."""
    due_ms = Millis(c.clock.now_ms() + DAY_MS) if later else None
    for _ in range(count):
        await c.send([Message(b"." * 500, due_ms=due_ms)])
    store = c.hosts.topics.get("t").partition(0).store
    while store.jobs:
        store.run_jobs()


def start_of(c: Consuming) -> int:
    """Return the first offset that still has a message."""
    store = c.hosts.topics.get("t").partition(0).store
    frames = store.frames(store.start)
    return next(f.header.base_offset for f in frames if f.header.is_deliverable)


async def leave(c: Consuming, member: Member) -> None:
    member.session.leave()
    await c.settle()


async def use(c: Consuming) -> None:
    """Have a group do a message."""
    await c.publish(b"a")
    member = await c.join()
    member.take()
    member.ack_all()
    await leave(c, member)


async def test_an_abandoned_group_goes_on_at_the_first_message_that_is_left(tmp_path, caplog):
    async with consuming(tmp_path, **SECTIONS) as c:
        await c.hosts.topic("t")
        await fill(c, 4)
        member = await c.join()
        member.take()
        member.ack(0, 2)
        await leave(c, member)
        await fill(c, 6, later=True)
        await fill(c, 50)

        with caplog.at_level(logging.WARNING, "waterclock.delivery"):
            await log_cleaner(c).once()
        start = start_of(c)
        (place,) = c.groups.get("t", "g").partitions
        assert start > 20
        assert (place.committed, place.lag) == (start, 60 - start)
        # Neither what was done nor what was never to be delivered.
        assert place.missed == c.host().counters.missed == start - 2 - 6
        assert f"missed topic=t/0 group=g messages={place.missed} goes_on_at={start}" in (
            caplog.text
        )
        await log_cleaner(c).once()
        assert c.groups.get("t", "g").partitions[0].missed == place.missed, "once is enough"
        c.has_crashed = True
    async with consuming(tmp_path, clock=c.clock, **SECTIONS) as c:
        (again,) = c.groups.get("t", "g").partitions
        assert (again.committed, again.missed) == (start, place.missed)
        member = await c.join()
        member.take()
        assert [offset for _, offset in member.offsets] == list(range(start, 60))
        assert len(c.hosts.topics.get("t").partition(0).store.open_scheduled()[0]) == 6


async def test_a_topic_that_waits_for_its_groups_keeps_what_they_have_not_read(tmp_path):
    async with consuming(tmp_path, **SECTIONS) as c:
        await c.hosts.topics.create("t", TopicSettings(retention_wait_for_groups=True))
        await fill(c, 1)
        await leave(c, await c.join())
        await fill(c, 60)
        await log_cleaner(c).once()

        (place,) = c.groups.get("t", "g").partitions
        assert (start_of(c), place.committed, place.missed) == (0, 0, 0)


async def test_what_a_member_holds_it_may_finish_though_the_log_is_gone(tmp_path):
    async with consuming(tmp_path, **SECTIONS) as c:
        await c.hosts.topic("t")
        await fill(c, 60)
        member = await c.join(credit=2)
        member.take()
        await log_cleaner(c).once()
        start = start_of(c)
        (place,) = c.groups.get("t", "g").partitions
        assert (place.committed, place.unacked, place.missed) == (0, 2, start - 2)

        member.ack(0)
        member.answer(AnswerKind.NACK, 1)
        await c.pass_time(DELIVERY.retry_delay_ms)
        c.forget_frames()
        member.take()
        await c.settle()
        member.take()
        (place,) = c.groups.get("t", "g").partitions
        assert (place.committed, place.missed) == (start, start - 1), "it cannot come again"
        assert c.host().counters.refused == 0
        assert [offset for _, offset in member.offsets][2:] == [start, start + 1]


async def test_retention_that_finds_all_done_is_missed_by_nobody(tmp_path, caplog):
    async with consuming(tmp_path, **SECTIONS) as c:
        await c.hosts.topic("t")
        member = await c.join()
        await fill(c, 60)
        await c.settle()
        member.take()
        member.ack_all()
        await log_cleaner(c).once()

        assert start_of(c) > 20
        assert c.groups.get("t", "g").partitions[0].missed == 0
        assert "missed" not in caplog.text


def test_overlaps_are_counted_however_the_ranges_lie():
    left = [(0, 3), (5, 9), (12, 20), (30, 31)]
    right = [(2, 6), (8, 13), (14, 15), (19, 40)]

    both = {n for a, b in left for n in range(a, b)} & {n for a, b in right for n in range(a, b)}
    assert _overlap(left, right) == _overlap(right, left) == len(both)


# Expiry


async def test_a_group_nobody_has_used_for_so_long_is_forgotten_for_good(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        cleaner = log_cleaner(c)
        await c.publish(b"a", b"b")
        member = await c.join()
        member.take()
        member.ack_all()
        await leave(c, member)

        c.clock.advance(EXPIRE_MS - 1)
        await cleaner.once()
        assert c.groups.get("t", "g").partitions[0].committed == 2
        c.clock.advance(1)
        await cleaner.once()
        with pytest.raises(NotFound):
            c.groups.get("t", "g")
        c.has_crashed = True
    async with consuming(tmp_path, clock=c.clock) as c:
        assert c.groups.list() == []
        member = await c.join()
        member.take()
        assert len(member.offsets) == 2, "it begins anew"


async def test_how_long_a_group_was_idle_is_known_after_a_restart(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await use(c)
        c.clock.advance(EXPIRE_MS // 2)
    async with consuming(tmp_path, clock=c.clock) as c:
        cleaner = log_cleaner(c)
        await cleaner.once()
        c.clock.advance(EXPIRE_MS // 2 - 1)
        await cleaner.once()
        assert len(c.groups.list()) == 1
        c.clock.advance(1)
        await cleaner.once()
        assert c.groups.list() == []


async def test_a_group_with_members_does_not_expire_and_a_crash_forgets_little_of_that(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        cleaner = log_cleaner(c)
        member = await c.join()
        for _ in range(3 * EXPIRE_MS // DAY_MS):
            c.clock.advance(DAY_MS)
            member.session.heartbeat()
            await cleaner.once()
        assert c.host().members == ("m",)
        c.has_crashed = True
    async with consuming(tmp_path, clock=c.clock) as c:
        cleaner = log_cleaner(c)
        c.clock.advance(EXPIRE_MS - DAY_MS)
        await cleaner.once()
        assert len(c.groups.list()) == 1


async def test_a_clock_that_is_set_forward_expires_nobody(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        cleaner = log_cleaner(c)
        await use(c)
        c.clock.advance(2 * HOUR_MS)
        c.clock.step(10 * EXPIRE_MS)
        await cleaner.once()
        assert len(c.groups.list()) == 1
        c.clock.step(-11 * EXPIRE_MS)
        await cleaner.once()
        assert len(c.groups.list()) == 1


async def test_a_node_that_has_just_started_expires_nobody(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await use(c)
        c.clock.advance(2 * EXPIRE_MS)
    async with consuming(tmp_path, clock=c.clock) as c:
        cleaner = log_cleaner(c)
        c.clock.advance(HOUR_MS - 1)
        await cleaner.once()
        assert len(c.groups.list()) == 1
        c.clock.advance(1)
        await cleaner.once()
        assert c.groups.list() == []


async def test_groups_may_be_kept_for_ever(tmp_path):
    kept = GroupConfig(expire_ms=None, expire_unused_ms=None)
    async with consuming(tmp_path, groups=kept) as c:
        await c.hosts.topic("t")
        cleaner = log_cleaner(c)
        await use(c)
        c.clock.advance(3_650 * DAY_MS + SETTLE_MS)
        await cleaner.once()
        assert len(c.groups.list()) == 1


async def test_a_group_that_was_only_asked_for_is_forgotten_soon(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        cleaner = log_cleaner(c)
        await c.publish(b"a")
        for number in range(3):
            await leave(c, await c.join(group=f"idle-{number}"))
        await use(c)
        c.clock.advance(UNUSED_MS - 1)
        await cleaner.once()
        assert len(c.groups.list()) == 4
        c.clock.advance(1)
        await cleaner.once()
        assert [each.group for each in c.groups.list()] == ["g"]


async def test_a_group_that_was_moved_or_had_members_for_long_is_no_unused_one(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        cleaner = log_cleaner(c)
        await leave(c, await c.join(group="moved"))
        await c.groups.seek("t", "moved")
        member = await c.join(group="patient")
        for _ in range(8):
            c.clock.advance(UNUSED_MS // 8)
            member.session.heartbeat()
            await cleaner.once()
        await leave(c, member)
        c.has_crashed = True
    async with consuming(tmp_path, clock=c.clock) as c:
        cleaner = log_cleaner(c)
        c.clock.advance(3 * UNUSED_MS)
        await cleaner.once()
        assert [each.group for each in c.groups.list()] == ["moved", "patient"]


async def test_a_group_that_has_acked_is_known_to_be_used_after_a_crash(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await c.join()
        member.take()
        member.ack_all()
        await c.groups.save_all()
        c.has_crashed = True
    async with consuming(tmp_path, clock=c.clock) as c:
        cleaner = log_cleaner(c)
        c.clock.advance(3 * UNUSED_MS)
        await cleaner.once()
        assert [each.partitions[0].committed for each in c.groups.list()] == [1]


async def test_retention_is_told_what_every_group_has_done(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t", partitions=2)
        cleaner = GroupCleaner(c.groups, GROUPS, c.clock)
        assert cleaner.consumed_end("t", 0) is None
        await c.publish(b"a", b"b")
        fast = await c.join(group="fast")
        await c.join(group="slow")
        fast.take()
        fast.ack(0, 1)

        assert cleaner.consumed_end("t", 0) == 0
        assert cleaner.consumed_end("t", 1) == 0
        assert cleaner.consumed_end("t", 7) is None
