"""Replay: a stretch of the past over one gRPC stream, at the reader's pace. FindMessages: what of
it has a key.

The client begins, takes batches until `finished`, and reports what it has processed (`done`) in
between if the replay has a name. After `finished` it may report the rest and half-closes; the call
ends then, or after a while. Half-closing earlier is fine too: nothing more is reported then. A
client that was cut off, or took longer with the last batch, begins again by the name,
with what is `done` in the same request.
"""

from collections.abc import Iterator

from waterclock.model.errors import BadInput, LimitExceeded, Stopping
from waterclock.node.groups.outbound import DeliveryBatch
from waterclock.node.node import Node
from waterclock.node.replay.key_search import KeySearch
from waterclock.node.replay.records import OffsetRange, PartitionOffset, Request, TimeRange
from waterclock.node.replay.replays import Replay, ReplayBatch
from waterclock.node.replay.snapshot_files import SnapshotBatch
from waterclock.node.task_groups import task_group
from waterclock.server.calls import Calls, Stream
from waterclock.server.grpc.fields import check_not_negative, member_of
from waterclock.server.grpc.wire import nested, numbers, times_of
from waterclock.server.rows import in_slices, rows_to_proto
from waterclock.v1 import broker_pb2 as pb

DONE_MAX = 10_000
"""Reports in one request."""
PARTITIONS_MAX = 10_000
LAST_REPORTS_S = 60.0
"""How long a named replay that is finished waits for its last reports."""

Batch = pb.ReplayResponse.Batch


class ReplayStreams:
    def __init__(self, node: Node, calls: Calls) -> None:
        self._node = node
        self._calls = calls

    async def replay(self, _: object, stream: Stream) -> None:
        """Serve one replay until it is over, or its reader is gone."""
        first = await stream.read()
        if first is None or not first.HasField("begin"):
            raise BadInput("begin: the first request must have it")
        begin: pb.ReplayRequest.Begin = first.begin
        is_arrow = member_of(pb.Format, "format", begin.format) == pb.FORMAT_ARROW
        check_not_negative(checkpoint_every=begin.checkpoint_every)
        replay = await self._node.replays.begin(
            _request(begin),
            name=begin.name,
            checkpoint_every=begin.checkpoint_every,
            done=_positions(first),
        )
        reading = Reading(replay, self._calls, is_arrow=is_arrow)
        try:
            await reading.run(stream)
        finally:
            replay.close()

    async def find_messages(self, request: pb.FindMessagesRequest, stream: Stream) -> None:
        """Send the messages of a key as they are found, and how far they were looked for."""
        if not request.HasField("key"):
            raise BadInput("key: is missing")
        is_arrow = member_of(pb.Format, "format", request.format) == pb.FORMAT_ARROW
        start, end, count = request.offset, request.end_offset, request.count
        check_not_negative(partition=request.partition, offset=start, end_offset=end, count=count)
        search = KeySearch(request.key, start=start, count=count, end=end)
        # The search counts what it finds, and not what it looks at.
        everything = Request(request.topic, (request.partition,), None, OffsetRange(start))
        replay = await self._node.replays.begin(everything)
        try:
            async for batch in search.batches(replay):
                for event in _events(batch, is_arrow=is_arrow):
                    if self._calls.is_stopping:
                        raise Stopping("the node is stopping: try again, or elsewhere")
                    await stream.write(event)
        finally:
            replay.close()
        finished = pb.ReplayResponse.Finished(
            messages=search.found,
            looked_at=search.rows,
            next_offset=search.next_offset,
            is_at_end=search.is_at_end,
        )
        await stream.write(pb.ReplayResponse(finished=finished).SerializeToString())


class Reading:
    def __init__(self, replay: Replay, calls: Calls, *, is_arrow: bool) -> None:
        self._replay = replay
        self._calls = calls
        self._is_arrow = is_arrow

    async def run(self, stream: Stream) -> None:
        """Send the batches, then wait for the last reports of a named replay."""
        async with task_group() as tasks:
            listening = tasks.create_task(self._listen(stream))
            async for batch in self._replay:
                for event in _events(batch, is_arrow=self._is_arrow):
                    if self._calls.is_stopping:
                        raise Stopping("the node is stopping: a named replay goes on later")
                    await stream.write(event)
            finished = pb.ReplayResponse.Finished(messages=self._replay.messages)
            await stream.write(pb.ReplayResponse(finished=finished).SerializeToString())
            if self._replay.name:
                try:
                    async with self._calls.waiting(LAST_REPORTS_S):
                        await listening
                except TimeoutError:
                    return
            listening.cancel()

    async def _listen(self, stream: Stream) -> None:
        while True:
            request = await stream.read()
            if request is None:
                return
            if request.HasField("begin"):
                raise BadInput("begin: only the first request may have it")
            self._replay.report(_positions(request))


def _events(batch: ReplayBatch, *, is_arrow: bool) -> Iterator[bytes]:
    messages = batch.messages
    if is_arrow and isinstance(messages, SnapshotBatch):
        yield _of_snapshot(batch, messages)
        return
    if is_arrow and isinstance(messages, DeliveryBatch):
        head = Batch(
            partition=batch.partition, bounds=messages.bounds, next_offset=batch.next_offset
        )
        yield nested(
            [
                pb.ReplayResponse.BATCH_FIELD_NUMBER,
                Batch.MESSAGES_FIELD_NUMBER,
                pb.Messages.ARROW_FIELD_NUMBER,
            ],
            [b"", head.SerializeToString(), times_of(messages)],
            [messages.arrow],
        )
        return
    for some in in_slices(messages):
        is_last = some.bounds[-1] == messages.ranges[-1][1]
        part = Batch(
            partition=batch.partition,
            bounds=some.bounds,
            messages=rows_to_proto(some),
            next_offset=batch.next_offset if is_last else some.bounds[-1],
        )
        yield pb.ReplayResponse(batch=part).SerializeToString()


def _of_snapshot(batch: ReplayBatch, messages: SnapshotBatch) -> bytes:
    """Return a batch whose offsets lie apart: 8 bytes each, as they lie in memory."""
    head = Batch(partition=batch.partition, next_offset=batch.next_offset).SerializeToString()
    offsets = numbers(Batch.OFFSETS_FIELD_NUMBER, messages.offsets)
    times = numbers(Batch.APPEND_MS_FIELD_NUMBER, messages.append_times)
    return nested(
        [
            pb.ReplayResponse.BATCH_FIELD_NUMBER,
            Batch.MESSAGES_FIELD_NUMBER,
            pb.Messages.ARROW_FIELD_NUMBER,
        ],
        [
            b"",
            head + offsets + times,
            pb.Messages(append_ms=messages.append_ms).SerializeToString(),
        ],
        [messages.arrow],
    )


def _positions(request: pb.ReplayRequest) -> list[PartitionOffset]:
    """Return how far a reader says it has come."""
    if len(request.done) > DONE_MAX:
        raise LimitExceeded("done positions of a request", DONE_MAX, got=len(request.done))
    for position in request.done:
        check_not_negative(partition=position.partition, offset=position.offset)
    return [(position.partition, position.offset) for position in request.done]


def _request(begin: pb.ReplayRequest.Begin) -> Request:
    if len(begin.partitions) > PARTITIONS_MAX:
        raise LimitExceeded("partitions", PARTITIONS_MAX, got=len(begin.partitions))
    times = offsets = None
    if begin.HasField("times"):
        given = begin.times
        check_not_negative(start_ms=given.start_ms, end_ms=given.end_ms)
        times = TimeRange(given.start_ms, given.end_ms, given.by_due)
    if begin.HasField("offsets"):
        check_not_negative(start=begin.offsets.start, count=begin.offsets.count)
        offsets = OffsetRange(begin.offsets.start, begin.offsets.count)
    return Request(begin.topic, tuple(begin.partitions), times, offsets, begin.compacted)
