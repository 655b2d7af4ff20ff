"""Streams in MySQL (8 or newer) or MariaDB (10.6 or newer), through asyncmy.

A stream has a row with its last position. A call of `store` locks that row until the commit: so
writers of a stream, on whatever node, take turns, positions are dense, and nobody sees a position
before all smaller ones. Two round trips: lock and look for repeats, then insert and commit.

All values are written into the statements as numbers or as hexadecimal literals, so there is
nothing to escape, whatever `sql_mode` and character set the server has. Large bodies are sent in
parts, to fit into the server's packets.
"""

from collections.abc import Iterator, Sequence

from asyncmy import errors

from waterclock.model.errors import BadConfig
from waterclock.model.units import MIB
from waterclock.stores.base import (
    READ_BYTES_MAX,
    Page,
    Placed,
    Record,
    Stored,
    StoredMessage,
    check_records,
    place,
    stream_key,
)
from waterclock.stores.mysql.connections import FIELD, Connection, Connections

SCHEMA_VERSION = 1
STATEMENT_BYTES = 4 * MIB
"""Bodies of one statement; as hexadecimal it is twice as long."""
IDS_MAX = 2_000
"""Ids looked for by one statement: the server plans for each of them."""
DELETE_ROWS_MAX = 10_000
"""Messages removed in one transaction; others have their turn in between."""
TRIES_MAX = 5

# Statements of this kind commit one by one: the version comes last, and what is there may stay.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS waterclock_schema (version INT PRIMARY KEY) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS waterclock_streams (
    id BIGINT AUTO_INCREMENT PRIMARY KEY,
    name VARBINARY(512) NOT NULL UNIQUE,
    last BIGINT NOT NULL
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS waterclock_messages (
    stream BIGINT NOT NULL,
    position BIGINT NOT NULL,
    message_id VARBINARY(256) NOT NULL,
    stored_ms BIGINT NOT NULL,
    expires_ms BIGINT,
    size INT NOT NULL,
    body LONGBLOB NOT NULL,
    PRIMARY KEY (stream, position),
    UNIQUE KEY waterclock_messages_id (stream, message_id),
    KEY waterclock_messages_expiry (expires_ms)
) ENGINE = InnoDB;
INSERT INTO waterclock_schema (version) VALUES (1)
"""
_HAS_VERSION = (
    "SELECT COUNT(*) FROM information_schema.tables"
    " WHERE table_schema = DATABASE() AND table_name = 'waterclock_schema'"
)
_VERSION = "SELECT COALESCE(MAX(version), 0) FROM waterclock_schema"
_LOCK_SCHEMA = "SELECT GET_LOCK(CONCAT('waterclock_schema ', LEFT(DATABASE(), 40)), 25)"
_UNLOCK_SCHEMA = "SELECT RELEASE_LOCK(CONCAT('waterclock_schema ', LEFT(DATABASE(), 40)))"
_LOCK = (
    "START TRANSACTION; SET @stream = NULL, @last = NULL; "
    "SELECT id, last INTO @stream, @last FROM waterclock_streams WHERE name = {name} FOR UPDATE; "
    "SELECT @stream, @last"
)
# Not `INSERT IGNORE`, which warns, and drivers pass that on.
_NEW_STREAM = (
    "ROLLBACK; INSERT INTO waterclock_streams (name, last) VALUES ({name}, 0)"
    " ON DUPLICATE KEY UPDATE last = last"
)
_KNOWN = (
    "SELECT message_id, position, expires_ms FROM waterclock_messages"
    " WHERE stream = @stream AND message_id IN ({ids})"
)
_REMOVE = "DELETE FROM waterclock_messages WHERE stream = @stream AND position IN ({positions})"
_INSERT = (
    "INSERT INTO waterclock_messages"
    " (stream, position, message_id, stored_ms, expires_ms, size, body) VALUES {rows}"
)
_EXTEND = (
    "UPDATE waterclock_messages SET body = CONCAT(body, {part})"
    " WHERE stream = @stream AND position = {position}"
)
_COMMIT = "UPDATE waterclock_streams SET last = {last} WHERE id = @stream; COMMIT"
# Sizes first: bodies are fetched only of the messages that fit.
_READ = """
SELECT s.last, m.position, m.message_id, m.body, m.stored_ms, m.expires_ms
FROM waterclock_streams s
LEFT JOIN (SELECT n.stream, n.position FROM (
    SELECT page.stream, page.position, SUM(page.size) OVER w AS total, ROW_NUMBER() OVER w AS nth
    FROM (
        SELECT stream, position, size FROM waterclock_messages
        WHERE stream = (SELECT id FROM waterclock_streams WHERE name = {name})
            AND position > {after} AND (expires_ms IS NULL OR expires_ms > {now_ms})
        ORDER BY position LIMIT {limit}
    ) page WINDOW w AS (ORDER BY page.position)
) n WHERE n.nth = 1 OR n.total <= {bytes_max}) p ON p.stream = s.id
LEFT JOIN waterclock_messages m ON m.stream = p.stream AND m.position = p.position
WHERE s.name = {name} ORDER BY m.position
"""
_STREAM = "SELECT id, last FROM waterclock_streams WHERE name = {name}"
_DELETE = (
    "DELETE FROM waterclock_messages"
    " WHERE stream = {stream} AND position <= {last}{older} LIMIT {limit}"
)
_PURGE = (
    "DELETE FROM waterclock_messages WHERE expires_ms <= {now_ms} ORDER BY expires_ms LIMIT {limit}"
)


class MysqlStore:
    """Streams in a MySQL or MariaDB database, which must exist."""

    is_shared = True

    def __init__(self, url: str) -> None:
        self._connections = Connections(url)

    def __repr__(self) -> str:
        return "<MysqlStore>"  # the URL may hold a password

    async def open(self) -> None:
        """Connect, and create the schema if it is not there."""
        await self._connections.open()
        async with self._connections.one() as connection:
            # Nodes that start together take turns; a closed connection lets go of the lock.
            await connection.run(_LOCK_SCHEMA)
            [[(version,)]] = await connection.run(_HAS_VERSION)
            if version:
                [[(version,)]] = await connection.run(_VERSION)
            if version > SCHEMA_VERSION:
                raise BadConfig(FIELD, "the database is of a later version")
            if version < SCHEMA_VERSION:
                await connection.run(_SCHEMA)
            await connection.run(_UNLOCK_SCHEMA)

    async def store(self, stream: str, records: Sequence[Record], *, now_ms: int) -> list[Stored]:
        """Store all of them in order, or none. They are durable on return."""
        name, keys = _hex(stream_key(stream)), check_records(records)
        if not records:
            return []
        async with self._connections.one() as connection:
            for tries in range(1, TRIES_MAX + 1):
                try:
                    return await _store(connection, name, keys, records, now_ms)
                except errors.OperationalError as error:
                    # The server has rolled back one of two that waited for each other.
                    if error.args[0] not in _AGAIN or tries == TRIES_MAX:
                        raise
        raise AssertionError("the last try returns or raises")

    async def read(
        self, stream: str, *, after: int, limit: int, now_ms: int, bytes_max: int = READ_BYTES_MAX
    ) -> Page:
        """Give messages at positions > `after`: at least one if there is one."""
        name = _hex(stream_key(stream))
        statement = _READ.format(
            name=name, after=after, limit=limit, now_ms=now_ms, bytes_max=bytes_max
        )
        async with self._connections.one() as connection:
            [rows] = await connection.run(statement)
        messages = [
            StoredMessage(position, key.decode(), body, stored_ms, expires_ms)
            for _, position, key, body, stored_ms, expires_ms in rows
            if position is not None
        ]
        return Page(messages, rows[0][0] if rows else 0)

    async def delete(self, stream: str, *, older_than_ms: int | None = None) -> int:
        """Remove the messages stored before then, or all; say how many."""
        name = _hex(stream_key(stream))
        older = "" if older_than_ms is None else f" AND stored_ms < {older_than_ms:d}"
        async with self._connections.one() as connection:
            [rows] = await connection.run(_STREAM.format(name=name))
        total, count = 0, DELETE_ROWS_MAX if rows else 0
        while count == DELETE_ROWS_MAX:
            # Up to the last of then: what is stored meanwhile is not meant.
            [(number, last)] = rows
            statement = _DELETE.format(stream=number, last=last, older=older, limit=DELETE_ROWS_MAX)
            async with self._connections.one() as connection:
                count = await connection.change(statement)
            total += count
        return total

    async def purge(self, *, now_ms: int, limit: int = 1_000) -> int:
        """Remove expired messages, at most so many; say how many."""
        async with self._connections.one() as connection:
            return await connection.change(_PURGE.format(now_ms=now_ms, limit=limit))

    async def close(self) -> None:
        """Let go of the connections. Again is harmless."""
        self._connections.close()


_AGAIN = {1213, 1020}
"""A deadlock, or a row that changed since it was read."""


async def _store(
    connection: Connection, name: str, keys: list[bytes], records: Sequence[Record], now_ms: int
) -> list[Stored]:
    last = await _lock(connection, name)
    known: dict[bytes, int] = {}
    for start in range(0, len(keys) if last else 0, IDS_MAX):
        ids = ",".join(map(_hex, keys[start : start + IDS_MAX]))
        [rows] = await connection.run(_KNOWN.format(ids=ids))
        expired = []
        for key, position, expires_ms in rows:
            if expires_ms is not None and expires_ms <= now_ms:
                expired.append(position)
            else:
                known[key] = position
        if expired:
            positions = ",".join(map(str, expired))
            await connection.run(_REMOVE.format(positions=positions))
    placed = place(keys, known, last)
    if placed.new_rows:
        for statement in _statements(placed, keys, records, now_ms):
            await connection.run(statement)
    else:
        await connection.run("ROLLBACK")
    return placed.stored


async def _lock(connection: Connection, name: str) -> int:
    """Begin a transaction that has the stream for itself; give its last position."""
    while True:
        [[(stream, last)]] = await connection.run(_LOCK.format(name=name))
        if stream is not None:
            return int(last)
        await connection.run(_NEW_STREAM.format(name=name))


def _statements(
    placed: Placed, keys: list[bytes], records: Sequence[Record], now_ms: int
) -> Iterator[str]:
    """Give the statements that insert what is new and commit; the last ones in one."""
    rows: list[str] = []
    size = 0
    for row in placed.new_rows:
        position, record = placed.stored[row].position, records[row]
        expires = "NULL" if record.expires_ms is None else record.expires_ms
        body = record.body[:STATEMENT_BYTES]
        if rows and size + len(body) > STATEMENT_BYTES:
            yield _INSERT.format(rows=",".join(rows))
            rows, size = [], 0
        rows.append(
            f"(@stream,{position:d},{_hex(keys[row])},{now_ms:d},{expires},"
            f"{len(record.body):d},{_hex(body)})"
        )
        size += len(body) + len(keys[row])
        if len(record.body) > STATEMENT_BYTES:
            yield _INSERT.format(rows=",".join(rows))
            rows, size = [], 0
            for start in range(STATEMENT_BYTES, len(record.body), STATEMENT_BYTES):
                part = _hex(record.body[start : start + STATEMENT_BYTES])
                yield _EXTEND.format(part=part, position=position)
    insert = [_INSERT.format(rows=",".join(rows))] if rows else []
    yield "; ".join([*insert, _COMMIT.format(last=placed.last)])


def _hex(value: bytes) -> str:
    return f"x'{value.hex()}'"
