"""Messages for later that a caller names: cancelled or moved, each name answered for itself.

A name is an id, perhaps with a key, or a position. By id, all pending messages of that id are
meant, in every partition and however they were published; a key narrows this to those that have it.
By position, only the one that is there.

All of an id are searched for first and changed then, partition by partition (of more than a million
the first million). What fires in between fires: the log's order decides, and the answer tells how
many were reached in time. Of equal names the last is searched for, and its answer is that of all.

A partition that is not open may hold more of an id, or what a position names. Then all that can be
reached is changed, durably, and the request fails: no answer may say of a message that would still
fire that it will not.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from waterclock.model.errors import BadInput, PartitionFaulty
from waterclock.model.limits import check
from waterclock.node.schedule.pending_ids import CONFIRM_SLICE, NOWHERE, IdSearch
from waterclock.node.schedule.scheduler import DONE, UNKNOWN, Outcomes, Scheduler
from waterclock.node.topics import Topic

Int64s = npt.NDArray[np.int64]

NAMED_MAX = 100_000
"""Most messages one request may name."""
SEARCH_SLICE = 2_000
"""Names looked for in the indexes in one go, in each partition."""
OUTCOMES_SLICE = 250
"""Names told of in one go: each last message may be in a frame of its own."""
CHANGE_SLICE = 10_000
"""Messages cancelled or moved in one go."""
PLACES_MAX = 1_000_000
"""Once so many are found they are changed, before more are looked for."""


class Named(NamedTuple):
    """A pending message as a caller names it: by id, perhaps with its key, or by position.

    By id and position, only the message of that id is meant, and only there.
    """

    message_id: bytes = b""
    key: bytes | None = None
    position: tuple[int, int] | None = None
    """Partition and offset."""


class Changed(NamedTuple):
    """What became of each name."""

    outcomes: Outcomes
    reached: Int64s
    """How many pending messages were cancelled or moved under it."""


class _Found(NamedTuple):
    """Messages that are meant."""

    rows: Int64s
    """Under which name; some names have several, others none."""
    where: Int64s
    """In which partition."""
    offsets: Int64s


Change = Callable[[Scheduler, Int64s, Int64s], Awaitable[Outcomes]]
"""Change the messages at these offsets, which these rows name."""


class NamedChanges:
    """Finds what is named, and changes it, in the partitions that are led here."""

    def __init__(self) -> None:
        self._ids = IdSearch()

    async def cancel(self, topic: Topic, named: Sequence[Named]) -> Changed:
        """Cancel messages. Durable on return.

        Raises PartitionFaulty if some may be in a partition that is not open; all others named
        are cancelled all the same.
        """
        return await self._change(
            topic, named, lambda each, offsets, _: each.cancel(offsets), "cancelled"
        )

    async def reschedule(self, topic: Topic, named: Sequence[Named], due_ms: Int64s) -> Changed:
        """Give messages new due times, one for each name. Durable on return.

        Raises PartitionFaulty as `cancel` does.
        """
        return await self._change(
            topic,
            named,
            lambda each, offsets, rows: each.reschedule(offsets, due_ms[rows]),
            "rescheduled",
        )

    async def _change(
        self, topic: Topic, named: Sequence[Named], change: Change, done: str
    ) -> Changed:
        if not named:
            raise BadInput("pending: no message is named")
        check("pending messages named", len(named), NAMED_MAX)
        same = _same(named)
        outcomes = np.full(len(named), UNKNOWN, np.uint8)
        reached = np.zeros(len(named), np.int64)
        async for places in self._places(topic, named, same):
            changed = await _changed(topic, places, change)
            outcomes[places.rows] = changed
            reached += np.bincount(places.rows[changed == DONE], minlength=len(named))
        _check_reachable(topic, named, f"{reached.sum()} pending elsewhere were {done}")
        outcomes[reached > 0] = DONE
        by_id = np.array([name.position is None for name in named], np.bool_)
        missed = np.flatnonzero(by_id & (reached == 0) & (same == np.arange(len(named))))
        for part in slices(missed, OUTCOMES_SLICE):
            outcomes[part] = await self._outcomes(topic, [named[row] for row in part])
        return Changed(outcomes[same], reached[same])

    async def _places(
        self, topic: Topic, named: Sequence[Named], same: Int64s
    ) -> AsyncIterator[_Found]:
        """Yield where all that is named is, most often at once; by id, only for the last `same`."""
        found = [await _at_positions(topic, named)]
        count = 0
        by_id = [row for row, name in enumerate(named) if name.position is None]
        for rows in slices(np.unique(same[by_id]), SEARCH_SLICE):
            ids, keys = _asked([named[row] for row in rows])
            # What is not open is told of when all others are done.
            for host in (host for host in topic.led if host.is_open):
                async for mine, offsets in self._ids.pending(host, ids, keys):
                    where = np.full(len(mine), host.partition, np.int64)
                    found.append(_Found(rows[mine], where, offsets))
                    count += len(mine)
                    if count >= PLACES_MAX:
                        yield _joined(found)
                        found, count = [], 0
        if found:
            yield _joined(found)

    async def _outcomes(self, topic: Topic, named: Sequence[Named]) -> Outcomes:
        """Tell of names under which nothing is pending what became of the last message."""
        ids, keys = _asked(named)
        where = np.full(len(named), NOWHERE, np.int64)
        offsets, appended_ms = where.copy(), where.copy()
        for host in topic.led:
            at, times = await self._ids.latest(host, ids, keys)
            is_later = (at != NOWHERE) & (times >= appended_ms)
            offsets[is_later], appended_ms[is_later] = at[is_later], times[is_later]
            where[is_later] = host.partition
        outcomes = np.full(len(named), UNKNOWN, np.uint8)
        for number in np.unique(where[where != NOWHERE]).tolist():
            mine = where == number
            outcomes[mine] = await topic.partition(number).scheduler.outcomes(offsets[mine])
        return outcomes


def _same(named: Sequence[Named]) -> Int64s:
    """Return for each name the last one that is equal: it is searched for, and answers for all."""
    last = {name: row for row, name in enumerate(named)}
    return np.array([last[name] for name in named], np.int64)


async def _at_positions(topic: Topic, named: Sequence[Named]) -> _Found:
    """Return what is named by position; with an id, if the message there has it."""
    rows, where, offsets = [], [], []
    led = topic.led
    for row, (message_id, _, position) in enumerate(named):
        if position is None and not message_id:
            raise BadInput(f"pending[{row}]: has neither a message_id nor a position")
        if position is None:
            continue
        host = topic.partition(position[0])
        if host.is_open and host in led:
            rows.append(row)
            where.append(position[0])
            offsets.append(position[1])
    places = _Found(*(np.array(column, np.int64) for column in (rows, where, offsets)))
    is_it = np.ones(len(rows), np.bool_)
    to_confirm = np.array([bool(named[row].message_id) for row in rows], np.bool_)
    for number in np.unique(places.where[to_confirm]).tolist():
        reader = topic.partition(number).store.reader
        for part in slices(np.flatnonzero(to_confirm & (places.where == number)), CONFIRM_SLICE):
            ids = [named[row].message_id for row in places.rows[part]]
            is_it[part] = reader.has_ids(places.offsets[part], ids)
            await asyncio.sleep(0)
    return _Found(*(column[is_it] for column in places))


async def _changed(topic: Topic, places: _Found, change: Change) -> Outcomes:
    """Change what is there, partition by partition; return what became of each."""
    rows, where, offsets = places
    changed = np.full(len(rows), UNKNOWN, np.uint8)

    async def one(number: int) -> None:
        scheduler = topic.partition(number).scheduler
        for part in slices(np.flatnonzero(where == number), CHANGE_SLICE):
            changed[part] = await change(scheduler, offsets[part], rows[part])

    await asyncio.gather(*(one(number) for number in np.unique(where).tolist()))
    return changed


def _joined(found: list[_Found]) -> _Found:
    return _Found(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def _check_reachable(topic: Topic, named: Sequence[Named], reached: str) -> None:
    """Raise if a partition that is not open may hold some of what is named."""
    closed = [host for host in topic.led if not host.is_open]
    if closed and not any(name.position is None for name in named):
        numbers = {name.position[0] for name in named if name.position is not None}
        closed = [host for host in closed if host.partition in numbers]
    if closed:
        raise PartitionFaulty(
            f"{topic.name}/{closed[0].partition} is not open, and what is named may be pending "
            f"there ({closed[0].problem}). {reached}, and stay so: ask again when it is open"
        )


def _asked(named: Sequence[Named]) -> tuple[list[bytes], list[bytes | None]]:
    return [name.message_id for name in named], [name.key for name in named]


def slices(rows: Int64s, count: int) -> Iterator[Int64s]:
    """Cut rows into parts of at most so many."""
    for start in range(0, len(rows), count):
        yield rows[start : start + count]
