"""The coordinator of processes on one machine, in the one that runs them.

One worker does all that was asked meanwhile at one moment, has the changes made durable with one
fsync, and only then answers, reads as well: whoever hears of something hears of what stays. So it
is linearizable, and over restarts, too. Each process has a connection of its own, made before it is
started; nobody else can ask.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, cast

from waterclock.cluster.coordinator.errors import Compacted
from waterclock.cluster.coordinator.questions import Question, Watch, outcome_of
from waterclock.cluster.coordinator.requests import KeyRange, Revision, WatchBatch
from waterclock.cluster.coordinator.store import Changes
from waterclock.cluster.coordinator.wire import (
    QUESTION_BYTES_MAX,
    Answer,
    Frames,
    WatchBegun,
    answer_of,
    decode_asked,
    encode,
    question_of,
)
from waterclock.model.errors import BadInput, StorageFull
from waterclock.server.cluster.processes.journal import Journal

HISTORY_MAX: Final = 20_000
"""Changes that are known for those that watch from the past; half of them stay."""
UNREAD_BYTES_MAX: Final = 64 << 20
"""What a process may have left unread before its connection is closed: it reads again then."""
PAUSE_S: Final = 1.0
"""Before a disk that is full is tried again."""
LATE_MS: Final = 500
"""By how much a lease may be over before it was this process that was away, and not its holder."""

_log = logging.getLogger(__name__)


class _Asked(NamedTuple):
    connection: "_Connection"
    number: int
    question: Question


class _Watching:
    def __init__(self, keys: KeyRange, next_revision: Revision) -> None:
        self.keys = keys
        self.next_revision = next_revision


class CoordinatorService:
    """Answers processes from a journal's store. Make one with `coordinating`."""

    def __init__(self, journal: Journal) -> None:
        self.store = journal.store
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._asked: list[_Asked] = []
        self._is_asked = asyncio.Event()
        self._connections: set[_Connection] = set()

    def __repr__(self) -> str:
        return f"<CoordinatorService of {len(self._connections)} processes, {self.store!r}>"

    def now_ms(self) -> int:
        """Return the time that leases go by."""
        return int(self._loop.time() * 1000)

    async def connect(self) -> socket.socket:
        """Return one end of a new connection, for a process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        await self._loop.create_connection(lambda: _Connection(self), sock=ours)
        return theirs

    async def run(self) -> None:
        """Answer, until cancelled. Raises StorageFailed if what is agreed on cannot be kept."""
        while True:
            await self._until_asked()
            await self._turn()

    def close(self) -> None:
        """End all connections."""
        for connection in tuple(self._connections):
            connection.close()

    # A turn

    async def _until_asked(self) -> None:
        deadline_ms = self.store.next_deadline()
        wait_s = None if deadline_ms is None else max(0.0, (deadline_ms - self.now_ms()) / 1000)
        try:
            async with asyncio.timeout(wait_s):
                await self._is_asked.wait()
        except TimeoutError:  # a lease is over
            return
        self._is_asked.clear()

    async def _turn(self) -> None:
        """Do all that was asked, make it durable, and answer."""
        asked, self._asked = self._asked, []
        moment, now_ms = self.store.moment, self.now_ms()
        deadline_ms = self.store.next_deadline()
        if deadline_ms is not None and now_ms - deadline_ms > LATE_MS:
            # A full disk was waited for, or the machine slept: nobody could be heard meanwhile.
            self.store.extend_leases(now_ms)
        self.store.tick(now_ms)
        answers = [(each.connection, self._answered(each, now_ms)) for each in asked]
        changes = self.store.changes_since(moment)
        if any((changes.granted, changes.events, changes.ended)):
            await self._save(changes)
        for connection, answer in answers:
            connection.tell(answer)
        for connection in tuple(self._connections):
            self._tell_changes(connection)
        self._forget_history()

    def _answered(self, asked: _Asked, now_ms: int) -> Answer:
        connection, number, question = asked
        if isinstance(question, Watch):
            connection.watches[number] = _Watching(question.keys, question.from_revision)
            return WatchBegun(number, self.store.revision)
        return answer_of(number, outcome_of(question, self.store, now_ms=now_ms))

    async def _save(self, changes: Changes) -> None:
        """Keep changes before anyone hears of them. A full disk is waited for: what stands goes
        on, and nobody can agree on anything new."""
        while True:
            try:
                await asyncio.to_thread(self._journal.save, changes)
                break
            except StorageFull as error:
                _log.warning("coordinator_waits_for_space: %s", error)
                await asyncio.sleep(PAUSE_S)
        if self._journal.is_long:
            # What was saved stands, and saved twice it could not be read: this waits for the next.
            try:
                await asyncio.to_thread(self._journal.rewrite, self.store.checkpoint())
            except StorageFull as error:
                _log.warning("coordinator_journal_stays_long: %s", error)

    def _tell_changes(self, connection: "_Connection") -> None:
        for number, watching in tuple(connection.watches.items()):
            if watching.next_revision > self.store.revision:
                continue
            try:
                events = self.store.changes(watching.keys, from_revision=watching.next_revision)
            except Compacted as error:
                del connection.watches[number]
                connection.tell(answer_of(number, error))
                continue
            watching.next_revision = Revision(self.store.revision + 1)
            if events:
                connection.tell(answer_of(number, WatchBatch(events)))

    def _forget_history(self) -> None:
        excess = self.store.revision - self.store.compacted - HISTORY_MAX
        if excess > 0:
            self.store.compact(Revision(self.store.revision - HISTORY_MAX // 2))

    # Connections

    def asked(self, connection: "_Connection", number: int, question: Question) -> None:
        """Take a question."""
        self._asked.append(_Asked(connection, number, question))
        self._is_asked.set()

    def watch_ended(self, connection: "_Connection", number: int) -> None:
        """Tell no more of a watch, also if it has yet to begin."""
        connection.watches.pop(number, None)
        self._asked = [each for each in self._asked if each[:2] != (connection, number)]

    def opened(self, connection: "_Connection") -> None:
        """Know a connection."""
        self._connections.add(connection)

    def closed(self, connection: "_Connection") -> None:
        """Forget a connection. What was asked over it happens all the same."""
        self._connections.discard(connection)


class _Connection(asyncio.Protocol):
    """That of one process."""

    def __init__(self, service: CoordinatorService) -> None:
        self.watches: dict[int, _Watching] = {}
        self._service = service
        self._frames = Frames(QUESTION_BYTES_MAX)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its type
        self._service.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._service.closed(self)

    def data_received(self, data: bytes) -> None:
        try:
            for each in self._frames.fed(data):
                asked = decode_asked(each)
                question = question_of(asked)
                if question is None:
                    self._service.watch_ended(self, asked.number)
                else:
                    self._service.asked(self, asked.number, question)
        except BadInput as error:
            _log.error("coordinator_question_refused: %s", error)
            self.close()

    def tell(self, answer: Answer) -> None:
        """Send an answer, if the process is still there."""
        if self._transport is None:
            return
        self._transport.write(encode(answer))
        if self._transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            _log.warning("coordinator_unread: a process does not read what it asked for")
            self._transport.abort()

    def close(self) -> None:
        """End it."""
        if self._transport is not None:
            self._transport.close()


@asynccontextmanager
async def coordinating(journal: Journal) -> AsyncIterator[CoordinatorService]:
    """Answer processes while inside."""
    service = CoordinatorService(journal)
    try:
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(service.run())
            yield service
            working.cancel()
    finally:
        service.close()
