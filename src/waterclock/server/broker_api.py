"""Publish, PublishBatch and Fetch; the methods that are conversations have files of their own.

Bytes in flight are bounded both ways. A publish counts until it is answered; what was fetched
counts until gRPC has taken it for sending: who asks for much and reads nothing is held up.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from waterclock.log.frame import Frame
from waterclock.model.errors import FrameDamaged, OffsetOutOfRange
from waterclock.model.units import MIB, MINUTE_MS
from waterclock.node.node import Node
from waterclock.node.partition_host import PartitionHost
from waterclock.server.calls import Calls, Stream
from waterclock.server.fields import check_not_negative, check_range
from waterclock.server.in_flight import BytesInFlight
from waterclock.server.publish_stream import PublishStreams
from waterclock.server.replay_stream import ReplayStreams
from waterclock.server.row_messages import from_proto, published_to_proto
from waterclock.server.subscribe_stream import Subscriptions
from waterclock.server.wire import nested
from waterclock.v1 import broker_pb2 as pb

FETCH_BYTES_DEFAULT = 4 * MIB
FETCH_BYTES_MAX = 64 * MIB
FETCH_WAIT_MS_MAX = 1 * MINUTE_MS
FETCHED_BYTES_MAX = 512 * MIB
"""Bytes of frames on their way out; more are refused until some have gone."""
SCAN_BYTES_MAX = 32 * MIB
"""Frames looked at in one go for one that can be delivered."""


@dataclass(slots=True)
class _Fetched:
    """Frames found so far, and how far was looked."""

    next_offset: int
    frames: list[Frame] = field(default_factory=list)
    size_bytes: int = 0
    is_full: bool = False
    """There may be more, but enough was looked at."""


class BrokerApi:
    """The methods of `waterclock.v1.Broker`."""

    def __init__(self, node: Node, calls: Calls) -> None:
        self._node = node
        self._calls = calls
        self.subscribe = Subscriptions(node, calls).subscribe
        self.replay = ReplayStreams(node, calls).replay
        self.publishing = BytesInFlight("bytes of publishes", node.config.server.publish_bytes_max)
        self.fetching = BytesInFlight("bytes of fetched frames", FETCHED_BYTES_MAX)
        self.publish_stream = PublishStreams(node, calls, self.publishing).publish_stream

    async def publish(self, request: pb.PublishRequest) -> pb.PublishResponse:
        """Publish one message."""
        with self.publishing.holding(request.ByteSize()):
            published = await self._node.gathering.publish(
                request.topic,
                from_proto(request.message),
                partition=request.partition if request.HasField("partition") else None,
                allow_duplicate=request.allow_duplicate,
                expires_ms=request.expires_ms if request.HasField("expires_ms") else None,
            )
        return pb.PublishResponse(
            partition=published.partition,
            offset=published.offset,
            message_id=published.message_id,
            is_new=published.is_new,
        )

    async def publish_batch(self, request: pb.PublishBatchRequest) -> pb.PublishBatchResponse:
        """Publish an Arrow batch."""
        arrow = request.arrow
        with self.publishing.holding(len(arrow)):
            published = await self._node.publishing.publish_batch(
                request.topic,
                arrow,
                partition=request.partition if request.HasField("partition") else None,
                allow_duplicate=request.allow_duplicate,
                is_sticky=request.is_sticky,
            )
        return published_to_proto(published)

    async def fetch(self, request: pb.FetchRequest, stream: Stream) -> None:
        """Read frames. It writes its one answer itself, to know when it has gone."""
        bytes_max = request.bytes_max or FETCH_BYTES_DEFAULT
        check_range("bytes_max", bytes_max, FETCH_BYTES_MAX)
        check_range("wait_ms", request.wait_ms, FETCH_WAIT_MS_MAX)
        check_not_negative(offset=request.offset, end_offset=request.end_offset)
        host = self._node.topics.get(request.topic).partition(request.partition)
        if request.offset > host.store.acknowledged_end:
            store = host.store
            raise OffsetOutOfRange(request.offset, start=store.start, end=store.acknowledged_end)
        fetched = await self._fetched(host, request, bytes_max)
        small = pb.FetchResponse(
            next_offset=fetched.next_offset,
            start_offset=host.store.start,
            end_offset=host.store.acknowledged_end,
        ).SerializeToString()
        with self.fetching.holding(fetched.size_bytes):
            raw = [frame.raw for frame in fetched.frames]
            await stream.write(nested([pb.FetchResponse.FRAMES_FIELD_NUMBER], [small], raw))

    async def _fetched(
        self, host: PartitionHost, request: pb.FetchRequest, bytes_max: int
    ) -> _Fetched:
        """Return frames; wait for the first if there is none yet."""
        fetched = _collect(host, request, request.offset, bytes_max)
        if fetched.frames or fetched.is_full or not request.wait_ms:
            return fetched
        try:
            async with self._calls.waiting(request.wait_ms / 1_000):
                while not fetched.frames and not fetched.is_full:
                    await host.readable(fetched.next_offset)
                    fetched = _collect(host, request, fetched.next_offset, bytes_max)
        except TimeoutError:
            return fetched
        return fetched


def _collect(
    host: PartitionHost, request: pb.FetchRequest, offset: int, bytes_max: int
) -> _Fetched:
    """Read frames from an offset on, as many as fit; one is returned whatever its size."""
    fetched = _Fetched(offset)
    end = request.end_offset if request.HasField("end_offset") else None
    if end is not None and offset >= end:
        fetched.is_full = True
        return fetched
    scanned = 0
    for frame in _sound(host.store.frames(offset, end), fetched):
        size = frame.header.size
        scanned += size
        is_wanted = frame.header.is_deliverable or not request.deliverable_only
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


def _sound(frames: Iterator[Frame], fetched: _Fetched) -> Iterator[Frame]:
    """Yield frames up to damage, which is raised only if nothing was found in front of it."""
    try:
        yield from frames
    except FrameDamaged:
        if not fetched.frames:
            raise
        fetched.is_full = True
