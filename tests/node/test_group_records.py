"""The records of groups: nothing of a group that was removed, or of messages that were lost."""

import asyncio

import pytest

from tests.node.consuming import Consuming, consuming
from waterclock.model.errors import Busy, Unavailable, UnknownTopic
from waterclock.node.dead_letters.dead_letters import DeadLetters
from waterclock.node.groups import groups
from waterclock.node.groups.host import GroupHost
from waterclock.node.groups.positions import Start, position_of
from waterclock.node.groups.session import AnswerKind


def records(c: Consuming) -> list[str]:
    items = (*c.hosts.metadata.items("group/"), *c.hosts.metadata.items("progress/"))
    return [name for name, _ in items]


def hold_dead_letters(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Have dead letters written when the event is set, and not before."""
    write_dead_letters, may_go_on = DeadLetters.write_dead_letters, asyncio.Event()

    async def held(self, partition, group, effect):
        await may_go_on.wait()
        await write_dead_letters(self, partition, group, effect)

    monkeypatch.setattr(DeadLetters, "write_dead_letters", held)
    return may_go_on


async def at_rest(host: GroupHost, *, may_write: bool = True) -> None:
    """Return when a group has saved what it is saving, be it removed or not."""
    while True:
        if not host._is_saving and (may_write or not host._is_writing):
            return
        await asyncio.sleep(0)


async def rejected(c: Consuming) -> None:
    """Have a member reject a message, and leave before the dead letter is written."""
    await c.hosts.topic("t")
    await c.publish(b"a")
    member = await c.join()
    member.take()
    member.answer(AnswerKind.REJECT, 0)
    member.session.leave()
    await at_rest(c.host())


# Removed


@pytest.mark.parametrize(("is_made_anew", "problem"), [(False, UnknownTopic), (True, Unavailable)])
async def test_no_group_is_made_of_a_topic_that_was_deleted_meanwhile(
    tmp_path, monkeypatch, is_made_anew, problem
):
    is_begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def held(*given):
        is_begun.set()
        await may_go_on.wait()
        return await position_of(*given)

    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        monkeypatch.setattr(groups, "position_of", held)
        joining = asyncio.create_task(c.join())
        await is_begun.wait()
        await c.hosts.topics.delete("t")
        if is_made_anew:
            await c.hosts.topic("t")
        may_go_on.set()

        with pytest.raises(problem):
            await joining
        assert not c.groups.list()
        assert not records(c)


@pytest.mark.parametrize("what", ["group", "topic"])
async def test_a_group_removed_in_the_turn_its_member_left_stays_removed(tmp_path, what):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await c.join()
        member.take()
        member.ack(0)
        host = c.host()
        member.session.leave()

        await (c.groups.delete("t", "g") if what == "group" else c.hosts.topics.delete("t"))
        await at_rest(host)

        assert records(c) == []


async def test_a_group_made_again_is_not_overwritten_by_the_one_that_was_removed(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await c.join()
        member.take()
        member.ack(0)
        old = c.host()
        old.partitions[0].is_changed = True
        member.session.leave()
        await c.groups.delete("t", "g")
        await c.join()
        before = c.hosts.metadata.get("progress/t/g/0")

        await c.groups.save_progress([old])
        await c.groups.save_generation(old, 77)

        assert c.hosts.metadata.get("progress/t/g/0") == before
        assert b'"generation":77' not in (c.hosts.metadata.get("group/t/g") or b"")


async def test_a_dead_letter_written_after_its_group_was_removed_leaves_no_record(
    tmp_path, monkeypatch
):
    async with consuming(tmp_path) as c:
        may_go_on = hold_dead_letters(monkeypatch)
        await rejected(c)
        host = c.host()

        await c.groups.delete("t", "g")
        host.partitions[0].is_changed = True
        may_go_on.set()
        await at_rest(host, may_write=False)

        assert records(c) == []


# Moved


async def test_a_group_is_not_moved_before_its_dead_are_written(tmp_path, monkeypatch):
    async with consuming(tmp_path) as c:
        may_go_on = hold_dead_letters(monkeypatch)
        await rejected(c)

        with pytest.raises(Busy, match="dead letters"):
            await c.groups.seek("t", "g", start=Start.LATEST)
        may_go_on.set()
        await c.settle()
        await c.groups.seek("t", "g", start=Start.LATEST)

        (letter,) = (await c.dead_letters.list("t")).dead_letters
        assert (letter.origin_offset, letter.reason) == (0, "rejected")


# Lost


async def test_progress_beyond_a_log_that_lost_its_tail_is_forgotten_for_good(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await c.join()
        member.take()
        member.ack(0)
        c.host().partitions[0].cursor._tracker.add(1, 3)
    async with consuming(tmp_path, clock=c.clock) as c:
        await c.publish(b"b", b"c")  # where others were that are lost
        c.has_crashed = True
    async with consuming(tmp_path, clock=c.clock) as c:
        member = await c.join()
        member.take()

        assert member.values == [b"b", b"c"]
