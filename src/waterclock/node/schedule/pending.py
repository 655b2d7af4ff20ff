"""Messages for later, topic by topic: find them, cancel them, move them, list them, count them.

Those that a caller names, by id or by partition and offset, are `named_changes`' business; here are
those that match a filter.

What touches every pending message of a topic works through the partitions in slices, with a turn
for everyone else between two of them: so it sees what fires or comes meanwhile, or does not.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from waterclock.log.frame import OFFSET_MAX
from waterclock.model.clock import Clock
from waterclock.model.errors import BadInput, LimitExceeded, NotFound, NotLeader, PartitionFaulty
from waterclock.model.ids import Millis
from waterclock.model.limits import Limits
from waterclock.model.topics.topic_pending import TopicPending, merged_topics
from waterclock.model.views import CancelCount, Horizon
from waterclock.node.partition.host import PartitionHost
from waterclock.node.schedule.named_changes import (
    CHANGE_SLICE,
    Changed,
    Named,
    NamedChanges,
    slices,
)
from waterclock.node.schedule.pending_filter import Filter
from waterclock.node.schedule.pending_pages import Page, in_turns, page_of, page_position
from waterclock.node.schedule.scheduler import DONE
from waterclock.node.topics import Topic, Topics
from waterclock.schedule.hot_timers import HORIZONS_MS

Int64s = npt.NDArray[np.int64]

STEPS_MAX = 1_000
STEP_MS_MIN = 1_000

LATER = -1
"""Stands for the horizon beyond all others."""


@dataclass(frozen=True, slots=True)
class Steps:
    """So many stretches of one length, one after the other."""

    start_ms: int
    step_ms: int
    count: int

    @property
    def end_ms(self) -> int:
        return self.start_ms + self.step_ms * self.count

    def counted(self, due: Int64s) -> Int64s:
        """Count times by the step they are in; those in none are left out."""
        inside = due[(due >= self.start_ms) & (due < self.end_ms)]
        return np.bincount((inside - self.start_ms) // self.step_ms, minlength=self.count)

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


@dataclass(frozen=True, slots=True)
class AllCounts:
    """How many messages of all topics are pending, by topic and by how soon they are due."""

    topics: Sequence[TopicPending]
    """Those with pending messages, by name."""
    by_due: Counts


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

    def may_fire(self, topic: str, position: tuple[int, int]) -> bool:
        """Tell whether a message for later may fire yet: it is pending, or cannot be seen here."""
        partition, offset = position
        try:
            timers = self._topics.get(topic).partition(partition).scheduler.timers
        except NotFound:
            return False
        except (NotLeader, PartitionFaulty):
            return True
        return bool(timers.is_open(np.array([offset], np.int64))[0])

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
        async for host in in_turns(wanted.hosts(found)):
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
                # Together, for a change of them waits for the disk.
                found = [offsets[:0]]
                # What fired since it was found may be gone from the log.
                while len(part := part[host.scheduler.timers.is_open(part)]):
                    count = wanted.reach(host.store, part)
                    found.append(part[:count][wanted.matches(host.store, part[:count])])
                    part = part[count:]
                    await asyncio.sleep(0)
                yield np.concatenate(found)

    async def count(self, topic: str, steps: Steps | None = None) -> Counts:
        """Count the pending messages of a topic by how soon they are due; with `steps` also by the
        step they are due in."""
        return (await self._counted([self._topics.get(topic)], steps)).by_due

    async def list(
        self,
        topic: str,
        wanted: Filter,
        *,
        limit: int = 0,
        page: str = "",
        with_values: bool = False,
    ) -> Page:
        """Return the first pending messages of a topic that match, by due time, partition and
        offset.

        A page may be short, or empty, and have a next one: few of those looked at matched.
        """
        after = page_position(page)
        if after.topic:
            raise BadInput("page: is the next_page of a list of all topics")
        hosts = [("", host) for host in wanted.hosts(self._topics.get(topic))]
        return await page_of(hosts, wanted, after, limit=limit, with_values=with_values)

    # Of all topics

    async def list_all(
        self,
        sees: Callable[[str], bool],
        wanted: Filter,
        *,
        limit: int = 0,
        page: str = "",
        with_values: bool = False,
    ) -> Page:
        """Return the first pending messages of all topics that one sees, by due time, topic,
        partition and offset. What of them is not open is left out: it hides nothing else."""
        after = page_position(page)
        hosts = list(_led(self._seen(sees)))
        return await page_of(hosts, wanted, after, limit=limit, with_values=with_values)

    async def count_all(self, sees: Callable[[str], bool], steps: Steps | None = None) -> AllCounts:
        """Count the pending messages of all topics that one sees; with `steps` also by the step
        they are due in."""
        return await self._counted(self._seen(sees), steps)

    def _seen(self, sees: Callable[[str], bool]) -> Sequence[Topic]:
        return [topic for topic in self._topics.all() if sees(topic.name)]

    async def _counted(self, topics: Sequence[Topic], steps: Steps | None) -> AllCounts:
        """Count the pending messages of topics, in one look at each of them."""
        if steps is not None:
            steps.check()
        found: list[TopicPending] = []
        edges = self._clock.now_ms() + np.array(HORIZONS_MS, np.int64)
        totals = np.zeros(len(edges) + 1, np.int64)
        counts = np.zeros(0 if steps is None else steps.count, np.int64)
        async for topic, host in in_turns(_led(topics)):
            async for _, due in host.scheduler.scan(0, OFFSET_MAX):
                if not len(due):
                    continue
                found.append(TopicPending(topic, len(due), int(due.min())))
                totals += np.bincount(edges.searchsorted(due), minlength=len(totals))
                if steps is not None:
                    counts += steps.counted(due)
        horizons = list(map(Horizon, (*HORIZONS_MS, LATER), totals.tolist()))
        return AllCounts(merged_topics(found), Counts(horizons, counts.tolist()))


def _led(topics: Iterable[Topic]) -> Iterator[tuple[str, PartitionHost]]:
    """Yield what is led here and open, with the name of its topic."""
    for topic in topics:
        yield from ((topic.name, host) for host in topic.led if host.is_open)
