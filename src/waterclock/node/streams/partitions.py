"""The partitions of `__streams`, as this node has them: followed everywhere, used where they lead.

A stored stream lies in the partition of its name. Every replica indexes what is committed, so a new
leader need not read the log before it goes on. The leader alone writes and is read: positions and
repeats are decided by what it has written. When it leads no more, what it wrote and nobody
committed must not be known any longer; then its index is made anew.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import assert_never

from waterclock.log.partitioner import partition_of_key
from waterclock.model.clock import Clock
from waterclock.model.errors import NotLeader, Unavailable, WaterclockError
from waterclock.model.units import MIB
from waterclock.model.views import TopicSettings
from waterclock.node.partition.host import PartitionHost
from waterclock.node.streams.requests import (
    BroughtOver,
    DeleteMessages,
    ReadPage,
    Request,
    StoreRecords,
    TakeOver,
)
from waterclock.node.topics import STREAMS_TOPIC, Topic, Topics
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.rewrite import Pass
from waterclock.stores.log.store import is_worth_rewriting
from waterclock.stores.log.streams import LogStreams

PARTITIONS = 16
"""Cannot change once there are streams: their names say where they are."""
SETTINGS = TopicSettings(partitions=PARTITIONS, retention_ms=0, retention_bytes=0)
"""Messages of streams have their own time, and no offset says when it is over."""
STEP_BYTES = 1 * MIB
"""What is indexed before others have their turn."""

log = logging.getLogger(__name__)


def partition_of_stream(stream: bytes, partitions: int = PARTITIONS) -> int:
    """Return the partition that has a stream."""
    return partition_of_key(stream, partitions)


class StreamPartition:
    """One partition of stored streams."""

    def __init__(self, host: PartitionHost, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._streams: LogStreams | None = None
        self._place: tuple[str, int, bool, PartitionStore | None] | None = None
        """What the host was when it was last looked at."""
        self._stop_listening: Callable[[], None] = lambda: None
        self._is_step_due = False
        self.is_leading = False
        """This node writes it: all that was written before is committed, and indexed."""
        host.on_role.append(lambda host: self._role_changed())
        self._role_changed()

    def __repr__(self) -> str:
        return f"<StreamPartition {self._host.partition} {self._host.role} {self._streams}>"

    @property
    def streams(self) -> LogStreams:
        """What to ask; raises NotLeader if another node is to be asked."""
        host = self._host
        if not self.is_leading or self._streams is None:
            leader = "" if host.role == "leader" else host.leader
            raise NotLeader(f"{host.topic}/{host.partition}", leader=leader)
        if host.paused:
            # Another may lead by now, and know more.
            raise Unavailable(f"{host.topic}/{host.partition}: {host.paused}: ask again")
        return self._streams

    def begin_rewrite(self, *, now_ms: int) -> tuple[Pass, Callable[[], None]] | None:
        """Return what rewrites the log, and what to call after it; None if it is not worth it."""
        streams = self._streams
        # What is not indexed yet would be taken for what is of no use.
        if streams is None or streams.end != streams.partition.end:
            return None
        return streams.begin_rewrite(now_ms=now_ms) if is_worth_rewriting(streams) else None

    def _role_changed(self) -> None:
        host = self._host
        is_here = host.is_open and host.role != "closed"
        place = host.role, host.epoch, host.is_led, host.store if is_here else None
        if place == self._place:
            return
        self._place = place
        self._resign()
        store = place[-1]
        if self._streams is None or self._streams.partition is not store:
            self._stop_listening()
            self._stop_listening = lambda: None
            self._streams = None
            if store is None:
                return
            self._streams = LogStreams(store, self._clock)
            self._stop_listening = host.flush_queue.on_readable(self._advance)
        self._advance()

    def _resign(self) -> None:
        if not self.is_leading:
            return
        assert self._streams is not None
        self.is_leading, self._streams.log = False, None
        if self._streams.end > self._streams.partition.acknowledged_end:
            self._streams.is_over = True
            self._streams = None

    def _advance(self) -> None:
        """Index what was committed; lead once that is all there was when the lead was won."""
        host, streams = self._host, self._streams
        if streams is None or self.is_leading:
            return
        try:
            is_all = streams.take_in(bytes_max=STEP_BYTES)
        except WaterclockError as error:
            log.error("streams_not_read partition=%d reason=%s", host.partition, error)
            self._streams = None
            return
        if not is_all:
            if not self._is_step_due:
                self._is_step_due = True
                asyncio.get_running_loop().call_soon(self._step)
        elif host.is_led and streams.end >= host.store.end:
            streams.log, self.is_leading = host, True

    def _step(self) -> None:
        self._is_step_due = False
        self._advance()


class StreamPartitions:
    """All of them."""

    def __init__(self, topics: Topics, clock: Clock, *, settings: TopicSettings = SETTINGS) -> None:
        self._clock = clock
        self._topics = topics
        self._settings = settings
        self._partitions: dict[int, StreamPartition] = {}
        self._is_made = asyncio.Event()
        topics.on_opened.append(self._opened)
        found = topics.find(STREAMS_TOPIC)
        if found is not None:
            for host in found.partitions:
                self._opened(found, host)

    def __repr__(self) -> str:
        led = [number for number, each in self._partitions.items() if each.is_leading]
        return f"<StreamPartitions leads {led}>"

    def _opened(self, topic: Topic, host: PartitionHost) -> None:
        if topic.name == STREAMS_TOPIC:
            self._partitions[host.partition] = StreamPartition(host, self._clock)
            self._is_made.set()

    async def make(self) -> None:
        """Make them, unless they are there. Call it on the leader of the records."""
        await self._topics.ensure_own(STREAMS_TOPIC, self._settings)

    async def made(self) -> None:
        """Return when there are any."""
        await self._is_made.wait()

    @property
    def count(self) -> int:
        """How many there are, once they are made."""
        return len(self._topics.get(STREAMS_TOPIC).partitions)

    async def perform(self, request: Request) -> object:
        """Do what the leader of a partition is asked; raises NotLeader where it is not."""
        match request:
            case StoreRecords(partition, stream, records, now_ms):
                return await self._led(partition).store(stream, records, now_ms=now_ms)
            case ReadPage(partition, stream, after, limit, now_ms, bytes_max):
                return self._led(partition).read(
                    stream, after=after, limit=limit, now_ms=now_ms, bytes_max=bytes_max
                )
            case DeleteMessages(partition, stream, older_than_ms):
                return await self._led(partition).delete(stream, older_than_ms=older_than_ms)
            case TakeOver(partition, rows):
                await self._led(partition).take_over(rows)
                return None
            case BroughtOver():
                raise AssertionError("it is for the leader of the records")
            case _:
                assert_never(request)

    async def purge(self, *, now_ms: int, limit: int) -> int:
        """Remove expired messages of the partitions that this node leads, at most so many."""
        count = 0
        for partition in self._partitions.values():
            if partition.is_leading and count < limit:
                count += await partition.streams.purge(now_ms=now_ms, limit=limit - count)
        return count

    def begin_rewrite(self, number: int, *, now_ms: int) -> tuple[Pass, Callable[[], None]] | None:
        """Return what rewrites the log of a partition, and what to call after it, if it should."""
        partition = self._partitions.get(number)
        return None if partition is None else partition.begin_rewrite(now_ms=now_ms)

    def _led(self, number: int) -> LogStreams:
        partition = self._partitions.get(number)
        if partition is None:
            raise NotLeader(f"{STREAMS_TOPIC}/{number}")
        return partition.streams
