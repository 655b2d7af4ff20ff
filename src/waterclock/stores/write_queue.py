"""Writes to a stream are queued: one call of the database at a time, and waiting calls go together.

Databases whose writers collide instead of queueing (a conflict, a lost compare-and-set) would spend
their time on retries if every caller wrote by itself. So the callers of one store object queue for
each stream, and the first in the queue writes the records of those behind it as well: one round
trip serves many. Between store objects, in other processes, the database decides.

A caller that writes may be cancelled half-way. The calls it wrote for are written by the next one,
and a *token* in every stored message shows them which messages are their own, so that these count
as new.
"""

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from waterclock.model.errors import StoreUnavailable
from waterclock.stores.base import Placed, Record, Stored, check_records, place

TOKEN_BYTES = 8
STORE_S_MAX = 60.0
"""For a call of `store`, with the time it is queued."""


class Entry(NamedTuple):
    """A record on its way."""

    key: bytes
    """Its id."""
    record: Record
    token: bytes
    """Of the call it came with."""
    now_ms: int


class Known(NamedTuple):
    """What is stored under an id."""

    position: int
    token: bytes


class Call:
    """A call of `store`, until it has its answer."""

    def __init__(self, records: Sequence[Record], *, now_ms: int) -> None:
        keys = check_records(records)
        token = os.urandom(TOKEN_BYTES)
        self.entries = [Entry(*pair, token, now_ms) for pair in zip(keys, records, strict=True)]
        self.size = sum(len(record.body) for record in records)
        self.stored: list[Stored] | None = None
        self.problem: str | None = None

    @property
    def is_done(self) -> bool:
        """The call was written, or has failed."""
        return self.stored is not None or self.problem is not None


Write = Callable[[bytes, list[Entry]], Awaitable[list[Stored]]]


class WriteQueues:
    """The queues of callers, one for each stream that is written to."""

    def __init__(self, write: Write, *, records_max: int, bytes_max: int) -> None:
        self._write = write
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._queues: dict[bytes, _Queue] = {}

    async def store(self, stream: bytes, records: Sequence[Record], *, now_ms: int) -> list[Stored]:
        """Write the records, or have a call before this one write them."""
        call = Call(records, now_ms=now_ms)
        if not records:
            return []
        queue = self._queues.setdefault(stream, _Queue())
        queue.waiting.append(call)
        queue.count += 1
        try:
            async with asyncio.timeout(STORE_S_MAX), queue.lock:
                while not call.is_done:
                    await self._write_next(stream, queue)
        except TimeoutError as error:
            raise StoreUnavailable(f"storing took longer than {STORE_S_MAX} s") from error
        finally:
            if not call.is_done and call in queue.waiting:
                queue.waiting.remove(call)
            queue.count -= 1
            if not queue.count:
                del self._queues[stream]
        if call.stored is None:
            raise StoreUnavailable(call.problem)
        return call.stored

    async def _write_next(self, stream: bytes, queue: "_Queue") -> None:
        calls = self._next(queue.waiting)
        try:
            answers = iter(await self._write(stream, [e for call in calls for e in call.entries]))
        except StoreUnavailable as error:
            # Each raises an error of its own: they are different tasks.
            for call in calls:
                call.problem = str(error)
            return
        except BaseException:  # cancelled, or a bug: the others must not suffer from it
            queue.waiting.extendleft(reversed(calls))
            raise
        for call in calls:
            call.stored = [next(answers) for _ in call.entries]

    def _next(self, waiting: deque[Call]) -> list[Call]:
        """Take the first call, and as many after it as fit."""
        calls = [waiting.popleft()]
        count, size = len(calls[0].entries), calls[0].size
        while waiting:
            count += len(waiting[0].entries)
            size += waiting[0].size
            if count > self._records_max or size > self._bytes_max:
                break
            calls.append(waiting.popleft())
        return calls


class _Queue:
    """The calls that wait to write to one stream."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting: deque[Call] = deque()
        self.count = 0


def place_entries(entries: Sequence[Entry], known: Mapping[bytes, Known], last: int) -> Placed:
    """Give each entry its position; what its own call stored before counts as new."""
    placed = place([e.key for e in entries], {k: v.position for k, v in known.items()}, last)
    fresh = set(known)
    stored = []
    for entry, answer in zip(entries, placed.stored, strict=True):
        is_own = entry.key in fresh and known[entry.key].token == entry.token
        fresh.discard(entry.key)
        stored.append(Stored(answer.position, is_new=True) if is_own else answer)
    return placed._replace(stored=stored)


async def write_in_chunks(
    entries: Sequence[Entry],
    chunks: Callable[[Sequence[Entry]], Iterable[Sequence[Entry]]],
    write: Callable[[Sequence[Entry]], Awaitable[list[Stored]]],
) -> list[Stored]:
    """Write entries in chunks, one after the other; each id goes once, with its first entry.

    It stops at the first chunk that fails: what was written until then stays, in order.
    """
    firsts = {entry.key: entry for entry in reversed(entries)}
    unique = [entry for entry in entries if firsts[entry.key] is entry]
    answers: dict[bytes, Stored] = {}
    for chunk in chunks(unique):
        answers.update(zip((e.key for e in chunk), await write(chunk), strict=True))
    return [
        answers[entry.key]._replace(is_new=firsts[entry.key] is entry and answers[entry.key].is_new)
        for entry in entries
    ]
