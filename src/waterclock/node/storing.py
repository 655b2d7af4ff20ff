"""Stored streams in a running node: messages on their way into the store, and out of it.

Those of one stream go in one call at a time, and what comes meanwhile goes together in the next. So
a busy stream costs the database few round trips, and who waits for stored messages hears of them in
order. A database that cannot be reached makes these calls fail, and nothing else.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from waterclock.model.clock import Clock
from waterclock.model.errors import BadConfig, Overloaded, StoreUnavailable, WaterclockError
from waterclock.model.units import MIB
from waterclock.stores.store import Page, Record, Stored, StreamStore

BATCH_RECORDS = 1_000
BATCH_BYTES = 8 * MIB
WAITING_BYTES_MAX = 256 * MIB
PURGE_S = 60.0
PURGE_MESSAGES = 1_000
REOPEN_S = 2.0

log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, None]], object]
OnStored = Callable[[str, Stored, Record], None]
"""Told of each message that was stored, in order."""


class Storing:
    """Brings messages to a store. `run` must be running."""

    def __init__(self, store: StreamStore, clock: Clock, spawn: Spawn, on_stored: OnStored) -> None:
        self._store = store
        self._clock = clock
        self._spawn = spawn
        self._on_stored = on_stored
        self._lines: dict[str, list[tuple[Record, asyncio.Future[Stored]]]] = {}
        """By stream: those that wait for the call under way to end."""
        self._waiting_bytes = 0
        self._is_open = False
        self.problem: str | None = "the store is not open yet"
        """Why nothing can be stored at the moment."""
        self.stored = self.failed = 0

    def __repr__(self) -> str:
        return f"<Storing in {self._store!r}, {len(self._lines)} streams under way>"

    async def run(self) -> None:
        """Open the store, again and again until it can be; then remove what expires."""
        while not self._is_open:
            try:
                await self._store.open()
                self._is_open = True
                self.problem = None
            # A password that was changed, too: what is in memory goes on without the store.
            except (StoreUnavailable, BadConfig) as error:
                self._note(error)
                await asyncio.sleep(REOPEN_S)
        while True:
            await asyncio.sleep(PURGE_S)
            await self._purge()

    async def store(self, stream: str, record: Record) -> Stored:
        """Store a message; it is durable on return."""
        self._check_open()
        size = len(record.body)
        if self._waiting_bytes and self._waiting_bytes + size > WAITING_BYTES_MAX:
            raise Overloaded("bytes on their way into the store", WAITING_BYTES_MAX)
        answer: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
        line = self._lines.get(stream)
        if line is None:
            line = self._lines[stream] = []
            self._spawn(self._work_off(stream, line))
        line.append((record, answer))
        self._waiting_bytes += size
        return await answer

    async def read(self, stream: str, *, after: int, limit: int) -> Page:
        """Return what is stored after a position."""
        self._check_open()
        now_ms = self._clock.now_ms()
        page = await self._store.read(stream, after=after, limit=limit, now_ms=now_ms)
        self.problem = None
        return page

    async def delete(self, stream: str) -> int:
        """Remove all messages of a stream; return how many there were."""
        self._check_open()
        return await self._store.delete(stream)

    async def close(self) -> None:
        """Let go of the store."""
        self._is_open = False
        await self._store.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable(self.problem or "the store is closed")

    async def _work_off(
        self, stream: str, line: list[tuple[Record, asyncio.Future[Stored]]]
    ) -> None:
        """Store what waits for one stream until nothing does."""
        try:
            while line:
                count = _fitting(line)
                batch, line[:count] = line[:count], []
                await self._store_batch(stream, batch)
        finally:
            del self._lines[stream]
            for _, answer in line:
                answer.cancel()

    async def _store_batch(
        self, stream: str, batch: list[tuple[Record, asyncio.Future[Stored]]]
    ) -> None:
        records = [record for record, _ in batch]
        try:
            done = await self._store.store(stream, records, now_ms=self._clock.now_ms())
        except Exception as error:  # also what no store should raise: it is no other stream's fault
            self._note(error)
            self.failed += len(batch)
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        except BaseException:
            for _, answer in batch:
                answer.cancel()
            raise
        finally:
            self._waiting_bytes -= sum(len(record.body) for record in records)
        self.problem = None
        self.stored += len(batch)
        for (record, answer), stored in zip(batch, done, strict=True):
            if stored.is_new:
                self._on_stored(stream, stored, record)
            if not answer.done():
                answer.set_result(stored)

    async def _purge(self) -> None:
        try:
            removed = PURGE_MESSAGES
            while removed >= PURGE_MESSAGES:
                removed = await self._store.purge(now_ms=self._clock.now_ms(), limit=PURGE_MESSAGES)
        except Exception as error:
            self._note(error)

    def _note(self, error: Exception) -> None:
        """Take note of what is wrong with the store; what is a bug goes to the log, whole."""
        if isinstance(error, StoreUnavailable | BadConfig):
            if self.problem is None:
                log.warning("store_unavailable reason=%s", error)
            self.problem = str(error)
        elif not isinstance(error, WaterclockError):
            log.error("unforeseen in the store", exc_info=error)


def _fitting(line: list[tuple[Record, asyncio.Future[Stored]]]) -> int:
    """Return how many of the first go together."""
    size = 0
    for count, (record, _) in enumerate(line[:BATCH_RECORDS]):
        size += len(record.body)
        if size > BATCH_BYTES and count:
            return count
    return min(len(line), BATCH_RECORDS)
