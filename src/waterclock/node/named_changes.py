"""Messages for later that a caller names: cancelled or moved, each name answered for itself.

A name is an id, perhaps with a key, or a position. By id, all pending messages of that id are
meant, in every partition and however they were published; a key narrows this to those that have it.
By position, only the one that is there.

All of an id are searched for first and changed then, partition by partition. What fires in between
fires: the log's order decides, and the answer tells how many were reached in time.

A partition that is not open may hold more of an id, or what a position names. Then all that can be
reached is changed, durably, and the request fails: no answer may say of a message that would still
fire that it will not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from waterclock.model.errors import BadInput, PartitionFaulty
from waterclock.model.limits import check
from waterclock.node.partition_host import PartitionHost
from waterclock.node.pending_ids import NOWHERE, IdSearch
from waterclock.node.scheduler import DONE, UNKNOWN, Outcomes, Scheduler
from waterclock.node.topics import Topic

Int64s = npt.NDArray[np.int64]

NAMED_MAX = 100_000
"""Most messages one request may name."""
SEARCH_SLICE = 2_000
"""Names looked for in the indexes in one go, in each partition."""
FATES_SLICE = 250
"""Names told of in one go: each last message may be in a frame of its own."""
CHANGE_SLICE = 10_000
"""Messages cancelled or moved in one go."""


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


class _Places(NamedTuple):
    """Messages that are meant."""

    rows: Int64s
    """Under which name; some names have several, others none."""
    where: Int64s
    """In which partition."""
    offsets: Int64s


Change = Callable[[Scheduler, Int64s, Int64s], Awaitable[Outcomes]]
"""Change the messages at these offsets, which these rows name."""


class NamedChanges:
    """Finds what is named, and changes it."""

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
        rows, where, offsets = await self._places(topic, named)
        told = np.full(len(rows), UNKNOWN, np.uint8)

        async def one(number: int) -> None:
            scheduler = topic.partition(number).scheduler
            for part in slices(np.flatnonzero(where == number), CHANGE_SLICE):
                told[part] = await change(scheduler, offsets[part], rows[part])

        await asyncio.gather(*(one(number) for number in np.unique(where).tolist()))
        unreached = _unreached(topic, named)
        if unreached is not None:
            count = int((told == DONE).sum())
            raise PartitionFaulty(
                f"{topic.name}/{unreached.partition} is not open, and what is named may be pending "
                f"there ({unreached.problem}). {count} pending elsewhere were {done}, "
                f"and stay so: ask again when it is open"
            )
        reached = np.bincount(rows[told == DONE], minlength=len(named))
        outcomes = np.full(len(named), UNKNOWN, np.uint8)
        outcomes[rows] = told
        by_id = np.array([name.position is None for name in named], np.bool_)
        outcomes[reached > 0] = DONE
        missed = np.flatnonzero(by_id & (reached == 0))
        for part in slices(missed, FATES_SLICE):
            outcomes[part] = await self._fates(topic, [named[row] for row in part])
        return Changed(outcomes, reached)

    async def _places(self, topic: Topic, named: Sequence[Named]) -> _Places:
        if not named:
            raise BadInput("pending: no message is named")
        check("pending messages named", len(named), NAMED_MAX)
        found = [_at_positions(topic, named)]
        by_id = [row for row, name in enumerate(named) if name.position is None]
        for rows in slices(np.array(by_id, np.int64), SEARCH_SLICE):
            ids, keys = _asked([named[row] for row in rows])
            for host in topic.partitions:
                # One that is not open is told of when all others are done.
                for mine, offsets in self._ids.pending(host, ids, keys) if host.is_open else ():
                    where = np.full(len(mine), host.partition, np.int64)
                    found.append(_Places(rows[mine], where, offsets))
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
        return _Places(*(np.concatenate(columns) for columns in zip(*found, strict=True)))

    async def _fates(self, topic: Topic, named: Sequence[Named]) -> Outcomes:
        """Tell of names under which nothing is pending what became of the last message."""
        ids, keys = _asked(named)
        where = np.full(len(named), NOWHERE, np.int64)
        offsets, appended_ms = where.copy(), where.copy()
        for host in topic.partitions:
            at, times = self._ids.latest(host, ids, keys)
            is_later = (at != NOWHERE) & (times >= appended_ms)
            offsets[is_later], appended_ms[is_later] = at[is_later], times[is_later]
            where[is_later] = host.partition
            await asyncio.sleep(0)
        outcomes = np.full(len(named), UNKNOWN, np.uint8)
        for number in np.unique(where[where != NOWHERE]).tolist():
            mine = where == number
            outcomes[mine] = await topic.partition(number).scheduler.fates(offsets[mine])
        return outcomes


def _at_positions(topic: Topic, named: Sequence[Named]) -> _Places:
    rows, where, offsets = [], [], []
    for row, (message_id, _, position) in enumerate(named):
        if position is not None:
            host = topic.partition(position[0])
            if host.is_open and (not message_id or _is_at(host, position[1], message_id)):
                rows.append(row)
                where.append(position[0])
                offsets.append(position[1])
        elif not message_id:
            raise BadInput(f"pending[{row}]: has neither a message_id nor a position")
    return _Places(*(np.array(column, np.int64) for column in (rows, where, offsets)))


def _unreached(topic: Topic, named: Sequence[Named]) -> PartitionHost | None:
    """Return a partition that is not open and may hold some of what is named."""
    closed = [host for host in topic.partitions if not host.is_open]
    if closed and not any(name.position is None for name in named):
        numbers = {name.position[0] for name in named if name.position is not None}
        closed = [host for host in closed if host.partition in numbers]
    return closed[0] if closed else None


def _asked(named: Sequence[Named]) -> tuple[list[bytes], list[bytes | None]]:
    return [name.message_id for name in named], [name.key for name in named]


def _is_at(host: PartitionHost, offset: int, message_id: bytes) -> bool:
    return bool(host.store.reader.has_ids(np.array([offset], np.int64), [message_id])[0])


def slices(rows: Int64s, count: int) -> Iterator[Int64s]:
    """Cut rows into parts of at most so many."""
    for start in range(0, len(rows), count):
        yield rows[start : start + count]
