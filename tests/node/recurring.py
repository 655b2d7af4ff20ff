"""What tests of recurrences share: one that comes each minute, and when messages are due."""

from typing import Any

from tests.kit.clock import ManualClock
from tests.node.timed_topics import TimedTopics
from waterclock.node.schedule.pending_filter import Filter
from waterclock.node.schedule.recurrence_records import Recurring, Rule

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def full_hour() -> ManualClock:
    """Return a clock that shows a full hour."""
    return ManualClock(1_700_000_000_000 - 1_700_000_000_000 % HOUR_MS)


def every(ms: int = MINUTE_MS, name: str = "beat", **more: Any) -> Recurring:
    return Recurring(name=name, topic="t", rule=Rule(every_ms=ms), value=b"tick", **more)


async def scheduled(here: TimedTopics) -> list[int]:
    """Return when pending messages are due, counted from now."""
    page = await here.pending.list("t", Filter())
    return [int(one.message.due_ms or 0) - here.clock.now_ms() for one in page.scheduled]
