"""A partition of which this node has no copy, or a damaged one, read from a node that has one.

To whoever reads it is what `LogReader` is, with one difference: what was not pulled yet is not
there (`at` says None, and has it pulled), so a reader is woken when it has come, or waits for it
(`load`). Only what is committed is pulled, and of that the frames with messages: the rest is
`Missing` here.

Frames are pulled in batches, one request at a time for each place that is read, so what is on its
way is bounded; what was pulled is kept as long as the cache has room. While somebody listens, one
request waits at the other node until the log has grown.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from waterclock.log.frame import Frame
from waterclock.log.schema import decode
from waterclock.model.errors import NotLeader, Unavailable, Unreachable, WaterclockError
from waterclock.model.units import MIB
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.log_reader import LogReader, Missing

READ_BYTES: Final = 1 * MIB
"""Pulled by one request, and one frame more."""
READ_FRAMES: Final = 1_024
SCAN_BYTES: Final = 32 * MIB
"""Looked at for one request: those without messages are passed."""
LOADS_MAX: Final = 8
"""Places of a partition that are pulled at once; more wait for one of these."""
FOLLOW_MS: Final = 20_000
"""How long a request waits for the log to grow; then it is asked again."""
ASK_S: Final = 10.0
"""How long a node is looked for that answers whoever waits."""
PAUSE_S: Final = 0.02
PAUSE_S_MAX: Final = 0.5
GROUP_CACHE_BYTES: Final = 64 * MIB
SCAN_CACHE_BYTES: Final = 4 * MIB

log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class LogQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is asked about a log."""

    topic: str
    partition: int
    offset: int = -1
    """Frames from here on; -1: none."""
    bytes_max: int = 0
    beyond: int = -1
    """Answer when it reaches further than this ..."""
    wait_ms: int = 0
    """... but wait no longer."""
    times: tuple[int, ...] = ()
    """Where it stood at these times."""


class LogAnswer(NamedTuple):
    """What a node says of its copy."""

    start: int
    end: int
    """Of what is committed."""
    retained: int
    """Retention took what consumers get below this."""
    log_id: bytes
    log_time_ms: int
    frames: list[Frame]
    """Those with messages."""
    next_offset: int
    """How far was looked."""
    positions: tuple[int, ...]


class RemoteReads(Protocol):
    """Asks a node that has a copy of a partition."""

    async def read(self, query: LogQuery) -> LogAnswer:
        """Return what it says; raises Unavailable if nobody answers now."""
        ...


def frames_from(reader: LogReader, offset: int, bytes_max: int) -> tuple[list[Frame], int]:
    """Return frames with messages from an offset on, one whatever its size; and how far was
    looked."""
    found: list[Frame] = []
    size = looked = 0
    while len(found) < READ_FRAMES and looked <= SCAN_BYTES:
        frame = reader.at(offset)
        if frame is None:
            break
        if isinstance(frame, Missing):
            offset = frame.end
            continue
        looked += frame.header.size
        if frame.header.is_deliverable:
            size += frame.header.size
            if found and size > bytes_max:
                break
            found.append(frame)
        offset = frame.header.end_offset
    return found, offset


class _Pulled:
    """Frames that were pulled together; between them there is nothing to hand out."""

    __slots__ = ("_ends", "_frames", "end", "log", "size_bytes", "start")

    def __init__(self, log: "RemoteLog", start: int, end: int, frames: list[Frame]) -> None:
        self.log = log
        self.start, self.end = start, end
        if frames:
            self.start = min(start, frames[0].header.base_offset)
        self._frames = frames
        self._ends = [frame.header.end_offset for frame in frames]
        self.size_bytes = sum(frame.header.size for frame in frames)

    def at(self, offset: int) -> Frame | Missing:
        number = bisect_right(self._ends, offset)
        if number == len(self._frames):
            return Missing(offset, self.end)
        frame = self._frames[number]
        base = frame.header.base_offset
        return frame if base <= offset else Missing(offset, base)


class FrameCache:
    """What was pulled of some logs, and used last."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._pulled: OrderedDict[_Pulled, None] = OrderedDict()
        self.size_bytes = 0

    def __repr__(self) -> str:
        return f"<FrameCache {self.size_bytes} B>"

    def add(self, pulled: _Pulled) -> None:
        """Keep it, and let go of what was not used for longest."""
        self._pulled[pulled] = None
        self.size_bytes += pulled.size_bytes
        while self.size_bytes > self._bytes_max and len(self._pulled) > 1:
            oldest = next(iter(self._pulled))
            self.remove(oldest)
            oldest.log.forget(oldest)

    def use(self, pulled: _Pulled) -> None:
        """Note that it was used."""
        self._pulled.move_to_end(pulled)

    def remove(self, pulled: _Pulled) -> None:
        """Let go of it."""
        del self._pulled[pulled]
        self.size_bytes -= pulled.size_bytes


class RemoteLog:
    """Reads a partition elsewhere. With `spawn` it pulls by itself what `at` did not find."""

    def __init__(
        self,
        host: PartitionHost,
        cache: FrameCache | None = None,
        spawn: Spawn | None = None,
    ) -> None:
        self.host = host
        self.start = self.retained = 0
        self.end = int(host.store.acknowledged_end) if host.is_open else 0
        """As far as is known: `refresh` asks. What a damaged copy here knows is committed, is."""
        self.log_id = b""
        self.log_time_ms = 0
        self._cache = cache or FrameCache(SCAN_CACHE_BYTES)
        self._spawn = spawn
        self._pulled: list[_Pulled] = []
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None
        self._listeners: dict[object, Callable[[], None]] = {}
        self._is_read_at_end = False
        self._decoded: tuple[Frame, pa.RecordBatch] | None = None

    def __repr__(self) -> str:
        return f"<RemoteLog of {self.host.topic}/{self.host.partition} [{self.start}, {self.end})>"

    # As a `LogReader`

    def at(self, offset: int) -> Frame | Missing | None:
        """Return the frame that spans `offset`; None if it is not here, or not there yet."""
        for pulled in self._pulled:
            if pulled.start <= offset < pulled.end:
                self._cache.use(pulled)
                return pulled.at(offset)
        if offset >= self.end:
            self._is_read_at_end = True
        elif offset < self.start:
            return Missing(offset, self.start)
        else:
            self._load_soon(offset)
        return None

    def has(self, start: int, end: int) -> bool:
        """Say if [start, end) can be read from its beginning on; if not, it is pulled."""
        return self.at(start) is not None

    def rows(self, frame: Frame) -> pa.RecordBatch:
        """Return the rows of a frame; those of the last one are kept."""
        if self._decoded is None or self._decoded[0] is not frame:
            self._decoded = frame, decode(frame.header, frame.body)
        return self._decoded[1]

    async def refresh(self) -> None:
        """Learn how far it reaches now."""
        self._note(await self._ask(self._query()))

    async def load(self, offset: int) -> None:
        """Return once `at` finds what is at an offset below the end, if you look at once.

        Raises Unavailable if no copy that answers is known to be committed that far.
        """
        if self.at(offset) is None:
            self._take(offset, await self._ask(self._query(offset=offset, bytes_max=READ_BYTES)))

    async def offset_at(self, time_ms: int) -> int:
        """Return where it stood at a time."""
        return (await self._ask(self._query(times=(time_ms,)))).positions[0]

    def on_readable(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when there is more to read, or something has been pulled; return what ends
        that."""
        assert self._spawn is not None
        key = object()
        self._listeners[key] = callback
        if self._following is None:
            self._following = self._spawn(self._follow())

        def stop() -> None:
            self._listeners.pop(key, None)

        return stop

    # Pulling

    def close(self) -> None:
        """Pull nothing more."""
        self._listeners.clear()
        for task in (*self._loading.values(), self._following):
            if task is not None:
                task.cancel()
        for pulled in self._pulled:
            self._cache.remove(pulled)
        self._pulled = []

    def forget(self, pulled: _Pulled) -> None:
        """Let go of frames for which there is no room."""
        self._pulled.remove(pulled)

    def _load_soon(self, offset: int) -> None:
        loading = self._loading
        if self._spawn is not None and offset not in loading and len(loading) < LOADS_MAX:
            loading[offset] = self._spawn(self._pull(offset))

    def _query(
        self,
        *,
        offset: int = -1,
        bytes_max: int = 0,
        beyond: int = -1,
        wait_ms: int = 0,
        times: tuple[int, ...] = (),
    ) -> LogQuery:
        where = self.host.topic, self.host.partition
        return LogQuery(*where, offset, bytes_max, beyond, wait_ms, times)

    async def _read(self, query: LogQuery) -> LogAnswer:
        """Ask once; raises Unavailable if nobody answers."""
        reads, where = self.host.reads, f"{self.host.topic}/{self.host.partition}"
        if reads is None:
            raise Unavailable(f"{where}: the node does not ask others yet")
        answer = await reads.read(query)
        # What is asked for is there: whoever asks has heard of it, perhaps of another copy.
        if query.beyond < 0 and 0 <= answer.next_offset <= query.offset:
            raise Unavailable(f"{where}: the copy that is read does not reach {query.offset} yet")
        return answer

    async def _ask(self, query: LogQuery) -> LogAnswer:
        """Ask for a while."""
        loop = asyncio.get_running_loop()
        end, pause_s = loop.time() + ASK_S, PAUSE_S
        while True:
            try:
                return await self._read(query)
            except Unavailable:
                if loop.time() + pause_s > end:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _pull(self, offset: int) -> None:
        """Pull what is at an offset, sooner or later."""
        try:
            await self._try(self._query(offset=offset, bytes_max=READ_BYTES))
        finally:
            self._loading.pop(offset, None)
        self._tell()

    async def _follow(self) -> None:
        """Know how far the log reaches, as long as somebody listens."""
        beyond, wait_ms = -1, 0
        try:
            while self._listeners:
                query = self._query(beyond=beyond, wait_ms=wait_ms)
                if self._is_read_at_end and beyond >= 0:
                    query = self._query(
                        beyond=beyond, wait_ms=wait_ms, offset=beyond, bytes_max=READ_BYTES
                    )
                self._is_read_at_end = False
                before = self.end
                await self._try(query)
                if self.end > before:
                    self._tell()
                beyond, wait_ms = self.end, FOLLOW_MS
        finally:
            self._following = None

    async def _try(self, query: LogQuery) -> None:
        """Ask until there is an answer, and take it."""
        pause_s = PAUSE_S
        while True:
            try:
                self._take(query.offset, await self._read(query))
                return
            except WaterclockError as error:
                if not isinstance(error, Unavailable):
                    log.warning("remote_read_failed log=%r error=%s", self, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _take(self, offset: int, answer: LogAnswer) -> None:
        self._note(answer)
        if answer.next_offset > offset >= 0:
            pulled = _Pulled(self, offset, answer.next_offset, answer.frames)
            self._pulled.insert(0, pulled)
            self._cache.add(pulled)

    def _note(self, answer: LogAnswer) -> None:
        # A copy that is asked later may be behind: what is committed stays so.
        self.start = max(self.start, answer.start)
        self.end = max(self.end, answer.end)
        self.retained = max(self.retained, answer.retained)
        self.log_id, self.log_time_ms = answer.log_id, answer.log_time_ms

    def _tell(self) -> None:
        for callback in tuple(self._listeners.values()):
            callback()


PartitionLog = LogReader | RemoteLog


def is_elsewhere(host: PartitionHost) -> bool:
    """Say if a partition is to be read from other nodes: this one has no copy, or a damaged one."""
    if host.is_open:
        return bool(host.store.faults) and host.has_others()
    return host.role == "closed" and host.problem is None


def log_of(host: PartitionHost) -> PartitionLog:
    """Return a partition's log, to be read once: the copy here, or one elsewhere.

    Raises as `host.store` does if there is neither.
    """
    if is_elsewhere(host):
        return RemoteLog(host)
    return LogReader(host.store, met_damage=host.met_damage)


async def current_log(host: PartitionHost) -> PartitionLog:
    """Return a partition's log with all in it that was acknowledged when this was called.

    A copy that follows may be a moment behind its leader, who is asked how far it reaches; while
    nobody leads, nothing is acknowledged either, and the copy is taken as it is.
    """
    if is_elsewhere(host) or host.role != "follower" or host.reads is None:
        log = log_of(host)
        await log.refresh()
        return log
    end = 0
    try:
        end = (await host.reads.read(LogQuery(host.topic, host.partition))).end
        async with asyncio.timeout(ASK_S):
            await host.flush_queue.wait_flushed(end)
    except TimeoutError:
        where = f"{host.topic}/{host.partition}"
        raise Unavailable(f"{where}: the copy here does not reach {end} yet") from None
    except (NotLeader, Unreachable):
        pass
    return log_of(host)


async def logs_elsewhere(
    hosts: Iterable[PartitionHost], spawn: Spawn | None = None
) -> dict[int, RemoteLog]:
    """Return the logs, by partition, that are read elsewhere, as far as they reach now."""
    logs = {host.partition: RemoteLog(host, spawn=spawn) for host in hosts if is_elsewhere(host)}
    if logs:
        await asyncio.gather(*(each.refresh() for each in logs.values()))
    return logs


def is_current(log: PartitionLog, host: PartitionHost) -> bool:
    """Say if a log is still the one to read: copies come and go, and are opened anew."""
    if isinstance(log, LogReader):
        return host.is_open and host.store is log.store and not is_elsewhere(host)
    return is_elsewhere(host)
