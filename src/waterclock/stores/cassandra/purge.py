"""Removing messages from Cassandra: those of a stream, or those that have expired.

A message is removed with the microsecond after its own stamp, so that what is written later stays,
and a late copy of it does not come back. The id goes first and the note of its expiry last: after a
crash in between, the message is removed by the next who comes by. Before anything of the latest
batch is removed, the batch is taken out of the head: readers would find it there.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from waterclock.stores.cassandra.heads import CassandraHeads
from waterclock.stores.cassandra.session import CassandraSession
from waterclock.stores.cassandra.tables import BUCKET, CLAIM_MS, SLOT_MS, SLOTS, shard_of, slot_of
from waterclock.stores.together import together

REMOVE_MAX = 100
"""Messages removed at the same time."""
SLOTS_MAX = 1_000


class Doomed(NamedTuple):
    """A message to remove."""

    stream: bytes
    position: int
    id: bytes
    ref: bytes
    stamp: int
    until: int | None
    slot: int
    """Where its expiry is noted, if it has one."""


class CassandraPurge:
    """The ways to remove messages."""

    def __init__(self, session: CassandraSession, heads: CassandraHeads) -> None:
        self._session = session
        self._heads = heads

    async def delete(self, stream: bytes, *, older_than_ms: int | None) -> int:
        """Remove the messages of a stream stored before then, or all; say how many."""
        head = await self._heads.settle(stream)
        total, kept = 0, 0
        for bucket in range((head.floor + 1) // BUCKET, head.last // BUCKET + 1):
            rows = await self._session.run("removable", stream, bucket, head.floor, head.last)
            doomed = [
                Doomed(stream, position, id_, ref, stamp, until, slot_of(until or 0, at))
                for position, id_, at, until, ref, _, stamp in rows
                if older_than_ms is None or at < older_than_ms
            ]
            total += await self._remove(doomed)
            if len(doomed) < len(rows) and not kept:
                gone = {message.position for message in doomed}
                kept = next(row[0] for row in rows if row[0] not in gone)
        floor = kept - 1 if kept else head.last
        if floor // BUCKET > head.floor // BUCKET:
            # Readers need not look for the first message in partitions that are empty.
            await self._heads.settle(stream, floor=floor)
        return total

    async def purge(self, *, now_ms: int, limit: int) -> int:
        """Remove what has expired, the earliest minutes first; say how many messages."""
        total = 0
        listed = await self._session.run("expiries", SLOTS, 0, now_ms // SLOT_MS, SLOTS_MAX)
        for slot, _, shard, _, _, _, stamp in listed:
            if total >= limit:
                break
            rows = await self._session.run("expiries", slot, shard, now_ms, limit - total)
            doomed = [
                Doomed(stream, position, id_, ref, written, until, slot)
                for until, stream, position, ref, id_, _, written in rows
            ]
            for stream in {message.stream for message in doomed}:
                await self._clear(stream, [m for m in doomed if m.stream == stream])
            for claim in [message for message in doomed if not message.position]:
                await self._sweep(claim)
            total += await self._remove([message for message in doomed if message.position])
            if not rows and (slot + 1) * SLOT_MS + CLAIM_MS < now_ms:
                # So late nobody notes anything in it any more.
                await self._session.run("drop_expiry", stamp + 1, SLOTS, 0, slot, b"", shard, b"")
        return total

    async def remove_expired(self, stream: bytes, positions: Sequence[int], *, now_ms: int) -> int:
        """Remove those messages among some, all written out, that have expired; say how many."""
        doomed: list[Doomed] = []
        for start in range(0, len(positions), REMOVE_MAX):
            found = await asyncio.gather(
                *(
                    self._session.run(
                        "removable", stream, position // BUCKET, position - 1, position
                    )
                    for position in positions[start : start + REMOVE_MAX]
                )
            )
            doomed += [
                Doomed(stream, position, id_, ref, stamp, until, slot_of(until, at))
                for rows in found
                for position, id_, at, until, ref, _, stamp in rows
                if until is not None and until <= now_ms
            ]
        if doomed:
            await self._clear(stream, doomed)
            await self._remove(doomed)
        return len(doomed)

    async def _clear(self, stream: bytes, doomed: Sequence[Doomed]) -> None:
        """Take the latest batch out of the head if any of these may be in it."""
        head = await self._heads.read(stream)
        if any(not m.position or m.position >= head.first for m in doomed):
            await self._heads.settle(stream)

    async def _remove(self, doomed: Sequence[Doomed]) -> int:
        for start in range(0, len(doomed), REMOVE_MAX):
            some = doomed[start : start + REMOVE_MAX]
            await together(self._remove_one(message) for message in some)
        return len(doomed)

    async def _remove_one(self, message: Doomed) -> None:
        stream, position, stamp = message.stream, message.position, message.stamp + 1
        await self._session.run("drop_id", stamp, stream, message.id)
        await self._session.run("drop_message", stamp, stream, position // BUCKET, position)
        if message.ref:
            await self._session.run("drop_parts", message.ref)
        await self._drop_note(message)

    async def _sweep(self, claim: Doomed) -> None:
        """Remove parts, unless a message has taken them."""
        rows = await self._session.run("ids", claim.stream, [claim.id])
        position = rows[0][1] if rows else 0
        values = (claim.stream, position // BUCKET, position)
        if [(claim.ref,)] != await self._session.run("message_ref", *values):
            await self._session.run("drop_parts", claim.ref)
        await self._drop_note(claim)

    async def _drop_note(self, message: Doomed) -> None:
        if message.until is None:
            return
        shard = shard_of(message.stream + message.id)
        await self._session.run(
            "drop_expiry", message.stamp + 1, message.slot, shard, message.until, message.stream,
            message.position, message.ref,
        )  # fmt: skip
