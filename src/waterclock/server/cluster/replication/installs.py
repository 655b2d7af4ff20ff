"""Segments on their way from a leader to a replica that lags too far to be sent frames.

Whoever needs them asks the leader, over the link, and writes them beside its own log, as fast as
its disk takes them: the channel's credit holds the leader back, and all that catch up share what
may be sent a second. The leader sends its segments as they are when it is asked; it may rewrite
them meanwhile, for the maps of the old files stay.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from crc32c import crc32c

from waterclock.cluster.peer_link.channels import WINDOW_BYTES, Channel
from waterclock.cluster.replication.cluster_view import node_of
from waterclock.cluster.replication.copies import (
    INSTALL,
    CopyHead,
    CopyReader,
    CopyRequest,
    SegmentEnd,
    encode_crc,
)
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.messages import BadMessage
from waterclock.model.errors import BadInput, Closed, StorageError, Unavailable
from waterclock.server.cluster.peers import Peers
from waterclock.server.cluster.replication.catch_up import CatchUp
from waterclock.server.cluster.replication_status import InstallCounts
from waterclock.storage.installation.intent import Intent, remove_copied
from waterclock.storage.installation.log_copy import CopyWriter, LogCopy
from waterclock.storage.replica_log import ReplicaLog

if TYPE_CHECKING:
    from waterclock.server.cluster.replication.hosted import Hosted

T = TypeVar("T")
Find = Callable[[bytes], "Hosted | None"]
AT_ONCE: Final = 4
"""Logs that are copied at a time; the others wait for their turn."""
READ_BYTES: Final = 256 << 10
UNDER_WAY_BYTES: Final = 1 << 20
"""What a leader may send before it is written here."""

_log = logging.getLogger(__name__)


class _Answer:
    """Listens to an answer."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._is_over = False
        self._error: Exception | None = None
        self._wanted: asyncio.Future[None] | None = None

    async def take(self) -> bytes | None:
        """Return what has come since; None if there is no more. Raises why it ended."""
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._is_over:
                return None
            self._wanted = asyncio.get_running_loop().create_future()
            await self._wanted
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data

    def answered(self, status: int, body: bytes, *, is_last: bool) -> None:
        self.piece(body, is_last=is_last)

    def piece(self, body: bytes, *, is_last: bool) -> None:
        self._pieces.append(body)
        self._is_over |= is_last
        self._wake()

    def failed(self, error: Exception) -> None:
        self._error = error
        self._wake()

    def drained(self) -> None:
        """Nothing more is asked."""

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)


class _Room:
    """Listens for room in the channel of an answer."""

    def __init__(self) -> None:
        self._drained: asyncio.Future[None] | None = None
        self.is_gone = False

    async def room(self, channel: Channel) -> None:
        """Return when there is room for more, or nobody hears it."""
        if channel.is_blocked and channel.is_open:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def answered(self, status: int, body: bytes, *, is_last: bool) -> None:
        raise AssertionError("we were asked")

    def piece(self, body: bytes, *, is_last: bool) -> None:
        """All was said with the request."""

    def failed(self, error: Exception) -> None:
        self.is_gone = True
        self.drained()

    def drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)


class Installs:
    """All copies that a node makes and gives."""

    def __init__(
        self,
        peers: Peers,
        catch_up: CatchUp,
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        self._peers = peers
        self._catch_up = catch_up
        self._spawn = spawn
        self._turns = asyncio.Semaphore(AT_ONCE)
        self.counts = InstallCounts()

    def __repr__(self) -> str:
        return f"<Installs of {self._peers!r}>"

    # Giving

    def requested(self, channel: Channel, body: bytes, find: Find) -> None:
        """Another node asks for segments: only a leader's are what it needs."""
        try:
            request = CopyRequest.decode(body)
        except BadMessage as error:
            channel.cancel(str(error))
            return
        hosted = find(request.log_id)
        log = None if hosted is None else hosted.leading_log(request.epoch)
        if log is None:
            channel.cancel("this node does not lead the partition")
            return
        listener = channel.listener = _Room()
        self._spawn(self._give(channel, listener, log.copy()))

    async def _give(self, channel: Channel, listener: _Room, copy: LogCopy) -> None:
        channel.answer(0, copy.head.encode(), is_last=not copy.segments)
        for number, (_, data) in enumerate(copy.segments):
            crc = 0
            for at in range(0, len(data), READ_BYTES):
                # In a thread: what is old comes from the disk.
                part = await asyncio.to_thread(bytes, data[at : at + READ_BYTES])
                await self._when_allowed(len(part))
                crc = crc32c(part, crc)
                channel.send(part)
                await listener.room(channel)
                if listener.is_gone:
                    return
            channel.send(encode_crc(crc), is_last=number + 1 == len(copy.segments))

    async def _when_allowed(self, size: int) -> None:
        now_s = asyncio.get_running_loop().time()
        wait_s = self._catch_up.wait_s(now_s)
        self._catch_up.spend(size, now_s)
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    # Taking

    def begin(self, hosted: "Hosted", source: ReplicaId) -> asyncio.Task[None]:
        """Copy what a leader cannot stream any more beside a log; the log's core hears of it."""
        request = CopyRequest(hosted.log_id, hosted.epoch)
        return self._spawn(self._take(hosted, hosted.log, request, source))

    async def _take(
        self, hosted: "Hosted", log: ReplicaLog, request: CopyRequest, source: ReplicaId
    ) -> None:
        counts, is_used, is_begun = self.counts, False, False
        try:
            async with self._turns:
                counts.begun, is_begun = counts.begun + 1, True
                intent = await self._copied(log, request, source, hosted.host.clock.now_ms())
        except (Unavailable, Closed) as error:
            _log.info("copy_ended partition=%s source=%s: %s", hosted.name, source, error)
            hosted.copy_failed(source)
        except (BadInput, BadMessage, StorageError) as error:
            hosted.copy_failed(source, problem=f"segments of {node_of(source)}: {error}")
        else:
            is_used = hosted.copied(source, intent)
            if not is_used:
                with suppress(StorageError, Closed):  # the next opening removes them
                    await _in_thread(partial(remove_copied, log.store.folder))
        finally:
            counts.finished += is_used
            counts.failed += is_begun and not is_used

    async def _copied(
        self, log: ReplicaLog, request: CopyRequest, source: ReplicaId, now_ms: int
    ) -> Intent:
        incoming, reader = _Answer(), CopyReader()
        channel = self._peers.ask(node_of(source), INSTALL, request.encode(), incoming)
        channel.grant(UNDER_WAY_BYTES - WINDOW_BYTES)
        writer: CopyWriter | None = None
        try:
            while (data := await incoming.take()) is not None:
                for item in reader.feed(data):
                    if isinstance(item, CopyHead):
                        writer = await self._begun(log, request, item, now_ms)
                        continue
                    assert writer is not None
                    if isinstance(item, SegmentEnd):
                        await _in_thread(partial(writer.end_segment, item.crc))
                    else:
                        await _in_thread(partial(writer.write, item.data))
                self.counts.received_bytes += len(data)
                channel.grant(len(data))
            if writer is None or not reader.is_whole:
                raise BadMessage("the answer ends too early")
            return await _in_thread(writer.finish)
        finally:
            channel.cancel("it is not needed any more")
            if writer is not None:
                writer.close()

    async def _begun(
        self, log: ReplicaLog, request: CopyRequest, head: CopyHead, now_ms: int
    ) -> CopyWriter:
        if head.end <= log.end and not log.is_faulty:
            raise Unavailable("there is nothing that could not be streamed")
        size = sum(each.size for each in head.segments)
        _log.info("copy_begun folder=%r end=%d bytes=%d", log.store.folder, head.end, size)
        make = partial(CopyWriter, log.store.folder, request.log_id, head, now_ms=now_ms)
        return await _in_thread(make)


async def _in_thread(work: Callable[[], T]) -> T:
    """Return what is done on a thread; nobody goes on before it has ended."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
