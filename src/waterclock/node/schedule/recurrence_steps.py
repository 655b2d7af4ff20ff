"""Steps of recurrences: what each asks for is done, and all take theirs side by side.

A step cancels what must go and schedules what is next. An occurrence is cancelled only where its id
stands: a topic made anew has other messages at the same positions.

Many may be due together: they begin a few at a time, and everyone else has turns between.

A partition may have no leader for a while: a step that is not done `PATIENCE_S` after the last has
begun goes on by itself, and its end is noted when it comes. Until then nobody waits for it but who
changes that recurrence. Nothing is written down here: that is up to `Recurrences`, which ends a
step whose record is another one from then on.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from waterclock.log.batch import encode_batch
from waterclock.model.errors import NotFound, Stopping, Unavailable
from waterclock.model.limits import Limits
from waterclock.node.publish.publisher import Publisher
from waterclock.node.schedule.named_changes import Named
from waterclock.node.schedule.pending import PendingMessages
from waterclock.node.schedule.recurrence_records import Occurrence, RecurrenceRecord
from waterclock.node.schedule.scheduler import CANCELLED, DONE
from waterclock.schedule.calendar import RecurrenceRule

PATIENCE_S = 1.0
"""How long recurrences wait for one another. Lower keeps the others more punctual while a partition
has no leader, and tells callers sooner that they are to try again."""
BEGUN_AT_ONCE = 64
"""Steps begun without letting the loop go: each writes an occurrence, some 0.3 ms."""

Result = RecurrenceRecord | Exception | None
"""The record as it is after a step, None if it is done with, or why the step failed."""
Step = asyncio.Task[Result]


class RecurrenceSteps:
    """The steps of a node's recurrences, by name: one of each at a time."""

    def __init__(
        self,
        publisher: Publisher,
        pending: PendingMessages,
        tasks: asyncio.TaskGroup,
        limits: Limits,
        now_ms: Callable[[], int],
        *,
        on_done: Callable[[], None],
    ) -> None:
        """`on_done` is called whenever a step is done."""
        self._publisher = publisher
        self._pending = pending
        self._tasks = tasks
        self._limits = limits
        self._now_ms = now_ms
        self._on_done = on_done
        self.under_way: dict[str, Step] = {}
        """What is being done, or was and is not written down, of the records as they are."""
        self._slow: set[str] = set()
        """Recurrences whose last step was not done in time: the others wait for them no more."""

    def __repr__(self) -> str:
        return f"<RecurrenceSteps {len(self.under_way)} under way, {len(self._slow)} slow>"

    async def take(
        self, wanted: Sequence[tuple[RecurrenceRecord, RecurrenceRule]]
    ) -> dict[str, Result]:
        """Do what records ask for, or go on with it; return what came of each, by name."""
        steps: dict[str, Step] = {}
        for count, (record, rule) in enumerate(wanted, 1):
            name = record.recurrence.name
            steps[name] = self.under_way.get(name) or self._begin(name, record, rule)
            if count % BEGUN_AT_ONCE == 0:
                await asyncio.sleep(0)
        if waited := [step for name, step in steps.items() if name not in self._slow]:
            await asyncio.wait(waited, timeout=PATIENCE_S)
        return {name: self._result(name, step) for name, step in steps.items()}

    def wait_for(self, name: str) -> None:
        """Let the next `take` wait for that recurrence, whether it was in time before or not."""
        self._slow.discard(name)

    def end(self, name: str) -> None:
        """Let go of a step whose record is another one from now on."""
        self._slow.discard(name)
        if step := self.under_way.pop(name, None):
            step.cancel()

    def end_all(self) -> None:
        """Let go of all steps: the records are read anew."""
        for name in tuple(self.under_way):
            self.end(name)
        self._slow.clear()

    def _begin(self, name: str, record: RecurrenceRecord, rule: RecurrenceRule) -> Step:
        work = self._outcome(record, rule)
        try:
            step = self.under_way[name] = self._tasks.create_task(work)
        except RuntimeError as error:  # the group takes no more
            work.close()
            raise Stopping("the node is stopping") from error
        step.add_done_callback(lambda _: self._on_done())
        return step

    def _result(self, name: str, step: Step) -> Result:
        """Return what came of a step, if it is done."""
        if not step.done():
            self._slow.add(name)
            return Unavailable(f"recurrence {name!r}: a partition does not answer, and is asked on")
        self._slow.discard(name)
        self.under_way.pop(name, None)
        return step.result()

    async def _outcome(self, record: RecurrenceRecord, rule: RecurrenceRule) -> Result:
        """Return what came of it, or why it failed: for whoever asks, and not for the node."""
        try:
            return await self._settled(record, rule)
        except Exception as error:
            return error

    async def _settled(
        self, record: RecurrenceRecord, rule: RecurrenceRule
    ) -> RecurrenceRecord | None:
        """Do what a record asks for; return it as it is then, None if it is done with."""
        cancelled = await self._cancel_all(record.unwanted)
        if record.is_deleted:
            return None
        if record.unwanted:
            record = record.with_cancelled(rule, cancelled)
        now_ms = self._now_ms()
        due_ms = record.next_open(rule, now_ms)
        last = record.last_scheduled
        if last is not None and last.due_ms > now_ms and (due_ms is None or due_ms > last.due_ms):
            return record
        if due_ms is None:
            return msgspec.structs.replace(
                record, is_over=True, last_scheduled=None, ahead=record.upcoming
            )
        occurrence = await self._schedule(record, due_ms, now_ms)
        return record.with_occurrence(rule, occurrence, now_ms, may_fire=self._may_fire)

    def _may_fire(self, occurrence: Occurrence) -> bool:
        return self._pending.may_fire(occurrence.topic, (occurrence.partition, occurrence.offset))

    async def _schedule(self, record: RecurrenceRecord, due_ms: int, now_ms: int) -> Occurrence:
        topic = record.recurrence.topic
        batch = encode_batch([record.message(due_ms)], self._limits, now_ms=now_ms)
        answer = await self._publisher.publish_batch(topic, batch.body)
        message_id = record.message_id(due_ms)
        return Occurrence(topic, answer.partition, answer.first_offset, due_ms, message_id)

    async def _cancel_all(self, occurrences: Sequence[Occurrence]) -> Sequence[Occurrence]:
        """Return those that are cancelled; raises why some could not be, once all were tried."""
        outcomes = await asyncio.gather(*map(self._cancel, occurrences), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [one for one, outcome in zip(occurrences, outcomes, strict=True) if outcome]

    async def _cancel(self, occurrence: Occurrence) -> bool:
        """Tell whether it is cancelled, now or before; False if it has fired, or is gone."""
        # Gone with its topic, it fires no more. Anything else may pass, and then it would fire.
        with suppress(NotFound):
            position = occurrence.partition, occurrence.offset
            named = Named(occurrence.message_id.encode(), position=position)
            outcome = await self._pending.cancel_at(occurrence.topic, named)
            return outcome in (DONE, CANCELLED)
        return False
