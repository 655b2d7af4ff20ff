"""Steps about time: messages for later, some cancelled, some moved; then they come.

How late a message is, is measured here: from its due time to when the client has it in hand.
"""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

from demos.node.steps import Fired, Pending, Scheduled
from waterclock.cli.output.figures import quantiles
from waterclock.cli.output.messages import millis_of
from waterclock.cli.output.terminal import bytes_text
from waterclock.client.client import Client
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.sections import ScheduleConfig
from waterclock.model.units import HOUR_MS
from waterclock.model.views import ScheduledMessage

TOPIC = "reminders"
SOON = 600
SOON_MS = (5_000, 7_000)
"""When they are due, from now: not before they are published, cancelled and listed, on a busy
machine either."""
LATER = 3_000
LATER_HOURS = 12
CANCELLED = 100
MOVED = 50
SOONEST = 5
PATIENCE_S = 15.0
TEXT_CHARS = 24
LATE_EDGES_MS = (0, 25, 50, 100, 200)
"""Of the histogram."""


def soon_id(number: int) -> bytes:
    """Return the id of a message that is due within seconds."""
    return b"tea-%d" % number


def later_id(number: int) -> bytes:
    """Return the id of a message that is due within hours."""
    return b"dinner-%d" % number


CANCELLED_IDS = {soon_id(number) for number in range(0, SOON, SOON // CANCELLED)}
MOVED_IDS = {later_id(number) for number in range(MOVED)}
EXPECTED_IDS = {soon_id(number) for number in range(SOON)} - CANCELLED_IDS | MOVED_IDS


async def publish(client: Client) -> Scheduled:
    """Publish messages for later, cancel some, and move some from tonight to now."""
    rng = random.Random(17)
    now_ms = time.time_ns() // 1_000_000
    messages = [
        _reminder(soon_id(number), b"your tea is ready", now_ms + rng.randint(*SOON_MS))
        for number in range(SOON)
    ]
    horizon = LATER_HOURS * HOUR_MS
    messages += [
        _reminder(
            later_id(number),
            b"your table is ready",
            now_ms + int(rng.triangular(HOUR_MS, horizon, horizon * 0.6)),
        )
        for number in range(LATER)
    ]
    started = time.perf_counter()
    await client.publish_many(TOPIC, messages)
    publish_ms = 1_000 * (time.perf_counter() - started)
    cancelled = await client.cancel_many(TOPIC, sorted(CANCELLED_IDS))
    moved = await client.reschedule_many(TOPIC, sorted(MOVED_IDS), "+5s")
    horizons = await client.count_scheduled(TOPIC)
    upcoming = [each async for each in client.scheduled(TOPIC)]
    per_hour = [0] * LATER_HOURS
    for each in upcoming:
        hour = (millis_of(each.due) - now_ms) // HOUR_MS
        per_hour[min(max(hour, 0), LATER_HOURS - 1)] += 1
    return Scheduled(
        messages=len(messages),
        publish_ms=publish_ms,
        cancelled=sum(each == "cancelled" for each in cancelled),
        moved=sum(each == "moved" for each in moved),
        scheduled=sum(each.count for each in horizons),
        listed=len(upcoming),
        soonest=[_pending(each) for each in upcoming[:SOONEST]],
        per_hour=per_hour,
    )


def _reminder(message_id: bytes, value: bytes, due_ms: int) -> Message:
    key = b"guest-%d" % (sum(message_id) % 40)
    return Message(value, key=key, message_id=message_id, due_ms=Millis(due_ms))


def _pending(found: ScheduledMessage) -> Pending:
    return Pending(
        millis_of(found.due),
        bytes_text(found.key or b"", chars_max=TEXT_CHARS),
        bytes_text(found.message_id, chars_max=TEXT_CHARS),
    )


async def fire(client: Client, show: Callable[[str], None]) -> Fired:
    """Take the messages due within seconds as they come, and see how late each is."""
    late_ms: dict[bytes, float] = {}
    cancelled = 0
    async with client.subscribe(TOPIC, group="guests") as messages:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                async for message in messages:
                    now_ms = time.time_ns() / 1_000_000
                    assert message.due is not None
                    late_ms.setdefault(message.id, now_ms - millis_of(message.due))
                    cancelled += message.id in CANCELLED_IDS
                    message.ack()
                    show(f"{len(late_ms):,} of {len(EXPECTED_IDS):,} came due")
                    if late_ms.keys() >= EXPECTED_IDS:
                        break
    return Fired(
        expected=len(EXPECTED_IDS),
        came=len(late_ms.keys() & EXPECTED_IDS),
        early=sum(ms < 0 for ms in late_ms.values()),
        cancelled_came=cancelled,
        late_ms=quantiles([*late_ms.values()]),
        late_counts=_counts([*late_ms.values()]),
        tick_ms=ScheduleConfig().tick_ms,
    )


def _counts(values: list[float]) -> list[tuple[str, int]]:
    counts = [
        (f"{low}-{high} ms", sum(low <= value < high for value in values))
        for low, high in pairwise(LATE_EDGES_MS)
    ]
    last = LATE_EDGES_MS[-1]
    return [*counts, (f"over {last} ms", sum(value >= last for value in values))]
