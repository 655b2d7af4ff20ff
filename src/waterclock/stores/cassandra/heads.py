"""The head of a stream in Cassandra: the one place where it is decided what the stream holds.

Cassandra decides about one partition at a time, but a batch of messages touches many: theirs, and
one for each id. So the head, a single row, holds the latest batch itself, messages and all. Moving
it on, by compare-and-set of its stamp, stores a batch: everyone agrees on that moment. Only then
are its rows written to where they are looked for, by the writer or, if it died, by the next one:
nobody moves a head on before the batch in it is written out. Writing out twice changes nothing.

So a reader that misses a position of the latest batch finds it in the head, and one that looks for
an id of a head written out finds it in `ids`: if the head then moves on from that very stamp, no
message came in between, and the id is new.
"""

import itertools
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from waterclock.stores.cassandra.session import CassandraSession
from waterclock.stores.cassandra.tables import (
    BUCKET,
    IDS_AT_ONCE,
    SLOTS,
    Head,
    Pending,
    message_row,
    shard_of,
    slot_of,
)
from waterclock.stores.together import together

HEADS_MAX = 10_000
"""Streams whose head is remembered. It saves a read; what it says is checked when writing."""
EMPTY = Head(last=0, first=1, stamp=0, floor=0)


class CassandraHeads:
    """The heads of all streams."""

    def __init__(self, session: CassandraSession) -> None:
        self._session = session
        self._written_out: dict[bytes, Head] = {}

    async def read(self, stream: bytes) -> Head:
        """Give the head, for reading messages."""
        rows = await self._session.run("head", stream)
        return Head(*rows[0]) if rows else EMPTY

    async def whole(self, stream: bytes) -> tuple[Head, list[Pending]]:
        """Give the head as it is decided at this moment, and the batch in it."""
        rows = await self._session.run("whole", stream)
        if not rows:
            return EMPTY, []
        *head, pending = rows[0]
        return Head(*head), [Pending(*message) for message in pending or ()]

    async def written_out(self, stream: bytes) -> Head:
        """Give a head whose batch is where it is looked for; write it there, if need be."""
        if remembered := self._written_out.pop(stream, None):
            return remembered
        head, pending = await self.whole(stream)
        await self.write_out(stream, head, pending)
        return head

    async def append(self, stream: bytes, head: Head, batch: Sequence[Pending]) -> bool:
        """Store a batch behind a head written out; False: the head is another by now."""
        first, last = head.last + 1, head.last + len(batch)
        new = head._replace(last=last, first=first, stamp=_stamp_after(head))
        if head.stamp:
            values = (last, first, new.stamp, batch, stream, head.stamp)
            rows = await self._session.run("move", *values)
        else:
            rows = await self._session.run("begin", stream, last, first, new.stamp, batch)
        if not rows[0][0]:
            return False
        await self.write_out(stream, new, batch)
        if len(self._written_out) >= HEADS_MAX:
            self._written_out.pop(next(iter(self._written_out)))
        self._written_out[stream] = new
        return True

    async def settle(self, stream: bytes, *, floor: int | None = None) -> Head:
        """Take the batch out of the head: its messages can be removed now. Raise the floor."""
        while True:
            head, pending = await self.whole(stream)
            if not head.stamp or (not pending and (floor is None or floor <= head.floor)):
                return head
            await self.write_out(stream, head, pending)
            new = head._replace(stamp=_stamp_after(head), floor=max(head.floor, floor or 0))
            rows = await self._session.run("settle", new.stamp, new.floor, stream, head.stamp)
            if rows[0][0]:
                self._written_out.pop(stream, None)
                return new

    async def write_out(self, stream: bytes, head: Head, batch: Sequence[Pending]) -> None:
        """Write the rows of a batch to where they are looked for."""
        placed = list(enumerate(batch, head.first))
        calls: list[Coroutine[Any, Any, object]] = []
        for _, group in itertools.groupby(placed, key=lambda pair: pair[0] // BUCKET):
            rows = [message_row(stream, p, message, head.stamp) for p, message in group]
            calls.append(self._session.run_batch("add_message", rows))
        ids = [(stream, m.id, position, m.token, head.stamp) for position, m in placed]
        calls += (
            self._session.run_batch("add_id", ids[start : start + IDS_AT_ONCE])
            for start in range(0, len(ids), IDS_AT_ONCE)
        )
        calls += (
            note_expiry(
                self._session, stream, position, id=m.id, until=m.until, at=m.at, ref=m.ref,
                parts=m.parts, stamp=head.stamp,
            )
            for position, m in placed
            if m.until is not None
        )  # fmt: skip
        await together(calls)


async def note_expiry(
    session: CassandraSession,
    stream: bytes,
    position: int,
    *,
    id: bytes,  # noqa: A002
    until: int,
    at: int,
    ref: bytes,
    parts: int,
    stamp: int,
) -> None:
    """Note when something is to be purged; the slot first, so that it is found."""
    slot, shard = slot_of(until, at), shard_of(stream + id)
    await session.run("add_expiry", SLOTS, 0, slot, b"", shard, b"", b"", 0, stamp)
    await session.run("add_expiry", slot, shard, until, stream, position, ref, id, parts, stamp)


def now_stamp() -> int:
    """Give the time as Cassandra counts it."""
    return time.time_ns() // 1_000


def _stamp_after(head: Head) -> int:
    # By two: what is removed takes the number between.
    return max(now_stamp(), head.stamp + 2)
