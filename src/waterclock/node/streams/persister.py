"""Stored streams in a running node: messages on their way into the store, and out of it.

The writes of one stream go in one call at a time, and what comes meanwhile goes together in the
next. So a busy stream costs the database few round trips, and receivers hear of stored messages in
order. A database that cannot be reached makes these calls fail, and nothing else; nor does one that
our account may not use: somebody may mend that while the node runs.

Nodes that share a store also share the key of their resume tokens. It is kept in the store itself,
as the only message of a stream whose name nobody else may use.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from waterclock.model.clock import Clock
from waterclock.model.errors import (
    BadConfig,
    BadInput,
    NotSupported,
    Overloaded,
    StorageError,
    StorageFull,
    StoreUnavailable,
    WaterclockError,
)
from waterclock.model.units import MIB
from waterclock.stores.base import END, Page, Record, Stored, StreamStore
from waterclock.streams.tokens import KEY_BYTES

BATCH_RECORDS = 1_000
BATCH_BYTES = 8 * MIB
WAITING_BYTES_MAX = 256 * MIB
IN_DOUBT_MAX = 10_000
PURGE_S = 60.0
PURGE_MESSAGES = 1_000
REOPEN_S = 2.0
CHECK_S = 5.0
"""How often the store is asked whether it is there."""
NOT_OPEN_YET = "the store is not open yet"
OWN_STREAM = "\0waterclock"
"""Where the key of resume tokens is kept."""
TOKEN_KEY = "token_key"

log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, None]], object]
OnStored = Callable[[str, Stored, Record, int], None]
"""Called with each message that is stored, and when, in order; also with those that were before."""
OnKey = Callable[[bytes], None]
"""Called with the key of resume tokens of all nodes that share the store."""
Then = Callable[[Stored, bool, int], None]
"""Called once for a message when it is stored, with whether its sender still waits, and the time
that the store has it under."""


class PendingWrite(NamedTuple):
    """A message to be stored, and what comes then."""

    record: Record
    answer: asyncio.Future[Stored]
    then: Then | None


class Persister:
    """Brings messages to a store. `run` must be running."""

    def __init__(
        self,
        store: StreamStore,
        clock: Clock,
        spawn: Spawn,
        on_stored: OnStored,
        on_key: OnKey | None,
        on_full: Callable[[StorageError], None] = lambda error: None,
    ) -> None:
        """Without `on_key` the nodes have their key from elsewhere."""
        self._store = store
        self.is_shared = store.is_shared
        self._clock = clock
        self._spawn = spawn
        self._on_stored = on_stored
        self._on_key = on_key
        self._on_full = on_full
        self._queues: dict[str, list[PendingWrite]] = {}
        """By stream: the writes that wait for the call under way to end."""
        self._waiting_bytes = 0
        self._in_doubt: dict[tuple[str, str], bool] = {}
        """Messages whose write failed, perhaps after it was done; the oldest first."""
        self._is_open = False
        self._was_tried = asyncio.Event()
        self.problem: str | None = NOT_OPEN_YET
        """Why nothing can be stored at the moment."""
        self.problem_since_ms = clock.now_ms()
        self.stored = self.failed = 0
        self.refusal = ""
        """Why nothing may be stored here at all; empty: it may."""

    def __repr__(self) -> str:
        return f"<Persister in {self._store!r}, {len(self._queues)} streams under way>"

    @property
    def store_in_use(self) -> StreamStore:
        """Where it brings them."""
        return self._store

    async def run(self) -> None:
        """Open the store, again and again until it can be; then see that it is there, and remove
        what expires."""
        is_connected = False
        while not self._is_open:
            try:
                if not is_connected:
                    await self._store.open()
                    is_connected = True
                if self.is_shared and self._on_key is not None:
                    self._on_key(await self._shared_key())
                self._is_open = True
                self._note_available()
                self._was_tried.set()
            # Whatever it is, what is in memory goes on without the store.
            except Exception as error:
                self._note(error)
                self._was_tried.set()
                await asyncio.sleep(REOPEN_S)
        time_s = asyncio.get_running_loop().time
        purged_s = time_s()
        while True:
            await asyncio.sleep(min(PURGE_S, CHECK_S if self.problem is None else REOPEN_S))
            await self._check_store()
            if time_s() - purged_s >= PURGE_S:
                await self._purge()
                purged_s = time_s()

    async def tried(self) -> None:
        """Return when the store is open, or could not be opened at the first attempt."""
        await self._was_tried.wait()

    async def _check_store(self) -> None:
        """Ask the store something: nobody else may for long."""
        try:
            await self._store.read(OWN_STREAM, after=END, limit=1, now_ms=self._clock.now_ms())
        except Exception as error:
            self._note(error)
        else:
            self._note_available()

    async def _shared_key(self) -> bytes:
        """Return the key of resume tokens: that of the first node that ever asked."""
        now_ms = self._clock.now_ms()
        record = Record(TOKEN_KEY, os.urandom(KEY_BYTES))
        while True:
            page = await self._store.read(OWN_STREAM, after=0, limit=1, now_ms=now_ms)
            if page.messages:
                return page.messages[0].body
            await self._store.store(OWN_STREAM, [record], now_ms=now_ms)

    def check_allowed(self) -> None:
        """Raise NotSupported if nothing may be stored, nor read of what is."""
        if self.refusal:
            raise NotSupported(self.refusal)

    def check_key(self) -> None:
        """Raise StoreUnavailable as long as the key that nodes share is not known."""
        if self.is_shared and self._on_key is not None:
            self._check_open()

    async def store(self, stream: str, record: Record, then: Then | None = None) -> Stored:
        """Store a message; it is durable on return."""
        self.check_allowed()
        _check_name(stream)
        self._check_open()
        size = len(record.body)
        if self._waiting_bytes and self._waiting_bytes + size > WAITING_BYTES_MAX:
            raise Overloaded("bytes on their way into the store", WAITING_BYTES_MAX)
        answer: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
        queue = self._queues.get(stream)
        if queue is None:
            queue = self._queues[stream] = []
            self._spawn(self._drain(stream, queue))
        queue.append(PendingWrite(record, answer, then))
        self._waiting_bytes += size
        return await answer

    async def read(self, stream: str, *, after: int, limit: int) -> Page:
        """Return what is stored after a position."""
        _check_name(stream)
        self._check_open()
        now_ms = self._clock.now_ms()
        try:
            page = await self._store.read(stream, after=after, limit=limit, now_ms=now_ms)
        except BadConfig as error:
            raise self._noted(error) from error
        self._note_available()
        if page.last:
            self.check_allowed()
        return page

    async def delete(self, stream: str) -> int:
        """Remove all messages of a stream; return how many there were."""
        _check_name(stream)
        self._check_open()
        try:
            return await self._store.delete(stream)
        except BadConfig as error:
            raise self._noted(error) from error

    async def close(self) -> None:
        """Let go of the store."""
        self._is_open = False
        await self._store.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable(self.problem or "the store is closed")

    async def _drain(self, stream: str, queue: list[PendingWrite]) -> None:
        """Store what is queued for one stream until nothing is."""
        try:
            while queue:
                count = _fitting(queue)
                batch, queue[:count] = queue[:count], []
                error = await self._store_batch(stream, batch)
                if isinstance(error, StoreUnavailable):
                    # They have waited as long as that took: a store that hangs must not have them
                    # wait for it again, one batch after the other.
                    late, queue[:] = queue[:], []
                    self._fail(late, error)
        finally:
            del self._queues[stream]
            for write in queue:
                write.answer.cancel()

    async def _store_batch(self, stream: str, batch: list[PendingWrite]) -> Exception | None:
        """Store a batch and answer its senders; return what went wrong."""
        records = [write.record for write in batch]
        stored_ms = self._clock.now_ms()
        try:
            done = await self._store.store(stream, records, now_ms=stored_ms)
        except Exception as error:  # also what no store should raise: it is no other stream's fault
            failure = self._noted(error)
            self._doubt(stream, batch)
            self._fail(batch, failure)
            return failure
        except BaseException:
            for write in batch:
                write.answer.cancel()
            raise
        self._waiting_bytes -= _size(batch)
        self._note_available()
        self.stored += len(batch)
        for (record, answer, then), stored in zip(batch, done, strict=True):
            # A repeat may be the first we hear of a message: the answer of then was lost.
            was_in_doubt = self._in_doubt.pop((stream, record.message_id), False)
            self._on_stored(stream, stored, record, stored_ms)
            is_heard = not answer.done()
            if is_heard:
                answer.set_result(stored)
            if then is not None and (stored.is_new or was_in_doubt):
                then(stored, is_heard, stored_ms)
        return None

    def _doubt(self, stream: str, batch: list[PendingWrite]) -> None:
        for write in batch:
            self._in_doubt[stream, write.record.message_id] = True
        while len(self._in_doubt) > IN_DOUBT_MAX:
            del self._in_doubt[next(iter(self._in_doubt))]

    def _fail(self, batch: list[PendingWrite], error: Exception) -> None:
        self.failed += len(batch)
        self._waiting_bytes -= _size(batch)
        for write in batch:
            if not write.answer.done():
                write.answer.set_exception(error)

    async def _purge(self) -> None:
        try:
            removed = PURGE_MESSAGES
            while removed >= PURGE_MESSAGES:
                removed = await self._store.purge(now_ms=self._clock.now_ms(), limit=PURGE_MESSAGES)
        except Exception as error:
            self._note(error)

    def _noted(self, error: Exception) -> Exception:
        """Take note of an error, and return what callers get: they cannot mend a setting."""
        self._note(error)
        return StoreUnavailable(str(error)) if isinstance(error, BadConfig) else error

    def _note(self, error: Exception) -> None:
        """Take note of what is wrong with the store; what is a bug goes to the log, whole."""
        reason = str(error) or type(error).__name__
        if isinstance(error, StorageFull):
            self._on_full(error)
        is_news = self.problem in (None, NOT_OPEN_YET)
        if isinstance(error, StoreUnavailable | BadConfig):
            if is_news:
                log.warning("store_unavailable reason=%s", reason)
            self._note_problem(reason)
        elif not self._is_open:
            if self.problem != reason:
                log.error("store_not_opened reason=%s", reason, exc_info=error)
            self._note_problem(reason)
        elif not isinstance(error, WaterclockError):
            log.error("unforeseen in the store", exc_info=error)

    def _note_problem(self, reason: str) -> None:
        if self.problem is None:
            self.problem_since_ms = self._clock.now_ms()
        self.problem = reason

    def _note_available(self) -> None:
        if self.problem not in (None, NOT_OPEN_YET):
            away_s = (self._clock.now_ms() - self.problem_since_ms) / 1_000
            log.info("store_available away_s=%g", away_s)
        self.problem = None


def _check_name(stream: str) -> None:
    if stream == OWN_STREAM:
        raise BadInput("streamId: this name is the node's own")


def _size(batch: list[PendingWrite]) -> int:
    return sum(len(write.record.body) for write in batch)


def _fitting(queue: list[PendingWrite]) -> int:
    """Return how many of the first go together."""
    size = 0
    for count, write in enumerate(queue[:BATCH_RECORDS]):
        size += len(write.record.body)
        if size > BATCH_BYTES and count:
            return count
    return min(len(queue), BATCH_RECORDS)
