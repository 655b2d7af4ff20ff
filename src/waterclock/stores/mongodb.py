"""Streams in MongoDB: two collections, and one transaction for each batch.

    waterclock_streams    {_id: name, last: 17}
    waterclock_messages   {_id: {s: name, p: 17}, id, token, at, until?, body}

A transaction counts `last` on and inserts the messages; readers go no further than the `last` they
read first. So a position is seen together with all before it, or not at all. That an id is stored
once is the duty of a unique index: a batch is written as if all its ids were new, and only if the
index objects are they looked up. Transactions need a replica set; one member is enough.

Two transactions on one stream do not queue in MongoDB, the later one fails at once. Within a store
calls are queued (`write_queue.py`); between nodes, the later one tries again. A node that dies in
a transaction leaves it open on the server, which would keep it for a minute and refuse all others:
a node that is refused for long ends such transactions.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from bson.binary import Binary
from bson.int64 import Int64
from pymongo import AsyncMongoClient, IndexModel, ReturnDocument
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DuplicateKeyError,
    ExecutionTimeout,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    WTimeoutError,
)
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from waterclock.model.errors import BadConfig, Closed, StoreUnavailable
from waterclock.model.units import MIB
from waterclock.stores.base import (
    EXPIRES_MS_MAX,
    READ_BYTES_MAX,
    Page,
    Record,
    Stored,
    StoredMessage,
    stream_key,
)
from waterclock.stores.tls import problem_of
from waterclock.stores.write_queue import Entry, Known, WriteQueues, place_entries

Document = dict[str, Any]

SCHEMA_VERSION = 1
DATABASE = "waterclock"
"""If the URL names none."""
APP_NAME = "waterclock-streams"
CALL_S_MAX = 20.0
SERVER_MS_MAX = 2_000
"""How long to look for a server that takes writes: a fail-over takes longer, and callers retry."""
AWAY_S = 1.0
"""After looking in vain, calls fail at once for so long, unless a server has been found."""
CONNECTIONS_MAX = 32
GROUP_RECORDS_MAX = 5_000
GROUP_BYTES_MAX = 16 * MIB
CONFLICT_MS_MAX = 50
ABANDONED_S_MIN = 2
"""A transaction nobody has touched for so long is in the way: its node is gone, or hangs."""
LOOK_UP_MAX = 1_000
DELETE_MAX = 1_000

DUPLICATE_KEY = 11_000
NAMESPACE_EXISTS = 48
REFUSED = {13, 18, 8_000}
"""The account does not exist, or may not do what it must."""


class MongodbStore:
    """A database of streams."""

    is_shared = True

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: AsyncMongoClient[Document] | None = None
        self._away_until = 0.0
        self._queues = WriteQueues(
            self._write, records_max=GROUP_RECORDS_MAX, bytes_max=GROUP_BYTES_MAX
        )

    def __repr__(self) -> str:
        return f"<MongodbStore {self._url.rpartition('@')[2]}>"

    async def open(self) -> None:
        """Connect, and create the collections and indexes that are missing."""
        try:
            self._client = AsyncMongoClient(
                self._url,
                appname=APP_NAME,
                serverSelectionTimeoutMS=SERVER_MS_MAX,
                connectTimeoutMS=SERVER_MS_MAX,
                waitQueueTimeoutMS=int(CALL_S_MAX * 1_000),
                maxPoolSize=CONNECTIONS_MAX,
                socketTimeoutMS=int(CALL_S_MAX * 1_000),
                # Whatever the URL says: elsewhere one reads the past, and writes do not go.
                readPreference="primary",
            )
        except (InvalidURI, ValueError):
            # It is not repeated: it may hold a password.
            problem = "must be mongodb://user:password@host:port/database?replicaSet=name"
            raise BadConfig("streams.store", f"{problem}, with %40 for @ and so on") from None
        except ConfigurationError as error:
            raise BadConfig("streams.store", f"mongodb: {error}") from error
        try:
            async with self._reaching():
                await self._create()
        except BaseException:
            await self.close()
            raise

    async def store(self, stream: str, records: Sequence[Record], *, now_ms: int) -> list[Stored]:
        """Store all of them in order, or none. They are durable on return."""
        return await self._queues.store(stream_key(stream), records, now_ms=now_ms)

    async def read(
        self, stream: str, *, after: int, limit: int, now_ms: int, bytes_max: int = READ_BYTES_MAX
    ) -> Page:
        """Give messages at positions > `after`: at least one if there is one."""
        name = Binary(stream_key(stream))
        async with self._reaching():
            head = await self._streams.find_one({"_id": name})
            last = int(head["last"]) if head else 0
            if after >= last:
                return Page([], last)
            # A message stored since would stand behind one that the cursor has passed already.
            where = {"_id": _range(name, after=after, last=last), **_alive(now_ms)}
            messages: list[StoredMessage] = []
            size = 0
            async with self._messages.find(where).sort("_id").limit(limit) as found:
                async for document in found:
                    size += len(document["body"])
                    if messages and size > bytes_max:
                        break
                    messages.append(_message(document))
        return Page(messages, last)

    async def delete(self, stream: str, *, older_than_ms: int | None = None) -> int:
        """Remove the messages stored before then, or all; say how many."""
        name = Binary(stream_key(stream))
        async with self._reaching():
            head = await self._streams.find_one({"_id": name})
            if head is None:
                return 0
            where: Document = {"_id": _range(name, after=0, last=int(head["last"]))}
            sort = "_id"
            if older_than_ms is not None:
                where |= {"_id.s": name, "at": {"$lt": Int64(older_than_ms)}}
                sort = "at"
            total = 0
            while True:
                count = await self._remove(where, sort=sort, limit=DELETE_MAX)
                total += count
                if count < DELETE_MAX:
                    return total

    async def purge(self, *, now_ms: int, limit: int = 1_000) -> int:
        """Remove expired messages, at most so many; say how many."""
        async with self._reaching():
            return await self._remove({"until": {"$lte": Int64(now_ms)}}, sort="until", limit=limit)

    async def close(self) -> None:
        """Close the connections. Again is harmless."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @property
    def _opened(self) -> AsyncMongoClient[Document]:
        if self._client is None:
            raise Closed("the store is not open")
        return self._client

    @asynccontextmanager
    async def _reaching(self) -> AsyncIterator[None]:
        """Bound what is done in the block, and say if the database is out of reach."""
        clock = asyncio.get_running_loop().time
        found = self._opened.topology_description.has_writable_server()
        if clock() < self._away_until and not found:
            raise StoreUnavailable("mongodb: there is no server that takes writes")
        try:
            async with asyncio.timeout(CALL_S_MAX):
                yield
        except TimeoutError as error:
            raise StoreUnavailable(f"mongodb took longer than {CALL_S_MAX} s") from error
        except PyMongoError as error:
            if isinstance(error, OperationFailure) and error.code in REFUSED:
                raise BadConfig("streams.store", f"mongodb: {error}") from error
            if not _is_out_of_reach(error):
                raise
            self._away_until = clock() + AWAY_S
            raise StoreUnavailable(f"mongodb: {problem_of(error)}") from error

    def _collection(self, name: str) -> AsyncCollection[Document]:
        # Majority throughout: what was read or acknowledged survives a fail-over.
        database = self._opened.get_default_database(DATABASE)
        return database.get_collection(
            f"waterclock_{name}",
            read_concern=ReadConcern("majority"),
            write_concern=WriteConcern("majority", j=True),
        )

    @property
    def _streams(self) -> AsyncCollection[Document]:
        return self._collection("streams")

    @property
    def _messages(self) -> AsyncCollection[Document]:
        return self._collection("messages")

    async def _create(self) -> None:
        hello = await self._opened.admin.command("hello")
        if "setName" not in hello and hello.get("msg") != "isdbgrid":
            problem = "needs MongoDB to be a replica set, of one member at least"
            raise BadConfig("streams.store", problem)
        versions = self._collection("schema")
        await versions.update_one({"_id": "schema"}, {"$max": {"version": 0}}, upsert=True)
        found = await versions.find_one({"_id": "schema"})
        version = found["version"] if found else 0
        if version > SCHEMA_VERSION:
            raise BadConfig("streams.store", f"the schema is of the later version {version}")
        if version < SCHEMA_VERSION:
            # Each step may run many times and at once on several nodes.
            await self._create_streams()
            await self._messages.create_indexes(_INDEXES)
            await versions.update_one({"_id": "schema"}, {"$max": {"version": SCHEMA_VERSION}})

    async def _create_streams(self) -> None:
        """Create the collection: older servers cannot do so within a transaction."""
        try:
            await self._streams.database.create_collection(self._streams.name, check_exists=False)
        except OperationFailure as error:
            if error.code != NAMESPACE_EXISTS:
                raise

    async def _write(self, stream: bytes, entries: list[Entry]) -> list[Stored]:
        async with self._reaching():
            known: dict[bytes, Known] = {}
            conflicts_since: float | None = None
            clock = asyncio.get_running_loop().time
            while True:
                try:
                    return await self._try(Binary(stream), entries, known)
                except (DuplicateKeyError, BulkWriteError) as error:
                    if not _is_duplicate(error):
                        raise
                    known = await self._look_up(Binary(stream), entries)
                except PyMongoError as error:
                    if isinstance(error, ConnectionFailure) or not error.has_error_label(
                        "TransientTransactionError"
                    ):
                        raise
                    conflicts_since = conflicts_since or clock()
                    if clock() - conflicts_since > ABANDONED_S_MIN:
                        await self._end_abandoned()
                # By chance, so that two nodes do not meet again and again.
                await asyncio.sleep(random.uniform(0, CONFLICT_MS_MAX / 1_000))

    async def _try(
        self, name: Binary, entries: list[Entry], known: dict[bytes, Known]
    ) -> list[Stored]:
        """Write what is not known, in one transaction."""
        placed = place_entries(entries, known, 0)
        count = len(placed.new_rows)
        if not count:
            return placed.stored
        async with (
            self._opened.start_session() as session,
            await session.start_transaction(
                ReadConcern("snapshot"), WriteConcern("majority", j=True)
            ),
        ):
            head = await self._streams.find_one_and_update(
                {"_id": name}, {"$inc": {"last": Int64(count)}}, upsert=True,
                return_document=ReturnDocument.AFTER, session=session,
            )  # fmt: skip
            assert head is not None, "an upsert finds what it made"
            placed = place_entries(entries, known, int(head["last"]) - count)
            await self._messages.insert_many(
                [
                    _document(name, placed.stored[row].position, entries[row])
                    for row in placed.new_rows
                ],
                session=session,
            )
        return placed.stored

    async def _look_up(self, name: Binary, entries: list[Entry]) -> dict[bytes, Known]:
        """Find the ids that are stored; those that have expired are removed instead."""
        keys = [*{entry.key for entry in entries}]
        now_ms = max(entry.now_ms for entry in entries)
        known = {}
        expired = []
        for start in range(0, len(keys), LOOK_UP_MAX):
            some = [Binary(key) for key in keys[start : start + LOOK_UP_MAX]]
            where = {"_id.s": name, "id": {"$in": some}}
            async with self._messages.find(where, {"id": 1, "token": 1, "until": 1}) as found:
                async for document in found:
                    if document.get("until", EXPIRES_MS_MAX) <= now_ms:
                        expired.append(document["_id"])
                    else:
                        known[document["id"]] = Known(document["_id"]["p"], document["token"])
        if expired:
            await self._messages.delete_many({"_id": {"$in": expired}})
        return known

    async def _remove(self, where: Document, *, sort: str, limit: int) -> int:
        async with self._messages.find(where, {"_id": 1}).sort(sort).limit(limit) as found:
            ids = [document["_id"] async for document in found]
        if not ids:
            return 0
        return (await self._messages.delete_many({"_id": {"$in": ids}})).deleted_count

    async def _end_abandoned(self) -> None:
        """End the transactions of ours that nobody goes on with."""
        admin = self._opened.admin
        stages: list[Document] = [
            {"$currentOp": {"idleSessions": True, "allUsers": False}},
            {"$match": {
                "type": "idleSession", "appName": APP_NAME,
                "transaction.timeInactiveMicros": {"$gt": ABANDONED_S_MIN * 1_000_000},
            }},
        ]  # fmt: skip
        async with await admin.aggregate(stages) as found:
            sessions = [{"id": document["lsid"]["id"]} async for document in found]
        if sessions:
            await admin.command("killSessions", sessions)


_INDEXES = [
    IndexModel([("_id.s", 1), ("id", 1)], name="id", unique=True),
    IndexModel([("_id.s", 1), ("at", 1)], name="age"),
    IndexModel("until", name="expiry", partialFilterExpression={"until": {"$exists": True}}),
]


def _range(name: Binary, *, after: int, last: int) -> Document:
    return {"$gt": {"s": name, "p": Int64(after)}, "$lte": {"s": name, "p": Int64(last)}}


def _alive(now_ms: int) -> Document:
    return {"$or": [{"until": {"$exists": False}}, {"until": {"$gt": Int64(now_ms)}}]}


def _document(name: Binary, position: int, entry: Entry) -> Document:
    document: Document = {
        "_id": {"s": name, "p": Int64(position)},
        "id": Binary(entry.key),
        "token": Binary(entry.token),
        "at": Int64(entry.now_ms),
        "body": Binary(entry.record.body),
    }
    if entry.record.expires_ms is not None:
        document["until"] = Int64(entry.record.expires_ms)
    return document


def _message(document: Document) -> StoredMessage:
    message_id: bytes = document["id"]
    position, until = document["_id"]["p"], document.get("until")
    return StoredMessage(
        int(position), message_id.decode(), document["body"], int(document["at"]),
        None if until is None else int(until),
    )  # fmt: skip


def _is_duplicate(error: PyMongoError) -> bool:
    if isinstance(error, BulkWriteError):
        return any(e["code"] == DUPLICATE_KEY for e in error.details["writeErrors"])
    return isinstance(error, DuplicateKeyError)


def _is_out_of_reach(error: PyMongoError) -> bool:
    """Tell a database out of reach from a bug."""
    away = (AutoReconnect, ConnectionFailure, ExecutionTimeout, WTimeoutError)
    labels = ("TransientTransactionError", "RetryableWriteError")
    return isinstance(error, away) or error.timeout or any(map(error.has_error_label, labels))
