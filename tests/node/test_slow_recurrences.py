"""A partition that does not answer makes no other recurrence late."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from tests.node.recurring import MINUTE_MS, full_hour, recurrence
from tests.node.timed_topics import TimedTopics, timed_topics
from waterclock.model.errors import Unavailable
from waterclock.model.views import Recurrence
from waterclock.node.schedule import recurrence_steps, recurrences
from waterclock.node.schedule.named_changes import Named
from waterclock.node.schedule.pending_filter import Filter

LONG_S = 3_600  # nobody waits for so long
HANGS_S = 60


class Slow:
    """Topics, one of which has nobody who answers until it is let."""

    def __init__(self, here: TimedTopics, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here = here
        self.recurrences = here.recurrences
        self.go_on = asyncio.Event()
        self.waiting = 0
        self.waiting_most = 0
        for owner, name in ((here.publisher, "publish_batch"), (here.pending, "cancel_at")):
            monkeypatch.setattr(owner, name, partial(self._answer, getattr(owner, name)))

    async def _answer(self, real: Callable[..., Any], topic: str, what: bytes | Named) -> Any:
        if topic == "slow":
            self.waiting += 1
            self.waiting_most = max(self.waiting, self.waiting_most)
            await self.go_on.wait()
            self.waiting -= 1
        return await real(topic, what)

    async def scheduled(self, topic: str) -> list[int]:
        page = await self.here.pending.list(topic, Filter())
        return [int(one.message.due_ms or 0) - self.here.clock.now_ms() for one in page.scheduled]

    async def pass_minute(self) -> None:
        self.here.clock.advance(MINUTE_MS)
        await self.recurrences.settle()
        if swift := self.recurrences._steps.under_way.get("swift"):
            await swift  # this machine may be slow as well
            await self.recurrences.settle()


def each_minute(topic: str) -> Recurrence:
    return recurrence(topic, topic, every_ms=MINUTE_MS)


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Return a way to open topics with a recurrence each, one of which is slow from then on."""

    @asynccontextmanager
    async def opening() -> AsyncIterator[Slow]:
        async with timed_topics(tmp_path, full_hour()) as here:
            for topic in ("slow", "swift"):
                await here.recurrences.put(each_minute(topic))
            monkeypatch.setattr(recurrence_steps, "PATIENCE_S", 0)
            slow = Slow(here, monkeypatch)
            yield slow
            slow.go_on.set()

    return opening


async def test_the_others_go_on_while_one_cannot_be_scheduled(opened, monkeypatch):
    async with opened() as it:
        await it.pass_minute()
        monkeypatch.setattr(recurrence_steps, "PATIENCE_S", LONG_S)
        async with asyncio.timeout(HANGS_S):
            await it.pass_minute()
            await it.pass_minute()

        assert (await it.scheduled("swift"))[-1] == MINUTE_MS
        assert max(await it.scheduled("slow")) < 0
        assert it.waiting_most == 1


async def test_the_next_of_another_is_looked_after_when_it_is_due(opened, monkeypatch):
    async with opened() as it:
        await it.pass_minute()
        monkeypatch.setattr(recurrences, "SLEEP_MS_MAX", LONG_S * 1_000)
        it.here.clock.advance(MINUTE_MS)
        async with asyncio.timeout(HANGS_S):
            await it.recurrences._sleep()

        await it.recurrences.settle()
        assert "slow" in it.recurrences._problems


async def test_what_was_not_done_in_time_goes_on_and_is_noted_when_it_is_done(opened, monkeypatch):
    async with opened() as it:
        await it.pass_minute()
        step = it.recurrences._steps.under_way["slow"]
        it.go_on.set()
        await step
        await it.recurrences.settle()

        assert await it.scheduled("slow") == [0, MINUTE_MS]
        monkeypatch.setattr(recurrence_steps, "PATIENCE_S", LONG_S)
        await it.pass_minute()
        assert await it.scheduled("slow") == [-MINUTE_MS, 0, MINUTE_MS]
        assert not it.recurrences._steps.under_way


async def test_who_changes_one_that_does_not_answer_is_told_and_what_was_asked_is_done(
    opened, monkeypatch
):
    async with opened() as it:
        with pytest.raises(Unavailable, match="does not answer"):
            await it.recurrences.delete("slow")
        step = it.recurrences._steps.under_way["slow"]
        it.go_on.set()
        await step
        await it.recurrences.settle()

        assert await it.scheduled("slow") == []
        assert [key for key, _ in it.here.metadata.items("recurrence/")] == ["recurrence/swift"]


async def test_one_whose_step_is_under_way_changes_only_with_what_that_has_scheduled(
    opened, monkeypatch
):
    async with opened() as it:
        await it.pass_minute()
        with pytest.raises(Unavailable, match="does not answer"):
            await it.recurrences.delete("slow")
        it.go_on.set()
        monkeypatch.setattr(recurrence_steps, "PATIENCE_S", LONG_S)

        assert await it.recurrences.delete("slow")
        assert await it.scheduled("slow") == [0]  # it is due, and is let go its way


async def test_all_that_must_go_is_cancelled_side_by_side(opened, monkeypatch):
    async with opened() as it:
        it.go_on.set()
        monkeypatch.setattr(recurrence_steps, "PATIENCE_S", LONG_S)
        for minutes in (30, 20, 10):  # a clock that was wrong has left occurrences ahead
            it.here.clock.step(minutes * MINUTE_MS)
            await it.recurrences.settle()
            it.here.clock.step(-minutes * MINUTE_MS)
            await it.recurrences.settle()
        monkeypatch.setattr(recurrence_steps, "PATIENCE_S", 0)
        it.go_on.clear()
        with pytest.raises(Unavailable):
            await it.recurrences.delete("slow")
        for _ in range(2):
            await asyncio.sleep(0)

        assert it.waiting == len(it.recurrences._records["slow"].unwanted) == 7


async def test_a_topic_that_is_deleted_meanwhile_is_not_made_again(opened):
    async with opened() as it:
        await it.pass_minute()
        step = it.recurrences._steps.under_way["slow"]
        await it.here.topics.delete("slow")
        it.go_on.set()
        await asyncio.wait([step])
        await it.recurrences.settle()

        assert [topic.name for topic in it.here.topics.all()] == ["swift"]
