"""One occurrence ahead is always scheduled; crashes, downtime and clock steps double none."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from tests.node.recurring import HOUR_MS, MINUTE_MS, every, full_hour, recurrence, scheduled
from tests.node.timed_topics import TimedTopics, timed_topics
from waterclock.cluster.remote_calls import UnforeseenElsewhere
from waterclock.model.errors import BadInput, Busy, StorageFull
from waterclock.model.message import Message
from waterclock.node.schedule.pending_filter import Filter
from waterclock.node.schedule.recurrence_records import AHEAD_MAX


@pytest.fixture
def clock():
    return full_hour()


@pytest.fixture
def opened(tmp_path, clock):
    """Return a way to open the topics of one folder."""
    return partial(timed_topics, tmp_path, clock)


async def test_the_next_occurrence_is_scheduled_when_one_has_come(opened):
    async with opened() as here:
        recurs = await here.recurrences.put(every())
        assert recurs.next_ms == here.clock.now_ms() + MINUTE_MS
        assert await scheduled(here) == [MINUTE_MS]

        here.clock.advance(MINUTE_MS)
        await here.recurrences.settle()

        assert await scheduled(here) == [0, MINUTE_MS]
        assert [m.value for m in await here.fired("t")] == [b"tick"]


async def test_what_was_scheduled_before_downtime_fires_late_and_the_rest_is_skipped(opened, clock):
    async with opened() as here:
        await here.recurrences.put(every())
    clock.advance(100 * MINUTE_MS + 7)
    async with opened() as here:
        await here.recurrences.settle()
        assert await scheduled(here) == [-99 * MINUTE_MS - 7, MINUTE_MS - 7]
        assert len(await here.fired("t")) == 1


async def test_a_crash_between_scheduling_and_noting_it_doubles_nothing(opened):
    async with opened() as here:
        await here.recurrences.put(every())
        before = here.metadata.items("recurrence/")
        here.clock.advance(MINUTE_MS)
        await here.recurrences.settle()
        assert await scheduled(here) == [0, MINUTE_MS]

        await here.metadata.put_many(dict(before))  # the note was lost
        here.reopen_recurrences()
        await here.recurrences.settle()

        assert await scheduled(here) == [0, MINUTE_MS]


async def test_nobody_replaces_or_ends_a_recurrence_of_a_topic_that_they_have_not_seen(opened):
    async with opened() as here:
        recurrences = here.recurrences
        theirs, ours = every(), replace(every(), topic="ours")
        # Both looked when there was none of that name, and wait for their turn.
        answers = [recurrences.put(each, seen_topic="") for each in (theirs, ours)]
        first, second = await asyncio.gather(*answers, return_exceptions=True)
        with pytest.raises(Busy):
            await recurrences.delete("beat", seen_topic="ours")

        assert isinstance(second, Busy), first
        assert recurrences.topic_of("beat") == theirs.topic
        assert await recurrences.delete("beat", seen_topic=theirs.topic)
        assert recurrences.topic_of("beat") == ""


async def test_a_deleted_recurrence_takes_its_occurrence_with_it(opened):
    async with opened() as here:
        await here.recurrences.put(every())

        assert await here.recurrences.delete("beat")

        assert await scheduled(here) == []
        assert not await here.recurrences.delete("beat")
        assert here.metadata.items("recurrence/") == []
        here.clock.advance(HOUR_MS)
        await here.recurrences.settle()
        assert await here.fired("t") == []


async def test_a_replaced_recurrence_schedules_anew_even_for_the_same_time(opened):
    async with opened() as here:
        await here.recurrences.put(every())
        other = every(message=Message(b"tock"))

        await here.recurrences.put(other)

        assert await scheduled(here) == [MINUTE_MS]
        here.clock.advance(MINUTE_MS)
        assert [m.value for m in await here.fired("t")] == [b"tock"]


async def test_a_crash_between_noting_and_cancelling_leaves_work_for_the_next_start(
    opened, monkeypatch
):
    async with opened() as here:
        await here.recurrences.put(every())

        async def crash(*_: object) -> None:
            raise StorageFull("crash here")

        with monkeypatch.context() as crashing:
            crashing.setattr(here.recurrences._steps, "_settled", crash)
            with pytest.raises(StorageFull):
                await here.recurrences.delete("beat")
        assert await scheduled(here) == [MINUTE_MS]

        here.reopen_recurrences()
        assert here.recurrences.list() == []
        await here.recurrences.settle()
        assert await scheduled(here) == []
        assert here.metadata.items("recurrence/") == []


async def test_a_cancel_that_finds_no_space_is_told_and_done_once_there_is(opened, monkeypatch):
    async with opened() as here:
        await here.recurrences.put(every())

        async def full(*_: object) -> None:
            raise StorageFull("no space")

        with monkeypatch.context() as crowded:
            crowded.setattr(here.pending, "cancel", full)
            with pytest.raises(StorageFull):
                await here.recurrences.put(every(HOUR_MS))
            with pytest.raises(StorageFull):
                await here.recurrences.delete("beat")
        assert here.recurrences.list() == []

        await here.recurrences.settle()
        assert await scheduled(here) == []
        assert here.metadata.items("recurrence/") == []


async def test_a_clock_set_back_schedules_nothing_twice(opened):
    async with opened() as here:
        await here.recurrences.put(every())
        here.clock.advance(MINUTE_MS)
        await here.recurrences.settle()
        here.clock.step(-10 * MINUTE_MS)
        await here.recurrences.settle()

        assert await scheduled(here) == [10 * MINUTE_MS, 11 * MINUTE_MS]


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_clock_that_was_wrong_for_a_moment_silences_nothing(opened, is_restarted):
    async with opened() as here:
        await here.recurrences.put(every())
        start_ms = here.clock.now_ms()
        here.clock.step(HOUR_MS)
        await here.recurrences.settle()
        here.clock.advance(MINUTE_MS)
        await here.recurrences.settle()
        await here.fired("t")  # one on time, one an hour early by the world's time
        here.clock.step(-HOUR_MS)
        if is_restarted:
            here.reopen_recurrences()
        await here.recurrences.settle()
        assert here.recurrences.list()[0].next_ms == start_ms + 2 * MINUTE_MS

        for _ in range(90):
            here.clock.advance(MINUTE_MS)
            await here.recurrences.settle()
        due = [int(m.due_ms or 0) for m in await here.fired("t")]

        assert sorted(due) == [start_ms + (1 + n) * MINUTE_MS for n in range(91)]


async def test_what_was_scheduled_too_far_ahead_is_scheduled_again_when_its_time_comes(opened):
    async with opened() as here:
        await here.recurrences.put(every())
        start_ms = here.clock.now_ms()
        for minutes in range(5 * (AHEAD_MAX + 4), 0, -5):
            for step_ms in (minutes * MINUTE_MS, -minutes * MINUTE_MS):
                here.clock.step(step_ms)
                await here.recurrences.settle()
                await here.recurrences.settle()
        assert max(await scheduled(here)) < 5 * (AHEAD_MAX + 3) * MINUTE_MS  # some were cancelled

        for _ in range(5 * AHEAD_MAX + 30):
            here.clock.advance(MINUTE_MS)
            await here.recurrences.settle()
        due = [int(m.due_ms or 0) for m in await here.fired("t")]

        assert sorted(due) == [start_ms + n * MINUTE_MS for n in range(1, 5 * AHEAD_MAX + 31)]


async def test_what_was_scheduled_by_a_wrong_clock_goes_with_its_recurrence(opened):
    async with opened() as here:
        await here.recurrences.put(every())
        here.clock.step(HOUR_MS)
        await here.recurrences.settle()
        here.clock.step(-HOUR_MS)
        await here.recurrences.settle()
        assert await scheduled(here) == [MINUTE_MS, 2 * MINUTE_MS, HOUR_MS + MINUTE_MS]

        await here.recurrences.delete("beat")

        assert await scheduled(here) == []


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_what_seemed_past_and_has_not_fired_goes_with_its_recurrence(opened, is_restarted):
    async with opened() as here:
        await here.recurrences.put(every())
        for minutes in (30, 20, 10):  # nothing fires meanwhile
            for step_ms in (minutes * MINUTE_MS, -minutes * MINUTE_MS):
                here.clock.step(step_ms)
                await here.recurrences.settle()
        if is_restarted:
            here.reopen_recurrences()
        assert len(await scheduled(here)) == 7

        await here.recurrences.delete("beat")

        assert await scheduled(here) == []
        here.clock.advance(HOUR_MS)
        assert await here.fired("t") == []


async def test_what_has_fired_is_not_kept(opened):
    async with opened() as here:
        await here.recurrences.put(every())
        for _ in range(5):
            here.clock.advance(MINUTE_MS)
            await here.fired("t")
            await here.recurrences.settle()

        assert len(here.recurrences._records["beat"].upcoming) == 2


async def test_a_recurrence_that_ended_by_a_wrong_clock_goes_on(opened):
    async with opened() as here:
        await here.recurrences.put(every(end_ms=here.clock.now_ms() + 10 * MINUTE_MS))
        here.clock.step(HOUR_MS)
        await here.recurrences.settle()
        assert here.recurrences.list()[0].next_ms == 0

        here.clock.step(-HOUR_MS)
        here.clock.advance(MINUTE_MS)
        await here.recurrences.settle()

        assert await scheduled(here) == [0, MINUTE_MS]
        assert here.recurrences.list()[0].next_ms == here.clock.now_ms() + MINUTE_MS


async def test_cron_in_a_zone_with_jitter_and_expiry(opened):
    async with opened() as here:
        daily = recurrence(
            message=Message(b"v", key=b"k", headers={"a": b"b"}),
            cron="30 9 * * *",
            zone="Europe/Berlin",
            jitter_ms=5_000,
            expires_after_ms=7,
        )
        first = await here.recurrences.put(daily)
        again = await here.recurrences.put(daily)

        assert again == replace(daily, next_ms=first.next_ms)
        assert first == replace(again, made_partitions=1)
        (one,) = (await here.pending.list("t", Filter(), with_values=True)).scheduled
        assert one.message.due_ms == first.next_ms
        assert one.message.headers == {"a": b"b", "wc-expires-ms": b"%d" % (first.next_ms + 7)}
        assert one.message.key == b"k"
        assert here.recurrences.list("t") == [again]
        assert here.recurrences.list("other") == []


async def test_an_ended_recurrence_stays_listed_and_schedules_no_more(opened):
    async with opened() as here:
        end = here.clock.now_ms() + 2 * MINUTE_MS
        await here.recurrences.put(every(end_ms=end))

        here.clock.advance(MINUTE_MS)
        await here.recurrences.settle()

        assert [recurs.next_ms for recurs in here.recurrences.list()] == [0]
        assert await scheduled(here) == [0]


@pytest.mark.parametrize("error", [StorageFull("no space"), UnforeseenElsewhere("a bug", "e1")])
async def test_what_holds_a_recurrence_loses_none(opened, monkeypatch, caplog, error):
    async with opened() as here:
        await here.recurrences.put(every())
        here.clock.advance(MINUTE_MS)

        async def fails(*_: object, **__: object) -> None:
            raise error

        with monkeypatch.context() as failing:
            failing.setattr(here.publisher, "publish_batch", fails)
            await here.recurrences.settle()
            await here.recurrences.settle()
        assert len(caplog.records) == 1
        await here.recurrences.settle()

        assert await scheduled(here) == [0, MINUTE_MS]


async def test_a_occurrence_whose_caller_has_left_is_known_to_those_who_come_after(
    opened, monkeypatch
):
    async with opened() as here:
        real = here.publisher.publish_batch
        is_scheduled, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(*args: Any) -> Any:
            answer = await real(*args)
            is_scheduled.set()
            await go_on.wait()
            return answer

        monkeypatch.setattr(here.publisher, "publish_batch", slowly)
        caller = here.tasks.create_task(here.recurrences.put(every()))
        await is_scheduled.wait()
        caller.cancel()
        await asyncio.wait([caller])
        go_on.set()

        assert await here.recurrences.delete("beat")
        assert await scheduled(here) == []


async def test_a_delete_whose_caller_has_left_is_done_all_the_same(opened, monkeypatch):
    async with opened() as here:
        await here.recurrences.put(every())
        real = here.pending.cancel
        has_begun, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(*args: Any) -> Any:
            has_begun.set()
            await go_on.wait()
            return await real(*args)

        monkeypatch.setattr(here.pending, "cancel", slowly)
        caller = here.tasks.create_task(here.recurrences.delete("beat"))
        await has_begun.wait()
        caller.cancel()
        await asyncio.wait([caller])
        go_on.set()
        await here.recurrences.settle()

        assert await scheduled(here) == []
        assert here.metadata.items("recurrence/") == []


@pytest.fixture
def records_full(monkeypatch):
    """Let the log of the node's records be full while inside."""

    @contextmanager
    def records_full(here: TimedTopics) -> Iterator[None]:
        def full(*_: object) -> None:
            raise StorageFull("no space")

        with monkeypatch.context() as crowded:
            crowded.setattr(here.metadata, "write", full)
            yield

    return records_full


async def test_a_occurrence_that_cannot_be_written_down_is_once_there_is_space(
    opened, records_full, caplog
):
    async with opened() as here:
        await here.recurrences.put(every())
        here.clock.advance(MINUTE_MS)
        with records_full(here):
            await here.recurrences.settle()
            await here.recurrences.settle()
        assert await scheduled(here) == [0, MINUTE_MS]
        assert len(caplog.records) == 1

        await here.recurrences.settle()
        here.reopen_recurrences()

        assert [r.next_ms - here.clock.now_ms() for r in here.recurrences.list()] == [MINUTE_MS]
        await here.recurrences.delete("beat")
        assert await scheduled(here) == [0]


async def test_a_delete_cancels_also_what_could_not_be_written_down(opened, records_full):
    async with opened() as here:
        await here.recurrences.put(every())
        here.clock.advance(MINUTE_MS)
        with records_full(here):
            await here.recurrences.settle()

        assert await here.recurrences.delete("beat")
        assert await scheduled(here) == [0]
        await here.recurrences.settle()
        assert here.metadata.items("recurrence/") == []


@pytest.mark.parametrize(
    ("refused", "problem"),
    [
        (recurrence(), "cron or every_ms"),
        (recurrence(cron="* * * * *", every_ms=5_000), "not both"),
        (recurrence(every_ms=5), "every_ms"),
        (recurrence(cron="61 * * * *"), "61"),
        (recurrence(cron="* * * * *", zone="X/Y"), "zone"),
        (recurrence(every_ms=5_000, jitter_ms=-1), "jitter"),
        (recurrence("a b", every_ms=5_000), "recurrence name"),
        (recurrence(topic="/", every_ms=5_000), "topic name"),
        (every(message=Message(b"", key=bytes(1 << 20))), "key bytes"),
        (every(expires_after_ms=0), "expires_after_ms"),
    ],
)
async def test_what_cannot_recur_is_refused_and_leaves_nothing_behind(opened, refused, problem):
    async with opened() as here:
        with pytest.raises(BadInput, match=problem):
            await here.recurrences.put(refused)
        assert here.recurrences.list() == []
