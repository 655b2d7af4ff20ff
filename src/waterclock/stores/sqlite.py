"""Streams in one SQLite file: no server, and several processes of one machine may share it.

SQLite blocks, so a thread of the store's own makes all calls that write. Those of `store` that come
while it is busy share the next transaction, and so its fsync. Every transaction that writes begins
as a writer (`BEGIN IMMEDIATE`): it waits for its turn instead of failing half-way. Write-ahead
logging lets others read meanwhile, as does a second thread here, with a connection for reading;
`synchronous=FULL` makes a commit durable.
"""

import asyncio
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from waterclock.model.errors import (
    BadConfig,
    Closed,
    StorageFailed,
    StorageFull,
    StoreUnavailable,
    WaterclockError,
)
from waterclock.storage.folders.os_folder import FILE_MODE
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

T = TypeVar("T")

SCHEMA_VERSION = 1
CALL_S_MAX = 30.0
BUSY_MS_MAX = 15_000
"""How long to wait for other processes that write."""
BUSY_S = 0.01
CACHE_KIB = 32 * 1_024
"""Pages in memory: with SQLite's own 2 MB, long streams are stored at half the rate."""
GROUP_CALLS_MAX = 256
"""Calls that share one transaction: more would delay the first of them for too long."""
DELETE_ROWS_MAX = 10_000
"""Messages removed in one transaction; others have their turn in between."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS waterclock_streams (
    id INTEGER PRIMARY KEY,
    name BLOB NOT NULL UNIQUE,
    last INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS waterclock_messages (
    stream INTEGER NOT NULL,
    position INTEGER NOT NULL,
    message_id BLOB NOT NULL,
    stored_ms INTEGER NOT NULL,
    expires_ms INTEGER,
    body BLOB NOT NULL,
    PRIMARY KEY (stream, position)
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS waterclock_messages_id
    ON waterclock_messages (stream, message_id);
CREATE INDEX IF NOT EXISTS waterclock_messages_expiry
    ON waterclock_messages (expires_ms) WHERE expires_ms IS NOT NULL;
"""
_STREAM = "SELECT id, last FROM waterclock_streams WHERE name = ?"
_NEW_STREAM = "INSERT INTO waterclock_streams (name, last) VALUES (?, 0)"
_MOVE = "UPDATE waterclock_streams SET last = ? WHERE id = ?"
_KNOWN = "SELECT position, expires_ms FROM waterclock_messages WHERE stream = ? AND message_id = ?"
_REMOVE = "DELETE FROM waterclock_messages WHERE stream = ? AND position = ?"
_INSERT = (
    "INSERT INTO waterclock_messages (stream, position, message_id, stored_ms, expires_ms, body)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
_READ = """
SELECT position, message_id, body, stored_ms, expires_ms FROM waterclock_messages
WHERE stream = ? AND position > ? AND (expires_ms IS NULL OR expires_ms > ?)
ORDER BY position LIMIT ?
"""
_DELETE = """
DELETE FROM waterclock_messages WHERE stream = ?1 AND position IN (
    SELECT position FROM waterclock_messages
    WHERE stream = ?1 AND position <= ?2 AND (?3 IS NULL OR stored_ms < ?3) LIMIT ?4)
"""
_PURGE = """
DELETE FROM waterclock_messages WHERE (stream, position) IN (
    SELECT stream, position FROM waterclock_messages
    WHERE expires_ms IS NOT NULL AND expires_ms <= ? ORDER BY expires_ms LIMIT ?)
"""


class _Call:
    """A call of `store` that waits for the thread."""

    def __init__(
        self, name: bytes, keys: list[bytes], records: Sequence[Record], now_ms: int
    ) -> None:
        self.name = name
        self.keys = keys
        self.records = records
        self.now_ms = now_ms
        self.is_given_up = False
        self.stored: list[Stored] | None = None
        self.error: WaterclockError | None = None


class SqliteStore:
    """A file of streams."""

    is_shared = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="waterclock-sqlite")
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="waterclock-sqlite-read")
        self._waiting: deque[_Call] = deque()

    def __repr__(self) -> str:
        return f"<SqliteStore {self._path}>"

    async def open(self) -> None:
        """Open the file, or create it."""
        await self._run(self._open)

    async def store(self, stream: str, records: Sequence[Record], *, now_ms: int) -> list[Stored]:
        """Store all of them in order, or none. They are durable on return."""
        call = _Call(stream_key(stream), check_records(records), records, now_ms)
        if not records:
            return []
        self._waiting.append(call)
        try:
            # When this has run, the call was made: by it, or by the one of an earlier call.
            await self._run(self._store_waiting)
        finally:
            call.is_given_up = True
        if call.error is not None:
            raise call.error
        assert call.stored is not None, "somebody has made the call"
        return call.stored

    async def read(
        self, stream: str, *, after: int, limit: int, now_ms: int, bytes_max: int = READ_BYTES_MAX
    ) -> Page:
        """Give messages at positions > `after`: at least one if there is one."""
        name = stream_key(stream)
        read = partial(self._read, name, after, limit, now_ms, bytes_max)
        return await self._run(read, self._reading)

    async def delete(self, stream: str, *, older_than_ms: int | None = None) -> int:
        """Remove the messages stored before then, or all; say how many."""
        name = stream_key(stream)
        found = await self._run(lambda: self._opened.execute(_STREAM, (name,)).fetchone())
        total, count = 0, 0 if found is None else DELETE_ROWS_MAX
        while count == DELETE_ROWS_MAX:
            # Up to the last of then: what is stored meanwhile is not meant.
            values = (*found, older_than_ms, DELETE_ROWS_MAX)
            count = await self._run(partial(self._change, _DELETE, values))
            total += count
        return total

    async def purge(self, *, now_ms: int, limit: int = 1_000) -> int:
        """Remove expired messages, at most so many; say how many."""
        return await self._run(lambda: self._change(_PURGE, (now_ms, limit)))

    async def close(self) -> None:
        """Close the file. Again is harmless."""
        try:
            if self._database is not None:
                await self._run(self._close)
                await self._run(self._close_reader, self._reading)
        finally:
            for thread in (self._thread, self._reading):
                thread.shutdown(wait=False)

    async def _run(self, call: Callable[[], T], thread: ThreadPoolExecutor | None = None) -> T:
        loop = asyncio.get_running_loop()
        try:
            working = loop.run_in_executor(thread or self._thread, call)
        except RuntimeError as error:  # its threads have ended
            raise Closed("the store is closed") from error
        try:
            async with asyncio.timeout(CALL_S_MAX):
                return await working
        except TimeoutError as error:
            raise StoreUnavailable(f"{self._path} took longer than {CALL_S_MAX} s") from error
        except sqlite3.Error as error:
            raise _ours(error) from error

    # On the thread

    @property
    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            raise Closed("the store is not open")
        return self._database

    def _open(self) -> None:
        # SQLite makes files that everybody may read; its log and index take the mode of this one.
        with suppress(OSError):  # SQLite tells it better
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
        database = self._connected()
        try:
            _set_wal(database)
            database.execute("PRAGMA synchronous = FULL")
            database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            with _transaction(database):
                version = database.execute("PRAGMA user_version").fetchone()[0]
                if version > SCHEMA_VERSION:
                    raise BadConfig("streams.store", f"{self._path} is of a later version")
                if version < SCHEMA_VERSION:
                    for statement in _SCHEMA.split(";"):
                        database.execute(statement)
                    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self._reader = self._connected()
        except BaseException:
            database.close()
            raise
        self._database = database

    def _connected(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self._path, timeout=BUSY_MS_MAX / 1_000, isolation_level=None, check_same_thread=False
        )

    def _close(self) -> None:
        self._opened.close()
        self._database = None

    def _close_reader(self) -> None:
        assert self._reader is not None
        self._reader.close()
        self._reader = None

    def _store_waiting(self) -> None:
        """Make the calls that wait, in one transaction."""
        calls: list[_Call] = []
        while self._waiting and len(calls) < GROUP_CALLS_MAX:
            call = self._waiting.popleft()
            if not call.is_given_up:
                calls.append(call)
        if not calls:
            return
        try:
            with _transaction(self._opened):
                for call in calls:
                    call.stored = self._store(call)
        # Each has an error of its own: they are raised in different tasks.
        except sqlite3.Error as error:
            for call in calls:
                call.error = _ours(error)
        except Closed as error:
            for call in calls:
                call.error = Closed(str(error))

    def _store(self, call: _Call) -> list[Stored]:
        database = self._opened
        found = database.execute(_STREAM, (call.name,)).fetchone()
        stream, last = found or (database.execute(_NEW_STREAM, (call.name,)).lastrowid, 0)
        known = {}
        for key in call.keys if last else ():
            kept = database.execute(_KNOWN, (stream, key)).fetchone()
            if kept is None:
                continue
            position, expires_ms = kept
            if expires_ms is not None and expires_ms <= call.now_ms:
                database.execute(_REMOVE, (stream, position))
            else:
                known[key] = position
        placed = place(call.keys, known, last)
        rows = (
            (stream, position, call.keys[row], call.now_ms, call.records[row].expires_ms,
             call.records[row].body)
            for position, row in enumerate(placed.new_rows, last + 1)
        )  # fmt: skip
        database.executemany(_INSERT, rows)
        if placed.last != last:
            database.execute(_MOVE, (placed.last, stream))
        return placed.stored

    def _read(self, name: bytes, after: int, limit: int, now_ms: int, bytes_max: int) -> Page:
        database = self._reader
        if database is None:
            raise Closed("the store is not open")
        # One transaction: the counter and the messages are of the same moment.
        with _transaction(database, "DEFERRED"):
            found = database.execute(_STREAM, (name,)).fetchone()
            if found is None:
                return Page([], 0)
            stream, last = found
            messages: list[StoredMessage] = []
            size = 0
            for position, key, body, *times in database.execute(
                _READ, (stream, after, now_ms, limit)
            ):
                size += len(body)
                if messages and size > bytes_max:
                    break
                messages.append(StoredMessage(position, key.decode(), body, *times))
        return Page(messages, last)

    def _change(self, statement: str, values: tuple[int | None, ...]) -> int:
        with _transaction(self._opened) as database:
            return database.execute(statement, values).rowcount


def _set_wal(database: sqlite3.Connection) -> None:
    """Turn write-ahead logging on. SQLite does not wait for others here, so we do."""
    deadline_s = time.monotonic() + BUSY_MS_MAX / 1_000
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            if time.monotonic() > deadline_s:
                raise
        time.sleep(BUSY_S)


@contextmanager
def _transaction(
    database: sqlite3.Connection, kind: str = "IMMEDIATE"
) -> Iterator[sqlite3.Connection]:
    database.execute(f"BEGIN {kind}")
    try:
        yield database
        database.execute("COMMIT")
    except BaseException:
        # SQLite itself has rolled back after some errors, such as a full disk.
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


_ERRORS: dict[int, type[WaterclockError]] = {
    sqlite3.SQLITE_BUSY: StoreUnavailable,
    sqlite3.SQLITE_LOCKED: StoreUnavailable,
    sqlite3.SQLITE_CANTOPEN: StoreUnavailable,
    sqlite3.SQLITE_FULL: StorageFull,
}


def _ours(error: sqlite3.Error) -> WaterclockError:
    """Say what the caller can do: wait, free space, or look after the disk."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return _ERRORS.get(code, StorageFailed)(f"sqlite: {error}")
