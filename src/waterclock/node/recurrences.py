"""Recurrences: messages that come again and again, by cron or interval, in a time zone.

One occurrence ahead is always promised, as an ordinary message for later; when its time has come,
the next is promised. So a recurrence fires as exactly, and as safely, as any other message, and a
node that was down fires the one it had promised, late, and skips what it missed besides.

A record in the metadata says what recurs and what was promised last. The id of an occurrence is
`<name>/<token>@<due time>`, the token being new with each `put`: a crash between promising and
writing that down promises the same id again, which dedup recognises. A recurrence that is replaced
or deleted first writes down which promise must go, then cancels it: a crash between leaves work for
the next start. A promise is cancelled only where its id stands: a topic made anew has other
messages at the same positions.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from waterclock.log.batch import encode_batch
from waterclock.log.expiry import HEADER as EXPIRES_HEADER
from waterclock.log.fingerprint import fingerprint
from waterclock.model.clock import Clock
from waterclock.model.errors import (
    BadInput,
    CapacityReached,
    NotFound,
    StorageFailed,
    WaterclockError,
)
from waterclock.model.ids import Millis
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.model.names import check_name
from waterclock.node.metadata import Metadata
from waterclock.node.named_changes import Named
from waterclock.node.pending import PendingMessages
from waterclock.node.publishing import Publishing
from waterclock.node.sheltered import sheltered
from waterclock.schedule.calendar import (
    INTERVAL_MS_MAX,
    INTERVAL_MS_MIN,
    CronRule,
    IntervalRule,
    Recurrence,
    zone_of,
)
from waterclock.schedule.cron import Cron

RECORD = "recurrence/"
RECURRENCES_MAX = 10_000
SLEEP_MS_MAX = 1_000

_JITTER_SEED = 0x6A697474

log = logging.getLogger(__name__)


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """When it happens: `cron` or `every_ms`, one of both."""

    cron: str | None = None
    """Five fields, or six with seconds first, read in `zone`."""
    every_ms: int | None = None
    zone: str = "UTC"
    jitter_ms: int = 0
    """Each occurrence comes up to so much later, always the same for the same occurrence."""
    start_ms: int | None = None
    end_ms: int | None = None
    """Within [start_ms, end_ms)."""


class Recurring(msgspec.Struct, frozen=True, kw_only=True):
    """What recurs: a message, without id and due time, to a topic, by a rule."""

    name: str
    topic: str
    rule: Rule
    key: bytes | None = None
    value: bytes | None = None
    headers: dict[str, bytes] | None = None
    expires_after_ms: int | None = None
    """Each occurrence expires so long after its time."""

    def message(self, message_id: bytes, due_ms: int) -> Message:
        """Return one occurrence."""
        headers = dict(self.headers or ())
        if self.expires_after_ms is not None:
            headers[EXPIRES_HEADER] = b"%d" % (due_ms + self.expires_after_ms)
        return Message(
            self.value,
            key=self.key,
            message_id=message_id,
            headers=headers or None,
            due_ms=Millis(due_ms),
        )


class _Promise(msgspec.Struct, frozen=True, array_like=True):
    """A promised occurrence."""

    topic: str
    partition: int
    offset: int
    due_ms: int
    message_id: str = ""
    """Records of earlier versions have none: whatever is at the position is meant."""


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    recurring: Recurring
    token: str
    anchor_ms: int
    """When an interval began to be counted, if the rule does not say."""
    promise: _Promise | None = None
    """The occurrence that was promised last."""
    is_over: bool = False
    """There are no more occurrences."""
    unwanted: list[_Promise] = []
    """Promises of what this has replaced, to be cancelled."""
    is_deleted: bool = False


class Recurs(NamedTuple):
    """A recurrence as it stands."""

    recurring: Recurring
    next_ms: int
    """When it happens next; 0 if it does not any more."""


class Recurrences:
    """All recurrences of a node. `run` must be running for them to happen."""

    def __init__(
        self,
        metadata: Metadata,
        publishing: Publishing,
        pending: PendingMessages,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        limits: Limits | None = None,
    ) -> None:
        self._metadata = metadata
        self._publishing = publishing
        self._pending = pending
        self._clock = clock
        self._tasks = tasks
        self._limits = limits or Limits()
        self._records: dict[str, _Record] = {}
        self._rules: dict[str, Recurrence] = {}
        for key, value in metadata.items(RECORD):
            self._keep(key.removeprefix(RECORD), msgspec.json.decode(value, type=_Record))
        self._changing = asyncio.Lock()
        self._alarm = asyncio.Event()
        self._problems: set[str] = set()
        """Recurrences with something left to do, or to write down: said once, tried again."""

    def __repr__(self) -> str:
        return f"<Recurrences {len(self._records)}>"

    async def put(self, recurring: Recurring) -> Recurs:
        """Create a recurrence, or replace the one of that name. Durable on return."""
        check_name("recurrence", recurring.name)
        check_name("topic", recurring.topic)
        now_ms = self._clock.now_ms()
        record = _Record(recurring=recurring, token=os.urandom(6).hex(), anchor_ms=now_ms)
        self._check(record, now_ms)
        # A caller that leaves after the promise was made must not keep it from being written down.
        return await sheltered(self._tasks, self._put(recurring.name, record))

    async def _put(self, name: str, record: _Record) -> Recurs:
        async with self._changing:
            before = self._records.get(name)
            if before is None and len(self._records) >= RECURRENCES_MAX:
                raise CapacityReached("recurrences", RECURRENCES_MAX)
            await self._save({name: msgspec.structs.replace(record, unwanted=_unwanted(before))})
            problems = await self._settle([name])
            if self._records[name].unwanted:
                raise problems[name]
            return self._recurs(self._records[name])

    async def delete(self, name: str) -> bool:
        """End a recurrence and cancel what it has promised; tell whether there was one.

        If that cannot be cancelled now, this raises why, and it is tried again until it can.
        """
        async with self._changing:
            before = self._records.get(name)
            if before is None or before.is_deleted:
                return False
            await self._save(
                {
                    name: msgspec.structs.replace(
                        before, is_deleted=True, promise=None, unwanted=_unwanted(before)
                    )
                }
            )
            problems = await self._settle([name])
            if problems:
                raise problems[name]
            return True

    def list(self, topic: str = "") -> "Sequence[Recurs]":
        """Return the recurrences of a topic, or all, by name."""
        records = [self._records[name] for name in sorted(self._records)]
        return [
            self._recurs(record)
            for record in records
            if not record.is_deleted and topic in ("", record.recurring.topic)
        ]

    async def run(self) -> None:
        """Promise each next occurrence when the one before has come, until cancelled."""
        while True:
            await self.settle()
            await self._sleep()

    async def settle(self) -> None:
        """Promise what is next of each recurrence whose time has come."""
        async with self._changing:
            due = _due_names(self._records, self._clock.now_ms())
            await self._settle(sorted(self._problems.union(due)))

    async def _sleep(self) -> None:
        now_ms = self._clock.now_ms()
        times = [r.promise.due_ms for r in self._records.values() if r.promise is not None]
        sleep_ms = max(0, min(SLEEP_MS_MAX, min(times, default=now_ms + SLEEP_MS_MAX) - now_ms))
        if self._problems:
            sleep_ms = SLEEP_MS_MAX
        self._alarm.clear()
        try:
            async with asyncio.timeout(sleep_ms / 1_000):
                await self._alarm.wait()
        except TimeoutError:
            return

    def wake(self) -> None:
        """Look at the clock now: it may have been set."""
        self._alarm.set()

    # One step: cancel what must go, promise what is next, write down both

    async def _settle(self, names: Iterable[str]) -> dict[str, WaterclockError]:
        """Do what is to be done; return what could not be, and why. It is tried again later."""
        problems: dict[str, WaterclockError] = {}
        changed: dict[str, _Record | None] = {}
        names = tuple(names)
        results = await asyncio.gather(
            *(self._settled(self._records[name]) for name in names), return_exceptions=True
        )
        for name, result in zip(names, results, strict=True):
            if isinstance(result, BaseException):
                problems[name] = self._note_problem(name, result)
            else:
                changed[name] = result
        if changed:
            problems |= await self._write_down(changed)
            self._alarm.set()
        return problems

    async def _write_down(
        self, changed: "Mapping[str, _Record | None]"
    ) -> dict[str, WaterclockError]:
        """Save what was done; what cannot be is known here at least, and saved later."""
        try:
            await self._save(changed)
        except WaterclockError as error:
            for name, record in changed.items():
                if record is not None:  # a delete must find what was promised
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

    async def _settled(self, record: _Record) -> _Record | None:
        """Do what a record asks for; return it as it is then, None if it is done with."""
        for promise in record.unwanted:
            await self._cancel(promise)
        if record.is_deleted:
            return None
        record = msgspec.structs.replace(record, unwanted=[])
        now_ms = self._clock.now_ms()
        if record.promise is not None and record.promise.due_ms > now_ms:
            return record
        due_ms = self._rules[record.recurring.name].next_after(now_ms)
        if due_ms is None:
            return msgspec.structs.replace(record, is_over=True, promise=None)
        return msgspec.structs.replace(record, promise=await self._promise(record, due_ms))

    async def _promise(self, record: _Record, due_ms: int) -> _Promise:
        recurring = record.recurring
        message_id = f"{recurring.name}/{record.token}@{due_ms}"
        message = recurring.message(message_id.encode(), due_ms)
        batch = encode_batch([message], self._limits, now_ms=self._clock.now_ms())
        answer = await self._publishing.publish_batch(recurring.topic, batch.body)
        return _Promise(recurring.topic, answer.partition, answer.first_offset, due_ms, message_id)

    async def _cancel(self, promise: _Promise) -> None:
        # Gone with its topic, it fires no more. Anything else may pass, and then it would fire.
        with suppress(NotFound):
            position = promise.partition, promise.offset
            named = Named(promise.message_id.encode(), position=position)
            await self._pending.cancel(promise.topic, [named])

    async def _save(self, records: "Mapping[str, _Record | None]") -> None:
        end = self._metadata.write(
            {
                RECORD + name: None if record is None else msgspec.json.encode(record)
                for name, record in records.items()
            }
        )
        for name, record in records.items():
            self._keep(name, record)
        await self._metadata.durable(end)

    def _keep(self, name: str, record: _Record | None) -> None:
        if record is None:
            self._records.pop(name, None)
            self._rules.pop(name, None)
        else:
            self._records[name] = record
            self._rules[name] = _rule_of(record)

    def _check(self, record: _Record, now_ms: int) -> None:
        """Raise BadInput unless each occurrence can be promised."""
        recurring = record.recurring
        expires = recurring.expires_after_ms
        if expires is not None and expires <= 0:
            raise BadInput(f"expires_after_ms must be positive (got {expires})")
        due_ms = _rule_of(record).next_after(now_ms)
        message_id = f"{recurring.name}/{record.token}@{due_ms}".encode()
        message = recurring.message(message_id, now_ms if due_ms is None else due_ms)
        encode_batch([message], self._limits, now_ms=now_ms)

    def _recurs(self, record: _Record) -> Recurs:
        if record.promise is not None:
            return Recurs(record.recurring, record.promise.due_ms)
        rule = self._rules[record.recurring.name]
        return Recurs(record.recurring, rule.next_after(self._clock.now_ms()) or 0)


def _due_names(records: dict[str, _Record], now_ms: int) -> list[str]:
    """Return the names of recurrences for which there is something to do."""
    return [
        name
        for name, record in records.items()
        if record.unwanted
        or record.is_deleted
        or (record.promise is None and not record.is_over)
        or (record.promise is not None and record.promise.due_ms <= now_ms)
    ]


def _unwanted(record: _Record | None) -> list[_Promise]:
    if record is None:
        return []
    return record.unwanted + ([] if record.promise is None else [record.promise])


def _rule_of(record: _Record) -> Recurrence:
    rule = record.recurring.rule
    if (rule.cron is None) == (rule.every_ms is None):
        raise BadInput("rule: give cron or every_ms, and not both")
    found: CronRule | IntervalRule
    if rule.cron is not None:
        found = CronRule(Cron(rule.cron), zone_of(rule.zone or "UTC"))
    else:
        assert rule.every_ms is not None
        if not INTERVAL_MS_MIN <= rule.every_ms <= INTERVAL_MS_MAX:
            raise BadInput(f"every_ms must be within {INTERVAL_MS_MIN} and {INTERVAL_MS_MAX}")
        anchor_ms = record.anchor_ms if rule.start_ms is None else rule.start_ms
        found = IntervalRule(rule.every_ms, anchor_ms)
    return Recurrence(
        rule=found,
        start_ms=rule.start_ms or 0,
        end_ms=rule.end_ms,
        jitter_ms=rule.jitter_ms,
        jitter_seed=fingerprint(record.recurring.name.encode(), _JITTER_SEED),
    )
