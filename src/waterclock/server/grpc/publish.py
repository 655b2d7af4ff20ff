"""Publish, PublishBatch and PublishStream: the way in over gRPC.

A single message or batch counts against the bytes of all publishes until it is answered; beyond the
bound it is refused. A stream has batches one way and answers the other, matched by number. Batches
of a stream are appended in the order they came, and answered as they become durable. What is wrong
with one is its answer; the stream goes on. Of a stream nothing is refused for being too much: the
server reads no further until there is room, and HTTP/2 makes the producer wait.
"""

import asyncio
from collections import deque
from contextlib import ExitStack, suppress
from functools import partial

from grpc import StatusCode

from waterclock.log.batch import parse_batch
from waterclock.model.errors import BadInput, Stopping, WaterclockError
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.node.node import Node
from waterclock.node.publish.publisher import Published
from waterclock.node.task_groups import task_group
from waterclock.server.calls import BytesInFlight, Calls, Stream
from waterclock.server.grpc.fields import acks_of
from waterclock.server.statuses import Status, status_of
from waterclock.v1 import broker_pb2 as pb

BATCHES_MAX = 256
"""Batches of a stream being worked on, those whose answer has not gone out included."""


class PublishApi:
    """The methods of `waterclock.v1.Broker` that publish."""

    def __init__(self, node: Node, calls: Calls, publishing: BytesInFlight) -> None:
        self._node = node
        self._calls = calls
        self._publishing = publishing

    async def publish(self, request: pb.PublishRequest) -> pb.PublishResponse:
        """Publish one message; the node batches it with others of the moment."""
        with self._publishing.holding(request.ByteSize()):
            published = await self._node.batcher.publish(
                request.topic,
                _message(request.message),
                partition=request.partition if request.HasField("partition") else None,
                allow_duplicate=request.allow_duplicate,
                expires_ms=request.expires_ms if request.HasField("expires_ms") else None,
                acks=acks_of(request.acks),
            )
        return pb.PublishResponse(
            partition=published.partition,
            offset=published.offset,
            message_id=published.message_id,
            is_new=published.is_new,
            made_partitions=published.made_partitions,
        )

    async def publish_batch(self, request: pb.PublishBatchRequest) -> pb.PublishBatchResponse:
        arrow = request.arrow
        with self._publishing.holding(len(arrow)):
            published = await self._node.publisher.publish_batch(
                request.topic,
                arrow,
                partition=request.partition if request.HasField("partition") else None,
                allow_duplicate=request.allow_duplicate,
                is_sticky=request.is_sticky,
                acks=acks_of(request.acks),
            )
        return batch_response(published)

    async def publish_stream(self, _: object, stream: Stream) -> None:
        """Serve one producer until it half-closes."""
        problem: Stopping | None = None
        async with task_group() as tasks:
            producer = Producer(self._node, self._publishing, stream, tasks)
            try:
                async with self._calls.waiting():
                    await producer.read()
            except Stopping as error:
                problem = error  # what was read is answered first
        if problem is not None:
            raise problem


class Producer:
    """One producer's stream."""

    def __init__(
        self, node: Node, publishing: BytesInFlight, stream: Stream, tasks: asyncio.TaskGroup
    ) -> None:
        self._node = node
        self._publishing = publishing
        self._stream = stream
        self._tasks = tasks
        self._answers: deque[bytes] = deque()
        self._is_writing = False
        self._in_flight = 0
        self._room = asyncio.Event()

    async def read(self) -> None:
        """Take batches until there are no more."""
        read, tasks = self._stream.read, self._tasks
        while True:
            while self._in_flight >= BATCHES_MAX:
                self._room.clear()
                await self._room.wait()
            request = await read()
            if request is None:
                return
            arrow = request.batch.arrow
            made = 0
            refusal = self._stream.refusal_of(request)
            if refusal is None and self._node.topics.find(request.batch.topic) is None:
                made = await self._make_topic(request.batch)
            await self._publishing.acquire(len(arrow))
            held = ExitStack()
            held.callback(self._publishing.release, len(arrow))
            self._in_flight += 1
            task = tasks.create_task(self._publish(request, arrow, held, made, refusal))
            # A task that is cancelled before its first step gives nothing back by itself.
            task.add_done_callback(partial(_let_go, held))

    async def _make_topic(self, batch: pb.PublishBatchRequest) -> int:
        """Make a topic before its first batch: others would overtake one that waits for it. Return
        its partitions if that made it."""
        node, partition = self._node, batch.partition if batch.HasField("partition") else None
        # If the batch is refused, or the topic cannot be made, publishing it tells why.
        with suppress(WaterclockError):
            acks_of(batch.acks)
            parse_batch(batch.arrow, node.config.limits, now_ms=node.clock.now_ms())
            return (await node.topics.ensure(batch.topic, partition=partition)).made_partitions
        return 0

    async def _publish(
        self,
        request: pb.PublishStreamRequest,
        arrow: bytes,
        held: ExitStack,
        made: int,
        refusal: WaterclockError | None,
    ) -> None:
        batch = request.batch
        answer = pb.PublishStreamResponse(sequence=request.sequence)
        try:
            if refusal is not None:
                raise refusal
            if not request.HasField("batch"):
                raise BadInput("batch: the request has none")
            published = await self._node.publisher.publish_batch(
                batch.topic,
                arrow,
                partition=batch.partition if batch.HasField("partition") else None,
                allow_duplicate=batch.allow_duplicate,
                is_sticky=batch.is_sticky,
                acks=acks_of(batch.acks),
            )
            answer.published.CopyFrom(batch_response(published))
            answer.published.made_partitions = answer.published.made_partitions or made
        except Exception as error:
            answer.problem.CopyFrom(problem_of(status_of(error, "Broker/PublishStream")))
        finally:
            held.close()
        self._answers.append(answer.SerializeToString())
        if not self._is_writing:
            await self._write_answers()

    async def _write_answers(self) -> None:
        """Write until no answer is left: one publish that has ended writes for all."""
        self._is_writing = True
        while self._answers:
            await self._stream.write(self._answers.popleft())
            self._in_flight -= 1
            self._room.set()
        self._is_writing = False


def _let_go(held: ExitStack, _: object) -> None:
    held.close()


def _message(message: pb.Message) -> Message:
    """Return the message of a request; an empty id is none."""
    headers = message.headers
    return Message(
        message.value if message.HasField("value") else None,
        key=message.key if message.HasField("key") else None,
        message_id=message.message_id or None,
        headers=dict(headers) if headers else None,
        due_ms=Millis(message.due_ms) if message.HasField("due_ms") else None,
    )


def batch_response(published: Published) -> pb.PublishBatchResponse:
    """Return where the messages of a batch are, as clients are told."""
    response = pb.PublishBatchResponse(
        count=published.count,
        partition=published.partition,
        first_offset=published.first_offset,
        made_partitions=published.made_partitions,
    )
    # Almost always all three are absent.
    if published.offsets is not None:
        response.offsets.extend(published.offsets.tolist())
    if published.partitions is not None:
        response.partitions.extend(published.partitions.tolist())
    if published.duplicates is not None:
        response.duplicates.extend(published.duplicates.tolist())
    return response


def problem_of(status: Status) -> pb.Problem:
    """Return what is wrong with one batch of many, as clients are told."""
    facts = dict(status.trailers)
    code: StatusCode = status.code
    limit = facts.get("waterclock-limit", "0")
    return pb.Problem(
        code=code.value[0],
        message=status.details,
        error=facts.get("waterclock-error", ""),
        field=facts.get("waterclock-field", ""),
        limit=int(limit),
    )
