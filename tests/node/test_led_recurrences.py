"""Recurrences happen where the records are led, and cost the others nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.cluster.replication.shell.live_coordinator import until
from tests.node.recurring import HOUR_MS, MINUTE_MS, every, full_hour, scheduled
from tests.node.timed_topics import TimedTopics, timed_topics
from waterclock.node.schedule import recurrences

LONG_MS = 3_600_000  # nobody waits for so long
TURNS = 50


@pytest.fixture
def looks(monkeypatch):
    """Return how often it was looked what is to be done; no look is by the clock."""
    monkeypatch.setattr(recurrences, "SLEEP_MS_MAX", LONG_MS)
    sleep, seen = recurrences.Recurrences._sleep, []

    async def sleeping(self: recurrences.Recurrences) -> None:
        seen.append(self)
        await sleep(self)

    monkeypatch.setattr(recurrences.Recurrences, "_sleep", sleeping)
    return seen


@asynccontextmanager
async def lead_lost(tmp_path) -> AsyncIterator[TimedTopics]:
    """Run the recurrences of a node that has lost the lead; since then one has come."""
    async with timed_topics(tmp_path, full_hour()) as here:
        await here.recurrences.put(every())
        here.metadata._set_leading(False)
        here.clock.advance(HOUR_MS)
        running = asyncio.create_task(here.recurrences.run())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        yield here
        running.cancel()


async def test_a_node_that_has_lost_the_lead_sleeps_whatever_has_come(tmp_path, looks):
    async with lead_lost(tmp_path) as here:
        assert len(looks) == 1
        assert await scheduled(here) == [MINUTE_MS - HOUR_MS]


async def test_who_wins_the_lead_schedules_what_is_next_at_once(tmp_path, looks):
    async with lead_lost(tmp_path) as here:
        here.metadata._set_leading(True)
        await until(lambda: len(looks) > 1)

        assert await scheduled(here) == [MINUTE_MS - HOUR_MS, MINUTE_MS]
