"""The `Coordinator` of a process: asks the one that started it, over the connection it was given.

What a connection was asked and has not answered when it breaks may have happened. A read and the
leases are asked again, if there is another connection; a transaction is sent once. A watch goes on
where it was.
"""

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Final, cast

from waterclock.cluster.coordinator.errors import (
    Compacted,
    CoordinatorUnavailable,
    LeaseNotFound,
)
from waterclock.cluster.coordinator.questions import (
    Grant,
    KeepAlive,
    Question,
    Read,
    Revoke,
    Single,
    Watch,
)
from waterclock.cluster.coordinator.requests import (
    KeyRange,
    Lease,
    LeaseId,
    RangeResult,
    Revision,
    Txn,
    TxnResult,
    WatchBatch,
)
from waterclock.cluster.coordinator.revision_guard import RevisionGuard
from waterclock.cluster.coordinator.wire import (
    ANSWER_BYTES_MAX,
    Answer,
    ChangesAnswer,
    CompactedAnswer,
    Frames,
    LeaseAnswer,
    NoLease,
    RangeAnswer,
    Revoked,
    TxnAnswer,
    WatchBegun,
    WatchEnded,
    asked_of,
    decode_answer,
    encode,
)
from waterclock.model.errors import BadInput

ATTEMPT_S: Final = 5.0
PAUSE_S: Final = 0.1

Connect = Callable[[], Awaitable[socket.socket]]
"""Gives a connection to the coordinator; raises OSError if there is none."""

_log = logging.getLogger(__name__)


class ProcessCoordinator:
    """One process's client. Make it and close it in the loop that uses it."""

    def __init__(self, connect: Connect, *, attempt_s: float = ATTEMPT_S) -> None:
        self._connect = connect
        self._attempt_s = attempt_s
        self._guard = RevisionGuard()
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<ProcessCoordinator {self._guard}>"

    async def close(self) -> None:
        """Close the connection. End your watches first."""
        if self._connection is not None:
            self._connection.close("the node has ended")

    async def read(self, keys: KeyRange) -> RangeResult:
        """Return what a range holds now."""
        at_least = self._guard.asked()
        answer = await self._ask(Read(keys), is_repeatable=True)
        assert isinstance(answer, RangeAnswer), answer
        self._guard.answered(answer.result.revision, at_least=at_least)
        return answer.result

    async def write(self, txn: Txn) -> TxnResult:
        """Do a transaction. It is sent once: if the answer is lost, read what became of it."""
        at_least = self._guard.asked()
        answer = await self._ask(txn, is_repeatable=False)
        assert isinstance(answer, TxnAnswer), answer
        self._guard.answered(answer.result.revision, at_least=at_least)
        return answer.result

    async def grant(self, ttl_s: int) -> Lease:
        """Return a new lease. One whose answer was lost ends by itself, and has no keys."""
        self._guard.asked()
        answer = await self._ask(Grant(ttl_s), is_repeatable=True)
        assert isinstance(answer, LeaseAnswer), answer
        return answer.lease

    async def keep_alive(self, lease: LeaseId) -> Lease:
        """Begin the time of a lease anew."""
        self._guard.asked()
        answer = await self._ask(KeepAlive(lease), is_repeatable=True)
        assert isinstance(answer, LeaseAnswer), answer
        return answer.lease

    async def revoke(self, lease: LeaseId) -> None:
        """End a lease and delete its keys."""
        self._guard.asked()
        answer = await self._ask(Revoke(lease), is_repeatable=False)
        assert isinstance(answer, Revoked), answer

    def watch(
        self, keys: KeyRange, *, from_revision: Revision
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchBatch]]:
        """Follow all changes of a range, over broken connections too."""
        return aclosing(self._batches(keys, from_revision))

    async def _batches(
        self, keys: KeyRange, from_revision: Revision
    ) -> AsyncGenerator[WatchBatch, None]:
        while True:
            try:
                async with asyncio.timeout(self._attempt_s):
                    connection = await self._connected()
                answers, end = connection.watch(Watch(keys, from_revision))
                at_least = max(self._guard.asked(), Revision(from_revision - 1))
                try:
                    async for each in answers:
                        if isinstance(each, WatchBegun):
                            self._guard.answered(each.revision, at_least=at_least)
                            continue
                        batch = _batch_of(each)
                        self._guard.answered(batch.revision, at_least=Revision(0))
                        from_revision = Revision(batch.revision + 1)
                        yield batch
                finally:
                    end()
            except (CoordinatorUnavailable, TimeoutError) as error:
                _log.debug("coordinator_watch_broken from_revision=%d: %s", from_revision, error)
                await asyncio.sleep(PAUSE_S)

    async def _ask(self, question: Single, *, is_repeatable: bool) -> Answer:
        try:
            async with asyncio.timeout(self._attempt_s):
                while True:
                    connection = await self._connected()
                    try:
                        return _unless_refused(await connection.ask(question))
                    except CoordinatorUnavailable:
                        if not is_repeatable:
                            raise
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError as error:
            raise CoordinatorUnavailable("the coordinator does not answer") from error

    async def _connected(self) -> "_Connection":
        async with self._connecting:
            connection = self._connection
            if connection is None or connection.problem:
                loop = asyncio.get_running_loop()
                try:
                    given = await self._connect()
                    given.setblocking(False)
                    _, connection = await loop.create_connection(_Connection, sock=given)
                except OSError as error:
                    raise CoordinatorUnavailable(f"the coordinator is gone: {error}") from error
                self._connection = connection
            return connection


class _Connection(asyncio.Protocol):
    """What was asked over one connection, until it breaks."""

    def __init__(self) -> None:
        self.problem = ""
        """Why it is broken; empty: it is not."""
        self._frames = Frames(ANSWER_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._watching: dict[int, asyncio.Queue[Answer | None]] = {}

    async def ask(self, question: Single) -> Answer:
        """Return what is answered; raises CoordinatorUnavailable if it breaks before that."""
        number = self._send(question)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            return await answer
        finally:
            del self._waiting[number]

    def watch(self, question: Watch) -> tuple[AsyncIterator[Answer], Callable[[], None]]:
        """Return what is told of a watch, and what ends it."""
        number = self._send(question)
        queue = self._watching[number] = asyncio.Queue()

        async def answers() -> AsyncIterator[Answer]:
            while (each := await queue.get()) is not None:
                yield each
            raise CoordinatorUnavailable(self.problem)

        def end() -> None:
            del self._watching[number]
            if self._transport is not None and not self.problem:
                self._transport.write(encode(WatchEnded(number)))

        return answers(), end

    def _send(self, question: Question) -> int:
        if self.problem or self._transport is None:
            raise CoordinatorUnavailable(self.problem)
        number = next(self._numbers)
        self._transport.write(encode(asked_of(number, question)))
        return number

    def close(self, why: str) -> None:
        """End it; whoever waits is answer."""
        self.problem = self.problem or why
        if self._transport is not None:
            self._transport.abort()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(CoordinatorUnavailable(why))
        for queue in self._watching.values():
            queue.put_nowait(None)

    # Called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its type

    def connection_lost(self, error: Exception | None) -> None:
        self.close("the connection to the coordinator broke")

    def data_received(self, data: bytes) -> None:
        try:
            for each in self._frames.fed(data):
                self._take(decode_answer(each))
        except BadInput as error:
            self.close(str(error))

    def _take(self, answer: Answer) -> None:
        if answer.number in self._watching:
            self._watching[answer.number].put_nowait(answer)
        elif answer.number in self._waiting and not self._waiting[answer.number].done():
            self._waiting[answer.number].set_result(answer)


def _unless_refused(answer: Answer) -> Answer:
    if isinstance(answer, NoLease):
        raise LeaseNotFound(answer.lease)
    return answer


def _batch_of(answer: Answer) -> WatchBatch:
    if isinstance(answer, CompactedAnswer):
        raise Compacted(wanted=answer.wanted, compacted=answer.compacted)
    assert isinstance(answer, ChangesAnswer), answer
    return answer.batch


def inherited(descriptor: int) -> Connect:
    """Return what gives the connection that this process was started with, once: when it breaks,
    whoever answered at the other end is gone."""
    os.set_inheritable(descriptor, False)  # it is nobody's else
    given = [socket.socket(fileno=descriptor)]

    async def connect() -> socket.socket:
        if not given:
            raise ConnectionRefusedError("the process that ran this one has ended")
        return given.pop()

    return connect
