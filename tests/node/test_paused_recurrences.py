"""A paused recurrence is kept and lets nothing come; resumed, it goes on from now by its rule."""

from functools import partial
from typing import Any

import msgspec
import pytest

from tests.node.recurring import HOUR_MS, MINUTE_MS, every, full_hour, scheduled
from tests.node.timed_topics import timed_topics
from waterclock.model.errors import Busy, NotFound, StorageFull
from waterclock.node.schedule.recurrence_records import Occurrence, RecurrenceRecord


@pytest.fixture
def clock():
    return full_hour()


@pytest.fixture
def opened(tmp_path, clock):
    """Return a way to open the topics of one folder."""
    return partial(timed_topics, tmp_path, clock)


async def test_a_recurrence_that_is_put_paused_comes_when_it_is_put_without(opened):
    async with opened() as here:
        await here.recurrences.put(every())
        paused = await here.recurrences.put(every(is_paused=True))
        await here.recurrences.settle()
        assert (paused.is_paused, paused.next_ms) == (True, 0)
        assert await scheduled(here) == []

        await here.recurrences.put(every())

        assert await scheduled(here) == [MINUTE_MS]


async def test_what_is_paused_stays_so_over_a_restart_and_misses_what_it_misses(opened, clock):
    async with opened() as here:
        await here.recurrences.put(every())
        paused = await here.recurrences.set_paused("beat", is_paused=True)
        assert (paused.is_paused, paused.next_ms) == (True, 0)
        assert await scheduled(here) == []
    clock.advance(10 * MINUTE_MS + 7)
    async with opened() as here:
        await here.recurrences.settle()
        assert here.recurrences.list() == [paused]
        assert await here.fired("t") == []

        resumed = await here.recurrences.set_paused("beat", is_paused=False)

        # From now on, and by the rule as it was: on the minutes, as before.
        assert (resumed.is_paused, resumed.next_ms) == (False, clock.now_ms() + MINUTE_MS - 7)
        assert await scheduled(here) == [MINUTE_MS - 7]
        clock.advance(MINUTE_MS - 7)
        assert len(await here.fired("t")) == 1


async def test_the_occurrence_that_was_cancelled_comes_if_it_is_resumed_in_time(opened, clock):
    async with opened() as here:
        await here.recurrences.put(every())
        for _ in range(3):
            await here.recurrences.set_paused("beat", is_paused=True)
            assert await scheduled(here) == []
            await here.recurrences.set_paused("beat", is_paused=False)
            assert await scheduled(here) == [MINUTE_MS]

        clock.advance(MINUTE_MS)
        await here.recurrences.settle()

        assert len(await here.fired("t")) == 1
        assert await scheduled(here) == [MINUTE_MS]


async def test_pausing_or_resuming_twice_is_as_once(opened, clock):
    async with opened() as here:
        await here.recurrences.put(every())
        running = await here.recurrences.set_paused("beat", is_paused=False)
        assert await scheduled(here) == [MINUTE_MS]
        paused = await here.recurrences.set_paused("beat", is_paused=True)

        assert await here.recurrences.set_paused("beat", is_paused=True) == paused
        assert await here.recurrences.set_paused("beat", is_paused=False) == running
        clock.advance(MINUTE_MS)
        # What has come before the pause has come, and does not come again.
        assert len(await here.fired("t")) == 1
        await here.recurrences.set_paused("beat", is_paused=True)
        await here.recurrences.set_paused("beat", is_paused=False)
        assert len(await here.fired("t")) == 1
        assert await scheduled(here) == [MINUTE_MS]


async def test_a_crash_between_noting_the_pause_and_cancelling_leaves_work_for_the_next_start(
    opened, clock, monkeypatch
):
    async with opened() as here:
        await here.recurrences.put(every())

        async def full(*_: object) -> Any:
            raise StorageFull("crash here")

        with monkeypatch.context() as crashing:
            crashing.setattr(here.pending, "cancel", full)
            with pytest.raises(StorageFull):
                await here.recurrences.set_paused("beat", is_paused=True)
        assert await scheduled(here) == [MINUTE_MS]
        here.reopen_recurrences()
        assert [each.is_paused for each in here.recurrences.list()] == [True]

        await here.recurrences.settle()

        assert await scheduled(here) == []
        clock.advance(HOUR_MS)
        await here.recurrences.settle()
        assert await here.fired("t") == []


async def test_what_a_crash_kept_from_being_noted_is_cancelled_by_a_pause_too(opened, clock):
    async with opened() as here:
        await here.recurrences.put(every())
        before = here.metadata.items("recurrence/")
        clock.advance(MINUTE_MS)
        await here.recurrences.settle()
        assert len(await here.fired("t")) == 1
        assert await scheduled(here) == [MINUTE_MS]
        await here.metadata.put_many(dict(before))  # the note was lost
        here.reopen_recurrences()

        await here.recurrences.set_paused("beat", is_paused=True)

        assert await scheduled(here) == []


async def test_nobody_pauses_what_is_not_there_or_what_they_have_not_seen(opened):
    async with opened() as here:
        with pytest.raises(NotFound, match="beat"):
            await here.recurrences.set_paused("beat", is_paused=True)
        await here.recurrences.put(every())
        with pytest.raises(Busy):
            await here.recurrences.set_paused("beat", is_paused=True, seen_topic="ours")
        await here.recurrences.delete("beat")
        with pytest.raises(NotFound, match="beat"):
            await here.recurrences.set_paused("beat", is_paused=False)


async def test_a_record_of_an_earlier_version_can_be_paused_and_resumed(opened, clock):
    async with opened() as here:
        await here.recurrences.put(every())
        [(key, value)] = here.metadata.items("recurrence/")
        record = msgspec.json.decode(value)
        assert "is_paused" not in record["recurrence"]
        for later in ("ahead", "spans", "turn"):
            del record[later]
        record["last_scheduled"] = record["last_scheduled"][:4]
        await here.metadata.put_many({key: msgspec.json.encode(record)})
        here.reopen_recurrences()

        await here.recurrences.set_paused("beat", is_paused=True)
        assert await scheduled(here) == []
        await here.recurrences.set_paused("beat", is_paused=False)

        # Nobody knows whose the cancelled one was: the one after it comes.
        assert await scheduled(here) == [2 * MINUTE_MS]


def test_a_pause_lets_what_is_due_go_its_way_and_remembers_that_it_came():
    due, next_ = (Occurrence("t", 0, at, at, f"beat/x@{at}") for at in (60_000, 120_000))
    record = RecurrenceRecord(
        recurrence=every(), token="x", anchor_ms=0, last_scheduled=next_, ahead=[due]
    )

    paused = record.paused(now_ms=70_000)

    assert (paused.unwanted, paused.upcoming) == ([next_], [])
    assert paused.paused(now_ms=70_000) == paused
    assert paused.resumed().recurrence == record.recurrence
