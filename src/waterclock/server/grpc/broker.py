"""The Broker service: Fetch here, publishing, subscriptions and replays from files of their own.

What was fetched counts against a bound until gRPC has taken it for sending: a client that asks for
much and reads nothing is held up.
"""

from waterclock.model.units import MIB
from waterclock.node.node import Node
from waterclock.server.calls import BytesInFlight, Calls, Stream
from waterclock.server.fetch import FETCH_WAIT_MS_MAX, FetchQuery, FrameFetcher
from waterclock.server.grpc.fields import check_not_negative, check_range
from waterclock.server.grpc.publish import PublishApi
from waterclock.server.grpc.replay import ReplayStreams
from waterclock.server.grpc.subscribe import Subscriptions
from waterclock.server.grpc.wire import nested
from waterclock.v1 import broker_pb2 as pb

FETCH_BYTES_DEFAULT = 4 * MIB
FETCH_BYTES_MAX = 64 * MIB
FETCHED_BYTES_MAX = 512 * MIB
"""Bytes of frames on their way out; more are refused until some have gone."""


class BrokerApi:
    """The methods of `waterclock.v1.Broker`."""

    def __init__(self, node: Node, calls: Calls) -> None:
        self._node = node
        self.frames = FrameFetcher(node, calls)
        self.subscribe = Subscriptions(node, calls).subscribe
        replays = ReplayStreams(node, calls)
        self.replay = replays.replay
        self.find_messages = replays.find_messages
        self.publishing = BytesInFlight("bytes of publishes", node.config.server.publish_bytes_max)
        publishing = PublishApi(node, calls, self.publishing)
        self.publish = publishing.publish
        self.publish_batch = publishing.publish_batch
        self.publish_stream = publishing.publish_stream
        self.fetching = BytesInFlight("bytes of fetched frames", FETCHED_BYTES_MAX)

    async def fetch(self, request: pb.FetchRequest, stream: Stream) -> None:
        """Read frames. It writes its one answer itself, to know when it has gone."""
        bytes_max = request.bytes_max or FETCH_BYTES_DEFAULT
        check_range("bytes_max", bytes_max, FETCH_BYTES_MAX)
        check_range("wait_ms", request.wait_ms, FETCH_WAIT_MS_MAX)
        check_not_negative(offset=request.offset, end_offset=request.end_offset)
        query = FetchQuery(
            topic=request.topic,
            partition=request.partition,
            offset=request.offset,
            end_offset=request.end_offset if request.HasField("end_offset") else None,
            bytes_max=bytes_max,
            wait_ms=request.wait_ms,
            deliverable_only=request.deliverable_only,
        )
        host = self.frames.host_of(query)
        fetched = await self.frames.find(host, query)
        small = pb.FetchResponse(
            next_offset=fetched.next_offset,
            start_offset=host.store.start,
            end_offset=host.store.acknowledged_end,
        ).SerializeToString()
        with self.fetching.holding(fetched.size_bytes):
            raw = [frame.raw for frame in fetched.frames]
            await stream.write(nested([pb.FetchResponse.FRAMES_FIELD_NUMBER], [small], raw))
