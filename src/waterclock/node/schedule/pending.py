"""Messages for later, topic by topic: find them, cancel them, move them, list them, count them.

Those that a caller names, by id or by partition and offset, are `named_changes`' business; here are
those that match a filter.

What touches every pending message of a topic works through the partitions in slices, with a turn
for everyone else between two of them: so it sees what fires or comes meanwhile, or does not.
"""

import asyncio
import base64
import struct
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from waterclock.log.scheduled import scheduled_rows
from waterclock.model.clock import Clock
from waterclock.model.errors import BadInput, LimitExceeded, NotLeader
from waterclock.model.ids import Millis
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.model.views import CancelCount, Horizon, ScheduledMessage
from waterclock.node.partition.host import PartitionHost
from waterclock.node.schedule.named_changes import (
    CHANGE_SLICE,
    Changed,
    Named,
    NamedChanges,
    slices,
)
from waterclock.node.schedule.pending_filter import Filter
from waterclock.node.schedule.pending_ids import NOWHERE
from waterclock.node.schedule.scheduler import DONE
from waterclock.node.topics import Topic, Topics
from waterclock.schedule.hot_timers import HORIZONS_MS

Int64s = npt.NDArray[np.int64]

PAGE_MAX = 1_000
PAGE_DEFAULT = 100
LIST_ROWS_MAX = 20_000
"""Messages that are read for one page, at most: a filter that few pass makes pages short."""

STEPS_MAX = 1_000
STEP_MS_MIN = 1_000

LATER = -1
"""Stands for the horizon beyond all others."""

_TOKEN = struct.Struct("<qiq")


_Scheduled = list[ScheduledMessage]


class Page(NamedTuple):
    """Some of the pending messages, by due time, partition and offset."""

    scheduled: list[ScheduledMessage]
    next_page: str
    """Asks for those that follow; empty if there are none."""


@dataclass(frozen=True, slots=True)
class Steps:
    """So many stretches of one length, one after the other."""

    start_ms: int
    step_ms: int
    count: int

    @property
    def end_ms(self) -> int:
        return self.start_ms + self.step_ms * self.count

    def check(self) -> None:
        """Raise LimitExceeded or BadInput if nobody should count by these."""
        if self.count > STEPS_MAX:
            raise LimitExceeded("steps", STEPS_MAX, got=self.count)
        if self.step_ms < STEP_MS_MIN or self.start_ms < 0:
            raise BadInput(f"step_ms must be at least {STEP_MS_MIN}, and start_ms not negative")


@dataclass(frozen=True, slots=True)
class Counts:
    """How many messages are pending, by how soon they are due."""

    horizons: list[Horizon]
    counts: list[int]
    """Due in each of the steps that were asked for."""

    @property
    def total(self) -> int:
        """How many there are in all."""
        return sum(horizon.count for horizon in self.horizons)


class CancelsElsewhere(Protocol):
    """Has other nodes cancel what is pending in partitions that they lead."""

    async def cancel(self, host: PartitionHost, named: Named) -> int:
        """Return what became of the message at a position; raises Unavailable if nobody says."""
        ...


class PendingMessages:
    """The pending messages of all topics; of several nodes, in the partitions that are led here."""

    def __init__(self, topics: Topics, limits: Limits, clock: Clock) -> None:
        self._topics = topics
        self._limits = limits
        self._clock = clock
        self._changes = NamedChanges()
        self.elsewhere: CancelsElsewhere | None = None
        """Asks the leaders of all other partitions."""

    # One by one, many at once

    async def cancel(self, topic: str, named: Sequence[Named]) -> Changed:
        """Cancel messages; say of each name what became of it. Durable on return."""
        return await self._changes.cancel(self._topics.get(topic), named)

    async def cancel_at(self, topic: str, named: Named) -> int:
        """Cancel the message at a position, whichever node leads its partition; return what became
        of it. Durable on return. Raises Unavailable if nobody can do that now."""
        assert named.position is not None
        host = self._topics.get(topic).partition(named.position[0])
        if host.is_here:
            # No turn of the loop before it looks which partitions are led here.
            return int((await self.cancel(topic, [named])).outcomes[0])
        if self.elsewhere is None:
            raise NotLeader(f"{topic}/{host.partition}", leader=host.leader)
        return await self.elsewhere.cancel(host, named)

    async def reschedule(
        self, topic: str, named: Sequence[Named], due_ms: Sequence[int]
    ) -> Changed:
        """Give messages new due times, one for each name or one for all. Durable on return.

        A time that has passed means now: as long as a message is of use counts from then.
        """
        if len(due_ms) not in (1, len(named)):
            raise BadInput(f"due_ms: give one, or one for each (got {len(due_ms)} times)")
        now_ms = self._clock.now_ms()
        for time_ms in (min(due_ms), max(due_ms)):
            self._limits.check_due(Millis(time_ms), now_ms=now_ms)
        due = np.broadcast_to(np.maximum(np.array(due_ms, np.int64), now_ms), len(named))
        return await self._changes.reschedule(self._topics.get(topic), named, due)

    # All that match

    async def cancel_where(
        self, topic: str, wanted: Filter, *, dry_run: bool = False
    ) -> CancelCount:
        """Cancel all that match, in slices; what fires meanwhile fires."""
        found = self._topics.get(topic)
        matched = cancelled = 0
        for host in wanted.hosts(found):
            async for offsets in self._matching(host, wanted):
                matched += len(offsets)
                for part in [] if dry_run else slices(offsets, CHANGE_SLICE):
                    outcomes = await host.scheduler.cancel(part)
                    cancelled += int((outcomes == DONE).sum())
        return CancelCount(matched, cancelled)

    async def _matching(self, host: PartitionHost, wanted: Filter) -> AsyncIterator[Int64s]:
        """Yield the pending messages of a partition that match, as there were at the beginning."""
        async for offsets, _ in host.scheduler.scan(*wanted.span):
            for part in slices(offsets, wanted.slice_rows):
                # What fired since it was found may be gone from the log.
                part = part[host.scheduler.timers.is_open(part)]
                if len(part):
                    yield part[wanted.matches(host.store, part)]
                await asyncio.sleep(0)

    async def count(self, topic: str = "", steps: Steps | None = None) -> Counts:
        """Count the pending messages of a topic, or of all, by how soon they are due; with `steps`
        also by the step they are due in."""
        if steps is not None:
            steps.check()
        topics = [self._topics.get(topic)] if topic else self._topics.all()
        now_ms = self._clock.now_ms()
        totals = np.zeros(len(HORIZONS_MS) + 1, np.int64)
        counts = np.zeros(0 if steps is None else steps.count, np.int64)
        for found in topics:
            for host in found.led:
                if not host.is_open:
                    continue
                totals += await host.scheduler.horizons(now_ms)
                if steps is not None:
                    async for _, due in host.scheduler.scan(steps.start_ms, steps.end_ms):
                        step = (due - steps.start_ms) // steps.step_ms
                        counts += np.bincount(step, minlength=steps.count)
        horizons = list(map(Horizon, (*HORIZONS_MS, LATER), totals.tolist()))
        return Counts(horizons, counts.tolist())

    async def list(
        self,
        topic: str,
        wanted: Filter,
        *,
        limit: int = 0,
        page: str = "",
        with_values: bool = False,
    ) -> Page:
        """Return the first pending messages that match, by due time, partition and offset.

        A page may be short, or empty, and have a next one: few of those looked at matched.
        """
        limit = limit or PAGE_DEFAULT
        if not 1 <= limit <= PAGE_MAX:
            raise LimitExceeded("limit", PAGE_MAX, got=limit)
        found = self._topics.get(topic)
        after = page_position(page)
        count = LIST_ROWS_MAX // 4 if wanted.needs_rows else limit
        chosen: _Scheduled = []
        for _ in range(0, LIST_ROWS_MAX, count):
            ahead = await _ahead(found, wanted, after, count)
            listed = _listed(found, wanted, ahead, with_values=with_values)
            chosen += listed[: limit - len(chosen)]
            is_end = len(ahead) < count
            if ahead:
                after = ahead[-1]
            if len(chosen) == limit:
                end = chosen[-1]
                last = PagePosition(int(end.message.due_ms or 0), end.partition, end.offset)
                is_end &= last == after
                after = last
            if is_end:
                return Page(chosen, "")
            if len(chosen) == limit:
                break
        return Page(chosen, page_text(after))


class PagePosition(NamedTuple):
    """A pending message in the order of lists."""

    due_ms: int
    partition: int
    offset: int


_START = PagePosition(-1, NOWHERE, NOWHERE)


def _read(
    host: PartitionHost, offsets: Int64s, due_ms: Int64s, *, with_values: bool
) -> list[ScheduledMessage]:
    frames = list(host.store.reader.rows(offsets))
    scheduled = scheduled_rows(frames, offsets).due_at(due_ms)
    appended = np.zeros(len(offsets), np.int64)
    for header, _, _, asks in frames:
        appended[asks] = header.append_ms
    rows = zip(scheduled.offsets.tolist(), scheduled.rows.to_pylist(), strict=True)
    found = []
    for (offset, row), appended_ms in zip(rows, appended.tolist(), strict=False):
        value = row["value"]
        message = Message(
            value,
            key=row["key"],
            message_id=row["message_id"],
            headers=None if row["headers"] is None else dict(row["headers"]),
            due_ms=Millis(row["due_ms"]),
        )
        size = 0 if value is None else len(value)
        shown = message if with_values else replace(message, value=None)
        found.append(
            ScheduledMessage(
                message=shown,
                topic=host.topic,
                partition=host.partition,
                offset=offset,
                timer_id=timer_id(row["message_id"], offset),
                value_bytes=size,
                appended_ms=appended_ms,
            )
        )
    return found


def timer_id(message_id: bytes, offset: int) -> str:
    """Return `message_id-offset`; an id that is no text is shown in hexadecimal."""
    text = message_id.decode("ascii", "replace")
    return f"{text if text.isascii() and text.isprintable() else message_id.hex()}-{offset}"


def page_text(place: PagePosition) -> str:
    """Return what asks for those that follow."""
    return base64.urlsafe_b64encode(_TOKEN.pack(*place)).decode()


def page_position(page: str) -> PagePosition:
    """Return which one a page follows; raises BadInput."""
    if not page:
        return _START
    try:
        return PagePosition(*_TOKEN.unpack(base64.b64decode(page, altchars=b"-_", validate=True)))
    except (ValueError, struct.error) as error:
        raise BadInput("page: is not the next_page of an answer") from error


async def _ahead(
    topic: Topic, wanted: Filter, after: PagePosition, limit: int
) -> list[PagePosition]:
    """Return the first `limit` pending messages after a place, before any look inside."""
    places: list[PagePosition] = []
    for host in wanted.hosts(topic):
        start_ms, end_ms = wanted.span
        last = NOWHERE
        if after.due_ms >= start_ms:
            # Of those due at the same time, the partitions before were listed whole.
            start_ms = after.due_ms + (host.partition < after.partition)
            last = after.offset if host.partition == after.partition else NOWHERE
        offsets, due = await host.scheduler.upcoming(start_ms, end_ms, limit, after=last)
        places += map(PagePosition, due.tolist(), [host.partition] * len(due), offsets.tolist())
    return sorted(places)[:limit]


def _listed(
    topic: Topic, wanted: Filter, places: list[PagePosition], *, with_values: bool
) -> list[ScheduledMessage]:
    """Read messages and return those that match, in the same order."""
    if not places:
        return []
    due, where, offsets = np.array(places, np.int64).T
    listed: dict[tuple[int, int], ScheduledMessage] = {}
    for number in np.unique(where).tolist():
        host = topic.partition(number)
        mine = where == number
        # What fired since it was found may be gone from the log.
        mine[mine] = host.scheduler.timers.is_open(offsets[mine])
        mine[mine] = wanted.matches(host.store, offsets[mine])
        if mine.any():
            for one in _read(host, offsets[mine], due[mine], with_values=with_values):
                listed[number, one.offset] = one
    keys = zip(where.tolist(), offsets.tolist(), strict=True)
    return [listed[key] for key in keys if key in listed]
