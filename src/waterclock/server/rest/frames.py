"""A partition in bulk over HTTP: its frames as they lie in the log, and how far the log has come.

For readers that want millions of messages and have no gRPC, such as the tasks of a Spark job: one
request brings megabytes of whole frames (docs/formats/frame.md), nothing is decoded on this side,
and the bytes go from the memory map to the socket. A connection is given the next pieces only when
it has taken the last, so a reader that does not read holds nothing but its connection.

`ends` is for readers that wait for news of a whole topic: one request instead of one a partition.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from waterclock.log.frame import Frame
from waterclock.model.units import KIB, MIB
from waterclock.node.node import Node
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.remote_log import RemoteLog, is_elsewhere, logs_elsewhere
from waterclock.node.topics import Topic
from waterclock.security.rights import Needs
from waterclock.server.calls import Calls
from waterclock.server.cluster.calls.place import Place
from waterclock.server.fetch import (
    FETCH_WAIT_MS_MAX,
    FetchedFrames,
    FetchQuery,
    FrameFetcher,
    retained_offset,
)
from waterclock.server.http.input import END, matching, parameters_of
from waterclock.server.http.messages import Later, Piece, Request, Response, Streamed, json
from waterclock.server.http.operations import Operation, ResponseSpec
from waterclock.server.rest.models import (
    OFFSET_MAX,
    AnyTopicParameters,
    Offset,
    Partition,
    ResponseModel,
)

FRAMES = b"application/vnd.waterclock.frames"
FRAMES_BYTES_DEFAULT = 8 * MIB
FRAMES_BYTES_MAX = 32 * MIB
PIECE_BYTES = 1 * MIB
"""Larger frames are written in parts of this size; a write is as much as a socket takes."""
SMALL_BYTES_MAX = 64 * KIB
"""Frames up to this are put together: a copy costs less than a system call."""

WaitMs = Annotated[
    int,
    Meta(ge=0, le=FETCH_WAIT_MS_MAX, description="How long to wait if there is nothing new."),
]
RemoteLogs = Mapping[int, RemoteLog]
"""By partition, those that only other nodes have."""
_PARTITION_OFFSET = r"(0|[1-9][0-9]{0,3}):(0|[1-9][0-9]{0,15})"
BEYOND = rf"^{_PARTITION_OFFSET}(,{_PARTITION_OFFSET})*" + END


class FramesParameters(AnyTopicParameters):
    partition: Annotated[Partition, Meta(examples=[0])]
    offset: Annotated[Offset, Meta(description="From the frame with this one on.")] = 0
    end_offset: (
        Annotated[int, Meta(ge=0, le=OFFSET_MAX, description="Up to those that begin below.")]
        | None
    ) = None
    bytes_max: Annotated[
        int,
        Meta(ge=1, le=FRAMES_BYTES_MAX, description="So much at most; one frame always comes."),
    ] = FRAMES_BYTES_DEFAULT
    wait_ms: WaitMs = 0
    deliverable_only: Annotated[
        bool,
        Meta(description="Without scheduled messages and other frames that are not delivered."),
    ] = False


class EndsParameters(AnyTopicParameters):
    """Of which topic, and what is known."""

    beyond: (
        Annotated[
            str,
            matching(
                BEYOND, "Known ends, partition:offset, with commas: wait for one to pass.", "0:0"
            ),
            Meta(max_length=12_000),
        ]
        | None
    ) = None
    wait_ms: WaitMs = 0


class EndResponse(ResponseModel):
    """How far a partition reaches."""

    partition: int
    start_offset: int = -1
    end_offset: int = -1
    """Of what can be read."""
    retained_offset: int = -1
    """Retention took what was below; the log may begin earlier, with the ids it remembers."""
    problem: str | UnsetType = UNSET
    """Why it cannot be read at all; the offsets are -1 then."""


class EndsResponse(ResponseModel):
    """How far each partition reaches."""

    partitions: list[EndResponse]


class FramesApi:
    """Hands out frames, and ends."""

    def __init__(self, node: Node, calls: Calls, fetching: FrameFetcher) -> None:
        self._node = node
        self._calls = calls
        self._fetching = fetching
        self._waiting: dict[str, set[asyncio.Event]] = {}
        """By topic, the requests that wait for an end to move."""
        node.topics.on_updated.append(self._changed)
        node.topics.on_deleted.append(self._changed)

    def frames(self, request: Request) -> Streamed | Later:
        """Send frames; at once if there are some."""
        asked = parameters_of(request, FramesParameters)
        query = FetchQuery(
            topic=asked.topic,
            partition=asked.partition,
            offset=asked.offset,
            end_offset=asked.end_offset,
            bytes_max=asked.bytes_max,
            wait_ms=asked.wait_ms,
            deliverable_only=asked.deliverable_only,
        )
        topic = self._node.topics.get(query.topic)
        host = self._fetching.host_of(query)
        found = self._fetching.find_nowait(host, query)
        if self._fetching.must_wait(found, query):
            return self._frames_later(topic, host, query)
        return _streamed(topic, host, found)

    async def _frames_later(self, topic: Topic, host: PartitionHost, query: FetchQuery) -> Streamed:
        return _streamed(topic, host, await self._fetching.find(host, query))

    def ends(self, request: Request) -> Response | Later:
        """Tell how far each partition reaches; wait, if asked to, until one has moved."""
        asked = parameters_of(request, EndsParameters)
        topic = self._node.topics.get(asked.topic)
        known = _known(asked.beyond)
        if any(map(is_elsewhere, topic.partitions)):
            return self._ends_elsewhere(topic, known, asked.wait_ms)
        if asked.wait_ms and not _has_news(topic, known, {}):
            return self._ends_later(topic, known, asked.wait_ms, {})
        return _ends(topic, {})

    async def _ends_elsewhere(self, topic: Topic, known: dict[int, int], wait_ms: int) -> Response:
        """Tell the same, with what other nodes have."""
        logs = await logs_elsewhere(topic.partitions, self._node.spawn)
        if wait_ms and not _has_news(topic, known, logs):
            return await self._ends_later(topic, known, wait_ms, logs)
        return _ends(topic, logs)

    async def _ends_later(
        self, topic: Topic, known: dict[int, int], wait_ms: int, logs: RemoteLogs
    ) -> Response:
        moved = asyncio.Event()
        stops = [
            host.flush_queue.on_readable(moved.set) for host in topic.partitions if host.is_open
        ]
        stops += [log.on_readable(moved.set) for log in logs.values()]
        stops += [log.close for log in logs.values()]
        waiting = self._waiting.setdefault(topic.name, set())
        waiting.add(moved)
        try:
            async with self._calls.waiting(wait_ms / 1_000):
                while not (self._is_gone(topic) or _has_news(topic, known, logs)):
                    await moved.wait()
                    moved.clear()
        except TimeoutError:
            pass
        finally:
            for stop in stops:
                stop()
            waiting.discard(moved)
            if not waiting:
                self._waiting.pop(topic.name, None)
        # It may have been deleted meanwhile, and another one have its name.
        return _ends(self._node.topics.get(topic.name), logs)

    def _is_gone(self, topic: Topic) -> bool:
        return self._node.topics.find(topic.name) is not topic

    def _changed(self, topic: Topic) -> None:
        for moved in self._waiting.get(topic.name, ()):
            moved.set()

    def operations(self) -> list[Operation]:
        """Return its part of the table."""
        return [
            Operation(
                "GET", "/topics/{topic}/partitions/{partition}/frames", self.frames, "readFrames",
                "Read a partition's frames as they lie in its log: the fast way out.",
                {200: ResponseSpec("Frames, or none.", content_type=FRAMES)}, tag="past",
                description="Whole frames back to back, checksums and all; docs/formats/frame.md. "
                "The headers Waterclock-Next-Offset, -Start-Offset and -End-Offset say where to "
                "go on, and what can be read.",
                parameters=FramesParameters, problems=(404, 409),
                place=Place(kind="replica", topic="topic", partition="partition"),
                needs=Needs("read", topic="topic"),
            ),
            Operation(
                "GET", "/topics/{topic}/ends", self.ends, "waitForEnds",
                "Tell how far each partition reaches; wait until one has moved.",
                {200: ResponseSpec("All partitions.", EndsResponse)}, tag="past",
                description="Answers at once if a partition reaches beyond what is known of it, "
                "or nothing is known of it.",
                parameters=EndsParameters, problems=(404,),
                place=Place(kind="replica", topic="topic"),
                needs=Needs("read", topic="topic"),
            ),
        ]  # fmt: skip


def _streamed(topic: Topic, host: PartitionHost, found: FetchedFrames) -> Streamed:
    store = host.store
    headers = (
        b"Waterclock-Next-Offset: %d\r\nWaterclock-Start-Offset: %d\r\n"
        b"Waterclock-End-Offset: %d\r\nWaterclock-Retained-Offset: %d\r\n"
        % (found.next_offset, store.start, store.acknowledged_end, retained_offset(topic, store))
    )
    pieces = _pieces(found.frames)
    return Streamed(200, pieces, FRAMES, headers, length=found.size_bytes)


async def _pieces(frames: Iterable[Frame]) -> AsyncIterator[Piece]:
    """Yield the bytes of frames: large ones as views, small ones put together."""
    small: list[memoryview] = []
    size = 0
    for frame in frames:
        raw = frame.raw
        if len(raw) <= SMALL_BYTES_MAX:
            small.append(raw)
            size += len(raw)
            if size < PIECE_BYTES:
                continue
        if small:
            yield b"".join(small)
            small, size = [], 0
        if len(raw) > SMALL_BYTES_MAX:
            for at in range(0, len(raw), PIECE_BYTES):
                yield raw[at : at + PIECE_BYTES]
    if small:
        yield b"".join(small)


def _known(beyond: str | None) -> dict[int, int]:
    """Return ends by partition; of one that is named twice, the last."""
    return {
        int(number): int(offset) for number, offset in re.findall(_PARTITION_OFFSET, beyond or "")
    }


def _has_news(topic: Topic, known: dict[int, int], logs: RemoteLogs) -> bool:
    """Say if a partition reaches beyond what is known of it."""
    return any(
        host.partition not in known
        or (host.is_open and host.store.acknowledged_end > known[host.partition])
        or (host.partition in logs and logs[host.partition].end > known[host.partition])
        for host in topic.partitions
    )


def _ends(topic: Topic, logs: RemoteLogs) -> Response:
    ends = [_end(topic, host, logs.get(host.partition)) for host in topic.partitions]
    return json(200, EndsResponse(partitions=ends))


def _end(topic: Topic, host: PartitionHost, log: RemoteLog | None) -> EndResponse:
    if log is not None:
        return EndResponse(
            partition=host.partition,
            start_offset=log.start,
            end_offset=log.end,
            retained_offset=log.retained,
        )
    if not host.is_open:
        return EndResponse(partition=host.partition, problem=host.problem or "is not open")
    store = host.store
    return EndResponse(
        partition=host.partition,
        start_offset=store.start,
        end_offset=store.acknowledged_end,
        retained_offset=retained_offset(topic, store),
    )
