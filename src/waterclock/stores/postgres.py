"""Streams in PostgreSQL (12 or newer), through asyncpg.

A stream has a row with its last position. Storing is one call of a function in the database, which
locks that row until the commit: so writers of a stream, on whatever node, take turns, positions are
dense, and nobody sees a position before all smaller ones. One round trip, one transaction.

In `READ COMMITTED` each statement of the function sees what was committed before *it* began, and so
all that the writer before us stored. We ask for that, and for `synchronous_commit`, whatever the
server's defaults are.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import asyncpg

from waterclock.model.errors import BadConfig, Closed, StoreUnavailable
from waterclock.stores.base import (
    READ_BYTES_MAX,
    Page,
    Record,
    Stored,
    StoredMessage,
    check_records,
    place,
    stream_key,
)
from waterclock.stores.tls import problem_of

SCHEMA_VERSION = 2
CONNECTIONS_MAX = 8
CONNECT_S_MAX = 5.0
CALL_S_MAX = 30.0
DELETE_ROWS_MAX = 10_000
"""Messages removed in one transaction; others have their turn in between."""
SESSION = {
    "application_name": "waterclock",
    "default_transaction_isolation": "read committed",
    "synchronous_commit": "on",
    # A server that was told to wait for ever must not keep a stream locked for ever.
    "idle_in_transaction_session_timeout": "60s",
    "lock_timeout": "20s",
    # Plans are made while the tables are small, and kept: they must use the indexes even so.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

_LOCK = "SELECT pg_advisory_xact_lock(hashtext('waterclock_schema'))"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS waterclock_schema (version int NOT NULL);
CREATE TABLE waterclock_streams (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name bytea NOT NULL UNIQUE,
    last bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
CREATE TABLE waterclock_messages (
    stream bigint NOT NULL,
    position bigint NOT NULL,
    message_id bytea NOT NULL,
    stored_ms bigint NOT NULL,
    expires_ms bigint,
    body bytea NOT NULL,
    PRIMARY KEY (stream, position),
    UNIQUE (stream, message_id)
);
-- Bodies are often compressed already, and to try takes most of the time.
ALTER TABLE waterclock_messages ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX waterclock_messages_expiry ON waterclock_messages (expires_ms)
    WHERE expires_ms IS NOT NULL;
"""
_FUNCTION = """
CREATE OR REPLACE FUNCTION waterclock_store(
    the_name bytea, the_ids bytea[], the_expiries bigint[], the_bodies bytea[], now_ms bigint,
    OUT the_last bigint, OUT known bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    the_stream bigint;
    the_count bigint;
BEGIN
    SELECT s.id, s.last INTO the_stream, the_last FROM waterclock_streams s
        WHERE s.name = the_name FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO waterclock_streams (name) VALUES (the_name) ON CONFLICT DO NOTHING;
        SELECT s.id, s.last INTO the_stream, the_last FROM waterclock_streams s
            WHERE s.name = the_name FOR UPDATE;
    END IF;
    -- From here on nobody else stores to this stream until we commit.
    -- The position of each id, 0 if it is new: without NULL, its elements are found at once.
    -- One that has expired is below 0, and taken out of the way.
    SELECT array_agg(CASE WHEN m.expires_ms <= now_ms THEN -m.position
                          ELSE coalesce(m.position, 0) END ORDER BY r.row) INTO known
        FROM unnest(the_ids) WITH ORDINALITY AS r (message_id, row)
        LEFT JOIN waterclock_messages m ON m.stream = the_stream AND m.message_id = r.message_id;
    IF 0 > ANY (known) THEN
        DELETE FROM waterclock_messages m WHERE m.stream = the_stream AND m.position = ANY (ARRAY(
            SELECT -k FROM unnest(known) AS k WHERE k < 0));
        SELECT array_agg(greatest(r.k, 0) ORDER BY r.row) INTO known
            FROM unnest(known) WITH ORDINALITY AS r (k, row);
    END IF;
    INSERT INTO waterclock_messages (stream, position, message_id, stored_ms, expires_ms, body)
        SELECT the_stream, the_last + row_number() OVER (ORDER BY r.row),
               r.message_id, now_ms, r.expires_ms, r.body
        FROM unnest(the_ids, the_expiries, the_bodies)
            WITH ORDINALITY AS r (message_id, expires_ms, body, row)
        WHERE known[r.row] = 0;
    GET DIAGNOSTICS the_count = ROW_COUNT;
    IF the_count > 0 THEN
        UPDATE waterclock_streams SET last = the_last + the_count WHERE id = the_stream;
    END IF;
END $$;
"""
_STORE = "SELECT * FROM waterclock_store($1, $2, $3, $4, $5)"
_READ = """
SELECT s.last, m.* FROM waterclock_streams s LEFT JOIN LATERAL (
    SELECT n.position, n.message_id, n.body, n.stored_ms, n.expires_ms FROM (
        SELECT *, sum(octet_length(body)) OVER w AS size, row_number() OVER w AS row FROM (
            SELECT position, message_id, body, stored_ms, expires_ms FROM waterclock_messages
            WHERE stream = s.id AND position > $2 AND (expires_ms IS NULL OR expires_ms > $4)
            ORDER BY position LIMIT $3
        ) AS page WINDOW w AS (ORDER BY position)
    ) AS n WHERE n.row = 1 OR n.size <= $5 ORDER BY n.position
) AS m ON true WHERE s.name = $1
"""
_STREAM = "SELECT id, last FROM waterclock_streams WHERE name = $1"
_DELETE = """
DELETE FROM waterclock_messages WHERE stream = $1 AND position = ANY (ARRAY(
    SELECT position FROM waterclock_messages
    WHERE stream = $1 AND position <= $2 AND ($3::bigint IS NULL OR stored_ms < $3) LIMIT $4))
"""
# Several nodes purge: each takes what no other has in hand.
_PURGE = """
WITH expired AS MATERIALIZED (
    SELECT stream, position FROM waterclock_messages
    WHERE expires_ms IS NOT NULL AND expires_ms <= $1 ORDER BY expires_ms LIMIT $2
    FOR UPDATE SKIP LOCKED)
DELETE FROM waterclock_messages m USING expired e
    WHERE m.stream = e.stream AND m.position = e.position
"""


class PostgresStore:
    """Streams in a PostgreSQL database. The URL is libpq's; its database must exist."""

    is_shared = True

    def __init__(self, url: str) -> None:
        self._url = _checking(url)
        self._pool: Any = None

    def __repr__(self) -> str:
        return "<PostgresStore>"  # the URL may hold a password

    async def open(self) -> None:
        """Connect, and create the schema if it is not there."""
        with _translated():
            pool = asyncpg.create_pool(
                self._url,
                min_size=0,
                max_size=CONNECTIONS_MAX,
                timeout=CONNECT_S_MAX,
                command_timeout=CALL_S_MAX,
                server_settings=SESSION,
            )
            try:
                await pool
                async with _lent(pool) as connection:
                    await _migrate(connection)
            except BaseException:
                pool.terminate()
                raise
        self._pool = pool

    async def store(self, stream: str, records: Sequence[Record], *, now_ms: int) -> list[Stored]:
        """Store all of them in order, or none. They are durable on return."""
        name, keys = stream_key(stream), check_records(records)
        if not records:
            return []
        # The first of each id: the database need not look for repeats within a call.
        first: dict[bytes, int] = {}
        for row, key in enumerate(keys):
            first.setdefault(key, row)
        ids, rows = list(first), first.values()
        expiries = [records[row].expires_ms for row in rows]
        bodies = [records[row].body for row in rows]
        async with self._connection() as connection:
            last, positions = await connection.fetchrow(_STORE, name, ids, expiries, bodies, now_ms)
        known = {key: position for key, position in zip(ids, positions, strict=True) if position}
        return place(keys, known, last).stored

    async def read(
        self, stream: str, *, after: int, limit: int, now_ms: int, bytes_max: int = READ_BYTES_MAX
    ) -> Page:
        """Give messages at positions > `after`: at least one if there is one."""
        name = stream_key(stream)
        async with self._connection() as connection:
            rows = await connection.fetch(_READ, name, after, limit, now_ms, bytes_max)
        messages = [
            StoredMessage(position, key.decode(), body, stored_ms, expires_ms)
            for _, position, key, body, stored_ms, expires_ms in rows
            if position is not None
        ]
        return Page(messages, rows[0][0] if rows else 0)

    async def delete(self, stream: str, *, older_than_ms: int | None = None) -> int:
        """Remove the messages stored before then, or all; say how many."""
        name = stream_key(stream)
        async with self._connection() as connection:
            found = await connection.fetchrow(_STREAM, name)
        total, count = 0, 0 if found is None else DELETE_ROWS_MAX
        while count == DELETE_ROWS_MAX:
            async with self._connection() as connection:
                # Up to the last of then: what is stored meanwhile is not meant.
                status = await connection.execute(_DELETE, *found, older_than_ms, DELETE_ROWS_MAX)
            count = _count(status)
            total += count
        return total

    async def purge(self, *, now_ms: int, limit: int = 1_000) -> int:
        """Remove expired messages, at most so many; say how many."""
        async with self._connection() as connection:
            return _count(await connection.execute(_PURGE, now_ms, limit))

    async def close(self) -> None:
        """Let go of the connections. Again is harmless."""
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                async with asyncio.timeout(CONNECT_S_MAX):
                    await pool.close()
            except TimeoutError:
                pool.terminate()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        if self._pool is None:
            raise Closed("the store is not open")
        with _translated():
            async with _lent(self._pool) as connection:
                yield connection


@asynccontextmanager
async def _lent(pool: "asyncpg.Pool[Any]") -> AsyncIterator[Any]:
    """Lend a connection for one call, for so long and no longer."""
    async with asyncio.timeout(CALL_S_MAX):
        connection = await pool.acquire()
        try:
            yield connection
        except BaseException as error:
            # Unless the server answered, it may not for long, and to give the connection back one
            # would wait for it: it is thrown away instead.
            if not isinstance(error, asyncpg.PostgresError):
                connection.terminate()
            raise
        finally:
            await pool.release(connection)


async def _migrate(connection: "asyncpg.Connection[Any]") -> None:
    """Bring the schema up to date; nodes that start together take turns."""
    async with connection.transaction():
        await connection.execute(_LOCK)
        name = "waterclock_schema"
        version = 0
        if await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", name):
            version = await connection.fetchval(f"SELECT max(version) FROM {name}") or 0
        if version > SCHEMA_VERSION:
            raise BadConfig("streams.store", "the database is of a later version")
        if not version:
            await connection.execute(_SCHEMA)
        if version < SCHEMA_VERSION:
            await connection.execute(_FUNCTION)
            await connection.execute(f"INSERT INTO {name} (version) VALUES ({SCHEMA_VERSION})")


def _checking(url: str) -> str:
    """Return the URL with `sslmode=verify-full` if it names a CA and no mode: the driver, as libpq,
    would try TLS, check nothing, and go on in the clear without it."""
    names = dict(parse_qsl(urlsplit(url).query))
    is_to_check = "sslrootcert" in names and "sslmode" not in names
    return f"{url}&sslmode=verify-full" if is_to_check else url


def _count(status: str) -> int:
    """Read the number off `DELETE 3`."""
    return int(status.rpartition(" ")[2])


_AWAY = (
    OSError,  # TimeoutError among them
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,  # a connection that was closed under us
    asyncpg.OperatorInterventionError,  # the server shuts down, or starts
    asyncpg.InsufficientResourcesError,
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.ReadOnlySQLTransactionError,  # a fail-over has made this server a replica
    asyncpg.InternalClientError,
)

_REFUSED = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InvalidSchemaNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ClientConfigurationError,
)
"""The account or the database does not exist, or may not be used; or the URL is not libpq's."""


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except _REFUSED as error:
        raise BadConfig("streams.store", f"postgresql: {error}") from error
    except _AWAY as error:
        raise StoreUnavailable(f"postgresql: {problem_of(error)}") from error
