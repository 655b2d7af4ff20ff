"""Streams in Cassandra: batches by compare-and-set of a stream's head, see `heads.py`.

A call of more than 200 messages, or 512 KiB, takes several batches: if the store fails in between,
the first of them are stored. A batch goes through Paxos, which costs four round trips between the
servers, so this store needs batching: many messages at once are cheap, one at a time is not.

Bodies over 32 KiB are written in parts before their batch, under a claim in `expiries` that has
them swept if the batch never comes.
"""

import asyncio
import os
import random
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl, unquote, urlsplit

from cassandra import InvalidRequest
from cassandra.auth import PlainTextAuthProvider

from waterclock.model.errors import BadConfig, StoreUnavailable
from waterclock.model.units import HOUR_MS, KIB, MIB
from waterclock.stores.base import READ_BYTES_MAX, Page, Record, Stored, StoredMessage, stream_key
from waterclock.stores.cassandra.heads import CassandraHeads, note_expiry, now_stamp
from waterclock.stores.cassandra.purge import CassandraPurge
from waterclock.stores.cassandra.session import CassandraSession, Row
from waterclock.stores.cassandra.tables import (
    BUCKET,
    CLAIM_MS,
    IDS_AT_ONCE,
    INLINE_BYTES_MAX,
    SCHEMA_KEY,
    SERIAL,
    Head,
    Pending,
    cut,
    definitions,
    statements,
)
from waterclock.stores.tls import context_of
from waterclock.stores.write_queue import Entry, Known, WriteQueues, place_entries, write_in_chunks

SCHEMA_VERSION = 1
PORT = 9042
OPTIONS = {"replication", "ssl", "ssl_ca"}
REPLICATION_MAX = 3
"""Copies of a keyspace we create, if the URL does not say and there are as many hosts."""
CALL_S_MAX = 30.0
GROUP_RECORDS_MAX = 1_000
GROUP_BYTES_MAX = 16 * MIB
BATCH_RECORDS_MAX = 200
BATCH_BYTES_MAX = 512 * KIB
CONFLICT_MS_MAX = 100
READ_ROWS_MAX = 500
EMPTY_MAX = 10 * BUCKET
"""Positions that a reader searches in vain before it raises the floor for those after it."""


class CassandraStore:
    """A keyspace of streams."""

    is_shared = True

    def __init__(self, url: str) -> None:
        # What is wrong with a URL is not repeated: it may hold a password.
        form = "must be cassandra://host,host:port/keyspace?replication=3, in lower case"
        try:
            parts = urlsplit(url)
            port = parts.port or PORT
            options = dict(parse_qsl(parts.query))
            self._replication = int(options.get("replication", "0"))
        except ValueError:
            raise BadConfig("streams.store", form) from None
        if options.keys() - OPTIONS or options.get("ssl", "true") != "true":
            known = "there are replication=N, ssl=true and ssl_ca=FILE"
            raise BadConfig("streams.store", f"cassandra knows no other options: {known}")
        self._keyspace = parts.path.strip("/")
        if not parts.hostname or not re.fullmatch("[a-z][a-z0-9_]{0,47}", self._keyspace):
            raise BadConfig("streams.store", form)
        credentials = None
        if parts.username:
            password = unquote(parts.password or "")
            credentials = PlainTextAuthProvider(unquote(parts.username), password)
        hosts = parts.hostname.split(",")
        is_tls = options.get("ssl") == "true" or "ssl_ca" in options
        tls = context_of(options.get("ssl_ca")) if is_tls else None
        self._session = CassandraSession(hosts, port=port, credentials=credentials, tls=tls)
        self._heads = CassandraHeads(self._session)
        self._removing = CassandraPurge(self._session, self._heads)
        self._queues = WriteQueues(
            self._write, records_max=GROUP_RECORDS_MAX, bytes_max=GROUP_BYTES_MAX
        )

    def __repr__(self) -> str:
        return f"<CassandraStore {self._keyspace}>"

    async def open(self) -> None:
        """Connect, and create the keyspace and tables that are missing."""
        try:
            await self._session.connect()
            try:
                await self._session.prepare(statements(self._keyspace), serial=SERIAL)
            except InvalidRequest:  # there is no such keyspace, or not all of its tables
                copies = self._replication or min(REPLICATION_MAX, self._session.hosts_count)
                await self._session.define(definitions(self._keyspace, replication=copies))
                await self._session.prepare(statements(self._keyspace), serial=SERIAL)
            async with _in_time():
                version = (await self._heads.read(SCHEMA_KEY)).last
                if version > SCHEMA_VERSION:
                    problem = f"the tables are of the later version {version}"
                    raise BadConfig("streams.store", problem)
                if not version:
                    values = (SCHEMA_VERSION, SCHEMA_VERSION + 1, now_stamp(), None)
                    await self._session.run("begin", SCHEMA_KEY, *values)
        except BaseException:
            await self.close()
            raise

    async def store(self, stream: str, records: Sequence[Record], *, now_ms: int) -> list[Stored]:
        """Store all of them in order. They are durable on return."""
        return await self._queues.store(stream_key(stream), records, now_ms=now_ms)

    async def read(
        self, stream: str, *, after: int, limit: int, now_ms: int, bytes_max: int = READ_BYTES_MAX
    ) -> Page:
        """Give messages at positions > `after`: at least one if there is one."""
        name = stream_key(stream)
        messages: list[StoredMessage] = []
        size = 0
        async with _in_time():
            head = await self._heads.read(name)
            is_searching = after <= head.floor
            after = max(after, head.floor)
            while after < head.last and len(messages) < limit:
                rows, end = await self._next(name, head, after, limit - len(messages))
                if rows and is_searching:
                    await self._raise_floor(name, head, after)
                    is_searching = False
                after = end
                for position, id_, at, until, body, ref, parts, its_size in rows:
                    if until is not None and until <= now_ms:
                        continue
                    size += its_size
                    if messages and (size > bytes_max or len(messages) == limit):
                        return Page(messages, head.last)
                    whole = await self._body(ref, parts) if ref else body
                    if whole is not None:
                        messages.append(StoredMessage(position, id_.decode(), whole, at, until))
            if is_searching:
                await self._raise_floor(name, head, head.last)
        return Page(messages, head.last)

    async def delete(self, stream: str, *, older_than_ms: int | None = None) -> int:
        """Remove the messages stored before then, or all; say how many."""
        return await self._removing.delete(stream_key(stream), older_than_ms=older_than_ms)

    async def purge(self, *, now_ms: int, limit: int = 1_000) -> int:
        """Remove expired messages, at most so many; say how many. Sweep parts nobody claims."""
        return await self._removing.purge(now_ms=now_ms, limit=limit)

    async def close(self) -> None:
        """Close the connections. Again is harmless."""
        await self._session.close()

    # Writing

    async def _write(self, stream: bytes, entries: list[Entry]) -> list[Stored]:
        return await write_in_chunks(
            entries, _in_batches, lambda batch: self._write_batch(stream, batch)
        )

    async def _write_batch(self, stream: bytes, entries: Sequence[Entry]) -> list[Stored]:
        bodies: dict[bytes, bytes] = {}
        async with _in_time():
            while True:
                head = await self._heads.written_out(stream)
                known = await self._look_up(stream, head, entries)
                now_ms = max(entry.now_ms for entry in entries)
                positions = [found.position for found in known.values()]
                if await self._removing.remove_expired(stream, positions, now_ms=now_ms):
                    continue  # their ids are new now, and the head may have moved
                placed = place_entries(entries, known, head.last)
                new = [entries[row] for row in placed.new_rows]
                for entry in new:
                    await self._put_parts(stream, entry, bodies)
                batch = [_pending(entry, bodies.get(entry.key, b"")) for entry in new]
                if not batch or await self._heads.append(stream, head, batch):
                    break
                # By chance, so that two nodes do not meet again and again.
                await asyncio.sleep(random.uniform(0, CONFLICT_MS_MAX / 1_000))
            for key, ref in bodies.items():
                if key in known:
                    await self._session.run("drop_parts", ref)
        return placed.stored

    async def _look_up(
        self, stream: bytes, head: Head, entries: Sequence[Entry]
    ) -> dict[bytes, Known]:
        """Find the ids that are stored, up to a head written out."""
        if head.last <= head.floor:
            return {}
        keys = [entry.key for entry in entries]
        pages = [keys[start : start + IDS_AT_ONCE] for start in range(0, len(keys), IDS_AT_ONCE)]
        found = await asyncio.gather(*(self._session.run("ids", stream, page) for page in pages))
        # What is not above the floor is removed, if not from everywhere yet.
        return {
            key: Known(position, token)
            for rows in found
            for key, position, token in rows
            if position > head.floor
        }

    async def _put_parts(self, stream: bytes, entry: Entry, bodies: dict[bytes, bytes]) -> None:
        """Write a large body in parts, to be swept unless a message takes them."""
        if len(entry.record.body) <= INLINE_BYTES_MAX or entry.key in bodies:
            return
        ref, parts = os.urandom(16), cut(entry.record.body)
        await note_expiry(
            self._session, stream, 0, id=entry.key, until=entry.now_ms + CLAIM_MS, at=entry.now_ms,
            ref=ref, parts=len(parts), stamp=now_stamp(),
        )  # fmt: skip
        for number, part in enumerate(parts):
            await self._session.run("add_part", ref, number, part)
        bodies[entry.key] = ref

    # Reading

    async def _next(
        self, stream: bytes, head: Head, after: int, limit: int
    ) -> tuple[list[Row], int]:
        """Give some messages behind a position, and the position up to which these are all."""
        bucket = (after + 1) // BUCKET
        end = min(head.last, (bucket + 1) * BUCKET - 1)
        limit = min(limit, READ_ROWS_MAX)
        found = await self._session.run("messages", stream, bucket, after, end, limit)
        if len(found) == limit:
            end = found[-1][0]
        rows = {row[0]: row for row in found}
        expected = range(max(after + 1, head.first), end + 1)
        if any(position not in rows for position in expected):
            # The latest batch: not written out yet, or removed already.
            now, pending = await self._heads.whole(stream)
            if now.stamp == head.stamp:
                for position, message in enumerate(pending, head.first):
                    if position in expected:
                        rows.setdefault(position, _row(position, message))
            else:
                found = await self._session.run("messages", stream, bucket, after, end, BUCKET)
                rows = {row[0]: row for row in found}
        return [rows[position] for position in sorted(rows)], end

    async def _raise_floor(self, stream: bytes, head: Head, floor: int) -> None:
        """Have those after us begin here: there is nothing before."""
        if floor - head.floor > EMPTY_MAX:
            await self._heads.settle(stream, floor=floor)

    async def _body(self, ref: bytes, parts: int) -> bytes | None:
        """Put a body together; None if it has been removed meanwhile."""
        found = [await self._session.run("part", ref, number) for number in range(parts)]
        return b"".join(rows[0][0] for rows in found) if all(found) else None


def _in_batches(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    start, size = 0, 0
    for row, entry in enumerate(entries):
        length = len(entry.record.body)
        its_size = length if length <= INLINE_BYTES_MAX else 0
        if row - start >= BATCH_RECORDS_MAX or (row > start and size + its_size > BATCH_BYTES_MAX):
            yield entries[start:row]
            start, size = row, 0
        size += its_size
    if start < len(entries):
        yield entries[start:]


def _pending(entry: Entry, ref: bytes) -> Pending:
    body = entry.record.body
    inline, parts = (b"", len(cut(body))) if ref else (body, 0)
    return Pending(
        entry.key, entry.token, entry.now_ms, entry.record.expires_ms, inline, ref, parts, len(body)
    )


def _row(position: int, message: Pending) -> Row:
    """Give a message of the head as it will stand in `messages`."""
    return (
        position, message.id, message.at, message.until, message.body, message.ref, message.parts,
        message.size,
    )  # fmt: skip


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    """Bound what is done in the block, far below the time after which parts are swept."""
    assert CALL_S_MAX * 1_000 < HOUR_MS
    try:
        async with asyncio.timeout(CALL_S_MAX):
            yield
    except TimeoutError as error:
        raise StoreUnavailable(f"cassandra took longer than {CALL_S_MAX} s") from error
