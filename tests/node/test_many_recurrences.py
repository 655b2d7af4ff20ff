"""Recurrences that are due together begin a few at a time, and none is late for the others."""

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.node.recurring import HOUR_MS, MINUTE_MS, recurrence
from waterclock.model.limits import Limits
from waterclock.node.schedule.recurrence_records import RecurrenceRecord, rule_of
from waterclock.node.schedule.recurrence_steps import (
    BEGUN_AT_ONCE,
    PATIENCE_S,
    RecurrenceSteps,
)
from waterclock.schedule.calendar import RecurrenceRule

MANY = 4 * BEGUN_AT_ONCE + 1
STEP_S = PATIENCE_S / (2 * BEGUN_AT_ONCE)
FSYNC_TURNS = 3


class Disk:
    """Publishes what is durable some turns of the loop later; each step takes its time before."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.begun = 0
        self.begun_in_turn: list[int] = []
        self._flushed = asyncio.Event()

    async def publish_batch(self, topic: str, body: bytes) -> Any:
        self.now_s += STEP_S
        self.begun += 1
        await self._flushed.wait()
        return SimpleNamespace(partition=0, first_offset=0)

    async def run(self) -> None:
        """Take turns; all is durable once nothing more was begun in some of them."""
        idle = 0
        while not self.begun or idle < FSYNC_TURNS:
            before = self.begun
            await asyncio.sleep(0)
            self.begun_in_turn.append(self.begun - before)
            idle = 0 if self.begun > before else idle + 1
        self._flushed.set()


def first_of(number: int) -> tuple[RecurrenceRecord, RecurrenceRule]:
    given = recurrence(f"r{number}", every_ms=MINUTE_MS)
    record = RecurrenceRecord(recurrence=given, token="t", anchor_ms=0)
    return record, rule_of(record)


async def test_many_that_are_due_together_let_others_have_turns_and_none_is_held(monkeypatch):
    disk: Any = Disk()
    pending: Any = None
    # No time passes but what the steps take.
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: disk.now_s)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(disk.run())
        steps = RecurrenceSteps(
            disk, pending, tasks, Limits(), lambda: HOUR_MS, on_done=lambda: None
        )
        done = await steps.take([first_of(number) for number in range(MANY)])

    assert [found for found in done.values() if not isinstance(found, RecurrenceRecord)] == []
    assert disk.begun == MANY
    assert max(disk.begun_in_turn) == BEGUN_AT_ONCE
