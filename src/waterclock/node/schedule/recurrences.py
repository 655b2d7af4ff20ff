"""Recurrences: messages that come again and again, by cron or interval, in a time zone.

One occurrence ahead is always scheduled, as an ordinary message for later; when its time has come,
the next is scheduled. So a recurrence fires as exactly, and as safely, as any other message, and a
node that was down fires the one it had scheduled, late, and skips what it missed besides.

A clock that is set goes unnoticed but for this: one that was put forward, and back again, has left
an occurrence far ahead; what comes before it is scheduled then, and no occurrence comes twice
(`schedule.occurrences`). The same is looked at when the node starts.

A record in the metadata says what recurs and what was scheduled last. The id of an occurrence is
`<name>/<token>@<due time>`, the token being new with each `put` (and `.<turn>` behind it once the
occurrence was cancelled that may come again): a crash between scheduling and writing that down
schedules the same id again, which dedup recognises. A recurrence that is replaced, paused or
deleted first writes down which occurrence must go, then cancels it: a crash between leaves work for
the next start. One that is resumed goes on by its rule as it was, from now on. Deleting a topic
deletes its recurrences, in the same write: none of them makes it again.

What one asks for is a step (`recurrence_steps`): here is decided when, and its end written down.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec

from waterclock.log.batch import encode_batch
from waterclock.model.clock import Clock
from waterclock.model.errors import (
    BadInput,
    Busy,
    CapacityReached,
    Fenced,
    NodeFailed,
    NotFound,
    StorageFailed,
    Unavailable,
    WaterclockError,
)
from waterclock.model.ids import Millis
from waterclock.model.limits import Limits
from waterclock.model.names import check_name, check_topic_name
from waterclock.model.views import Recurrence
from waterclock.node.detached import run_detached
from waterclock.node.metadata import Metadata, Records
from waterclock.node.publish.publisher import Publisher
from waterclock.node.schedule.pending import PendingMessages
from waterclock.node.schedule.recurrence_records import RecurrenceRecord, rule_of
from waterclock.node.schedule.recurrence_steps import RecurrenceSteps
from waterclock.schedule.calendar import RecurrenceRule

RECORD = "recurrence/"
RECURRENCES_MAX = 10_000
ANY_TOPIC = "*"
"""No topic has that name: whatever is there is meant."""
SLEEP_MS_MAX = 1_000
LOOKED_AT_ONCE = 256
"""Recurrences looked at without letting the loop go."""

log = logging.getLogger(__name__)


class Recurrences:
    """All recurrences of a node. `run` must be running for them to happen."""

    def __init__(
        self,
        metadata: Metadata,
        publisher: Publisher,
        pending: PendingMessages,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        limits: Limits | None = None,
    ) -> None:
        self._metadata = metadata
        self._publisher = publisher
        self._clock = clock
        self._tasks = tasks
        self._limits = limits or Limits()
        self._alarm = asyncio.Event()
        self._steps = RecurrenceSteps(
            publisher, pending, tasks, self._limits, self._now_ms, on_done=self._alarm.set
        )
        self._records: dict[str, RecurrenceRecord] = {}
        self._rules: dict[str, RecurrenceRule] = {}
        self._changing = asyncio.Lock()
        self._is_stale = False
        """The lead of the records was won or lost since they were read: what is known here may be
        older than they are, or nobody's."""
        self._latest_ms: int | None = None
        """The latest time at which occurrences may have been scheduled."""
        self._problems: set[str] = set()
        """Recurrences with something left to do, or to write down: said once, tried again."""
        self._load()
        metadata.on_leading.append(lambda is_leading: self._lead_changed())

    def __repr__(self) -> str:
        return f"<Recurrences {len(self._records)}>"

    def _load(self) -> None:
        self._records.clear()
        self._rules.clear()
        self._problems.clear()
        self._steps.end_all()
        self._latest_ms = None
        self._is_stale = False
        for key, value in self._metadata.items(RECORD):
            self._keep(key.removeprefix(RECORD), msgspec.json.decode(value, type=RecurrenceRecord))

    def _lead_changed(self) -> None:
        """Begin with the records as they are, at once, or when who is at work on them is done."""
        self._is_stale = True
        if not self._changing.locked():
            self._load()
        self._alarm.set()  # who leads from now on has things to do

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Work on the recurrences as they are, and nobody else."""
        async with self._changing:
            if self._is_stale:
                self._load()
            try:
                yield
            finally:
                if self._is_stale:
                    self._load()

    def topic_of(self, name: str) -> str:
        """Return the topic of the recurrence of that name, nothing if there is none.

        By the records: a node that only follows them has them read at no other time, and looks
        here what a client may change before it asks the one that leads."""
        saved = self._metadata.get(RECORD + name)
        found = None if saved is None else msgspec.json.decode(saved, type=RecurrenceRecord)
        return "" if found is None or found.is_deleted else found.recurrence.topic

    async def put(self, recurrence: Recurrence, *, seen_topic: str = ANY_TOPIC) -> Recurrence:
        """Create a recurrence, or replace the one of that name. Durable on return.

        Raises Busy if `seen_topic` is not what `topic_of` says when it is our turn: the caller may
        have the right to what it saw, and not to what somebody put there meanwhile.
        """
        check_name("recurrence", recurrence.name)
        check_topic_name(recurrence.topic)
        now_ms = self._clock.now_ms()
        token = os.urandom(6).hex()
        record = RecurrenceRecord(recurrence=recurrence, token=token, anchor_ms=now_ms)
        self._check(record, now_ms)
        # A caller that leaves after the occurrence was scheduled must not keep it from being
        # written down.
        return await run_detached(self._tasks, self._put(recurrence.name, record, seen_topic))

    async def _put(self, name: str, record: RecurrenceRecord, seen_topic: str) -> Recurrence:
        async with self._alone():
            self._check_seen(name, seen_topic)
            before = await self._with_scheduled(name)
            if before is None and len(self._records) >= RECURRENCES_MAX:
                raise CapacityReached("recurrences", RECURRENCES_MAX)
            # Its first occurrence would make it, too; here, the caller that puts it gets the error.
            made = await self._publisher.topics.ensure(record.recurrence.topic)
            unwanted = [] if before is None else before.to_cancel(self._now_ms())
            view = await self._change(name, msgspec.structs.replace(record, unwanted=unwanted))
            return msgspec.structs.replace(view, made_partitions=made.made_partitions)

    async def set_paused(
        self, name: str, *, is_paused: bool, seen_topic: str = ANY_TOPIC
    ) -> Recurrence:
        """Pause a recurrence and cancel what it has scheduled, or resume it, from now on.

        Durable on return; what cannot be cancelled now is as with `delete`. Raises NotFound. As for
        `seen_topic`, see `put`.
        """
        return await run_detached(self._tasks, self._set_paused(name, is_paused, seen_topic))

    async def _set_paused(self, name: str, is_paused: bool, seen_topic: str) -> Recurrence:
        async with self._alone():
            self._check_seen(name, seen_topic)
            now = await self._with_scheduled(name)
            if now is None or now.is_deleted:
                raise NotFound("recurrence", name)
            return await self._change(
                name, now.paused(self._now_ms()) if is_paused else now.resumed()
            )

    async def _with_scheduled(self, name: str) -> RecurrenceRecord | None:
        """Return what is known of a recurrence, if there is one, with all that it has scheduled.

        A crash, or a lead that was lost, may have kept that from being written down: it is found by
        its id, and can be cancelled then. Raises why if it cannot be looked for now.
        """
        record = self._records.get(name)
        if record is None or record.is_deleted:
            return record
        if name not in self._steps.under_way and not record.is_due(self._now_ms()):
            return record
        problem = await self._settle_one(name)
        if isinstance(problem, Unavailable | NodeFailed):
            raise problem
        return self._records.get(name)

    async def _change(self, name: str, record: RecurrenceRecord) -> Recurrence:
        """Save what it is to be and bring it about; raises why what must go cannot go yet."""
        await self._save({name: record})
        problem = await self._settle_one(name)
        if self._records[name].unwanted and problem is not None:
            raise problem
        return self._view(self._records[name])

    def _check_seen(self, name: str, seen_topic: str) -> None:
        if seen_topic not in (ANY_TOPIC, self.topic_of(name)):
            raise Busy(f"recurrence {name!r} was changed by somebody else meanwhile: try again")

    async def delete(self, name: str, *, seen_topic: str = ANY_TOPIC) -> bool:
        """End a recurrence and cancel what it has scheduled; tell whether there was one.

        If that cannot be cancelled now, this raises why, and it is tried again until it can. As for
        `seen_topic`, see `put`.
        """
        async with self._alone():
            self._check_seen(name, seen_topic)
            before = await self._with_scheduled(name)
            if before is None or before.is_deleted:
                return False
            await self._save({name: before.deleted(self._now_ms())})
            problem = await self._settle_one(name)
            if problem is not None:
                raise problem
            return True

    @asynccontextmanager
    async def topic_deleting(self, topic: str) -> AsyncIterator[Records]:
        """Hold still while a topic is deleted; its recurrences go with it."""
        async with self._alone():
            gone = {
                name: record.without_topic(self._now_ms())
                for name, record in self._records.items()
                if record.recurrence.topic == topic and not record.is_deleted
            }
            for name in gone:
                self._steps.end(name)  # it would make the topic again
            yield _encoded(gone)
            for name, record in gone.items():
                self._keep(name, record)
                log.info("recurrence_deleted name=%s with_topic=%s", name, topic)
            self._problems.intersection_update(self._records)

    def list(self, topic: str = "") -> "Sequence[Recurrence]":
        """Return the recurrences of a topic, or all, by name."""
        records = [self._records[name] for name in sorted(self._records)]
        return [
            self._view(record)
            for record in records
            if not record.is_deleted and topic in ("", record.recurrence.topic)
        ]

    async def run(self) -> None:
        """Schedule each next occurrence when the one before has come, until cancelled."""
        while True:
            if self._metadata.is_leading:
                await self.settle()
            await self._sleep()

    async def settle(self) -> None:
        """Schedule what is next of each recurrence whose time has come."""
        async with self._alone():
            now_ms = self._clock.now_ms()
            # At the start nobody knows what the clock was when the last occurrences were scheduled.
            is_set_back = self._latest_ms is None or now_ms < self._latest_ms
            self._latest_ms = now_ms
            due = {name for name, record in self._records.items() if record.is_due(now_ms)}
            if is_set_back:
                due.update([name async for name in self._overtaken(now_ms)])
            await self._settle(sorted(self._problems | due))

    async def _overtaken(self, now_ms: int) -> AsyncIterator[str]:
        """Yield the recurrences whose next occurrence comes before the one scheduled last."""
        for count, (name, record) in enumerate(self._records.items(), 1):
            if record.is_overtaken(self._rules[name], now_ms):
                yield name
            if count % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _now_ms(self) -> int:
        """Return the time, and remember it: a clock may be set back behind it."""
        now_ms = self._clock.now_ms()
        self._latest_ms = now_ms if self._latest_ms is None else max(now_ms, self._latest_ms)
        return now_ms

    async def _sleep(self) -> None:
        now_ms = self._clock.now_ms()
        # What has come where another node leads is not to be done here, and would end no sleep.
        records = self._records if self._metadata.is_leading else {}
        times = [
            record.last_scheduled.due_ms
            for name, record in records.items()
            if record.last_scheduled is not None and name not in self._problems
        ]
        sleep_ms = max(0, min(SLEEP_MS_MAX, min(times, default=now_ms + SLEEP_MS_MAX) - now_ms))
        self._alarm.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(sleep_ms / 1_000):
                await self._alarm.wait()

    def wake(self) -> None:
        """Look at the clock now: it may have been set."""
        self._alarm.set()

    async def _settle(self, names: Iterable[str]) -> dict[str, WaterclockError]:
        """Do what is to be done; return what could not be, and why. It is tried again later."""
        problems: dict[str, WaterclockError] = {}
        changed: dict[str, RecurrenceRecord | None] = {}
        wanted = [(self._records[name], self._rules[name]) for name in names]
        for name, result in (await self._steps.take(wanted)).items():
            if result is self._records[name] and name not in self._problems:
                continue  # as it was, and written down
            if isinstance(result, BaseException):
                problems[name] = self._note_problem(name, result)
            else:
                changed[name] = result
        if changed:
            problems |= await self._write_down(changed)
            self._alarm.set()
        return problems

    async def _settle_one(self, name: str) -> WaterclockError | None:
        """Do what is to be done for a caller; return why it could not be, if so."""
        self._steps.wait_for(name)
        return (await self._settle([name])).get(name)

    async def _write_down(
        self, changed: "Mapping[str, RecurrenceRecord | None]"
    ) -> dict[str, WaterclockError]:
        """Save what was done; what cannot be is known here at least, and saved later."""
        try:
            await self._save(changed)
        except WaterclockError as error:
            for name, record in changed.items():
                if record is not None:  # a delete must find what was scheduled
                    self._keep(name, record)
            return {name: self._note_problem(name, error) for name in changed}
        self._problems.difference_update(changed)
        return {}

    def _note_problem(self, name: str, error: BaseException) -> WaterclockError:
        """Try again later what may succeed then; what is no mere shortage ends the node."""
        if not isinstance(error, WaterclockError) or isinstance(error, StorageFailed):
            raise error
        if name not in self._problems:
            log.warning("recurrence_held name=%s reason=%s", name, error)
        self._problems.add(name)
        return error

    async def _save(self, records: "Mapping[str, RecurrenceRecord | None]") -> None:
        if self._is_stale:
            # Won again, it may hold what another leader wrote: not to be undone by what was before.
            raise Fenced("this node has lost the lead of the recurrences: ask again")
        written = self._metadata.write(_encoded(records))
        for name, record in records.items():
            self._keep(name, record)
        await self._metadata.wait_flushed(written)

    def _keep(self, name: str, record: RecurrenceRecord | None) -> None:
        self._steps.end(name)
        if record is None:
            self._records.pop(name, None)
            self._rules.pop(name, None)
        else:
            self._records[name] = record
            self._rules[name] = rule_of(record)

    def _check(self, record: RecurrenceRecord, now_ms: int) -> None:
        """Raise BadInput unless each occurrence can be scheduled."""
        expires = record.recurrence.expires_after_ms
        if expires is not None and expires <= 0:
            raise BadInput(f"expires_after_ms must be positive (got {expires})")
        due_ms = rule_of(record).next_after(now_ms)
        due_ms = Millis(now_ms) if due_ms is None else due_ms
        encode_batch([record.message(due_ms)], self._limits, now_ms=now_ms)

    def _view(self, record: RecurrenceRecord) -> Recurrence:
        now_ms = self._clock.now_ms()
        coming = [occurrence.due_ms for occurrence in record.upcoming if occurrence.due_ms > now_ms]
        if not coming and record.last_scheduled is not None:
            coming = [record.last_scheduled.due_ms]
        if coming:
            next_ms = min(coming)
        else:
            next_ms = record.next_open(self._rules[record.recurrence.name], now_ms) or 0
        return msgspec.structs.replace(record.recurrence, next_ms=next_ms)


def _encoded(records: "Mapping[str, RecurrenceRecord | None]") -> Records:
    return {
        RECORD + name: None if record is None else msgspec.json.encode(record)
        for name, record in records.items()
    }
