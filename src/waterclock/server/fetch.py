"""Raw frames of a partition by offset: found here, sent by gRPC and HTTP.

Frames are views of the memory map, their checksums looked at and nothing else of them. A reader
that asks for what is not there yet waits for the first frame; one that looks for messages in a
stretch without any learns how far was looked, so that it does not hold up the loop.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from waterclock.log.frame import Frame
from waterclock.model.errors import FrameDamaged, NotLeader, OffsetOutOfRange
from waterclock.model.units import MIB, MINUTE_MS
from waterclock.node.node import Node
from waterclock.node.partition.host import PartitionHost
from waterclock.node.topics import Topic
from waterclock.server.calls import Calls
from waterclock.storage.partition_store import PartitionStore

FETCH_WAIT_MS_MAX = 1 * MINUTE_MS
SCAN_BYTES_MAX = 32 * MIB
"""Frames looked at in one go for one that can be delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchQuery:
    """What is asked for; its numbers are within their limits."""

    topic: str
    partition: int
    offset: int
    end_offset: int | None
    bytes_max: int
    """One frame is returned whatever its size."""
    wait_ms: int
    deliverable_only: bool


@dataclass(slots=True)
class FetchedFrames:
    """Frames found so far, and how far was looked."""

    next_offset: int
    frames: list[Frame] = field(default_factory=list)
    size_bytes: int = 0
    is_full: bool = False
    """There may be more, but enough was looked at."""


class FrameFetcher:
    def __init__(self, node: Node, calls: Calls) -> None:
        self._node = node
        self._calls = calls

    def host_of(self, query: FetchQuery) -> PartitionHost:
        """Return the partition; raises OffsetOutOfRange if the offset cannot be in it yet, and
        NotLeader if a copy has nothing there that may only be late."""
        host = self._node.topics.get(query.topic).partition(query.partition)
        store = host.store
        if host.role == "follower" and query.offset >= store.acknowledged_end:
            raise NotLeader(f"{host.topic}/{host.partition}", leader=host.leader)
        if query.offset > store.acknowledged_end:
            raise OffsetOutOfRange(query.offset, start=store.start, end=store.acknowledged_end)
        return host

    def find_nowait(self, host: PartitionHost, query: FetchQuery) -> FetchedFrames:
        return _collect(host, query, query.offset)

    def must_wait(self, found: FetchedFrames, query: FetchQuery) -> bool:
        """Say if nothing was found, and the reader has time."""
        return bool(query.wait_ms) and not (found.frames or found.is_full)

    async def find(self, host: PartitionHost, query: FetchQuery) -> FetchedFrames:
        """Return frames; wait for the first if there is none yet."""
        found = self.find_nowait(host, query)
        if not self.must_wait(found, query):
            return found
        try:
            async with self._calls.waiting(query.wait_ms / 1_000):
                while not found.frames and not found.is_full:
                    await host.flush_queue.wait_flushed(found.next_offset + 1)
                    found = _collect(host, query, found.next_offset)
        except TimeoutError:
            return found
        return found


def _collect(host: PartitionHost, query: FetchQuery, offset: int) -> FetchedFrames:
    """Read frames from an offset on, as many as fit; one is returned whatever its size."""
    fetched = FetchedFrames(offset)
    end, bytes_max = query.end_offset, query.bytes_max
    if end is not None and offset >= end:
        fetched.is_full = True
        return fetched
    scanned = 0
    for frame in _sound(host.store.frames(offset, end), fetched):
        size = frame.header.size
        scanned += size
        is_wanted = frame.header.is_deliverable or not query.deliverable_only
        if is_wanted and fetched.frames and fetched.size_bytes + size > bytes_max:
            fetched.is_full = True
            break
        fetched.next_offset = frame.header.end_offset
        if is_wanted:
            fetched.frames.append(frame)
            fetched.size_bytes += size
        if scanned > max(SCAN_BYTES_MAX, bytes_max):
            fetched.is_full = True
            break
    return fetched


def _sound(frames: Iterator[Frame], fetched: FetchedFrames) -> Iterator[Frame]:
    """Yield frames up to damage, which is raised only if nothing was found in front of it."""
    try:
        yield from frames
    except FrameDamaged:
        if not fetched.frames:
            raise
        fetched.is_full = True


def retained_offset(topic: Topic, store: PartitionStore) -> int:
    """Return the offset below which retention took what consumers get.

    Only a rewrite raises a segment's generation, and without compaction by key only segments are
    rewritten that lie wholly below what retention keeps (`Pass.jobs`).
    """
    if not topic.settings.is_compacted:
        for segment in reversed(store.segments[:-1]):
            if segment.header.generation:
                return segment.end_offset
    return store.start
