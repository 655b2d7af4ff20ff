"""Recurrences and the topics they publish to: deleted, made anew, and deleted meanwhile."""

import asyncio
from functools import partial
from typing import Any

import pytest

from tests.node.recurring import HOUR_MS, MINUTE_MS, every, full_hour, recurrence, scheduled
from tests.node.timed_topics import timed_topics
from waterclock.model.errors import StorageFull
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.node.schedule.pending_filter import Filter


@pytest.fixture
def opened(tmp_path):
    """Return a way to open the topics of one folder."""
    return partial(timed_topics, tmp_path, full_hour())


async def test_a_topic_made_anew_keeps_what_others_scheduled_at_the_same_position(opened):
    async with opened() as here:
        due = Millis(here.clock.now_ms() + HOUR_MS)
        await here.recurrences.put(every())
        for change in (here.recurrences.put(every()), here.recurrences.delete("beat")):
            await here.topics.delete("t")
            await here.create("t")
            await here.publish("t", [Message(b"precious", message_id=b"theirs", due_ms=due)])
            await change

            page = await here.pending.list("t", Filter())
            assert b"theirs" in [one.message.message_id for one in page.scheduled]


async def test_a_deleted_topic_is_not_made_again_by_what_recurred_there(opened):
    async with opened() as here:
        await here.create("t")
        await here.create("other")
        await here.recurrences.put(every())
        kept = recurrence("kept", "other", every_ms=MINUTE_MS)
        await here.recurrences.put(kept)

        await here.topics.delete("t")

        assert [one.name for one in here.recurrences.list()] == ["kept"]
    async with opened() as here:
        here.clock.advance(HOUR_MS)
        await here.recurrences.settle()
        assert [topic.name for topic in here.topics.all()] == ["other"]
        assert [name for name, _ in here.metadata.items("recurrence/")] == ["recurrence/kept"]


async def test_a_crash_leaves_topic_and_recurrences_or_neither(opened, monkeypatch):
    async with opened() as here:
        await here.recurrences.put(every())
        real, writes = here.metadata.write, []

        def write(records: Any) -> Any:
            writes.append(dict(records))
            return real(records)

        monkeypatch.setattr(here.metadata, "write", write)
        await here.topics.delete("t")

        (deleted,) = [records for records in writes if "topic/t" in records]
        assert deleted["topic/t"] is None
        assert deleted["recurrence/beat"] is None


async def test_other_recurrences_go_on_while_the_files_of_a_topic_are_deleted(opened):
    async with opened() as here:
        await here.create("other")
        await here.recurrences.put(every())
        is_closing, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(topic: object) -> None:
            is_closing.set()
            await go_on.wait()

        here.topics.before_closing.append(slowly)
        deleting = here.tasks.create_task(here.topics.delete("other"))
        await is_closing.wait()
        for _ in range(3):
            here.clock.advance(MINUTE_MS)
            async with asyncio.timeout(5):
                await here.recurrences.settle()
        go_on.set()
        await deleting

        assert len(await here.fired("t")) == 3


async def test_a_topic_is_deleted_between_two_schedules_and_never_within_one(opened, monkeypatch):
    async with opened() as here:
        await here.recurrences.put(every())
        here.clock.advance(MINUTE_MS)
        real, is_at_it, go_on = here.publisher.publish_batch, asyncio.Event(), asyncio.Event()

        async def slow(*given: Any) -> Any:
            is_at_it.set()
            await go_on.wait()
            return await real(*given)

        monkeypatch.setattr(here.publisher, "publish_batch", slow)
        settling = here.tasks.create_task(here.recurrences.settle())
        await is_at_it.wait()
        deleting = here.tasks.create_task(here.topics.delete("t"))
        await asyncio.sleep(0)
        go_on.set()
        await settling
        await deleting

        assert here.topics.all() == []
        assert here.recurrences.list() == []
        assert here.metadata.items("recurrence/") == []


async def test_what_was_scheduled_to_another_topic_is_cancelled_though_this_one_is_deleted(
    opened, monkeypatch
):
    async with opened() as here:
        await here.create("t")
        await here.create("u")
        await here.recurrences.put(every())

        async def full(*_: object) -> None:
            raise StorageFull("no space")

        with monkeypatch.context() as failing:
            failing.setattr(here.pending, "cancel", full)
            moved = recurrence("beat", "u", every_ms=MINUTE_MS)
            with pytest.raises(StorageFull):
                await here.recurrences.put(moved)
        await here.topics.delete("u")
        assert here.recurrences.list() == []
        assert await scheduled(here) == [MINUTE_MS]

        await here.recurrences.settle()

        assert await scheduled(here) == []
        assert here.metadata.items("recurrence/") == []
