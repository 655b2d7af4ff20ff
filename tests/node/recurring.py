"""What tests of recurrences share: one that comes each minute, and when messages are due."""

from typing import Any

from tests.kit.clock import ManualClock
from tests.node.timed_topics import TimedTopics
from waterclock.model.message import Message
from waterclock.model.views import Recurrence
from waterclock.node.schedule.pending_filter import Filter

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def full_hour() -> ManualClock:
    """Return a clock that shows a full hour."""
    return ManualClock(1_700_000_000_000 - 1_700_000_000_000 % HOUR_MS)


def recurrence(name: str = "a", topic: str = "t", **more: Any) -> Recurrence:
    return Recurrence(**{"name": name, "topic": topic, "message": Message(b"tick"), **more})


def every(ms: int = MINUTE_MS, **more: Any) -> Recurrence:
    return recurrence("beat", every_ms=ms, **more)


async def scheduled(here: TimedTopics) -> list[int]:
    """Return when pending messages are due, counted from now."""
    page = await here.pending.list("t", Filter())
    return [int(one.message.due_ms or 0) - here.clock.now_ms() for one in page.scheduled]
